//! Memory that the device knows: where each registered stretch lies and under which key, and a buffer for what is not registered.
//!
//! The list is read by the fault face: atomics only. Keys belong to one opening of the device; when the device is opened
//! again everything is registered anew, under new keys.

use super::super::Place;
use crate::base::free::{self, FreeSet};
use crate::base::{Error, PAGE, Result, Status};
use crate::sys::mem::{self, Mapping};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};

/// Most registered stretches of a link.
const MOST: usize = 4096;
/// Pieces of the bounce buffer.
pub(super) const CHUNKS: usize = free::MOST;

#[derive(Default)]
struct Entry {
    base: AtomicUsize,
    /// 0: free.
    len: AtomicUsize,
    lkey: AtomicU32,
    /// 1 when the device knows it now.
    good: AtomicU32,
}

/// The list.
pub(super) struct Known {
    all: Box<[Entry]>,
    /// Entries beyond were never used.
    used: AtomicUsize,
}

impl Known {
    pub fn new() -> Known {
        Known { all: (0..MOST).map(|_| Entry::default()).collect(), used: AtomicUsize::new(0) }
    }

    /// Lists a stretch, not known to the device yet; one thread at a time. `None` when the list is full.
    pub fn add(&self, base: usize, len: usize) -> Option<usize> {
        let (i, e) = self.all.iter().enumerate().find(|(_, e)| e.len.load(SeqCst) == 0)?;
        e.good.store(0, SeqCst);
        e.base.store(base, SeqCst);
        e.len.store(len, SeqCst);
        self.used.fetch_max(i + 1, SeqCst);
        Some(i)
    }

    /// The device knows it under this key; `None`: not any more.
    pub fn set(&self, entry: usize, lkey: Option<u32>) {
        if let Some(e) = self.all.get(entry) {
            e.good.store(0, SeqCst);
            if let Some(k) = lkey {
                e.lkey.store(k, SeqCst);
                e.good.store(1, SeqCst);
            }
        }
    }

    /// Takes a stretch off the list.
    pub fn remove(&self, entry: usize) {
        if let Some(e) = self.all.get(entry) {
            e.good.store(0, SeqCst);
            e.len.store(0, SeqCst);
        }
    }

    /// `[ptr, ptr + len)` with its key, where the device knows all of it. Async-signal-safe.
    pub fn find(&self, ptr: *mut u8, len: usize) -> Option<Place> {
        let at = ptr as usize;
        let end = at.checked_add(len)?;
        let holds = |e: &&Entry| {
            let base = e.base.load(SeqCst);
            base <= at && base.checked_add(e.len.load(SeqCst)).is_some_and(|top| end <= top) && e.good.load(SeqCst) == 1
        };
        let e = self.all.iter().take(self.used.load(SeqCst)).find(holds)?;
        Some(Place { ptr, len: u32::try_from(len).ok()?, lkey: e.lkey.load(SeqCst) })
    }
}

/// A buffer through which goes what is not registered, in pieces.
pub(super) struct Bounce {
    memory: Mapping,
    chunk: usize,
    free: FreeSet,
}

impl Bounce {
    /// One of `CHUNKS * chunk` bytes, and a page of which nobody looks at what arrives there.
    pub fn new(chunk: usize) -> Result<Bounce> {
        let len = CHUNKS * chunk + PAGE;
        let fail = |e| Error::new(Status::NO_RESOURCES, "make a bounce buffer", format!("{len} bytes: {e}"));
        let file = mem::memfd(c"smc-bounce", len as u64).map_err(fail)?;
        let memory = Mapping::shared_aligned(file.as_fd(), len, mem::RW).map_err(fail)?;
        memory.advise(0, len, mem::DONTFORK).map_err(fail)?;
        memory.collapse();
        Ok(Bounce { memory, chunk, free: FreeSet::of(CHUNKS) })
    }

    /// Where it lies.
    pub fn range(&self) -> (*mut u8, usize) {
        (self.memory.ptr(), self.memory.len())
    }

    /// Bytes of a piece.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Takes a free piece. Async-signal-safe.
    pub fn take(&self) -> Option<usize> {
        self.free.take()
    }

    /// Gives pieces back, as bits. Async-signal-safe.
    pub fn give(&self, chunks: u64) {
        self.free.give(chunks);
    }

    /// Where an answer goes that is only waited for.
    pub fn sink(&self) -> *mut u8 {
        self.at(CHUNKS)
    }

    /// First byte of a piece.
    pub fn at(&self, chunk: usize) -> *mut u8 {
        self.memory.ptr().wrapping_add(chunk * self.chunk)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_what_is_known_as_a_whole_is_found() {
        let k = Known::new();
        let (a, b) = (k.add(0x1000, 0x1000).unwrap(), k.add(0x8000, 0x2000).unwrap());
        let key = |at: usize, len| k.find(at as *mut u8, len).map(|p| p.lkey);
        assert_eq!(key(0x1000, 16), None, "not registered yet");
        k.set(a, Some(7));
        k.set(b, Some(8));
        assert_eq!((key(0x1000, 0x1000), key(0x9fff, 1), key(0x8000, 0x2000)), (Some(7), Some(8), Some(8)));
        assert_eq!((key(0xfff, 2), key(0x1fff, 2), key(0x2000, 1), key(usize::MAX, 1)), (None, None, None, None));
        k.set(b, None);
        assert_eq!(key(0x8000, 1), None);
        k.remove(a);
        assert_eq!(key(0x1000, 1), None);
        assert_eq!(k.add(0x5000, 1), Some(a));
    }

    #[test]
    fn pieces_are_given_once() {
        let b = Bounce::new(4096).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| b.take()).collect();
        assert_eq!(all.len(), CHUNKS);
        let distinct: std::collections::BTreeSet<_> = all.iter().map(|c| b.at(*c)).collect();
        assert_eq!(distinct.len(), CHUNKS);
        b.give(1 << 9);
        assert_eq!((b.take(), b.take()), (Some(9), None));
    }
}
