//! Memory keys: what a local or remote key opens, and for whom.

use crate::charge::Charge;
use crate::memory::Pinned;
use crate::window::Window;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Access rights, as IBV_ACCESS_* has them.
pub mod access {
    /// The device may write on behalf of local requests.
    pub const LOCAL_WRITE: u32 = 1;
    /// RDMA WRITE.
    pub const REMOTE_WRITE: u32 = 2;
    /// RDMA READ.
    pub const REMOTE_READ: u32 = 4;
    /// Atomics.
    pub const REMOTE_ATOMIC: u32 = 8;
    /// Windows may be bound to it.
    pub const BIND: u32 = 16;
    /// FLUSH until everyone on the host sees the bytes.
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    /// Rights a registration may ask for; the rest but the optional ones, and FLUSH where the device has it, is not supported.
    pub const KNOWN: u32 = 31;
    /// Bits that a device may ignore, relaxed ordering among them.
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

/// A registered region.
pub struct Region {
    /// Protection domain.
    pub pd: u32,
    /// First address under which requests name it.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: u32,
    /// The memory.
    pub memory: Pinned,
    /// What it counts against the limit of locked memory.
    pub _charge: Charge,
    /// Taken away, by its owner or by a fault injection.
    pub revoked: AtomicBool,
    /// Windows bound to it.
    pub windows: AtomicU32,
}

/// A range inside a region that has passed the checks.
#[derive(Clone)]
pub struct Span {
    /// The region.
    pub region: Arc<Region>,
    /// Offset in it.
    pub at: usize,
}

impl Span {
    /// A range of a region, if it is inside and the region has not been taken away.
    pub fn of(region: Arc<Region>, addr: u64, len: u64) -> Option<Span> {
        let at = addr.checked_sub(region.iova)?;
        let inside = at.checked_add(len).is_some_and(|end| end <= region.len);
        (inside && !region.revoked.load(Ordering::Relaxed)).then_some(Span { region, at: at as usize })
    }
}

/// One place of the table: the key's low byte changes with each use, so that an old key does not open a new region.
#[derive(Default)]
struct Slot {
    tag: u8,
    content: Content,
}

#[derive(Default)]
enum Content {
    #[default]
    Nothing,
    Region(Arc<Region>),
    Window(Window),
}

/// The keys of one open device. A region's local and remote key are the same number.
#[derive(Default)]
pub struct Keys {
    slots: RwLock<Vec<Slot>>,
}

impl Keys {
    /// Adds a region and returns its key, which is never 0.
    pub fn add(&self, region: Region) -> u32 {
        self.put(Content::Region(Arc::new(region)))
    }

    /// Adds a window, bound to nothing, and returns its key.
    pub fn add_window(&self, window: Window) -> u32 {
        self.put(Content::Window(window))
    }

    fn put(&self, content: Content) -> u32 {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let free = slots.iter().skip(1).position(|s| matches!(s.content, Content::Nothing)).map(|n| n + 1);
        let at = free.unwrap_or_else(|| {
            // Place 0 stays empty: key 0 is what a program gives when it gives none.
            let at = slots.len().max(1);
            slots.resize_with(at + 1, Slot::default);
            at
        });
        let slot = &mut slots[at];
        slot.tag = slot.tag.wrapping_add(1);
        slot.content = content;
        (at as u32) << 8 | u32::from(slot.tag)
    }

    /// Removes a region: `EINVAL` when windows are bound to it or it is none.
    pub fn remove(&self, key: u32) -> Result<(), i32> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut(key as usize >> 8).filter(|s| s.tag == key as u8).ok_or(libc::EINVAL)?;
        match &slot.content {
            Content::Region(r) if r.windows.load(Ordering::Relaxed) == 0 => r.revoked.store(true, Ordering::Relaxed),
            _ => return Err(libc::EINVAL),
        }
        slot.content = Content::Nothing;
        Ok(())
    }

    /// Puts another region under a key: what was it before is taken away.
    pub fn replace(&self, key: u32, region: Region) -> Result<(), i32> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut(key as usize >> 8).filter(|s| s.tag == key as u8).ok_or(libc::EINVAL)?;
        match &slot.content {
            Content::Region(r) if r.windows.load(Ordering::Relaxed) == 0 => r.revoked.store(true, Ordering::Relaxed),
            _ => return Err(libc::EINVAL),
        }
        slot.content = Content::Region(Arc::new(region));
        Ok(())
    }

    /// Changes the window in the place that a key names, whatever its low byte. `f` gets the low byte, too.
    pub fn with_window<T>(&self, key: u32, f: impl FnOnce(&mut Window, &mut u8) -> T) -> Option<T> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut(key as usize >> 8)?;
        let Content::Window(window) = &mut slot.content else { return None };
        Some(f(window, &mut slot.tag))
    }

    /// Removes a window.
    pub fn remove_window(&self, key: u32) {
        self.with_window(key, |w, _| w.unbind());
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get_mut(key as usize >> 8) {
            slot.content = Content::Nothing;
        }
    }

    /// The region of a key.
    pub fn get(&self, key: u32) -> Option<Arc<Region>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        match &slots.get(key as usize >> 8).filter(|s| s.tag == key as u8)?.content {
            Content::Region(region) => Some(region.clone()),
            _ => None,
        }
    }

    /// Takes the rights of every region away.
    pub fn revoke_all(&self) {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter() {
            if let Content::Region(region) = &slot.content {
                region.revoked.store(true, Ordering::Relaxed);
            }
        }
    }

    /// A range under a remote key: that of a region, or of a window that is open to this queue pair.
    pub fn remote(&self, key: u32, pd: u32, qp: u32, addr: u64, len: u64, need: u32) -> Option<Span> {
        {
            let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
            let slot = slots.get(key as usize >> 8).filter(|s| s.tag == key as u8)?;
            if let Content::Window(window) = &slot.content {
                return window.span(pd, qp, addr, len, need);
            }
        }
        self.span(key, pd, addr, len, need)
    }

    /// A range under a key, for a queue pair of protection domain `pd`, with all of the rights in `need`. `None` when
    /// any of it does not fit.
    pub fn span(&self, key: u32, pd: u32, addr: u64, len: u64, need: u32) -> Option<Span> {
        let region = self.get(key)?;
        let fits = region.pd == pd && region.access & need == need;
        Span::of(region, addr, len).filter(|_| fits)
    }
}

#[cfg(test)]
mod tests {
    use super::access::{LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE};
    use super::*;

    fn region(buffer: &[u8]) -> Region {
        let memory = Pinned::new(buffer.as_ptr() as usize, buffer.len(), false).expect("pin");
        let len = buffer.len() as u64;
        Region {
            pd: 1,
            iova: 0x1000,
            len,
            access: LOCAL_WRITE | REMOTE_READ,
            memory,
            _charge: Charge::default(),
            revoked: false.into(),
            windows: 0.into(),
        }
    }

    #[test]
    fn a_key_opens_what_it_should_and_nothing_else() {
        let (keys, buffer) = (Keys::default(), vec![7; 100]);
        let key = keys.add(region(&buffer));
        assert_ne!(key, 0);
        let opens = |key, pd, addr, len, need| keys.span(key, pd, addr, len, need).is_some();
        assert!(opens(key, 1, 0x1000, 100, REMOTE_READ));
        assert!(opens(key, 1, 0x1064, 0, 0));
        assert!(!opens(key, 2, 0x1000, 100, REMOTE_READ), "another protection domain");
        assert!(!opens(key, 1, 0xfff, 10, 0), "before it");
        assert!(!opens(key, 1, 0x1001, 100, 0), "past it");
        assert!(!opens(key, 1, 0x1000, u64::MAX, 0), "far past it");
        assert!(!opens(key, 1, 0x1000, 1, REMOTE_WRITE), "no such right");
        assert!(!opens(key + 1, 1, 0x1000, 1, 0), "another key");
        assert!(!opens(0, 1, 0x1000, 1, 0), "no key");
    }

    #[test]
    fn an_old_key_does_not_open_a_new_region() {
        let (keys, buffer) = (Keys::default(), vec![7; 100]);
        let old = keys.add(region(&buffer));
        assert_eq!(keys.remove(old), Ok(()));
        assert_eq!(keys.remove(old), Err(libc::EINVAL), "twice");
        let new = keys.add(region(&buffer));
        assert_eq!(old >> 8, new >> 8, "the place is used again");
        assert!(keys.get(old).is_none() && keys.get(new).is_some());
    }
}
