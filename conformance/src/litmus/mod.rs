//! Litmus tests: small programs of two to four nodes over a few shared variables, run many times with random
//! delays, every outcome counted.
//!
//! A [`Litmus`] pairs a fenced program, whose forbidden outcomes must never be seen, with a control without the
//! fences, whose relaxed outcomes must be seen: a harness that cannot see them is [`Failure::Blind`] and its silence
//! about the fenced program proves nothing. The thing under test is a [`World`]; [`mod@reference`] is one that really
//! has caches and really reorders, and has flaws to switch on, each of which a test here must catch.

pub mod catalogue;
pub mod harness;
pub mod reference;

use std::collections::BTreeMap;
use std::fmt;

/// Index of a shared variable, from 0. All start as 0 in every round.
pub type Var = usize;

/// Index of a result, counted over all threads of a program.
pub type Reg = usize;

/// One node's view of the shared variables, as the memory model names the operations. Used by one thread at a time.
pub trait Memory: Send {
    /// A plain store.
    fn store(&mut self, x: Var, value: u64);
    /// A plain load.
    fn load(&mut self, x: Var) -> u64;
    /// A store to a write-through view: at the home when this returns.
    fn store_through(&mut self, x: Var, value: u64);
    /// A load performed at the home.
    fn load_home(&mut self, x: Var) -> u64;
    /// All earlier stores are at the home when this returns.
    fn release(&mut self);
    /// Later loads see the home as of this call or later; own unreleased stores survive.
    fn acquire(&mut self);
    /// Adds at the home; the value before.
    fn atomic_add(&mut self, x: Var, value: u64) -> u64;
    /// Compares and swaps at the home; the value before.
    fn compare_swap(&mut self, x: Var, expected: u64, value: u64) -> u64;
    /// Between rounds: forgets every cached value and unreleased store.
    fn forget(&mut self);
    /// Between rounds: sets the variable at the home, whatever any node holds.
    fn reset_home(&mut self, x: Var, value: u64);
}

/// Where the variables of a test lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Each on a page of its own.
    Pages,
    /// On one page, each on a cache line of its own.
    Page,
    /// Side by side in one cache line.
    Line,
}

impl Placement {
    /// All of them.
    pub const ALL: [Placement; 3] = [Placement::Pages, Placement::Page, Placement::Line];
}

/// Makes the nodes of a test: each with its own cache, all over one home.
pub trait World {
    /// One node.
    type Node: Memory;
    /// `nodes` nodes that share `vars` variables.
    fn build(&mut self, nodes: usize, vars: usize, placement: Placement) -> Result<Vec<Self::Node>, String>;
}

/// One operation of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Plain store.
    Store(Var, u64),
    /// Plain load into a result.
    Load(Var, Reg),
    /// Plain load whose value is not looked at: it fills the cache.
    Touch(Var),
    /// Write-through store.
    Through(Var, u64),
    /// Load at the home into a result.
    Home(Var, Reg),
    /// Release.
    Release,
    /// Acquire.
    Acquire,
    /// Atomic addition; the old value is a result.
    Add(Var, u64, Reg),
    /// Compare and swap (variable, expected, new); the old value is a result.
    Swap(Var, u64, u64, Reg),
    /// All threads wait here for each other; each must have the same number of them. Orders the control's warm-up.
    Meet,
}

/// A program: what each node does, and how many results there are.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// One list of operations per node.
    pub threads: &'static [&'static [Op]],
    /// Number of results.
    pub regs: usize,
    /// Variables whose value at the home, after all have released, is appended to the outcome.
    pub finals: &'static [Var],
}

/// Results of one round: every register, then the final values.
pub type Outcome = Vec<u64>;

/// A named set of outcomes.
#[derive(Clone, Copy)]
pub struct Set {
    /// The set in words, as in `r0=1 r1=0`.
    pub text: &'static str,
    /// Membership.
    pub has: fn(&[u64]) -> bool,
}

/// A litmus test.
#[derive(Clone, Copy)]
pub struct Litmus {
    /// Name as the literature has it.
    pub name: &'static str,
    /// Number of variables.
    pub vars: usize,
    /// The program with its fences.
    pub fenced: Program,
    /// Never seen in the fenced program.
    pub forbidden: &'static [Set],
    /// Seen at least once in the fenced program: it must not be right by doing nothing.
    pub reached: &'static [Set],
    /// The program without fences, if leaving them out can show.
    pub control: Option<Program>,
    /// Seen at least once in the control.
    pub relaxed: &'static [Set],
}

/// How often each outcome was seen.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Histogram {
    /// Count by outcome.
    pub counts: BTreeMap<Outcome, u64>,
}

impl Histogram {
    /// Number of rounds.
    pub fn rounds(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Number of rounds whose outcome is in the set.
    pub fn seen(&self, set: &Set) -> u64 {
        self.counts.iter().filter(|(o, _)| (set.has)(o)).map(|(_, n)| n).sum()
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (outcome, n) in &self.counts {
            let values: Vec<String> = outcome.iter().map(u64::to_string).collect();
            writeln!(f, "    {:>9}  {}", n, values.join(" "))?;
        }
        Ok(())
    }
}

/// Why a test failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// A forbidden outcome was seen.
    Forbidden(String),
    /// An outcome that must be possible was not seen: the test cannot tell right from wrong.
    Blind(String),
    /// The world could not be built or a thread did not end.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Forbidden(t) => write!(f, "forbidden: {t}"),
            Failure::Blind(t) => write!(f, "blind: {t}"),
            Failure::Broken(t) => write!(f, "broken: {t}"),
        }
    }
}
