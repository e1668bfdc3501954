//! The table of opened regions: plain atomics, so that the fault face reaches it from a signal handler.

use super::control::Control;
use crate::base::Status;
use crate::link::RegionKey;
use crate::sys::mem::{Mapping, munmap};
use crate::sys::thread::ForkMark;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Most regions one link has open at a time.
pub const SLOTS: usize = 1024;
const INDEX_BITS: u32 = 10;
/// Mappings one slot can hold: the current one and old ones that somebody still copies from.
const MAPS: usize = 4;
const NO_MAP: u32 = u32::MAX;

/// One mapping of the home. `pins` > 0 keeps it mapped.
#[derive(Default, Debug)]
pub(super) struct Map {
    base: AtomicPtr<u8>,
    generation: AtomicU64,
    pins: AtomicU32,
}

/// One opened region. Written by the manager thread; read by everybody.
#[derive(Debug)]
pub(super) struct Slot {
    /// The key while it is open, 0 otherwise.
    pub key: AtomicU32,
    /// Operations that may look at the fields below.
    users: AtomicU32,
    /// 0, or the status operations answer at once.
    pub down: AtomicU32,
    /// True (1) when writing is granted.
    pub writable: AtomicU32,
    /// Bytes.
    pub len: AtomicU64,
    /// When the exporter's heartbeat was last seen to change.
    pub beat_at: AtomicU64,
    control: AtomicPtr<Control>,
    /// The page of an exporter that has gone, until nobody looks at it any more.
    old_control: AtomicPtr<Control>,
    /// How often it was attached to a home.
    pub attachments: AtomicU64,
    current: AtomicU32,
    maps: [Map; MAPS],
    /// Key generation; survives closing.
    opened: AtomicU32,
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            key: AtomicU32::new(0),
            users: AtomicU32::new(0),
            down: AtomicU32::new(0),
            writable: AtomicU32::new(0),
            len: AtomicU64::new(0),
            beat_at: AtomicU64::new(0),
            control: AtomicPtr::default(),
            old_control: AtomicPtr::default(),
            attachments: AtomicU64::new(0),
            current: AtomicU32::new(NO_MAP),
            maps: Default::default(),
            opened: AtomicU32::new(0),
        }
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Table {
    slots: Box<[Slot]>,
    mark: ForkMark,
}

/// A slot in use by one operation: it is not taken down before this is dropped.
pub(super) struct InUse<'a>(&'a Slot);

impl std::ops::Deref for InUse<'_> {
    type Target = Slot;
    fn deref(&self) -> &Slot {
        self.0
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, SeqCst);
    }
}

/// A mapping held in place.
pub(super) struct Pin<'a>(&'a Map);

impl Pin<'_> {
    pub fn base(&self) -> *mut u8 {
        self.0.base.load(SeqCst)
    }
    pub fn generation(&self) -> u64 {
        self.0.generation.load(SeqCst)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, SeqCst);
    }
}

impl Table {
    pub fn new() -> Table {
        Table { slots: (0..SLOTS).map(|_| Slot::default()).collect(), mark: ForkMark::new() }
    }

    pub fn in_child(&self) -> bool {
        self.mark.in_child()
    }

    pub fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// Enters the slot of a key. Async-signal-safe.
    pub fn enter(&self, key: RegionKey) -> Result<InUse<'_>, Status> {
        if self.in_child() {
            return Err(Status::FORKED);
        }
        let slot = self.slots.get(key.0 as usize & (SLOTS - 1)).ok_or(Status::NOT_FOUND)?;
        slot.users.fetch_add(1, SeqCst);
        let used = InUse(slot);
        if key.0 != 0 && used.key.load(SeqCst) == key.0 { Ok(used) } else { Err(Status::NOT_FOUND) }
    }

    /// True while the slot of this key, open or closed, was not given to a later one.
    pub fn is_of(&self, key: RegionKey) -> bool {
        let slot = self.slots.get(key.0 as usize & (SLOTS - 1));
        slot.is_some_and(|s| s.opened.load(SeqCst) == key.0 >> INDEX_BITS)
    }

    /// Fills a free slot and publishes it. Manager thread only.
    pub fn install(
        &self,
        home: Mapping,
        generation: u64,
        control: Mapping,
        len: u64,
        writable: bool,
    ) -> Option<RegionKey> {
        let (i, slot) = self.slots.iter().enumerate().find(|(_, s)| s.is_free())?;
        let n = slot.opened.load(SeqCst).wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        let n = n.max(1);
        slot.opened.store(n, SeqCst);
        slot.down.store(0, SeqCst);
        slot.writable.store(u32::from(writable), SeqCst);
        slot.len.store(len, SeqCst);
        slot.beat_at.store(crate::sys::clock::now(), SeqCst);
        slot.control.store(control.forget().0.cast(), SeqCst);
        slot.attachments.store(1, SeqCst);
        let _ = slot.replace(home, generation);
        let key = n << INDEX_BITS | i as u32;
        slot.key.store(key, SeqCst);
        Some(RegionKey(key))
    }
}

impl Slot {
    fn is_free(&self) -> bool {
        self.key.load(SeqCst) == 0 && self.control.load(SeqCst).is_null()
    }

    /// The control page; only for who is in the slot ([`InUse`]) or is the manager.
    pub fn control(&self) -> Option<&Control> {
        // SAFETY: a non-null pointer is a mapped control page, unmapped only when no user is in the slot.
        unsafe { self.control.load(SeqCst).as_ref() }
    }

    /// Pins the current mapping. Async-signal-safe.
    pub fn pin(&self) -> Option<Pin<'_>> {
        loop {
            let i = self.current.load(SeqCst);
            let map = self.maps.get(i as usize)?;
            map.pins.fetch_add(1, SeqCst);
            let pin = Pin(map);
            // Still current after the pin: the manager cannot have missed it when it looked for pins afterwards.
            if self.current.load(SeqCst) == i {
                return Some(pin);
            }
        }
    }

    /// Makes `home` the current mapping; gives it back when all places are pinned. Manager thread only.
    pub fn replace(&self, home: Mapping, generation: u64) -> Result<(), Mapping> {
        self.unmap_old();
        let now = self.current.load(SeqCst);
        let free = self.maps.iter().enumerate().find(|(i, m)| *i as u32 != now && m.base.load(SeqCst).is_null());
        let Some((i, map)) = free else { return Err(home) };
        map.generation.store(generation, SeqCst);
        map.base.store(home.forget().0, SeqCst);
        self.current.store(i as u32, SeqCst);
        self.unmap_old();
        Ok(())
    }

    /// Unmaps what is neither current nor pinned; true when nothing old is left. Manager thread only.
    pub fn unmap_old(&self) -> bool {
        let now = self.current.load(SeqCst);
        let mut clean = true;
        for (i, map) in self.maps.iter().enumerate() {
            let base = map.base.load(SeqCst);
            if i as u32 == now || base.is_null() {
                continue;
            }
            if map.pins.load(SeqCst) != 0 {
                clean = false;
                continue;
            }
            map.base.store(std::ptr::null_mut(), SeqCst);
            // SAFETY: mapped by the manager with this length, no longer current, and nobody has it pinned.
            let _ = unsafe { munmap(base as usize, self.len.load(SeqCst) as usize) };
        }
        clean
    }

    /// Takes a closed slot down once nobody is in it; true when it is free again. Manager thread only.
    pub fn take_down(&self) -> bool {
        if self.key.load(SeqCst) != 0 || self.users.load(SeqCst) != 0 {
            return false;
        }
        self.current.store(NO_MAP, SeqCst);
        if !self.unmap_old() {
            return false;
        }
        for page in [&self.control, &self.old_control] {
            let c = page.swap(std::ptr::null_mut(), SeqCst);
            if !c.is_null() {
                // SAFETY: mapped by the manager; no user is in the slot and a later one finds key 0.
                let _ = unsafe { munmap(c as usize, super::control::LEN) };
            }
        }
        true
    }

    /// First half of attaching a slot that is down to the home of a new exporter; gives both back while an operation is
    /// under way. The slot stays down, so that no operation goes beyond its first look. Manager thread only.
    pub fn reattach(&self, home: Mapping, generation: u64, control: Mapping) -> Result<(), (Mapping, Mapping)> {
        if self.status().is_ok() || self.users.load(SeqCst) != 0 || !self.old_control.load(SeqCst).is_null() {
            return Err((home, control));
        }
        if let Err(home) = self.replace(home, generation) {
            return Err((home, control));
        }
        let old = self.control.swap(control.forget().0.cast(), SeqCst);
        self.old_control.store(old, SeqCst);
        Ok(())
    }

    /// Second half: once nobody can still hold the old control page the slot is up again; false until then. Manager
    /// thread only.
    pub fn revive(&self) -> bool {
        if self.users.load(SeqCst) != 0 {
            return false;
        }
        let old = self.old_control.swap(std::ptr::null_mut(), SeqCst);
        if !old.is_null() {
            // SAFETY: mapped by the manager, no longer the slot's page, and whoever entered before that has left.
            let _ = unsafe { munmap(old as usize, super::control::LEN) };
        }
        self.beat_at.store(crate::sys::clock::now(), SeqCst);
        self.attachments.fetch_add(1, SeqCst);
        self.down.store(0, SeqCst);
        true
    }

    /// Operations answer `status` from now on. The first cause stays, but that the exporter is gone is not the last word.
    pub fn fail(&self, status: Status) {
        let gone = Status::PEER_DEAD.0 as u32;
        for from in [0, gone] {
            let _ = self.down.compare_exchange(from, status.0 as u32, SeqCst, SeqCst);
        }
    }

    /// OK, or why operations fail. Async-signal-safe.
    pub fn status(&self) -> Status {
        Status(self.down.load(SeqCst) as i32)
    }
}
