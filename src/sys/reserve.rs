//! Memory for the library itself when the process has none left.
//!
//! Rust ends the process when an allocation fails, and nobody asked for that by preloading a library. So a small block that
//! the heap refuses comes from a reserve: enough to finish what was begun, or to undo it. What is new is not begun:
//! regions, exports and connections ask [`at_hand`] first.
//!
//! The reserve is memory of the library's image that costs nothing until it is touched. It is lock-free, because a signal
//! handler of the program may call the library in the middle of anything. Blocks are cut one after the other and the
//! space is there again when the last of them is given back: blocks of a shortage are few and short-lived.

use crate::base::Status;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Bytes of the reserve. The library's largest passing block is 64 KiB.
const SIZE: usize = 256 << 10;

/// A heap with a reserve behind it.
pub struct Reserved<A> {
    heap: A,
    reserve: Reserve,
}

impl<A> Reserved<A> {
    /// `heap`, and the reserve where it answers null.
    pub const fn new(heap: A) -> Reserved<A> {
        Reserved { heap, reserve: Reserve::new() }
    }
}

#[repr(align(64))]
struct Area(UnsafeCell<[u8; SIZE]>);

// SAFETY: the bytes are handed out as blocks that do not overlap; see `Reserve::take`.
unsafe impl Sync for Area {}

struct Reserve {
    area: Area,
    /// Bytes in use from the start, and in the lower half how many blocks they are.
    state: AtomicU64,
}

/// `state` taken apart.
fn parts(state: u64) -> (usize, u64) {
    ((state >> 32) as usize, state & 0xffff_ffff)
}

impl Reserve {
    const fn new() -> Reserve {
        Reserve { area: Area(UnsafeCell::new([0; SIZE])), state: AtomicU64::new(0) }
    }

    fn base(&self) -> *mut u8 {
        self.area.0.get().cast()
    }

    fn owns(&self, p: *const u8) -> bool {
        p.addr().wrapping_sub(self.base().addr()) < SIZE
    }

    /// A block, or null when there is no room.
    fn take(&self, l: Layout) -> *mut u8 {
        let cut = |state| {
            let (used, blocks) = parts(state);
            let base = self.base().addr();
            let start = base.checked_add(used)?.checked_next_multiple_of(l.align())? - base;
            // A block of no bytes would share its place with the next.
            let end = start.checked_add(l.size().max(1))?;
            (end <= SIZE).then_some(((end as u64) << 32 | (blocks + 1), start))
        };
        let mut seen = self.state.load(SeqCst);
        while let Some((next, start)) = cut(seen) {
            match self.state.compare_exchange_weak(seen, next, SeqCst, SeqCst) {
                Ok(_) => return self.base().wrapping_add(start),
                Err(now) => seen = now,
            }
        }
        std::ptr::null_mut()
    }

    /// Takes a block back; with the last one all is free.
    fn give(&self) {
        let _ = self.state.fetch_update(SeqCst, SeqCst, |state| match parts(state) {
            (_, 0 | 1) => Some(0),
            _ => Some(state - 1),
        });
    }
}

#[cfg(feature = "inject")]
fn fails() -> bool {
    super::inject::allocation_fails()
}

#[cfg(not(feature = "inject"))]
fn fails() -> bool {
    false
}

// SAFETY: blocks come from `heap`, which keeps the contract, or from the reserve, which hands out each place once, aligned
// as asked; which of the two a block is from is told by its address.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Reserved<A> {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        // SAFETY: same contract as this function's.
        let p = if fails() { std::ptr::null_mut() } else { unsafe { self.heap.alloc(l) } };
        if p.is_null() { self.reserve.take(l) } else { p }
    }

    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        // SAFETY: same contract as this function's.
        let p = if fails() { std::ptr::null_mut() } else { unsafe { self.heap.alloc_zeroed(l) } };
        if !p.is_null() {
            return p;
        }
        let p = self.reserve.take(l);
        if !p.is_null() {
            // SAFETY: take gave l.size() bytes to this caller alone.
            unsafe { p.write_bytes(0, l.size()) };
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        if self.reserve.owns(p) {
            return self.reserve.give();
        }
        // SAFETY: not from the reserve, so from the heap.
        unsafe { self.heap.dealloc(p, l) }
    }

    unsafe fn realloc(&self, p: *mut u8, l: Layout, n: usize) -> *mut u8 {
        if !self.reserve.owns(p) && !fails() {
            // SAFETY: not from the reserve, so from the heap; the rest is the caller's word.
            let q = unsafe { self.heap.realloc(p, l, n) };
            if !q.is_null() {
                return q;
            }
        }
        // SAFETY: the caller vouches that n, rounded up to the alignment, fits an isize.
        let wanted = unsafe { Layout::from_size_align_unchecked(n, l.align()) };
        // SAFETY: the layout is valid, see above.
        let q = unsafe { self.alloc(wanted) };
        if !q.is_null() {
            // SAFETY: both blocks are at least this long, and a new block does not overlap an old one.
            unsafe { q.copy_from_nonoverlapping(p, l.size().min(n)) };
            // SAFETY: the caller gave p up.
            unsafe { self.dealloc(p, l) };
        }
        q
    }
}

/// NO_RESOURCES when the process is out of memory: asked before something new is begun. More than the reserve can give.
pub fn at_hand() -> Result<(), Status> {
    let mut probe = Vec::<u8>::new();
    let r = probe.try_reserve_exact(2 * SIZE);
    // The compiler may leave out a block that nobody looks at.
    std::hint::black_box(probe.as_ptr());
    r.map_err(|_| Status::NO_RESOURCES)
}

/// `n` fresh elements, or NO_RESOURCES: for what grows with a region's length.
pub fn table<T: Default>(n: usize) -> Result<Box<[T]>, Status> {
    let mut v = Vec::new();
    v.try_reserve_exact(n).map_err(|_| Status::NO_RESOURCES)?;
    v.resize_with(n, T::default);
    Ok(v.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A heap that has nothing.
    struct Empty;

    // SAFETY: it hands out nothing.
    unsafe impl GlobalAlloc for Empty {
        unsafe fn alloc(&self, _l: Layout) -> *mut u8 {
            std::ptr::null_mut()
        }
        unsafe fn dealloc(&self, _p: *mut u8, _l: Layout) {
            unreachable!("a block of the reserve goes back to the reserve");
        }
    }

    static HEAP: Reserved<Empty> = Reserved::new(Empty);

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).expect("a layout")
    }

    #[test]
    fn blocks_do_not_overlap_and_all_comes_back() {
        for round in 0..3u8 {
            let mut blocks = Vec::new();
            for (i, (size, align)) in [(1, 1), (100, 8), (64 << 10, 4096), (0, 1), (24, 64)].into_iter().enumerate() {
                // SAFETY: the layout is valid; a size of 0 is within this allocator's contract.
                let p = unsafe { HEAP.alloc_zeroed(layout(size, align)) };
                assert!(!p.is_null() && p.addr().is_multiple_of(align), "round {round}: block {i}");
                // SAFETY: the block has this many bytes.
                unsafe { std::slice::from_raw_parts_mut(p, size) }.iter_mut().for_each(|b| {
                    assert_eq!(*b, 0, "round {round}: block {i} is not zeroed, or is another's");
                    *b = round + 1;
                });
                blocks.push((p, layout(size, align)));
            }
            // SAFETY: the block is from this heap and has that layout.
            let grown = unsafe { HEAP.realloc(blocks[1].0, blocks[1].1, 5000) };
            blocks[1] = (grown, layout(5000, 8));
            // SAFETY: a block of 5000 bytes.
            assert!(unsafe { std::slice::from_raw_parts(grown, 100) }.iter().all(|b| *b == round + 1));
            // SAFETY: nothing is done with it.
            assert!(unsafe { HEAP.alloc(layout(SIZE, 1)) }.is_null(), "more than there is");
            for (p, l) in blocks {
                // SAFETY: the block is from this heap and is not used any more.
                unsafe { HEAP.dealloc(p, l) };
            }
            assert_eq!(HEAP.reserve.state.load(SeqCst), 0, "round {round}");
        }
    }
}
