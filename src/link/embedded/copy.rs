//! Copies between this process's memory and a mapped home.
//!
//! Other processes read and write the home while we copy. Such a race is outside the language's memory model, as it is
//! for every use of shared memory; what makes it work is that the pointers come from mmap (the compiler knows nothing of
//! what is behind them), that no reference to the bytes is ever made, and that the copy is not inlined, so that the
//! compiler can neither repeat nor drop it against the looks at the gate around it. A large copy may tear between its
//! bytes; that is all the contract promises. Copies made of naturally aligned words never tear inside a word, because
//! flags and counters are read through the same path.

use crate::sys::mem;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Up to this many bytes aligned copies go word by word.
const WORDS: usize = 256;

/// Copies `len` bytes. 1, 2, 4 and 8 bytes at naturally aligned places, and up to 256 bytes of aligned 8-byte words, are
/// single-copy atomic per word. Async-signal-safe.
///
/// # Safety
/// `[src, src + len)` is readable, `[dst, dst + len)` writable, and they do not overlap.
#[inline(never)]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    let both = dst as usize | src as usize | len;
    if len <= WORDS && both.is_multiple_of(8) {
        for at in (0..len).step_by(8) {
            // SAFETY: at + 8 <= len and both sides are 8-byte aligned; the caller vouches for the ranges.
            unsafe { word8(dst.wrapping_add(at), src.wrapping_add(at)) };
        }
        return;
    }
    match len {
        4 if both.is_multiple_of(4) => {
            // SAFETY: the caller vouches for four aligned bytes on both sides.
            unsafe { word4(dst, src) }
        }
        2 if both.is_multiple_of(2) => {
            // SAFETY: the caller vouches for two aligned bytes on both sides.
            unsafe { word2(dst, src) }
        }
        1 => {
            // SAFETY: the caller vouches for one byte on both sides.
            unsafe { word1(dst, src) }
        }
        _ => {
            // SAFETY: the caller vouches for the ranges.
            unsafe { mem::copy_streaming(dst, src, len) }
        }
    }
}

/// Copies `len` bytes to two places, which then hold the same bytes although the source may change meanwhile: each
/// piece is read from it once.
///
/// # Safety
/// `[src, src + len)` is readable, both destinations are writable for `len` bytes, and nothing overlaps.
#[inline(never)]
pub unsafe fn copy_pair(dst: [*mut u8; 2], src: *const u8, len: usize) {
    let [first, second] = dst;
    if len >= mem::STREAM_FROM && (first as usize | second as usize | len).is_multiple_of(64) {
        // SAFETY: the caller vouches for the ranges; alignment and length were just checked.
        return unsafe { mem::stream_pair(first, second, src, len) };
    }
    // SAFETY: the caller vouches for the ranges.
    unsafe { copy(first, src, len) };
    // SAFETY: as above, and the first destination was just filled.
    unsafe { mem::copy_streaming(second, first, len) };
}

macro_rules! word {
    ($name:ident, $atomic:ty) => {
        /// # Safety
        /// Both sides are valid and aligned for the word.
        unsafe fn $name(dst: *mut u8, src: *const u8) {
            // SAFETY: valid and aligned as the caller says; only the load is done through it.
            let s = unsafe { &*src.cast::<$atomic>() };
            // SAFETY: as above, for the store.
            let d = unsafe { &*dst.cast::<$atomic>() };
            d.store(s.load(Relaxed), Relaxed);
        }
    };
}
word!(word8, AtomicU64);
word!(word4, AtomicU32);
word!(word2, AtomicU16);
word!(word1, AtomicU8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment() {
        let src: Vec<u64> = (0..600u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let sb = src.as_ptr().cast::<u8>();
        for len in (0..300).chain([4096, 4097]) {
            for (so, d_o) in [(0, 0), (1, 0), (0, 3), (4, 4), (2, 6)] {
                let mut dst = vec![0u64; 600];
                let db = dst.as_mut_ptr().cast::<u8>();
                // SAFETY: both vectors have 4800 bytes and are distinct.
                unsafe { copy(db.wrapping_add(d_o), sb.wrapping_add(so), len) };
                for i in 0..4800 {
                    // SAFETY: inside the vector.
                    let got = unsafe { *db.wrapping_add(i) };
                    // SAFETY: inside the vector where it is used.
                    let want = if i >= d_o && i < d_o + len { unsafe { *sb.wrapping_add(so + i - d_o) } } else { 0 };
                    assert_eq!(got, want, "len {len} src+{so} dst+{d_o} at {i}");
                }
            }
        }
    }
}
