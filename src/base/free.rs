//! Which of up to 64 things are free.

use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};

/// One bit each. Taking and giving back is async-signal-safe; what was done to a thing before it was given back is seen by whoever
/// takes it next.
#[derive(Debug)]
pub struct FreeSet(AtomicU64);

/// Most things in a set.
pub const MOST: usize = 64;

impl FreeSet {
    /// Things `0..count` are free; at most [`MOST`].
    pub const fn of(count: usize) -> FreeSet {
        FreeSet(AtomicU64::new(if count >= MOST { u64::MAX } else { (1 << count) - 1 }))
    }

    /// Takes the lowest.
    pub fn take(&self) -> Option<usize> {
        let lowest = |free: u64| (free != 0).then(|| free & (free - 1));
        self.0.fetch_update(AcqRel, Acquire, lowest).ok().map(|before| before.trailing_zeros() as usize)
    }

    /// Gives things back, as bits.
    pub fn give(&self, bits: u64) {
        self.0.fetch_or(bits, Release);
    }

    /// How many are free.
    pub fn count(&self) -> u32 {
        self.0.load(Acquire).count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once() {
        for count in [0, 1, 5, MOST] {
            let set = FreeSet::of(count);
            let all: Vec<_> = std::iter::from_fn(|| set.take()).collect();
            assert_eq!((all, set.count()), ((0..count).collect(), 0));
        }
        let set = FreeSet::of(MOST);
        while set.take().is_some() {}
        set.give(1 << 9 | 1 << 63);
        assert_eq!((set.take(), set.take(), set.take()), (Some(9), Some(63), None));
    }
}
