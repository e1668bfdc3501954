//! The runner: cases are data, each runs in its own process under a time limit, and every failure names its seed.
//!
//! Three verdicts: pass, fail with a text, skip with a reason. A process that ends without a verdict, by a signal it
//! was not expected to die of, or not at all, is a failure. `conformance/tests/runner.rs` checks that with
//! [`planted`] cases.

pub mod child;
pub mod cli;
pub mod interrupt;
pub mod must;
pub mod need;
pub mod planted;
pub mod process;
pub mod report;
pub mod schedule;

pub use need::Need;
use std::path::{Path, PathBuf};

/// Outcome of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every promise held.
    Pass,
    /// A promise was broken; the text says which one, with the values seen.
    Fail(String),
    /// The case could not run here; the text says what is missing.
    Skip(String),
}

impl From<Result<(), String>> for Verdict {
    fn from(r: Result<(), String>) -> Verdict {
        r.map_or_else(Verdict::Fail, |()| Verdict::Pass)
    }
}

/// In which runs a case takes part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cost {
    /// Always; well under ten seconds.
    Quick,
    /// Unless `--quick` is given.
    Normal,
    /// Only with `--long`.
    Long,
}

/// How much work a case may do, from `--quick` and `--long`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effort {
    /// A smoke test.
    Quick,
    /// The default.
    Normal,
    /// Minutes per case.
    Long,
}

/// How cases reach their homes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, clap::ValueEnum)]
pub enum Over {
    /// In this process and by the embedded link.
    #[default]
    Here,
    /// Over an RDMA device.
    Verbs,
}

/// Variable by which a case's process is told.
const OVER: &str = "SMC_SUITE_LINK";

impl Over {
    /// The choice of this run.
    pub fn now() -> Over {
        if std::env::var_os(OVER).is_some_and(|v| v == "verbs") { Over::Verbs } else { Over::Here }
    }

    /// The command line's words for it, with a space before them.
    pub fn option(self) -> &'static str {
        match self {
            Over::Here => "",
            Over::Verbs => " --link verbs",
        }
    }
}

/// One case. Build it with [`Case::new`] and the methods that follow it.
#[derive(Clone, Copy)]
pub struct Case {
    /// `family_name`, unique; the family comes first so that `--filter family_` selects it.
    pub name: &'static str,
    /// Seconds after which the whole process group is killed; `--long` multiplies it by ten.
    pub timeout_s: u64,
    /// What the host must have; the first that is missing skips the case.
    pub needs: &'static [Need],
    /// The test itself; it runs in a process of its own.
    pub run: fn(&mut Ctx) -> Verdict,
    /// Signal the process is expected to end by; ending otherwise is then the failure.
    pub dies_by: Option<i32>,
    /// In which runs it takes part.
    pub cost: Cost,
    /// Takes part in runs over a device only.
    pub verbs_only: bool,
}

impl Case {
    /// A case with a limit of 60 s, no needs and normal cost.
    pub const fn new(name: &'static str, run: fn(&mut Ctx) -> Verdict) -> Case {
        Case { name, timeout_s: 60, needs: &[], run, dies_by: None, cost: Cost::Normal, verbs_only: false }
    }

    /// Sets the time limit in seconds.
    pub const fn timeout(self, timeout_s: u64) -> Case {
        Case { timeout_s, ..self }
    }

    /// Sets what the host must have.
    pub const fn needs(self, needs: &'static [Need]) -> Case {
        Case { needs, ..self }
    }

    /// Expects the process to end by this signal.
    pub const fn dies_by(self, signal: i32) -> Case {
        Case { dies_by: Some(signal), ..self }
    }

    /// Sets in which runs it takes part.
    pub const fn cost(self, cost: Cost) -> Case {
        Case { cost, ..self }
    }

    /// Leaves it to runs over a device.
    pub const fn verbs_only(self) -> Case {
        Case { verbs_only: true, ..self }
    }

    /// True when a run of this effort includes the case.
    pub fn runs_at(&self, effort: Effort) -> bool {
        match effort {
            Effort::Quick => self.cost == Cost::Quick,
            Effort::Normal => self.cost != Cost::Long,
            Effort::Long => true,
        }
    }
}

/// What a running case is given.
pub struct Ctx {
    /// Decides everything random in the case. The same for every case of a run.
    pub seed: u64,
    /// How much work to do.
    pub effort: Effort,
    scratch: PathBuf,
}

impl Ctx {
    /// A context with an own, empty directory that lives as long as the case.
    pub fn new(seed: u64, effort: Effort, scratch: PathBuf) -> Ctx {
        Ctx { seed, effort, scratch }
    }

    /// The case's own directory, removed by the runner afterwards.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// A random source that depends on the seed and on `stream` only.
    pub fn rng(&self, stream: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// One of three amounts, by effort.
    pub fn scale(&self, quick: u64, normal: u64, long: u64) -> u64 {
        match self.effort {
            Effort::Quick => quick,
            Effort::Normal => normal,
            Effort::Long => long,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_selects_runs() {
        let c = Case::new("basic_x", |_| Verdict::Pass);
        assert!(!c.runs_at(Effort::Quick) && c.runs_at(Effort::Normal) && c.runs_at(Effort::Long));
        assert!(c.cost(Cost::Quick).runs_at(Effort::Quick));
        assert!(!c.cost(Cost::Long).runs_at(Effort::Normal));
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let ctx = Ctx::new(7, Effort::Quick, PathBuf::new());
        assert_eq!(ctx.rng(1).u64(..), ctx.rng(1).u64(..));
        assert_ne!(ctx.rng(1).u64(..), ctx.rng(2).u64(..));
    }
}
