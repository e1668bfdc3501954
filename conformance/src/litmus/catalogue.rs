//! The litmus tests. Registers are numbered over all threads; `finals` follow them in an outcome.

use super::Op::*;
use super::{Litmus, Program, Set};

/// Every test.
pub const ALL: &[&Litmus] =
    &[&MP, &MP_THROUGH, &MP_ATOMIC, &SB, &LB, &IRIW, &CORR, &TWO_PLUS_TWO, &NEIGHBOURS, &COUNTER, &ONE_WINNER];

/// A one-line [`Set`].
macro_rules! set {
    ($text:literal, $has:expr) => {
        Set { text: $text, has: $has }
    };
}

const fn program(threads: &'static [&'static [super::Op]], regs: usize) -> Program {
    Program { threads, regs, finals: &[] }
}

/// Message passing: who sees the flag sees the data.
pub const MP: Litmus = Litmus {
    name: "MP",
    vars: 2,
    fenced: program(
        &[&[Store(0, 1), Release, Store(1, 1), Release], &[Touch(0), Acquire, Load(1, 0), Acquire, Load(0, 1)]],
        2,
    ),
    forbidden: &[set!("flag seen, data not (r0=1 r1=0)", |o| o == [1, 0])],
    reached: &[set!("flag and data seen (r0=1 r1=1)", |o| o == [1, 1]), set!("flag not seen (r0=0)", |o| o[0] == 0)],
    control: Some(MP_STALE),
    relaxed: &[set!("stale data (r0=1 r1=0)", |o| o == [1, 0])],
};

/// The reader caches the data before it is written and never acquires.
const MP_STALE: Program =
    program(&[&[Meet, Store(0, 1), Store(1, 1), Release], &[Touch(0), Meet, Home(1, 0), Load(0, 1)]], 2);

/// Message passing by write-through stores.
pub const MP_THROUGH: Litmus = Litmus {
    name: "MP+through",
    vars: 2,
    fenced: program(&[&[Through(0, 1), Through(1, 1)], &[Touch(0), Home(1, 0), Acquire, Load(0, 1)]], 2),
    forbidden: &[set!("flag seen, data not (r0=1 r1=0)", |o| o == [1, 0])],
    reached: &[set!("flag and data seen (r0=1 r1=1)", |o| o == [1, 1])],
    control: Some(program(&[&[Meet, Through(0, 1), Through(1, 1)], &[Touch(0), Meet, Home(1, 0), Load(0, 1)]], 2)),
    relaxed: &[set!("stale data (r0=1 r1=0)", |o| o == [1, 0])],
};

/// Message passing with an atomic flag: a release, then an addition at the home.
pub const MP_ATOMIC: Litmus = Litmus {
    name: "MP+atomic",
    vars: 2,
    fenced: program(&[&[Store(0, 1), Release, Add(1, 1, 0)], &[Touch(0), Home(1, 1), Acquire, Load(0, 2)]], 3),
    forbidden: &[set!("flag seen, data not (r1=1 r2=0)", |o| o[1] == 1 && o[2] == 0)],
    reached: &[set!("flag and data seen (r1=1 r2=1)", |o| o[1] == 1 && o[2] == 1)],
    control: Some(program(&[&[Store(0, 1), Add(1, 1, 0), Meet, Release], &[Home(1, 1), Acquire, Load(0, 2), Meet]], 3)),
    relaxed: &[set!("flag before data (r1=1 r2=0)", |o| o[1] == 1 && o[2] == 0)],
};

/// Store buffering: of two that announce themselves and then look, one sees the other.
pub const SB: Litmus = Litmus {
    name: "SB",
    vars: 2,
    fenced: program(
        &[
            &[Touch(1), Store(0, 1), Release, Acquire, Load(1, 0)],
            &[Touch(0), Store(1, 1), Release, Acquire, Load(0, 1)],
        ],
        2,
    ),
    forbidden: &[set!("neither sees the other (r0=0 r1=0)", |o| o == [0, 0])],
    reached: &[set!("one or both see the other", |o| o != [0, 0])],
    control: Some(program(&[&[Store(0, 1), Load(1, 0), Release], &[Store(1, 1), Load(0, 1), Release]], 2)),
    relaxed: &[set!("neither sees the other (r0=0 r1=0)", |o| o == [0, 0])],
};

/// Load buffering: no value out of thin air. Forbidden with and without fences, so it has no control.
pub const LB: Litmus = Litmus {
    name: "LB",
    vars: 2,
    fenced: program(&[&[Load(0, 0), Store(1, 1), Release], &[Load(1, 1), Store(0, 1), Release]], 2),
    forbidden: &[set!("both see the later store (r0=1 r1=1)", |o| o == [1, 1])],
    reached: &[set!("neither (r0=0 r1=0)", |o| o == [0, 0]), set!("one (r0=1 or r1=1)", |o| o[0] != o[1])],
    control: None,
    relaxed: &[],
};

/// Independent reads of independent writes: all nodes agree on the order of two stores.
pub const IRIW: Litmus = Litmus {
    name: "IRIW",
    vars: 2,
    fenced: program(
        &[
            &[Store(0, 1), Release],
            &[Store(1, 1), Release],
            &[Touch(1), Acquire, Load(0, 0), Acquire, Load(1, 1)],
            &[Touch(0), Acquire, Load(1, 2), Acquire, Load(0, 3)],
        ],
        4,
    ),
    forbidden: &[set!("two orders (r=1 0 1 0)", |o| o == [1, 0, 1, 0])],
    reached: &[set!("one order (r0=1 r1=0 or r2=1 r3=0)", |o| o[..2] == [1, 0] || o[2..] == [1, 0])],
    control: Some(program(
        &[
            &[Meet, Store(0, 1), Release],
            &[Meet, Store(1, 1), Release],
            &[Touch(1), Meet, Home(0, 0), Load(1, 1)],
            &[Touch(0), Meet, Home(1, 2), Load(0, 3)],
        ],
        4,
    )),
    relaxed: &[set!("two orders (r=1 0 1 0)", |o| o == [1, 0, 1, 0])],
};

/// Coherence: one variable never goes back, even without acquire.
pub const CORR: Litmus = Litmus {
    name: "CoRR",
    vars: 1,
    fenced: program(
        &[&[Store(0, 1), Release, Store(0, 2), Release], &[Acquire, Load(0, 0), Acquire, Load(0, 1), Load(0, 2)]],
        3,
    ),
    forbidden: &[set!("a value goes back", |o| o[1] < o[0] || o[2] < o[1])],
    reached: &[set!("the reader sees it change (r0<r1)", |o| o[0] < o[1])],
    control: None,
    relaxed: &[],
};

/// Two stores each in opposite order: the homes agree with one interleaving of the releases.
pub const TWO_PLUS_TWO: Litmus = Litmus {
    name: "2+2W",
    vars: 2,
    fenced: Program {
        threads: &[&[Store(0, 1), Release, Store(1, 2), Release], &[Store(1, 1), Release, Store(0, 2), Release]],
        regs: 0,
        finals: &[0, 1],
    },
    forbidden: &[
        set!("both first stores last (x=1 y=1)", |o| o == [1, 1]),
        set!("a store is lost", |o| o.contains(&0)),
    ],
    reached: &[set!("both second stores last (x=2 y=2)", |o| o == [2, 2])],
    control: None,
    relaxed: &[],
};

/// Two nodes write different bytes that may share a page or line: both survive.
pub const NEIGHBOURS: Litmus = Litmus {
    name: "neighbours",
    vars: 2,
    fenced: Program { threads: &[&[Store(0, 1), Release], &[Store(1, 2), Release]], regs: 0, finals: &[0, 1] },
    forbidden: &[set!("a store is lost", |o| o != [1, 2])],
    reached: &[set!("both survive", |o| o == [1, 2])],
    // Without the release nothing is promised to be there; the finals are read after one.
    control: None,
    relaxed: &[],
};

/// Additions at the home, beside plain stores to neighbours: no write-back undoes one.
pub const COUNTER: Litmus = Litmus {
    name: "counter",
    vars: 3,
    fenced: Program {
        threads: &[
            &[Touch(0), Store(1, 1), Add(0, 1, 0), Release, Add(0, 1, 1)],
            &[Touch(0), Store(2, 1), Add(0, 1, 2), Release, Add(0, 1, 3)],
        ],
        regs: 4,
        finals: &[0, 1, 2],
    },
    forbidden: &[
        set!("an addition or store is lost", |o| o[4..] != [4, 1, 1]),
        set!("two additions saw one value", twice),
    ],
    reached: &[set!("the other's addition comes between", |o| o[1] - o[0] > 1 || o[3] - o[2] > 1)],
    control: None,
    relaxed: &[],
};

fn twice(o: &[u64]) -> bool {
    let mut seen = [o[0], o[1], o[2], o[3]];
    seen.sort_unstable();
    seen != [0, 1, 2, 3]
}

/// Compare and swap: of four that want the lock, one gets it.
pub const ONE_WINNER: Litmus = Litmus {
    name: "one-winner",
    vars: 1,
    fenced: Program {
        threads: &[&[Swap(0, 0, 1, 0)], &[Swap(0, 0, 2, 1)], &[Swap(0, 0, 3, 2)], &[Swap(0, 0, 4, 3)]],
        regs: 4,
        finals: &[0],
    },
    forbidden: &[set!("not exactly one winner", |o| o[..4].iter().filter(|v| **v == 0).count() != 1
        || o[o[4] as usize - 1] != 0)],
    reached: &[set!("the first wins", |o| o[4] == 1), set!("another wins", |o| o[4] != 1)],
    control: None,
    relaxed: &[],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_well_formed() {
        for t in ALL {
            for p in [Some(t.fenced), t.control].into_iter().flatten() {
                let ops = || p.threads.iter().flat_map(|t| t.iter());
                let mut regs: Vec<usize> = ops().filter_map(super::super::harness::register).collect();
                regs.sort_unstable();
                assert_eq!(regs, (0..p.regs).collect::<Vec<_>>(), "{}: each register is written once", t.name);
                let meets = |t: &[super::super::Op]| t.iter().filter(|o| **o == Meet).count();
                assert!(p.threads.iter().all(|t| meets(t) == meets(p.threads[0])), "{}: uneven meets", t.name);
                assert!((1..=4).contains(&p.threads.len()) && p.finals.iter().all(|v| *v < t.vars), "{}", t.name);
            }
            assert_eq!(t.control.is_none(), t.relaxed.is_empty(), "{}: a control needs what it must show", t.name);
        }
    }
}
