//! Heap of the library itself: libc's allocator under its internal names.
//!
//! `malloc` is one of our own hooks, and an allocator preloaded beside us may have put its own in front. Neither may see
//! the library's memory: a Vec inside a hook would come back to the hook.

use libc::c_void;
use smc_engine::sys::reserve::Reserved;
use std::alloc::{GlobalAlloc, Layout};

unsafe extern "C" {
    pub(crate) fn __libc_malloc(n: usize) -> *mut c_void;
    pub(crate) fn __libc_calloc(n: usize, size: usize) -> *mut c_void;
    pub(crate) fn __libc_memalign(align: usize, n: usize) -> *mut c_void;
    pub(crate) fn __libc_realloc(p: *mut c_void, n: usize) -> *mut c_void;
    pub(crate) fn __libc_free(p: *mut c_void);
}

struct LibcHeap;

/// What `__libc_malloc` aligns to.
const ALIGN: usize = 16;

// SAFETY: libc's allocator satisfies the contract: blocks are aligned to 16 bytes or to what memalign was asked for,
// and all of them are given back to the same allocator.
unsafe impl GlobalAlloc for LibcHeap {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        let p = if l.align() <= ALIGN {
            // SAFETY: malloc takes any size.
            unsafe { __libc_malloc(l.size()) }
        } else {
            // SAFETY: a Layout's alignment is a power of two.
            unsafe { __libc_memalign(l.align(), l.size()) }
        };
        p.cast()
    }

    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        if l.align() <= ALIGN {
            // SAFETY: calloc takes any size.
            return unsafe { __libc_calloc(l.size(), 1) }.cast();
        }
        // SAFETY: same contract as this function's.
        let p = unsafe { self.alloc(l) };
        if !p.is_null() {
            // SAFETY: alloc just gave l.size() writable bytes.
            unsafe { p.write_bytes(0, l.size()) };
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, _l: Layout) {
        // SAFETY: the caller got p from this allocator.
        unsafe { __libc_free(p.cast()) }
    }

    unsafe fn realloc(&self, p: *mut u8, l: Layout, n: usize) -> *mut u8 {
        if l.align() <= ALIGN {
            // SAFETY: the caller got p from this allocator, and malloc's alignment is enough for the layout.
            return unsafe { __libc_realloc(p.cast(), n) }.cast();
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

#[global_allocator]
static HEAP: Reserved<LibcHeap> = Reserved::new(LibcHeap);
