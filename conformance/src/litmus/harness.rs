//! Runs a litmus test: synchronised starts, random delays from one seed, every outcome counted.

use super::{Failure, Histogram, Litmus, Memory, Op, Outcome, Placement, Program, Reg, Set, World};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long to run each program of a test.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Rounds at most.
    pub rounds: u64,
    /// Rounds at least before the clock is looked at: outcomes that must be seen need their chance.
    pub at_least: u64,
    /// Time at most, once that many rounds are done.
    pub time: Duration,
}

impl Budget {
    /// `rounds` rounds, or as many as fit into `time`.
    pub const fn new(rounds: u64, time: Duration) -> Budget {
        Budget { rounds, at_least: 100, time }
    }
}

/// What a test showed.
#[derive(Clone, Debug)]
pub struct Report {
    /// Outcomes of the fenced program.
    pub fenced: Histogram,
    /// Outcomes of the control, empty without one.
    pub control: Histogram,
    /// Everything that went wrong.
    pub failures: Vec<Failure>,
}

/// The result an operation writes, if it writes one.
pub fn register(op: &Op) -> Option<Reg> {
    match *op {
        Op::Load(_, r) | Op::Home(_, r) | Op::Add(_, _, r) | Op::Swap(_, _, _, r) => Some(r),
        Op::Store(..) | Op::Touch(_) | Op::Through(..) | Op::Release | Op::Acquire | Op::Meet => None,
    }
}

/// Runs the fenced program and the control of `test` in `world` and judges both.
pub fn run<W: World>(world: &mut W, test: &Litmus, placement: Placement, budget: Budget, seed: u64) -> Report {
    let mut report = Report { fenced: Histogram::default(), control: Histogram::default(), failures: Vec::new() };
    let mut setting = Setting { world, vars: test.vars, placement, budget };
    match setting.count_until(&test.fenced, test.reached, seed) {
        Ok(h) => report.fenced = h,
        Err(e) => report.failures.push(Failure::Broken(e)),
    }
    if let Some(control) = &test.control {
        match setting.count_until(control, test.relaxed, seed ^ 1) {
            Ok(h) => report.control = h,
            Err(e) => report.failures.push(Failure::Broken(e)),
        }
    }
    judge(test, &mut report);
    report
}

fn judge(test: &Litmus, report: &mut Report) {
    for set in test.forbidden {
        let n = report.fenced.seen(set);
        if n > 0 {
            report.failures.push(Failure::Forbidden(format!("{}, {n} of {} rounds", set.text, report.fenced.rounds())));
        }
    }
    let mut blind = |histogram: &Histogram, set: &Set, which: &str| {
        if histogram.seen(set) == 0 {
            let text = format!("{which} never showed `{}` in {} rounds", set.text, histogram.rounds());
            report.failures.push(Failure::Blind(text));
        }
    };
    let (fenced, control) = (report.fenced.clone(), report.control.clone());
    test.reached.iter().for_each(|s| blind(&fenced, s, "the fenced program"));
    test.relaxed.iter().for_each(|s| blind(&control, s, "the control"));
}

/// Prints the histograms and turns the failures into one text with the seed.
pub fn conclude(test: &Litmus, placement: Placement, seed: u64, report: &Report) -> Result<(), String> {
    println!("{} {placement:?} seed={seed}: fenced, {} rounds\n{}", test.name, report.fenced.rounds(), report.fenced);
    if test.control.is_some() {
        println!("  control, {} rounds\n{}", report.control.rounds(), report.control);
    }
    let texts: Vec<String> = report.failures.iter().map(Failure::to_string).collect();
    if texts.is_empty() {
        Ok(())
    } else {
        Err(format!("{} {placement:?} seed={seed}: {}", test.name, texts.join("; ")))
    }
}

/// What the threads of one program share.
struct Shared<'a> {
    program: &'a Program,
    vars: usize,
    barrier: Barrier,
    stop: AtomicBool,
}

/// How often a program is run again when an outcome that must be possible was not seen: a busy host gets its chance.
const CHANCES: u64 = 24;

/// Where and how long programs run.
struct Setting<'a, W> {
    world: &'a mut W,
    vars: usize,
    placement: Placement,
    budget: Budget,
}

impl<W: World> Setting<'_, W> {
    /// Runs a program until every set of `wanted` was seen, at most [`CHANCES`] times the budget.
    fn count_until(&mut self, program: &Program, wanted: &[Set], seed: u64) -> Result<Histogram, String> {
        let mut all = Histogram::default();
        for chance in 0..CHANCES {
            let more = self.count(program, seed ^ chance << 48)?;
            more.counts.into_iter().for_each(|(o, n)| *all.counts.entry(o).or_default() += n);
            if wanted.iter().all(|s| all.seen(s) > 0) {
                break;
            }
        }
        Ok(all)
    }

    /// Runs a program for one budget. The nodes end with it.
    fn count(&mut self, program: &Program, seed: u64) -> Result<Histogram, String> {
        let nodes = self.world.build(program.threads.len(), self.vars, self.placement)?;
        if nodes.len() != program.threads.len() {
            return Err(format!("asked for {} nodes, got {}", program.threads.len(), nodes.len()));
        }
        let barrier = Barrier::new(nodes.len());
        let shared = Shared { program, vars: self.vars, barrier, stop: AtomicBool::new(false) };
        let budget = self.budget;
        let logs: Vec<_> = std::thread::scope(|scope| {
            let start = |(me, node): (usize, W::Node)| {
                let (shared, rng) = (&shared, fastrand::Rng::with_seed(seed ^ (me as u64) << 32));
                scope.spawn(move || Thread { shared, me, node, rng }.rounds(budget))
            };
            let threads: Vec<_> = nodes.into_iter().enumerate().map(start).collect();
            threads.into_iter().map(|t| t.join()).collect()
        });
        let logs: Result<Vec<_>, _> = logs.into_iter().collect();
        Ok(merge(logs.map_err(|_| "a node's thread panicked".to_string())?))
    }
}

/// Puts the threads' shares of each round together.
fn merge(logs: Vec<Vec<Outcome>>) -> Histogram {
    let mut histogram = Histogram::default();
    for round in 0..logs.first().map_or(0, Vec::len) {
        let shares = logs.iter().filter_map(|l| l.get(round));
        let whole = shares.fold(Outcome::new(), |mut whole, share| {
            whole.resize(share.len().max(whole.len()), 0);
            share.iter().zip(&mut whole).for_each(|(s, w)| *w += s);
            whole
        });
        *histogram.counts.entry(whole).or_default() += 1;
    }
    histogram
}

struct Thread<'a, M> {
    shared: &'a Shared<'a>,
    me: usize,
    node: M,
    rng: fastrand::Rng,
}

impl<M: Memory> Thread<'_, M> {
    /// This thread's share of every round: its own registers, and from the first thread the final values.
    fn rounds(mut self, budget: Budget) -> Vec<Outcome> {
        let deadline = Instant::now() + budget.time;
        let mut shares = Vec::new();
        loop {
            let n = shares.len() as u64;
            if self.me == 0 {
                let over = n >= budget.rounds || (n >= budget.at_least && Instant::now() >= deadline);
                self.shared.stop.store(over, Ordering::Relaxed);
            }
            self.shared.barrier.wait();
            if self.shared.stop.load(Ordering::Relaxed) {
                return shares;
            }
            self.prepare();
            let share = self.round();
            shares.push(share);
        }
    }

    /// Clean nodes over a home of zeros. The first barrier ends what others may still write back.
    fn prepare(&mut self) {
        self.node.forget();
        self.shared.barrier.wait();
        if self.me == 0 {
            (0..self.shared.vars).for_each(|x| self.node.reset_home(x, 0));
        }
        self.shared.barrier.wait();
        // What a node fetched or prefetched meanwhile is of the old round.
        self.node.forget();
        self.shared.barrier.wait();
    }

    fn round(&mut self) -> Outcome {
        let program = self.shared.program;
        let mut share = vec![0; program.regs + program.finals.len()];
        for op in program.threads[self.me] {
            self.delay();
            self.perform(op, &mut share);
        }
        self.shared.barrier.wait();
        self.node.release();
        self.shared.barrier.wait();
        if self.me == 0 {
            for (i, x) in program.finals.iter().enumerate() {
                share[program.regs + i] = self.node.load_home(*x);
            }
        }
        share
    }

    /// Mostly nothing, sometimes a few hundred cycles, rarely the rest of the time slice.
    fn delay(&mut self) {
        match self.rng.u32(0..64) {
            0 => std::thread::yield_now(),
            1..=24 => (0..self.rng.u32(0..400)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }

    fn perform(&mut self, op: &Op, share: &mut [u64]) {
        match *op {
            Op::Store(x, v) => self.node.store(x, v),
            Op::Load(x, r) => share[r] = self.node.load(x),
            Op::Touch(x) => drop(std::hint::black_box(self.node.load(x))),
            Op::Through(x, v) => self.node.store_through(x, v),
            Op::Home(x, r) => share[r] = self.node.load_home(x),
            Op::Release => self.node.release(),
            Op::Acquire => self.node.acquire(),
            Op::Add(x, v, r) => share[r] = self.node.atomic_add(x, v),
            Op::Swap(x, old, new, r) => share[r] = self.node.compare_swap(x, old, new),
            Op::Meet => drop(self.shared.barrier.wait()),
        }
    }
}
