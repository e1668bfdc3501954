//! The operations and their generator. An operation is complete in itself, so that any list of them is a program.

use super::map::{Map, Owner};

/// One operation. Stored bytes are given by a seed, to keep reports short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Plain store of `len` bytes made from `fill`, all local.
    Store {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
        /// Seed of the content.
        fill: u64,
    },
    /// Plain load.
    Load {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
    },
    /// Release of a range.
    Release {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
    },
    /// Flush of a range.
    Flush {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
    },
    /// Acquire of a range.
    Acquire {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
    },
    /// Prefetch of a range.
    Prefetch {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
    },
    /// Invalidation of a range.
    Invalidate {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
    },
    /// Local memory becomes scarce.
    Pressure {
        /// Pages.
        pages: usize,
    },
    /// Addition at the home.
    Add {
        /// Aligned word.
        off: usize,
        /// Addend.
        value: u64,
    },
    /// Compare and swap at the home; `hit` makes the expected value the right one.
    Swap {
        /// Aligned word.
        off: usize,
        /// Whether it should succeed.
        hit: bool,
        /// New value.
        value: u64,
    },
    /// Store at the home.
    StoreWord {
        /// Aligned word.
        off: usize,
        /// Value.
        value: u64,
    },
    /// Load at the home.
    LoadWord {
        /// Aligned word.
        off: usize,
    },
    /// Store by another node, all foreign.
    Foreign {
        /// First byte.
        off: usize,
        /// Bytes.
        len: usize,
        /// Seed of the content.
        fill: u64,
    },
}

/// The bytes a store of `len` made from `fill` writes. One in four stores writes a single value all over, as programs do.
pub fn content(fill: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(fill);
    if rng.u32(0..4) == 0 {
        return vec![rng.u8(..); len];
    }
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Length of an access: mostly a machine word or less, sometimes a line, rarely pages.
fn length(rng: &mut fastrand::Rng) -> usize {
    match rng.u32(0..20) {
        0..=9 => [1, 2, 4, 8, 8, 8][rng.usize(..6)],
        10..=14 => rng.usize(1..=64),
        15..=17 => rng.usize(1..=4096),
        18 => 4096,
        _ => rng.usize(1..=40_000),
    }
}

/// A range of the home, often starting at or near a page border, where mistakes live.
fn range(map: &Map, rng: &mut fastrand::Rng) -> (usize, usize) {
    let anywhere = rng.usize(..map.len);
    let off = match rng.u32(0..4) {
        0 => anywhere & !4095,
        1 => (anywhere & !4095).saturating_sub(rng.usize(1..9)),
        _ => anywhere,
    };
    (off, length(rng).min(map.len - off))
}

/// A range for synchronisation: the whole home every third time.
fn wide(map: &Map, rng: &mut fastrand::Rng) -> (usize, usize) {
    if rng.u32(0..3) == 0 { (0, map.len) } else { range(map, rng) }
}

/// Part of one run of `owner`.
fn owned(map: &Map, owner: Owner, rng: &mut fastrand::Rng) -> (usize, usize) {
    let run = map.pick(owner, rng);
    let skip = rng.usize(..run.len);
    (run.off + skip, length(rng).min(run.len - skip))
}

/// A random list of `n` operations on a home of this map.
pub fn generate(map: &Map, n: usize, rng: &mut fastrand::Rng) -> Vec<Op> {
    (0..n).map(|_| one(map, rng)).collect()
}

fn one(map: &Map, rng: &mut fastrand::Rng) -> Op {
    match rng.u32(0..100) {
        0..=29 => {
            let (off, len) = owned(map, Owner::Local, rng);
            Op::Store { off, len, fill: rng.u64(..) }
        }
        30..=54 => {
            let (off, len) = range(map, rng);
            Op::Load { off, len }
        }
        55..=64 => {
            let (off, len) = owned(map, Owner::Foreign, rng);
            Op::Foreign { off, len, fill: rng.u64(..) }
        }
        65..=72 => {
            let (off, len) = wide(map, rng);
            Op::Release { off, len }
        }
        73..=75 => {
            let (off, len) = wide(map, rng);
            Op::Flush { off, len }
        }
        76..=82 => {
            let (off, len) = wide(map, rng);
            Op::Acquire { off, len }
        }
        83..=85 => {
            let (off, len) = range(map, rng);
            Op::Prefetch { off, len }
        }
        86..=88 => {
            let (off, len) = range(map, rng);
            Op::Invalidate { off, len }
        }
        89..=90 => Op::Pressure { pages: rng.usize(1..8) },
        _ => word(map, rng),
    }
}

fn word(map: &Map, rng: &mut fastrand::Rng) -> Op {
    let off = map.pick(Owner::Atomic, rng).off;
    match rng.u32(0..4) {
        0 => Op::Add { off, value: rng.u64(..) },
        1 => Op::Swap { off, hit: rng.bool(), value: rng.u64(..) },
        2 => Op::StoreWord { off, value: rng.u64(..) },
        _ => Op::LoadWord { off },
    }
}
