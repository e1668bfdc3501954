//! Compares a page with its twin, brings the twin up to date in the same pass, and names the bytes that changed.
//!
//! The page may be written by other threads meanwhile: each 64-byte line is read once, and what was read is what the
//! twin then holds and what is sent. Write-back sends from the twin, never from the page: a value that changed and
//! changed back between the comparison and the send would otherwise be lost.

use crate::base::PAGE;
use std::arch::x86_64::*;

/// Bytes per line: one cache line, and the granularity of the line policy.
pub const LINE: usize = 64;

/// Reads the line at `page`, stores it to `twin` when it differs, and answers one bit per differing byte.
type LineFn = unsafe fn(page: *const u8, twin: *mut u8) -> u64;

/// The widest comparison this processor has; chosen once, outside any handler.
pub fn best() -> Differ {
    if std::arch::is_x86_feature_detected!("avx512bw") {
        Differ(line_avx512)
    } else if std::arch::is_x86_feature_detected!("avx2") {
        Differ(line_avx2)
    } else {
        Differ(line_sse2)
    }
}

/// A chosen comparison.
#[derive(Clone, Copy, Debug)]
pub struct Differ(LineFn);

impl Differ {
    /// Walks one page (`len` bytes of it, 1..=4096) and calls `emit(offset, length)` for each run of bytes that changed,
    /// in order; with `whole_lines` a run is made of whole lines. The twin equals what was read afterwards.
    ///
    /// # Safety
    /// `page` and `twin` are valid for 4096 bytes, 64-byte aligned, and nobody else touches `twin`.
    pub unsafe fn page(
        self,
        page: *const u8,
        twin: *mut u8,
        len: usize,
        whole_lines: bool,
        mut emit: impl FnMut(usize, usize),
    ) {
        let mut open: Option<(usize, usize)> = None;
        let mut add = |from: usize, to: usize| match open {
            Some((s, e)) if e == from => open = Some((s, to)),
            _ => {
                if let Some((s, e)) = open.replace((from, to)) {
                    emit(s, e - s);
                }
            }
        };
        for at in (0..len.min(PAGE)).step_by(LINE) {
            // SAFETY: the line function was chosen for this processor; `at` is a multiple of 64 below 4096, so both lines
            // are inside the pages by the caller's promise.
            let mut mask = unsafe { (self.0)(page.wrapping_add(at), twin.wrapping_add(at)) };
            if len - at < LINE {
                mask &= (1u64 << (len - at)) - 1;
            }
            if mask == 0 {
                continue;
            }
            if whole_lines || mask == u64::MAX {
                add(at, (at + LINE).min(len));
                continue;
            }
            while mask != 0 {
                let from = mask.trailing_zeros() as usize;
                let run = (!(mask >> from)).trailing_zeros() as usize;
                add(at + from, at + from + run);
                if from + run >= LINE {
                    break;
                }
                mask &= u64::MAX << (from + run);
            }
        }
        if let Some((s, e)) = open {
            emit(s, e - s);
        }
    }
}

#[target_feature(enable = "avx512bw", enable = "avx512f")]
fn line_avx512(page: *const u8, twin: *mut u8) -> u64 {
    // SAFETY: both are 64 readable bytes, by the contract of LineFn.
    let a = unsafe { _mm512_loadu_si512(page.cast()) };
    // SAFETY: as above.
    let t = unsafe { _mm512_loadu_si512(twin.cast()) };
    let mask = _mm512_cmpneq_epi8_mask(a, t);
    if mask != 0 {
        // SAFETY: twin is 64 writable bytes.
        unsafe { _mm512_storeu_si512(twin.cast(), a) };
    }
    mask
}

#[target_feature(enable = "avx2")]
fn line_avx2(page: *const u8, twin: *mut u8) -> u64 {
    let mut mask = 0u64;
    for half in 0..2usize {
        let (p, t) = (page.wrapping_add(half * 32), twin.wrapping_add(half * 32));
        // SAFETY: 32 readable bytes, half of a 64-byte line, by the contract of LineFn.
        let a = unsafe { _mm256_loadu_si256(p.cast()) };
        // SAFETY: 32 readable bytes.
        let b = unsafe { _mm256_loadu_si256(t.cast()) };
        let m = !(_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) as u32);
        if m != 0 {
            // SAFETY: 32 writable bytes.
            unsafe { _mm256_storeu_si256(t.cast(), a) };
        }
        mask |= u64::from(m) << (half * 32);
    }
    mask
}

unsafe fn line_sse2(page: *const u8, twin: *mut u8) -> u64 {
    let mut mask = 0u64;
    for q in 0..4usize {
        let (p, t) = (page.wrapping_add(q * 16), twin.wrapping_add(q * 16));
        // SAFETY: 16 readable bytes, a quarter of a 64-byte line, by the contract of LineFn.
        let a = unsafe { _mm_loadu_si128(p.cast()) };
        // SAFETY: 16 readable bytes.
        let b = unsafe { _mm_loadu_si128(t.cast()) };
        // SAFETY: SSE2 is part of x86-64.
        let equal = unsafe { _mm_cmpeq_epi8(a, b) };
        // SAFETY: as above.
        let m = !unsafe { _mm_movemask_epi8(equal) } as u64 & 0xffff;
        if m != 0 {
            // SAFETY: 16 writable bytes.
            unsafe { _mm_storeu_si128(t.cast(), a) };
        }
        mask |= m << (q * 16);
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[repr(align(64))]
    struct Aligned([u8; PAGE]);

    fn runs(d: Differ, a: &Aligned, t: &mut Aligned, len: usize, lines: bool) -> Vec<(usize, usize)> {
        let mut out = Vec::new();
        // SAFETY: two aligned pages owned by the test.
        unsafe { d.page(a.0.as_ptr(), t.0.as_mut_ptr(), len, lines, |o, l| out.push((o, l))) };
        out
    }

    fn naive(a: &[u8], t: &[u8]) -> Vec<(usize, usize)> {
        let mut out: Vec<(usize, usize)> = Vec::new();
        for i in (0..a.len()).filter(|i| a[*i] != t[*i]) {
            match out.last_mut() {
                Some((s, l)) if *s + *l == i => *l += 1,
                _ => out.push((i, 1)),
            }
        }
        out
    }

    proptest! {
        #[test]
        fn every_width_equals_the_naive_comparison(changes in prop::collection::vec((0usize..PAGE, 1usize..200), 0..40), len in 1usize..=PAGE) {
            let mut a = Aligned([7; PAGE]);
            for (at, n) in changes {
                a.0[at..(at + n).min(PAGE)].iter_mut().for_each(|b| *b = b.wrapping_add(1));
            }
            let mut fns = vec![Differ(line_sse2), best()];
            if std::arch::is_x86_feature_detected!("avx2") { fns.push(Differ(line_avx2)); }
            for d in fns {
                let mut t = Aligned([7; PAGE]);
                prop_assert_eq!(runs(d, &a, &mut t, len, false), naive(&a.0[..len], &[7; PAGE][..len]));
                prop_assert_eq!(&t.0[..len], &a.0[..len]);
                prop_assert!(runs(d, &a, &mut t, len, false).is_empty());
            }
        }
    }

    #[test]
    fn lines_are_whole_and_merge() {
        let (mut a, mut t) = (Aligned([0; PAGE]), Aligned([0; PAGE]));
        a.0[70] = 1;
        a.0[130] = 1;
        a.0[4095] = 1;
        assert_eq!(runs(best(), &a, &mut t, PAGE, true), [(64, 128), (4032, 64)]);
    }
}
