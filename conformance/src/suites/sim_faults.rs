//! The simulation with faults: random operations while the link loses, cuts and drops, exporters end and come back, and access
//! is revoked.
//!
//! What must be true: where calls say OK the home equals the model, a load sees what it may see or the error value, and
//! every store that is nowhere is named by the region, never more of the program's bytes than went to a failing page.

use crate::cases;
use crate::rig::{Bench, Home, Rig, Valve};
use crate::sim::map::{Map, Owner};
use crate::sim::model::Model;
use crate::sim::ops::{self, Op};
use crate::sim::run::{Plan as Program, Size};
use smc_engine::base::{PAGE, Status, config::Backend};
use smc_engine::core::condition::Condition;
use smc_engine::core::options::{MapOptions, OnError, Through};
use smc_engine::link::{AtomicOp, Health};
use smc_engine::link::faulty::Plan;
use std::sync::Arc;
use std::time::{Duration, Instant};

cases!(CASES, "sim",
    faults: Normal, 60;
);

/// Byte of a page that could not be fetched.
const ERROR: u8 = 0xEE;

/// How a seed's run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The home is there.
    Well,
    /// This client's access was taken away.
    Revoked,
    /// The exporter came back with other memory, or did not come back.
    Gone,
}

/// One seed's world.
struct World {
    rig: Rig,
    /// One for each path.
    valves: Vec<Arc<Valve>>,
    model: Model,
    map: Map,
    rng: fastrand::Rng,
    len: usize,
    /// Bytes stored while a page may have shown the error value: these alone may be lost.
    doubtful: Vec<bool>,
    /// Stores that are known to be lost, as the failing page may still show them.
    ghost: Vec<Option<u8>>,
    /// `pages_poisoned` when last no page showed the error value.
    sound_at: u64,
    /// Operations until the link works again; 0: it does.
    down_for: u32,
    /// The exporter is away.
    away: bool,
    /// The end has come: the home's bytes at that moment.
    over: Option<Vec<u8>>,
    end: End,
    embedded: bool,
}

fn options(seed: u64) -> MapOptions {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xfa17);
    MapOptions {
        resident_limit: if rng.bool() { 128 << 10 } else { 0 },
        age_ms: [0, 0, 1, 3][rng.usize(..4)],
        through: if rng.u32(0..6) == 0 { Through::Bounded } else { Through::Off },
        page_unit: [PAGE, PAGE, 4 * PAGE][rng.usize(..3)],
        window: [0, 1, 4][rng.usize(..3)],
        on_error: if rng.bool() { OnError::Value } else { OnError::WaitValue },
        wait_ms: rng.u64(20..60),
        fail_limit: [0, 1, 3, 1000][rng.usize(..4)],
        error_byte: ERROR,
        ..MapOptions::default()
    }
}

type Checked = Result<(), String>;

impl World {
    fn new(backend: Backend, seed: u64, program: &Program) -> World {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0f0f);
        let embedded = rng.bool();
        let bytes = program.home.len().next_multiple_of(PAGE);
        let home = if embedded { Home::restartable(bytes, seed) } else { Home::loopback(bytes, seed) };
        home.poke(0, &program.home);
        let plan = Plan {
            seed,
            loss_ppm: rng.u32(0..20_000),
            partial_ppm: rng.u32(0..20_000),
            delay_ppm: 10_000,
            delay_ns: 100_000,
            reorder_ppm: [0, 300_000][rng.usize(..2)],
            ..Plan::default()
        };
        let (home, valve) = home.behind("faulty", plan.clone()).with_valve();
        let mut valves = vec![valve];
        // Two ways to the same home, every third time.
        let home = if rng.u32(0..3) == 0 {
            let (other, valve) = home.plain().behind("faulty", Plan { seed: seed ^ 1, ..plan }).with_valve();
            valves.push(valve);
            home.or_over(&other)
        } else {
            home
        };
        World {
            rig: Rig::new(backend, home, options(seed)),
            valves,
            model: Model::new(&program.map, &program.home),
            map: program.map.clone(),
            len: program.home.len(),
            doubtful: vec![false; program.home.len()],
            ghost: vec![None; program.home.len()],
            sound_at: 0,
            down_for: 0,
            away: false,
            over: None,
            end: [End::Well, End::Well, End::Revoked, End::Gone][rng.usize(..4)],
            embedded,
            rng,
        }
    }

    /// Turns every path's valve.
    fn set(&self, s: Status) {
        self.valves.iter().for_each(|v| v.set(s));
    }

    fn home(&self) -> Vec<u8> {
        self.rig.home.bytes(0, self.len)
    }

    /// Some page may show the error value.
    fn shaky(&self) -> bool {
        self.rig.region.stats().pages_poisoned.get() > self.sound_at
    }

    fn is_lost(&self, i: usize) -> bool {
        let i = i as u64;
        self.rig.region.lost(usize::MAX).iter().any(|(s, e)| (*s..*e).contains(&i))
    }

    /// Lets faults happen between two operations.
    fn weather(&mut self, at: usize, of: usize) {
        if self.over.is_some() {
            return;
        }
        if at > of * 2 / 3 && self.end != End::Well {
            return self.finish();
        }
        if self.down_for > 0 {
            self.down_for -= 1;
            if self.down_for == 0 {
                self.set(Status::OK);
                if std::mem::take(&mut self.away) {
                    self.rig.home.restart(1);
                }
            }
        } else if self.rng.u32(0..60) == 0 {
            self.down_for = self.rng.u32(1..12);
            match self.embedded && self.rng.bool() {
                true => {
                    self.rig.home.end();
                    self.away = true;
                }
                false if self.rng.bool() => self.set(Status::LINK_DOWN),
                false => {
                    let one = self.rng.usize(..self.valves.len());
                    self.valves[one].set(Status::LINK_DOWN);
                }
            }
        }
    }

    /// The end: from here on nothing reaches the home.
    fn finish(&mut self) {
        if std::mem::take(&mut self.away) {
            self.rig.home.restart(1);
        }
        self.set(Status::OK);
        // Who is not there cannot be revoked.
        let start = Instant::now();
        while self.rig.region.link().health(self.rig.region.key()) != Health::Up {
            assert!(start.elapsed() < Duration::from_secs(10), "the exporter is not found again");
            std::thread::sleep(Duration::from_millis(1));
        }
        match (self.end, self.embedded) {
            (End::Revoked, true) => self.rig.home.revoke(),
            (End::Revoked, false) => self.set(Status::REVOKED),
            (End::Gone, true) => {
                self.rig.home.end();
                self.rig.home.restart(2);
            }
            _ => self.set(Status::PEER_DEAD),
        }
        // An operation that had begun may still arrive; after it none does.
        let start = Instant::now();
        while self.rig.region.status() != self.last_status() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(1));
        self.over = Some(self.home());
    }

    /// What the region says after the end.
    fn last_status(&self) -> Status {
        match (self.end, self.embedded) {
            (End::Revoked, _) => Status::REVOKED,
            (_, true) => Status::STALE,
            _ => Status::PEER_DEAD,
        }
    }

    fn store(&mut self, off: usize, bytes: &[u8]) {
        let by_call = self.rng.u32(0..3) == 0;
        // SAFETY: the slice is valid for its length.
        let s = if by_call { unsafe { self.rig.region.write(off as u64, bytes.as_ptr(), bytes.len()) } } else { Status::TIMED_OUT };
        if !s.is_ok() {
            // What a failing call has left undone is stored: then all of it was.
            self.rig.store_bytes(off, bytes);
        }
        self.model.store(off, bytes);
        self.ghost[off..off + bytes.len()].fill(None);
        let doubtful = self.shaky();
        self.doubtful[off..off + bytes.len()].fill(doubtful);
    }

    fn load(&mut self, off: usize, len: usize) -> Checked {
        let mut got = vec![0u8; len];
        let by_call = self.rng.u32(0..3) == 0;
        // SAFETY: the buffer has `len` bytes.
        let s = if by_call { unsafe { self.rig.region.read(off as u64, got.as_mut_ptr(), len) } } else { Status::TIMED_OUT };
        if !s.is_ok() {
            got = self.rig.bytes(off, len);
        }
        self.judge_load(off, &got)
    }

    fn judge_load(&mut self, off: usize, got: &[u8]) -> Checked {
        for (i, b) in (off..).zip(got.iter().copied()) {
            let failing = b == ERROR || self.ghost[i] == Some(b);
            if self.model.may_be(i, b) || (failing && self.shaky()) {
                continue;
            }
            // A store that went to a failing page: it is named, and the home's byte is seen.
            let home = self.rig.home.bytes(i, 1)[0];
            if self.doubtful[i] && b == home && self.is_lost(i) {
                self.lose(i, home);
                self.doubtful[i] = false;
                continue;
            }
            return Err(format!(
                "byte {i} is {b:02x}, expected {:02x} (home {home:02x}, dirty {}, doubtful {}, lost {}, {:?})",
                self.model.byte(i),
                self.model.is_dirty(i),
                self.doubtful[i],
                self.is_lost(i),
                self.rig.region.condition()
            ));
        }
        Ok(())
    }

    /// A release said OK, or that all but named stores were delivered.
    fn released(&mut self, off: usize, len: usize) -> Checked {
        let home = self.home();
        self.model.release(off, len);
        for i in off..off + len {
            if home[i] == self.model.byte(i) || self.model.is_dirty(i) {
                continue;
            }
            if self.doubtful[i] && self.is_lost(i) {
                self.lose(i, home[i]);
                continue;
            }
            return Err(format!(
                "home byte {i} is {:02x}, expected {:02x} (doubtful {}, lost {})",
                home[i],
                self.model.byte(i),
                self.doubtful[i],
                self.is_lost(i)
            ));
        }
        self.doubtful[off..off + len].fill(false);
        Ok(())
    }

    fn lose(&mut self, i: usize, home: u8) {
        self.ghost[i] = Some(self.model.byte(i));
        self.model.lose(i, home);
    }

    fn release(&mut self, off: usize, len: usize) -> Checked {
        if len == 0 {
            return Ok(());
        }
        match self.rig.region.release(off as u64, len as u64) {
            Status::OK | Status::POISONED if self.over.is_some() => {
                // Allowed when nothing was dirty: then everything is where it should be.
                self.released(off, len)
            }
            Status::OK | Status::POISONED => self.released(off, len),
            _ => Ok(()),
        }
    }

    fn word(&mut self, op: Op) -> Checked {
        let (off, at_home) = match op {
            Op::Add { off, value } => (off, AtomicOp::FetchAdd(value)),
            Op::Swap { off, hit, value } => {
                let old = self.model.word(off);
                (off, AtomicOp::CompareSwap { expected: if hit { old } else { old ^ 1 }, new: value })
            }
            Op::StoreWord { off, value } => (off, AtomicOp::Store(value)),
            Op::LoadWord { off } => (off, AtomicOp::Load),
            _ => return Ok(()),
        };
        let want = self.model.word(off);
        match self.rig.region.at_home(off as u64, at_home) {
            Ok(old) if old == want => {
                let cell = std::sync::atomic::AtomicU64::new(old);
                at_home.perform(&cell);
                self.model.change_home(off, &cell.into_inner().to_le_bytes());
                Ok(())
            }
            Ok(old) => Err(format!("word at {off} was {old:#x}, expected {want:#x}")),
            Err(Status::INTERNAL) => {
                // It cannot be told whether it happened: then the home tells.
                let now = self.rig.home.word(off);
                self.model.change_home(off, &now.to_le_bytes());
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    fn step(&mut self, op: Op) -> Checked {
        let region = self.rig.region.clone();
        match op {
            Op::Store { off, len, fill } => self.store(off, &ops::content(fill, len)),
            Op::Load { off, len } => return self.load(off, len),
            Op::Release { off, len } => return self.release(off, len),
            Op::Flush { off, len } if len > 0 => _ = region.flush(off as u64, len as u64),
            Op::Acquire { off, len } if len > 0 => {
                if region.acquire(off as u64, len as u64).is_ok() {
                    self.model.acquire(off, len);
                }
            }
            Op::Prefetch { off, len } => _ = region.prefetch(off as u64, len.max(1) as u64),
            Op::Invalidate { off, len } if len > 0 => {
                if region.invalidate(off as u64, len as u64).is_ok() {
                    self.model.acquire(off, len);
                }
            }
            Op::Foreign { off, len, fill } if self.over.is_none() => {
                let bytes = ops::content(fill, len);
                self.rig.home.poke(off, &bytes);
                self.model.change_home(off, &bytes);
            }
            Op::Add { .. } | Op::Swap { .. } | Op::StoreWord { .. } | Op::LoadWord { .. } => return self.word(op),
            _ => {}
        }
        Ok(())
    }

    /// With the home within reach everything can be settled: all stores are at the home or named, and no page shows the
    /// error value.
    fn settle(&mut self) -> Checked {
        self.down_for = 0;
        self.set(Status::OK);
        if std::mem::take(&mut self.away) {
            self.rig.home.restart(1);
        }
        let start = Instant::now();
        loop {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(format!("it does not recover: {:?}", self.rig.region.condition()));
            }
            let region = &self.rig.region;
            let released = region.release(0, 0);
            if !matches!(released, Status::OK | Status::POISONED) || !region.acquire(0, 0).is_ok() {
                std::thread::sleep(Duration::from_micros(300));
                continue;
            }
            let before = region.stats().pages_poisoned.get();
            // The keeper heals too; it must be through with it.
            if region.condition().0 == Condition::Ok && region.release(0, 0).is_ok() && region.acquire(0, 0).is_ok() {
                self.released(0, self.len)?;
                self.model.acquire(0, self.len);
                self.sound_at = before;
                return Ok(());
            }
        }
    }

    /// The home is out of reach for good: nothing has reached it since, and what is not there is named.
    fn judge_end(&mut self, snapshot: &[u8]) -> Checked {
        let want = self.last_status();
        let s = self.rig.region.release(0, 0);
        let (condition, cause) = self.rig.region.condition();
        if condition != Condition::Unavailable || cause != want {
            return Err(format!("the state is {condition:?} by {cause:?}, expected {want:?}"));
        }
        let home = self.home();
        if home != snapshot {
            return Err("something reached the home after the end".into());
        }
        let lost = self.rig.region.lost(usize::MAX);
        let named = |i: usize| lost.iter().any(|(s, e)| (*s..*e).contains(&(i as u64)));
        let owners = self.map.owners();
        let mut missing = 0;
        for i in 0..self.len {
            if owners[i] != Owner::Local || home[i] == self.model.byte(i) {
                continue;
            }
            // Of a store to a failing page an earlier release has told already.
            missing += usize::from(!self.doubtful[i]);
            if !named(i) {
                let page = i / PAGE;
                return Err(format!(
                    "byte {i} is lost and not named: loads as {:02x}, home {:02x}, expected {:02x}, dirty {}, doubtful {}, its page is \
                     here: {}, release: {s:?}, named in its page: {:?}",
                    self.rig.load8(i),
                    home[i],
                    self.model.byte(i),
                    self.model.is_dirty(i),
                    self.doubtful[i],
                    self.rig.region.is_resident(page),
                    lost.iter().filter(|r| r.0 < ((page + 1) * PAGE) as u64 && r.1 > (page * PAGE) as u64).collect::<Vec<_>>()
                ));
            }
            if !self.model.is_dirty(i) && !self.doubtful[i] {
                return Err(format!("byte {i} was released, and is not at the home"));
            }
        }
        if missing > 0 && s.is_ok() {
            return Err(format!("{missing} bytes are lost, and a release says OK"));
        }
        // Named is only what was stored since it was last known to be at the home.
        let strange = (0..self.len).find(|i| named(*i) && owners[*i] != Owner::Local && !self.shaky() && self.sound_at == 0);
        strange.map_or(Ok(()), |i| Err(format!("byte {i} of {:?} is named as lost", owners[i])))
    }

    fn run(&mut self, program: &Program) -> Checked {
        for (i, op) in program.ops.iter().enumerate() {
            self.weather(i, program.ops.len());
            self.step(*op).map_err(|e| format!("operation {i}, {op:?}: {e}"))?;
            if self.over.is_none() && self.down_for == 0 && self.rng.u32(0..40) == 0 {
                self.settle().map_err(|e| format!("settling after operation {i}, {op:?}: {e}"))?;
            }
        }
        match self.over.clone() {
            Some(home) => self.judge_end(&home).map_err(|e| format!("at the end: {e}")),
            None => {
                self.settle().map_err(|e| format!("settling at the end: {e}"))?;
                self.load(0, self.len).map_err(|e| format!("at the end: {e}"))
            }
        }
    }
}

fn faults(b: &Bench) {
    let (start, time) = (Instant::now(), Duration::from_millis(b.ctx.scale(1_000, 15_000, 150_000)));
    let (mut n, mut ends) = (0, [0; 3]);
    while n < 2 || start.elapsed() < time {
        let seed = b.ctx.seed.wrapping_add(n);
        let program = Program::new(seed, Size { home: (64 << 10) + 8 * (n as usize % 2), ops: 300 });
        let mut world = World::new(b.backend, seed, &program);
        let took = Instant::now();
        if let Err(e) = world.run(&program) {
            panic!("seed={seed}: {} embedded={} {:?} options {:?}: {e}", world.rig.tag, world.embedded, world.end, options(seed));
        }
        assert!(took.elapsed() < Duration::from_secs(50), "seed={seed}: took {:?}", took.elapsed());
        ends[world.end as usize] += 1;
        n += 1;
    }
    println!("{}: {n} seeds from {}: {} well, {} revoked, {} gone", b.backend.name(), b.ctx.seed, ends[0], ends[1], ends[2]);
}
