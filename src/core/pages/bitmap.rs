//! One atomic bit per page. Sequentially consistent where a bit hands over responsibility (who pushes a page).

use crate::base::Status;
use crate::sys::reserve::table;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A fixed number of bits. Async-signal-safe after construction.
#[derive(Debug)]
pub struct Bitmap {
    words: Box<[AtomicU64]>,
    bits: usize,
}

impl Bitmap {
    /// `bits` zeros. Allocates; NO_RESOURCES when there is no memory.
    pub fn new(bits: usize) -> Result<Bitmap, Status> {
        Ok(Bitmap { words: table(bits.div_ceil(64))?, bits })
    }

    fn word(&self, i: usize) -> Option<(&AtomicU64, u64)> {
        if i >= self.bits {
            return None;
        }
        Some((self.words.get(i / 64)?, 1 << (i % 64)))
    }

    /// The bit, false outside the map.
    pub fn get(&self, i: usize) -> bool {
        self.word(i).is_some_and(|(w, m)| w.load(SeqCst) & m != 0)
    }

    /// Sets the bit; true when it was clear before.
    pub fn set(&self, i: usize) -> bool {
        self.word(i).is_some_and(|(w, m)| w.fetch_or(m, SeqCst) & m == 0)
    }

    /// Clears the bit; true when it was set before.
    pub fn take(&self, i: usize) -> bool {
        self.word(i).is_some_and(|(w, m)| w.fetch_and(!m, SeqCst) & m != 0)
    }

    /// Sets `[start, end)`; answers how many were clear before.
    pub fn set_range(&self, start: usize, end: usize) -> usize {
        self.masks(start, end).map(|(w, m)| (!w.fetch_or(m, SeqCst) & m).count_ones() as usize).sum()
    }

    /// Sets the bits of `[start, end)` that are set in `other`, a map of the same size.
    pub fn set_where(&self, other: &Bitmap, start: usize, end: usize) {
        for ((w, m), (o, _)) in self.masks(start, end).zip(other.masks(start, end)) {
            w.fetch_or(o.load(SeqCst) & m, SeqCst);
        }
    }

    /// First set bit in `[from, end)`.
    pub fn next_set(&self, from: usize, end: usize) -> Option<usize> {
        self.scan(from, end, 0)
    }

    /// First clear bit in `[from, end)`.
    pub fn next_clear(&self, from: usize, end: usize) -> Option<usize> {
        self.scan(from, end, u64::MAX)
    }

    /// The next run of set bits in `[from, end)`.
    pub fn next_run(&self, from: usize, end: usize) -> Option<(usize, usize)> {
        let start = self.next_set(from, end)?;
        Some((start, self.next_clear(start, end).unwrap_or(end.min(self.bits))))
    }

    /// Number of set bits in `[start, end)`.
    pub fn count(&self, start: usize, end: usize) -> usize {
        self.masks(start, end).map(|(w, m)| (w.load(SeqCst) & m).count_ones() as usize).sum()
    }

    fn scan(&self, from: usize, end: usize, flip: u64) -> Option<usize> {
        let end = end.min(self.bits);
        if from >= end {
            return None;
        }
        let (first, last) = (from / 64, (end - 1) / 64);
        for (i, w) in self.words.get(first..=last)?.iter().enumerate() {
            let mut v = w.load(SeqCst) ^ flip;
            if i == 0 {
                v &= u64::MAX << (from % 64);
            }
            if v != 0 {
                let at = (first + i) * 64 + v.trailing_zeros() as usize;
                return (at < end).then_some(at);
            }
        }
        None
    }

    fn masks(&self, start: usize, end: usize) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let end = end.min(self.bits);
        let words = if start < end { self.words.get(start / 64..end.div_ceil(64)).unwrap_or(&[]) } else { &[] };
        words.iter().enumerate().map(move |(i, w)| {
            let base = (start / 64 + i) * 64;
            let lo = start.saturating_sub(base);
            let hi = (end - base).min(64);
            (w, (u64::MAX >> (64 - (hi - lo))) << lo)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain Vec<bool>.
        #[test]
        fn equals_the_naive_model(bits in 1usize..300, ops in prop::collection::vec((0u8..4, 0usize..310, 0usize..310), 1..60)) {
            let map = Bitmap::new(bits).expect("memory");
            let mut model = vec![false; bits];
            for (op, a, b) in ops {
                match op {
                    0 => { let was = model.get(a).copied(); if a < bits { model[a] = true; } prop_assert_eq!(map.set(a), was == Some(false)); }
                    1 => { let was = model.get(a).copied(); if a < bits { model[a] = false; } prop_assert_eq!(map.take(a), was == Some(true)); }
                    2 => {
                        let fresh = (a..b.min(bits)).filter(|i| !model[*i]).count();
                        (a..b.min(bits)).for_each(|i| model[i] = true);
                        prop_assert_eq!(map.set_range(a, b), fresh);
                    }
                    _ => {
                        prop_assert_eq!(map.next_set(a, b), (a..b.min(bits)).find(|i| model[*i]));
                        prop_assert_eq!(map.next_clear(a, b), (a..b.min(bits)).find(|i| !model[*i]));
                        prop_assert_eq!(map.count(a, b), (a..b.min(bits)).filter(|i| model[*i]).count());
                    }
                }
            }
        }
    }
}
