//! Heap of the library itself: libc's allocator under its internal names.
//!
//! `malloc` is one of our own hooks, and an allocator preloaded beside us may have put its own in front. Neither may see
//! the library's memory: a Vec inside a hook would come back to the hook.
//!
//! Aligned blocks are cut out of plain ones: AddressSanitizer defines `__libc_memalign`, and none of the others, so a block
//! from there would meet the `free` of another allocator.

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

/// A block of more than [`ALIGN`]: inside a plain block whose address is kept in the word before it.
fn aligned(l: Layout) -> *mut u8 {
    // Room for the word, and to move up to the next multiple. A Layout is less than half of the address space.
    let Some(room) = l.size().checked_add(l.align()) else { return std::ptr::null_mut() };
    // SAFETY: malloc takes any size.
    let plain = unsafe { __libc_malloc(room) }.cast::<u8>();
    if plain.is_null() {
        return plain;
    }
    // At least ALIGN bytes further, as plain is a multiple of ALIGN.
    let up = l.align() - plain.addr() % l.align();
    // SAFETY: up is at most the alignment, which the block is longer by.
    let p = unsafe { plain.add(up) };
    // SAFETY: up is at least ALIGN, so the word lies inside the block.
    let word = unsafe { p.cast::<*mut u8>().sub(1) };
    // SAFETY: it is ours, and aligned as p is.
    unsafe { word.write(plain) };
    p
}

// SAFETY: libc's allocator satisfies the contract: plain blocks are aligned to 16 bytes, `aligned` moves up inside of one,
// and all of them are given back to the same allocator.
unsafe impl GlobalAlloc for LibcHeap {
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        if l.align() > ALIGN {
            return aligned(l);
        }
        // SAFETY: malloc takes any size.
        unsafe { __libc_malloc(l.size()) }.cast()
    }

    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        if l.align() <= ALIGN {
            // SAFETY: calloc takes any size.
            return unsafe { __libc_calloc(l.size(), 1) }.cast();
        }
        let p = aligned(l);
        if !p.is_null() {
            // SAFETY: aligned just gave l.size() writable bytes.
            unsafe { p.write_bytes(0, l.size()) };
        }
        p
    }

    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        let mut plain = p;
        if l.align() > ALIGN {
            // SAFETY: the caller got p from this allocator with this layout, so the word lies before it.
            let word = unsafe { p.cast::<*mut u8>().sub(1) };
            // SAFETY: aligned has written it.
            plain = unsafe { word.read() };
        }
        // SAFETY: the plain block came from malloc.
        unsafe { __libc_free(plain.cast()) }
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
