//! The runner's command line.

use super::process::{Outcome, Plan};
use super::report::{self, Totals};
use super::{Case, Effort, Over, Verdict, child, interrupt, must, planted, schedule};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs libsmc's conformance suite: one process per case, a time limit for each, the seed in every failure.
///
/// The closing line is always `N passed, N failed, N skipped`; with --tap or --json it goes to standard error.
/// Exit status: 0 when nothing failed, 1 when something did, 2 for a wrong command line.
#[derive(Parser)]
#[command(name = "smc-conformance", version, after_help = EXAMPLES)]
struct Args {
    /// Print the names of the chosen cases and exit
    #[arg(long)]
    list: bool,
    /// Only cases whose name contains TEXT; `=NAME` for exactly that one; a comma separates alternatives
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    filter: Vec<String>,
    /// Cases at a time
    #[arg(long, short, default_value_t = 2, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=256))]
    jobs: usize,
    /// Only the cases marked quick, with little work each
    #[arg(long, conflicts_with = "long")]
    quick: bool,
    /// All cases, with much work each
    #[arg(long)]
    long: bool,
    /// Decides everything random; taken from the clock when not given
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Report in the Test Anything Protocol on standard output
    #[arg(long, conflicts_with = "json")]
    tap: bool,
    /// Also write a JUnit XML report to FILE
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Report as one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// How the cases reach their homes: `here` (in memory, by the embedded link), or `verbs` over this host's RDMA device
    #[arg(long, value_enum, default_value_t, value_name = "LINK")]
    link: Over,
    /// Names in FILE, one a line, must run: a skip of one, or one that is not among the chosen cases, is a failure
    #[arg(long, value_name = "FILE")]
    must_run: Option<PathBuf>,
    /// Run the cases that go wrong on purpose: shows that the runner sees it
    #[arg(long, hide = true)]
    planted: bool,
    /// Run this case in this process
    #[arg(long, hide = true, requires = "scratch")]
    case: Option<String>,
    /// Directory of the case
    #[arg(long, hide = true)]
    scratch: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  smc-conformance                                all normal cases, two at a time
  smc-conformance --quick                        a first look
  smc-conformance --list --filter litmus_        names of one family
  smc-conformance --filter =sim_reference --seed 7   one case, with the seed of a failure
  smc-conformance --long --jobs 1 --junit r.xml  everything, with a report for a CI server";

impl Args {
    fn effort(&self) -> Effort {
        match (self.quick, self.long) {
            (true, _) => Effort::Quick,
            (_, true) => Effort::Long,
            _ => Effort::Normal,
        }
    }

    fn wants(&self, name: &str) -> bool {
        let hit = |f: &String| f.strip_prefix('=').map_or_else(|| name.contains(f.as_str()), |exact| exact == name);
        self.filter.is_empty() || self.filter.iter().any(hit)
    }

    /// A case asked for by its exact name runs whatever its cost.
    fn chooses(&self, case: &Case) -> bool {
        if case.verbs_only && self.link != Over::Verbs {
            return false;
        }
        let exact = self.filter.iter().any(|f| f.strip_prefix('=') == Some(case.name));
        self.wants(case.name) && (exact || case.runs_at(self.effort()))
    }
}

/// Runs `cases` as the command line asks.
pub fn main(cases: &[Case]) -> ExitCode {
    let args = Args::parse();
    let cases = if args.planted { planted::CASES } else { cases };
    match &args.case {
        Some(name) => one(&args, cases, name),
        None => many(&args, cases),
    }
}

fn one(args: &Args, cases: &[Case], name: &str) -> ExitCode {
    let (Some(case), Some(scratch)) = (cases.iter().find(|c| c.name == name), args.scratch.clone()) else {
        return complain(&format!("no case is named {name}; see --list"));
    };
    match child::run(case, args.seed.unwrap_or(0), args.effort(), scratch) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => complain(&format!("cannot write the verdict of {name}: {e}")),
    }
}

fn many(args: &Args, cases: &[Case]) -> ExitCode {
    let chosen: Vec<Case> = cases.iter().filter(|c| args.chooses(c)).copied().collect();
    if chosen.is_empty() {
        return complain(
            "no case matches; see --list, with --long for the long ones and --link verbs for those over a device",
        );
    }
    if args.list {
        chosen.iter().for_each(|c| println!("{}", c.name));
        return ExitCode::SUCCESS;
    }
    let exe = match std::env::current_exe() {
        Ok(exe) => exe,
        Err(e) => return complain(&format!("cannot find the runner's own program: {e}")),
    };
    let must = match args.must_run.as_deref().map(must::read).transpose() {
        Ok(list) => list.unwrap_or_default(),
        Err(e) => return complain(&e),
    };
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..=u64::from(u32::MAX)));
    let scratch = std::env::temp_dir().join(format!("smc-conformance-{}", std::process::id()));
    let plan = Plan { exe, seed, effort: args.effort(), scratch, planted: args.planted, over: args.link };
    interrupt::install();
    let mut outcomes = run_and_show(args, &plan, &chosen);
    must::enforce(&must, cases, args.effort(), &mut outcomes);
    let _ = std::fs::remove_dir_all(&plan.scratch);
    finish(args, &plan, &outcomes)
}

fn run_and_show(args: &Args, plan: &Plan, chosen: &[Case]) -> Vec<Outcome> {
    let people = !args.tap && !args.json;
    if people {
        println!("seed {}, {} cases, {} at a time", plan.seed, chosen.len(), args.jobs);
    }
    let bar = progress(chosen.len(), people);
    let outcomes = schedule::run_all(plan, chosen, args.jobs, |o| {
        bar.inc(1);
        if people {
            bar.suspend(|| println!("{}", report::line(o, plan.seed, plan.over)));
        }
    });
    bar.finish_and_clear();
    outcomes
}

/// A bar on a terminal, nothing anywhere else.
fn progress(n: usize, people: bool) -> ProgressBar {
    if !people || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(n as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar
}

fn finish(args: &Args, plan: &Plan, outcomes: &[Outcome]) -> ExitCode {
    let totals = Totals::of(outcomes);
    if args.tap {
        print!("{}", report::tap(outcomes, plan.seed));
    }
    if args.json {
        println!("{}", report::json(outcomes, plan.seed));
    }
    if let Some(file) = &args.junit
        && let Err(e) = std::fs::write(file, report::junit(outcomes, plan.seed))
    {
        return complain(&format!("cannot write {}: {e}", file.display()));
    }
    if !args.tap && !args.json {
        repeat_failures(outcomes, plan.seed);
        println!("{totals}");
    } else {
        eprintln!("{totals}");
    }
    if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Names the failures once more at the end, where the eye is.
fn repeat_failures(outcomes: &[Outcome], seed: u64) {
    for o in outcomes {
        if let Verdict::Fail(text) = &o.verdict {
            println!("failed: {} seed={seed}: {}", o.name, text.lines().next().unwrap_or_default());
        }
    }
}

fn complain(text: &str) -> ExitCode {
    eprintln!("smc-conformance: {text}");
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Args {
        Args::parse_from(std::iter::once("smc-conformance").chain(args.iter().copied()))
    }

    #[test]
    fn filters() {
        assert!(parse(&[]).wants("data_a"));
        let a = parse(&["--filter", "data_,=stale_b"]);
        assert!(a.wants("data_a") && a.wants("stale_b") && !a.wants("stale_bc"));
    }

    #[test]
    fn an_exact_name_overrides_the_cost() {
        let long = Case::new("data_a", |_| Verdict::Pass).cost(super::super::Cost::Long);
        assert!(!parse(&["--filter", "data_a"]).chooses(&long));
        assert!(parse(&["--filter", "=data_a"]).chooses(&long));
        let over = Case::new("data_v", |_| Verdict::Pass).verbs_only();
        assert!(!parse(&["--filter", "=data_v"]).chooses(&over));
        assert!(parse(&["--filter", "=data_v", "--link", "verbs"]).chooses(&over));
    }
}
