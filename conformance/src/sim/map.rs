//! Who writes which byte.

/// The one writer of a byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This node, by plain stores.
    Local,
    /// Other nodes.
    Foreign,
    /// Everyone, by operations at the home on the aligned word.
    Atomic,
}

/// A run of bytes with one owner.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// First byte.
    pub off: usize,
    /// Bytes, at least 1.
    pub len: usize,
    /// Owner of all of them.
    pub owner: Owner,
}

/// The owners of a home, as runs that cover it.
#[derive(Clone, Debug)]
pub struct Map {
    /// All runs, in order.
    pub runs: Vec<Run>,
    /// Bytes of the home.
    pub len: usize,
}

impl Map {
    /// A random map of `len` bytes, a multiple of 8, at least 64. Each owner has a run. Run lengths spread evenly over the orders of
    /// magnitude from one byte to many pages.
    pub fn random(len: usize, rng: &mut fastrand::Rng) -> Map {
        let mut runs = vec![];
        // One word and one byte of each first, so that every operation always has a place.
        let mut off = 0;
        let push = |runs: &mut Vec<Run>, off: &mut usize, owner, want: usize| {
            let run = Run { off: *off, len: want.min(len - *off), owner };
            *off += run.len;
            runs.push(run);
        };
        push(&mut runs, &mut off, Owner::Atomic, 8);
        push(&mut runs, &mut off, Owner::Local, 13);
        push(&mut runs, &mut off, Owner::Foreign, 11);
        while off < len {
            let want = 1usize << rng.u32(0..17);
            let want = rng.usize(want..want * 2);
            match rng.u32(0..10) {
                0 if off.is_multiple_of(8) => push(&mut runs, &mut off, Owner::Atomic, 8),
                1..=3 => push(&mut runs, &mut off, Owner::Foreign, want.min(5000)),
                _ => push(&mut runs, &mut off, Owner::Local, want),
            }
        }
        Map { runs, len }
    }

    /// A random run of this owner. Long runs are not preferred: the short ones are where neighbours meet.
    pub fn pick(&self, owner: Owner, rng: &mut fastrand::Rng) -> Run {
        let start = rng.usize(..self.runs.len());
        let around = (0..self.runs.len()).map(|i| self.runs[(start + i) % self.runs.len()]);
        let mut found = around.filter(|r| r.owner == owner);
        found.next().unwrap_or(Run { off: 0, len: 1, owner })
    }

    /// Owner of every byte.
    pub fn owners(&self) -> Vec<Owner> {
        self.runs.iter().flat_map(|r| std::iter::repeat_n(r.owner, r.len)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_cover_the_home_and_have_every_owner() {
        for seed in 0..200 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let map = Map::random(64 + 8 * rng.usize(0..10_000), &mut rng);
            let owners = map.owners();
            assert_eq!(owners.len(), map.len, "seed {seed}");
            for owner in [Owner::Local, Owner::Foreign, Owner::Atomic] {
                assert_eq!(map.pick(owner, &mut rng).owner, owner, "seed {seed}");
                assert!(owners.contains(&owner), "seed {seed}");
            }
            let words = map.runs.iter().filter(|r| r.owner == Owner::Atomic);
            assert!(words.into_iter().all(|r| r.off % 8 == 0 && r.len == 8), "seed {seed}");
        }
    }
}
