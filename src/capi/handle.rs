//! Handles: numbers that C holds as pointers it must not follow.
//!
//! A handle is kind, index and generation. A slot's generation changes when its object is closed, so that a handle that was
//! closed, or never was one, or is of another kind, is refused; a number would have to be reused two thousand million times
//! to be mistaken.

use std::sync::{Arc, PoisonError, RwLock};

/// Objects of one kind that C has handles to.
pub(super) struct Table<T> {
    kind: usize,
    slots: RwLock<Vec<Slot<T>>>,
}

struct Slot<T> {
    generation: u32,
    object: Option<Arc<T>>,
}

const KIND_BITS: u32 = 4;
const INDEX_BITS: u32 = 28;
const GENERATIONS: u32 = 0x7fff_ffff;

impl<T> Table<T> {
    /// An empty table; `kind` is 1 to 15 and its own.
    pub const fn new(kind: usize) -> Table<T> {
        Table { kind, slots: RwLock::new(Vec::new()) }
    }

    fn encode(&self, index: usize, generation: u32) -> usize {
        (generation as usize) << (KIND_BITS + INDEX_BITS) | index << KIND_BITS | self.kind
    }

    fn decode(&self, handle: usize) -> Option<(usize, u32)> {
        let index = handle >> KIND_BITS & ((1 << INDEX_BITS) - 1);
        let generation = (handle >> (KIND_BITS + INDEX_BITS)) as u32;
        (handle & ((1 << KIND_BITS) - 1) == self.kind).then_some((index, generation))
    }

    /// A new handle; `None` when there are 2^28 already.
    pub fn insert<H>(&self, object: Arc<T>) -> Option<*mut H> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let free = slots.iter().position(|s| s.object.is_none());
        let index = free.unwrap_or(slots.len());
        if index >> INDEX_BITS != 0 {
            return None;
        }
        if free.is_none() {
            slots.push(Slot { generation: 1, object: None });
        }
        let slot = slots.get_mut(index)?;
        slot.object = Some(object);
        Some(std::ptr::without_provenance_mut(self.encode(index, slot.generation)))
    }

    /// The object behind a handle.
    pub fn get<H>(&self, handle: *const H) -> Option<Arc<T>> {
        let (index, generation) = self.decode(handle.addr())?;
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(index).filter(|s| s.generation == generation)?.object.clone()
    }

    /// Takes the object away; the handle is stale from here on.
    pub fn remove<H>(&self, handle: *const H) -> Option<Arc<T>> {
        let (index, generation) = self.decode(handle.addr())?;
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get_mut(index).filter(|s| s.generation == generation)?;
        let object = slot.object.take()?;
        slot.generation = if slot.generation >= GENERATIONS { 1 } else { slot.generation + 1 };
        Some(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_foreign_handles_are_refused() {
        let (t, other) = (Table::<u8>::new(3), Table::<u8>::new(4));
        let a: *mut u8 = t.insert(Arc::new(7)).unwrap();
        assert_eq!(t.get(a).as_deref(), Some(&7));
        assert_eq!(other.get(a), None);
        assert_eq!(t.remove(a).as_deref(), Some(&7));
        assert_eq!((t.get(a), t.remove(a)), (None, None));
        let b: *mut u8 = t.insert(Arc::new(8)).unwrap();
        assert_ne!(a, b);
        assert_eq!((t.get(a), t.get(b).as_deref()), (None, Some(&8)));
        for wild in [0usize, 3, 0x7fff_1234_5678, usize::MAX, a.addr() + 16] {
            assert_eq!(t.get(wild as *const u8), None);
        }
    }
}
