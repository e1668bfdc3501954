//! The simulation over the engine: random operations against the byte-exact model, on links that behave and links
//! that lose, cut and drop.

use crate::cases;
use crate::rig::{Bench, Home, Rig};
use crate::sim::run::{Size, run};
use crate::sim::{Dirty, Factory, Subject};
use smc_engine::base::{PAGE, Status, config::Backend};
use smc_engine::core::options::{MapOptions, Through};
use smc_engine::link::AtomicOp;
use smc_engine::link::faulty::Plan;
use std::time::{Duration, Instant};

cases!(CASES, "sim",
    loopback: Quick, 60;
    reordering: Quick, 60;
    lossy: Quick, 60;
    embedded: Normal, 60;
);

/// Pages beside the home that only serve to make memory scarce.
const BALLAST: usize = 160;

/// How one seed's regions are made.
struct Maker {
    backend: Backend,
    home: fn(usize, u64) -> Home,
    plan: Option<Plan>,
    seed: u64,
}

/// Options that follow from the seed: limits, background write-back, units.
fn options(seed: u64) -> MapOptions {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    MapOptions {
        resident_limit: if rng.bool() { 64 << 10 } else { 0 },
        age_ms: [0, 0, 1, 2][rng.usize(..4)],
        through: if rng.u32(0..6) == 0 { Through::Bounded } else { Through::Off },
        page_unit: [PAGE, PAGE, 4 * PAGE][rng.usize(..3)],
        window: [0, 1, 4][rng.usize(..3)],
        wait_ms: 10_000,
        ..MapOptions::default()
    }
}

impl Factory for Maker {
    type Subject = Engine;

    fn fresh(&mut self, home: &[u8]) -> Result<Engine, String> {
        // Every other seed has a partial last page instead of ballast.
        let whole = self.seed.is_multiple_of(2);
        let len = if whole { home.len().next_multiple_of(PAGE) + BALLAST * PAGE } else { home.len() };
        let made = (self.home)(len, self.seed);
        made.poke(0, home);
        let made = match &self.plan {
            Some(p) => made.behind("lossy", Plan { seed: self.seed, ..p.clone() }),
            None => made,
        };
        let rig = Rig::new(self.backend, made, options(self.seed));
        Ok(Engine { rig, len: home.len(), hand: 0 })
    }
}

/// A region and how much of it is the model's.
struct Engine {
    rig: Rig,
    len: usize,
    hand: usize,
}

/// How often an operation is repeated that a lossy link refused.
const TRIES: usize = 2000;

fn retry<T>(mut f: impl FnMut() -> Result<T, Status>) -> Result<T, String> {
    let mut last = Status::OK;
    for _ in 0..TRIES {
        match f() {
            Err(s) if s.is_transient() => last = s,
            r => return r.map_err(|s| format!("answered {s:?}")),
        }
    }
    Err(format!("answered {last:?} {TRIES} times"))
}

impl Engine {
    fn at_home(&self, off: usize, op: AtomicOp) -> Result<u64, String> {
        retry(|| self.rig.region.at_home(off as u64, op))
    }
}

impl Subject for Engine {
    fn store(&mut self, off: usize, bytes: &[u8]) -> Result<(), String> {
        self.hand += 1;
        match self.hand % 3 {
            0 => self.rig.pwrite(off, bytes),
            _ => self.rig.store_bytes(off, bytes),
        }
        Ok(())
    }

    fn load(&mut self, off: usize, into: &mut [u8]) -> Result<(), String> {
        self.hand += 1;
        let got =
            if self.hand.is_multiple_of(3) { self.rig.pread(off, into.len()) } else { self.rig.bytes(off, into.len()) };
        into.copy_from_slice(&got);
        Ok(())
    }

    fn release(&mut self, off: usize, len: usize) -> Result<(), String> {
        // A length of 0 means "to the end" to the engine.
        if len == 0 { Ok(()) } else { retry(|| self.rig.region.release(off as u64, len as u64).ok()) }
    }

    fn flush(&mut self, off: usize, len: usize) -> Result<(), String> {
        if len > 0 {
            let _ = self.rig.region.flush(off as u64, len as u64);
        }
        Ok(())
    }

    fn acquire(&mut self, off: usize, len: usize) -> Result<(), String> {
        if len == 0 {
            return Ok(());
        }
        retry(|| {
            let s = self.rig.region.acquire(off as u64, len as u64);
            if !s.is_ok() {
                // Stores that a flush could not deliver come first.
                let _ = self.rig.region.release(0, 0);
            }
            s.ok()
        })
    }

    fn prefetch(&mut self, off: usize, len: usize) -> Result<(), String> {
        self.rig.region.prefetch(off as u64, len.max(1) as u64).ok().map_err(|s| s.to_string())
    }

    fn invalidate(&mut self, off: usize, len: usize) -> Result<Result<(), Dirty>, String> {
        let once = || match self.rig.region.invalidate(off as u64, len as u64) {
            Status::DIRTY => Ok(Err(Dirty)),
            s => s.ok().map(Ok),
        };
        if len == 0 { Ok(Ok(())) } else { retry(once) }
    }

    fn pressure(&mut self, pages: usize) -> Result<(), String> {
        let first = self.len.div_ceil(PAGE);
        if self.rig.home.len / PAGE > first {
            for _ in 0..pages * 16 {
                self.hand += 1;
                self.rig.load8((first + self.hand % BALLAST) * PAGE);
            }
        }
        Ok(())
    }

    fn fetch_add(&mut self, off: usize, value: u64) -> Result<u64, String> {
        self.at_home(off, AtomicOp::FetchAdd(value))
    }

    fn compare_swap(&mut self, off: usize, expected: u64, new: u64) -> Result<u64, String> {
        self.at_home(off, AtomicOp::CompareSwap { expected, new })
    }

    fn store_u64(&mut self, off: usize, value: u64) -> Result<(), String> {
        self.at_home(off, AtomicOp::Store(value)).map(drop)
    }

    fn load_u64(&mut self, off: usize) -> Result<u64, String> {
        self.at_home(off, AtomicOp::Load)
    }

    fn foreign_store(&mut self, off: usize, bytes: &[u8]) -> Result<(), String> {
        self.rig.home.poke(off, bytes);
        Ok(())
    }

    fn home(&mut self) -> Result<Vec<u8>, String> {
        Ok(self.rig.home.bytes(0, self.len))
    }
}

/// Runs seeds until the time is up.
fn seeds(b: &Bench, home: fn(usize, u64) -> Home, plan: Option<Plan>) {
    let (start, time) = (Instant::now(), Duration::from_millis(b.ctx.scale(600, 4_000, 40_000)));
    let mut n = 0;
    while n < 2 || start.elapsed() < time {
        let seed = b.ctx.seed.wrapping_add(n);
        let size =
            if n % 4 == 3 { Size { home: 128 << 10, ops: 400 } } else { Size { home: (16 << 10) + 8, ops: 300 } };
        let mut maker = Maker { backend: b.backend, home, plan: plan.clone(), seed };
        if let Err(f) = run(&mut maker, seed, size) {
            panic!("{} options {:?}: {f}", b.backend.name(), options(seed));
        }
        n += 1;
    }
    println!("{}: {n} seeds from {}", b.backend.name(), b.ctx.seed);
}

fn loopback(b: &Bench) {
    seeds(b, Home::loopback, None);
}

fn reordering(b: &Bench) {
    seeds(b, Home::reordering, None);
}

fn lossy(b: &Bench) {
    let plan = Plan {
        loss_ppm: 30_000,
        partial_ppm: 30_000,
        delay_ppm: 20_000,
        delay_ns: 100_000,
        reorder_ppm: 300_000,
        down: Some((100, 130)),
        ..Plan::default()
    };
    seeds(b, Home::loopback, Some(plan));
}

fn embedded(b: &Bench) {
    seeds(b, Home::embedded, None);
}
