//! Memory keys: what a local or remote key opens, and for whom.

use crate::memory::Pinned;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Rights a registration may ask for; the rest but the optional ones is not supported.
    pub const KNOWN: u32 = 15;
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
    /// Taken away by a fault injection.
    pub revoked: AtomicBool,
}

/// A range inside a region that has passed the checks.
#[derive(Clone)]
pub struct Span {
    /// The region.
    pub region: Arc<Region>,
    /// Offset in it.
    pub at: usize,
}

/// One place of the table: the key's low byte changes with each use, so that an old key does not open a new region.
#[derive(Default)]
struct Slot {
    tag: u8,
    region: Option<Arc<Region>>,
}

/// The keys of one open device. A region's local and remote key are the same number.
#[derive(Default)]
pub struct Keys {
    slots: RwLock<Vec<Slot>>,
}

impl Keys {
    /// Adds a region and returns its key, which is never 0.
    pub fn add(&self, region: Region) -> u32 {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let free = slots.iter().skip(1).position(|s| s.region.is_none()).map(|n| n + 1);
        let at = free.unwrap_or_else(|| {
            // Place 0 stays empty: key 0 is what a program gives when it gives none.
            let at = slots.len().max(1);
            slots.resize_with(at + 1, Slot::default);
            at
        });
        let slot = &mut slots[at];
        slot.tag = slot.tag.wrapping_add(1);
        slot.region = Some(Arc::new(region));
        (at as u32) << 8 | u32::from(slot.tag)
    }

    /// Removes a key; requests that hold the region finish first or later, but no new one finds it.
    pub fn remove(&self, key: u32) -> Option<Arc<Region>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut(key as usize >> 8).filter(|s| s.tag == key as u8)?;
        slot.region.take()
    }

    /// The region of a key.
    pub fn get(&self, key: u32) -> Option<Arc<Region>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(key as usize >> 8).filter(|s| s.tag == key as u8)?.region.clone()
    }

    /// Takes the rights of every region away.
    pub fn revoke_all(&self) {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.iter().filter_map(|s| s.region.as_ref()).for_each(|r| r.revoked.store(true, Ordering::Relaxed));
    }

    /// A range under a key, for a queue pair of protection domain `pd`, with all of the rights in `need`. `None` when
    /// any of it does not fit.
    pub fn span(&self, key: u32, pd: u32, addr: u64, len: u64, need: u32) -> Option<Span> {
        let region = self.get(key)?;
        let at = addr.checked_sub(region.iova)?;
        let inside = at.checked_add(len).is_some_and(|end| end <= region.len);
        let open = !region.revoked.load(Ordering::Relaxed);
        (inside && open && region.pd == pd && region.access & need == need).then_some(Span { region, at: at as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::access::{LOCAL_WRITE, REMOTE_READ, REMOTE_WRITE};
    use super::*;

    fn region(buffer: &[u8]) -> Region {
        let memory = Pinned::new(buffer.as_ptr() as usize, buffer.len(), false).expect("pin");
        let len = buffer.len() as u64;
        Region { pd: 1, iova: 0x1000, len, access: LOCAL_WRITE | REMOTE_READ, memory, revoked: false.into() }
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
        assert!(keys.remove(old).is_some());
        assert!(keys.remove(old).is_none(), "twice");
        let new = keys.add(region(&buffer));
        assert_eq!(old >> 8, new >> 8, "the place is used again");
        assert!(keys.get(old).is_none() && keys.get(new).is_some());
    }
}
