//! Runs operations on a subject beside the model, and shrinks what fails.

use super::map::Map;
use super::model::Model;
use super::ops::{self, Op};
use super::{Factory, Subject};
use std::fmt;

/// What a seed is turned into.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Bytes of the home, a multiple of 8, at least 64.
    pub home: usize,
    /// Operations.
    pub ops: usize,
}

/// A run that went wrong, shrunk.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that repeats it.
    pub seed: u64,
    /// What the whole list showed.
    pub what: String,
    /// Number of operations up to the first difference.
    pub prefix: usize,
    /// The shortest list found that still fails.
    pub ops: Vec<Op>,
    /// What that list showed.
    pub shrunk_what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed={}: {} (operation {})", self.seed, self.what, self.prefix)?;
        write!(f, "  shrunk to {} operations: {}", self.ops.len(), self.shrunk_what)?;
        self.ops.iter().try_for_each(|op| write!(f, "\n    {op:?}"))
    }
}

/// How many shorter lists are tried at most.
const SHRINK_TRIES: usize = 500;

/// Everything a seed decides.
pub struct Plan {
    /// Owners of the bytes.
    pub map: Map,
    /// Initial content of the home.
    pub home: Vec<u8>,
    /// The operations.
    pub ops: Vec<Op>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, size: Size) -> Plan {
        let mut rng = fastrand::Rng::with_seed(seed);
        let map = Map::random(size.home, &mut rng);
        let home = ops::content(rng.u64(..), size.home);
        let ops = ops::generate(&map, size.ops, &mut rng);
        Plan { map, home, ops }
    }
}

/// Runs the seed's operations on a fresh subject; a failure is shrunk by running shorter lists on fresh ones.
pub fn run<F: Factory>(factory: &mut F, seed: u64, size: Size) -> Result<(), Box<Failure>> {
    let plan = Plan::new(seed, size);
    let Err((at, what)) = attempt(factory, &plan, &plan.ops) else { return Ok(()) };
    let mut ops = plan.ops[..(at + 1).min(plan.ops.len())].to_vec();
    let prefix = ops.len();
    let mut shrunk_what = what.clone();
    shrink(&mut ops, |shorter| match attempt(factory, &plan, shorter) {
        Ok(()) => None,
        Err((at, text)) => {
            shrunk_what = text;
            Some(at + 1)
        }
    });
    Err(Box::new(Failure { seed, what, prefix, ops, shrunk_what }))
}

/// Leaves out halves, quarters and so on down to single operations, as long as the rest still fails. `fails` gives
/// the number of operations up to the failure.
fn shrink(ops: &mut Vec<Op>, mut fails: impl FnMut(&[Op]) -> Option<usize>) {
    let mut tries = 0;
    let mut piece = ops.len().div_ceil(2);
    while piece > 0 {
        let mut start = 0;
        while start < ops.len() && tries < SHRINK_TRIES {
            let end = (start + piece).min(ops.len());
            let shorter: Vec<Op> = ops[..start].iter().chain(&ops[end..]).copied().collect();
            tries += 1;
            match fails(&shorter) {
                Some(n) => {
                    *ops = shorter;
                    ops.truncate(n);
                }
                None => start = end,
            }
        }
        piece /= 2;
    }
}

/// Runs a list from the start; on a difference the index of the operation and what it showed. At the end everything
/// is released and the home compared, which counts as one operation more.
fn attempt<F: Factory>(factory: &mut F, plan: &Plan, ops: &[Op]) -> Result<(), (usize, String)> {
    let mut subject = factory.fresh(&plan.home).map_err(|e| (0, e))?;
    let mut model = Model::new(&plan.map, &plan.home);
    let last = Op::Release { off: 0, len: plan.map.len };
    for (i, op) in ops.iter().chain([&last]).enumerate() {
        step(&mut subject, &mut model, op).map_err(|e| (i, format!("{op:?}: {e}")))?;
    }
    Ok(())
}

fn step<S: Subject>(s: &mut S, m: &mut Model, op: &Op) -> Result<(), String> {
    match *op {
        Op::Store { off, len, fill } => {
            let bytes = ops::content(fill, len);
            s.store(off, &bytes)?;
            m.store(off, &bytes);
        }
        Op::Load { off, len } => {
            let mut got = vec![0; len];
            s.load(off, &mut got)?;
            m.check_load(off, &got)?;
        }
        Op::Release { off, len } => {
            s.release(off, len)?;
            m.release(off, len);
            m.check_home(&s.home()?)?;
        }
        Op::Flush { off, len } => s.flush(off, len)?,
        Op::Acquire { off, len } => {
            s.acquire(off, len)?;
            m.acquire(off, len);
        }
        Op::Prefetch { off, len } => s.prefetch(off, len)?,
        Op::Invalidate { off, len } => invalidate(s, m, off, len)?,
        Op::Pressure { pages } => s.pressure(pages)?,
        Op::Foreign { off, len, fill } => {
            let bytes = ops::content(fill, len);
            s.foreign_store(off, &bytes)?;
            m.change_home(off, &bytes);
        }
        Op::Add { .. } | Op::Swap { .. } | Op::StoreWord { .. } | Op::LoadWord { .. } => word(s, m, op)?,
    }
    Ok(())
}

fn invalidate<S: Subject>(s: &mut S, m: &mut Model, off: usize, len: usize) -> Result<(), String> {
    let before = m.invalidation(off, len, &s.home()?);
    let done = s.invalidate(off, len)?.is_ok();
    // A write-back of the subject's own may come at any moment: "done" is judged by the home after it, "dirty" before.
    let after = m.invalidation(off, len, &s.home()?);
    if if done { after == Some(false) } else { before == Some(true) } {
        let say = |done: bool| if done { "done" } else { "dirty" };
        return Err(format!("answered {}, expected {}", say(done), say(!done)));
    }
    if done {
        m.acquire(off, len);
    }
    Ok(())
}

/// Operations at the home: their answers are exact.
fn word<S: Subject>(s: &mut S, m: &mut Model, op: &Op) -> Result<(), String> {
    let expect = |off: usize, old: u64, got: u64| {
        (old == got).then_some(()).ok_or_else(|| format!("word at {off} was {got:#x}, expected {old:#x}"))
    };
    match *op {
        Op::Add { off, value } => {
            let old = m.word(off);
            expect(off, old, s.fetch_add(off, value)?)?;
            m.change_home(off, &old.wrapping_add(value).to_le_bytes());
        }
        Op::Swap { off, hit, value } => {
            let old = m.word(off);
            let expected = if hit { old } else { old ^ 1 };
            expect(off, old, s.compare_swap(off, expected, value)?)?;
            if hit {
                m.change_home(off, &value.to_le_bytes());
            }
        }
        Op::StoreWord { off, value } => {
            s.store_u64(off, value)?;
            m.change_home(off, &value.to_le_bytes());
        }
        Op::LoadWord { off } => expect(off, m.word(off), s.load_u64(off)?)?,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything() {
        let size = Size { home: 64 << 10, ops: 200 };
        let (a, b, c) = (Plan::new(5, size), Plan::new(5, size), Plan::new(6, size));
        assert_eq!((&a.ops, &a.home), (&b.ops, &b.home));
        assert_ne!(a.ops, c.ops);
    }

    #[test]
    fn shrinking_finds_the_two_that_matter() {
        let op = |n| Op::Pressure { pages: n };
        let mut ops: Vec<Op> = (0..100).map(op).collect();
        shrink(&mut ops, |l| {
            let first = l.iter().position(|o| *o == op(17))?;
            l.iter().skip(first).position(|o| *o == op(63)).map(|n| first + n + 1)
        });
        assert_eq!(ops, [op(17), op(63)]);
    }
}
