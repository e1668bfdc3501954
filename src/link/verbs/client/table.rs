//! The table of opened regions: plain atomics, so that the fault face reaches it from a signal handler.

use super::session::Session;
use crate::base::Status;
use crate::link::RegionKey;
use crate::sys::thread::ForkMark;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};

/// Most regions one link has open at a time.
pub const SLOTS: usize = 256;
const INDEX_BITS: u32 = 8;

#[derive(Default)]
struct Slot {
    /// The key while it is open, 0 otherwise.
    key: AtomicU32,
    /// Operations that may use the session.
    users: AtomicU32,
    session: AtomicPtr<Session>,
    /// Key generation; survives closing.
    opened: AtomicU32,
}

/// The table.
pub(super) struct Table {
    slots: Box<[Slot]>,
    mark: ForkMark,
}

/// A session in use by one operation: its thread does not end before this is dropped.
pub(super) struct InUse<'a> {
    users: &'a AtomicU32,
    session: &'a Session,
}

impl std::ops::Deref for InUse<'_> {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.session
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.users.fetch_sub(1, SeqCst);
    }
}

impl Table {
    pub fn new() -> Arc<Table> {
        Arc::new(Table { slots: (0..SLOTS).map(|_| Slot::default()).collect(), mark: ForkMark::new() })
    }

    pub fn in_child(&self) -> bool {
        self.mark.in_child()
    }

    fn slot(&self, key: RegionKey) -> Option<&Slot> {
        self.slots.get(key.0 as usize & (SLOTS - 1))
    }

    /// Enters the session of a key. Async-signal-safe.
    pub fn enter(&self, key: RegionKey) -> Result<InUse<'_>, Status> {
        if self.in_child() {
            return Err(Status::FORKED);
        }
        let slot = self.slot(key).ok_or(Status::NOT_FOUND)?;
        slot.users.fetch_add(1, SeqCst);
        if key.0 != 0 && slot.key.load(SeqCst) == key.0 {
            // SAFETY: taken out only after the key was, and when no user is in: this one counts since before the look at the key.
            if let Some(session) = unsafe { slot.session.load(SeqCst).as_ref() } {
                return Ok(InUse { users: &slot.users, session });
            }
        }
        slot.users.fetch_sub(1, SeqCst);
        Err(Status::NOT_FOUND)
    }

    /// Puts a session in a free slot.
    pub fn install(&self, session: Arc<Session>) -> Option<RegionKey> {
        let session = Arc::into_raw(session).cast_mut();
        let free = |s: &Slot| s.session.compare_exchange(std::ptr::null_mut(), session, SeqCst, SeqCst).is_ok();
        let Some((i, slot)) = self.slots.iter().enumerate().find(|(_, s)| free(s)) else {
            // SAFETY: made above, and no slot has it.
            drop(unsafe { Arc::from_raw(session) });
            return None;
        };
        let n = (slot.opened.load(SeqCst).wrapping_add(1) & (u32::MAX >> INDEX_BITS)).max(1);
        slot.opened.store(n, SeqCst);
        let key = n << INDEX_BITS | i as u32;
        slot.key.store(key, SeqCst);
        Some(RegionKey(key))
    }

    /// Operations find no such key from now on; what is under way goes on. True for the first who closes it.
    pub fn close(&self, key: RegionKey) -> bool {
        self.slot(key).is_some_and(|s| key.0 != 0 && s.key.compare_exchange(key.0, 0, SeqCst, SeqCst).is_ok())
    }

    /// Empties the slot of a closed key once nobody is in it; false until then. For the session's thread.
    pub fn release(&self, key: RegionKey) -> bool {
        let Some(slot) = self.slot(key) else { return true };
        if slot.key.load(SeqCst) == key.0 || slot.users.load(SeqCst) != 0 {
            return false;
        }
        let session = slot.session.swap(std::ptr::null_mut(), SeqCst);
        if !session.is_null() {
            // SAFETY: from `install`; whoever comes later finds neither key nor session.
            drop(unsafe { Arc::from_raw(session) });
        }
        true
    }

    /// Every open key.
    pub fn keys(&self) -> Vec<RegionKey> {
        self.slots.iter().map(|s| s.key.load(SeqCst)).filter(|k| *k != 0).map(RegionKey).collect()
    }
}
