//! The litmus tests over the engine: nodes are regions in one process, or processes, over one home.

use crate::cases;
use crate::litmus::harness::Budget;
use crate::litmus::{Litmus, Memory, Placement, Var, World, catalogue, harness};
use crate::rig::node::{AnyNode, Ask, Child, Node, through};
use crate::rig::{Bench, Home, policy};
use crate::runner::{Effort, Over};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, Policy, Through};
use smc_engine::link::AtomicOp;
use smc_engine::link::faulty::Plan;
use smc_engine::sys::clock::nap;
use std::sync::Arc;
use std::time::{Duration, Instant};

cases!(CASES, "litmus",
    loopback: Quick, 120;
    reordering: Normal, 120;
    lines: Normal, 120;
    whole_pages: Normal, 120;
    embedded: Normal, 120;
    two_processes: Normal, 240, children 4;
    bounded_through: Normal, 120;
    exact_through: Normal, 120;
    overtaking: Quick, 60;
);

/// What nodes are made of.
struct Engine<'a> {
    bench: &'a Bench<'a>,
    home: fn(usize, u64) -> Home,
    opts: MapOptions,
    /// Each node's link holds writes back until the fence.
    reorder: bool,
    /// Nodes live in these processes; without any they live here.
    children: Vec<Arc<Child>>,
    /// Where operations take long, every other load and store waits up to so many nanoseconds first: otherwise the nodes
    /// would always meet in the same order.
    lag_ns: u64,
}

/// One node, and where the variables are.
struct View {
    node: AnyNode,
    home: Home,
    at: Vec<usize>,
    lag_ns: u64,
    exact: bool,
    rng: fastrand::Rng,
}

impl World for Engine<'_> {
    type Node = View;

    fn build(&mut self, nodes: usize, vars: usize, placement: Placement) -> Result<Vec<View>, String> {
        let (step, len) = match placement {
            Placement::Pages => (PAGE, vars * PAGE),
            Placement::Page => (64, PAGE),
            Placement::Line => (8, PAGE),
        };
        let home = (self.home)(len, self.bench.ctx.seed);
        let view = |i: usize| {
            let node = match self.children.get(i) {
                Some(c) => {
                    c.map(&home.region, len, self.opts.policy);
                    AnyNode::There(c.clone())
                }
                None if self.reorder => {
                    let seed = self.bench.ctx.seed ^ i as u64;
                    let link = home.twin().behind("reordering", Plan { seed, reorder_ppm: 700_000, ..Plan::default() });
                    AnyNode::Here(Node::new(self.bench.backend, &link, self.opts.clone()))
                }
                None => AnyNode::Here(Node::new(self.bench.backend, &home, self.opts.clone())),
            };
            let (at, rng) = ((0..vars).map(|x| x * step).collect(), self.bench.ctx.rng(i as u64));
            let exact = self.opts.through == Through::Exact;
            View { node, home: home.twin(), at, lag_ns: self.lag_ns, exact, rng }
        };
        Ok((0..nodes).map(view).collect())
    }
}

impl View {
    fn synchronise(&self, ask: Ask) {
        let s = Status(self.node.ask(ask) as i32);
        assert_eq!(s, Status::OK, "{ask:?}");
    }

    fn lag(&mut self) {
        if self.lag_ns > 0 && self.rng.bool() {
            nap(self.rng.u64(..self.lag_ns));
        }
    }
}

impl Memory for View {
    fn store(&mut self, x: Var, value: u64) {
        self.lag();
        self.node.ask(Ask::Store(self.at[x], value));
    }

    fn load(&mut self, x: Var) -> u64 {
        self.lag();
        self.node.ask(Ask::Load(self.at[x]))
    }

    /// Exact write-through: at the home when the store has returned. Bounded: within the bound, which is waited for.
    fn store_through(&mut self, x: Var, value: u64) {
        self.store(x, value);
        if self.exact {
            return;
        }
        let start = Instant::now();
        while self.home.word(self.at[x]) != value {
            assert!(start.elapsed() < Duration::from_secs(2), "a write-through store did not arrive");
            std::thread::yield_now();
        }
    }

    fn load_home(&mut self, x: Var) -> u64 {
        self.lag();
        self.node.ask(Ask::Home(self.at[x]))
    }

    fn release(&mut self) {
        self.synchronise(Ask::Release);
    }

    fn acquire(&mut self) {
        self.synchronise(Ask::Acquire);
    }

    fn atomic_add(&mut self, x: Var, value: u64) -> u64 {
        self.node.ask(Ask::Add(self.at[x], value))
    }

    fn compare_swap(&mut self, x: Var, expected: u64, value: u64) -> u64 {
        self.node.ask(Ask::Swap(self.at[x], expected, value))
    }

    fn forget(&mut self) {
        self.synchronise(Ask::Barrier);
    }

    fn reset_home(&mut self, x: Var, value: u64) {
        self.home.set(self.at[x], value);
    }
}

/// Tests that need stores which are at the home when they return.
fn is_through(t: &Litmus) -> bool {
    t.name.contains("through")
}

/// Tests in which every page has one writer.
fn one_writer(t: &Litmus) -> bool {
    ["MP", "SB", "LB", "IRIW", "CoRR", "neighbours"].contains(&t.name)
}

fn run(mut world: Engine, placements: &[Placement], wanted: fn(&Litmus) -> bool) {
    let ctx = world.bench.ctx;
    let mut tests: Vec<&Litmus> = catalogue::ALL.iter().copied().filter(|t| wanted(t)).collect();
    let mut placements = placements.to_vec();
    if ctx.effort == Effort::Quick {
        tests.retain(|t| ["MP", "SB", "neighbours", "MP+through"].contains(&t.name));
        placements.truncate(1);
    }
    let mut budget = Budget::new(ctx.scale(500, 5_000, 500_000), Duration::from_millis(ctx.scale(40, 120, 3_000)));
    if !world.children.is_empty() {
        // Processes on few CPUs start far apart: what must be seen needs more chances.
        budget.at_least = 300;
    }
    if Over::now() == Over::Verbs {
        // A fetch takes as long as a dozen other operations there: two threads rarely meet inside one.
        budget = Budget { at_least: 3_000, rounds: budget.rounds.max(3_000), ..budget };
    }
    let mut wrong = Vec::new();
    for test in tests {
        for placement in &placements {
            let report = harness::run(&mut world, test, *placement, budget, ctx.seed);
            wrong.extend(harness::conclude(test, *placement, ctx.seed, &report).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const LINE_FIRST: [Placement; 3] = [Placement::Line, Placement::Page, Placement::Pages];

fn engine<'a>(bench: &'a Bench<'a>, home: fn(usize, u64) -> Home, p: Policy) -> Engine<'a> {
    Engine { bench, home, opts: policy(p), reorder: false, children: Vec::new(), lag_ns: 0 }
}

fn loopback(b: &Bench) {
    run(engine(b, Home::loopback, Policy::Byte), &LINE_FIRST, |t| !is_through(t));
}

fn reordering(b: &Bench) {
    let world = Engine { reorder: true, ..engine(b, Home::loopback, Policy::Byte) };
    run(world, &LINE_FIRST, |t| !is_through(t));
}

fn lines(b: &Bench) {
    let world = engine(b, Home::loopback, Policy::Line);
    run(world, &[Placement::Page, Placement::Pages], |t| !is_through(t));
}

fn whole_pages(b: &Bench) {
    run(engine(b, Home::loopback, Policy::Page), &[Placement::Pages], one_writer);
}

fn embedded(b: &Bench) {
    run(engine(b, Home::embedded, Policy::Byte), &[Placement::Line, Placement::Pages], |t| !is_through(t));
}

/// Every node a process of its own.
fn two_processes(b: &Bench) {
    let world = Engine { children: b.children.clone(), lag_ns: 400_000, ..engine(b, Home::embedded, Policy::Byte) };
    run(world, &[Placement::Line, Placement::Pages], |t| !is_through(t));
}

fn bounded_through(b: &Bench) {
    let world = Engine { opts: through(), lag_ns: 6_000_000, ..engine(b, Home::loopback, Policy::Byte) };
    run(world, &LINE_FIRST, is_through);
}

fn exact_through(b: &Bench) {
    let opts = MapOptions { through: Through::Exact, ..MapOptions::default() };
    let world = Engine { opts, lag_ns: 400_000, ..engine(b, Home::loopback, Policy::Byte) };
    run(world, &LINE_FIRST, is_through);
}

/// Over a link that holds writes back, a flag set at the home overtakes data that was only flushed, and never data
/// that was released.
fn overtaking(b: &Bench) {
    let plan = Plan { seed: b.ctx.seed, reorder_ppm: 500_000, ..Plan::default() };
    let r = b.rig(Home::loopback(2 * PAGE, 0).behind("reordering", plan), policy(Policy::Byte));
    let flag = |n: u64| assert_eq!(r.region.at_home(PAGE as u64, AtomicOp::FetchAdd(1)), Ok(n));
    let (mut overtaken, rounds) = (0, 200);
    for n in 0..rounds {
        r.store(64, n + 1);
        assert_eq!(r.region.flush(0, 0), Status::OK);
        flag(2 * n);
        // Another node: sees the flag, then looks at the data.
        overtaken += u64::from(r.home.word(64) != n + 1);
        r.store(128, n + 1);
        r.release();
        flag(2 * n + 1);
        r.home_is(128, n + 1);
    }
    println!("{}: {overtaken} of {rounds} overtaken without a release", r.tag);
    assert!(overtaken > 0, "{}: blind: the flag never overtook flushed data", r.tag);
}
