//! The region under test, the weather it meets, and the operations.

use crate::rig::{Home, Rig, Valve};
use crate::sim::map::Map;
use crate::sim::model::Model;
use crate::sim::ops::{self, Op};
use crate::sim::run::Plan as Program;
use smc_engine::base::{PAGE, Status, config::Backend};
use smc_engine::core::options::{MapOptions, OnError, Through};
use smc_engine::link::AtomicOp;
use smc_engine::link::faulty::Plan;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Byte of a page that could not be fetched.
pub(super) const ERROR: u8 = 0xEE;

/// How a seed's run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The home is there.
    Well,
    /// This client's access was taken away.
    Revoked,
    /// The exporter came back with other memory, or did not come back.
    Gone,
}

/// One seed's world.
pub(super) struct World {
    pub rig: Rig,
    /// One for each path.
    valves: Vec<Arc<Valve>>,
    pub model: Model,
    pub map: Map,
    rng: fastrand::Rng,
    pub len: usize,
    /// Bytes stored while a page may have shown the error value: these alone may be lost.
    pub doubtful: Vec<bool>,
    /// Stores that are known to be lost, as the failing page may still show them.
    pub ghost: Vec<Option<u8>>,
    /// `pages_poisoned` when last no page showed the error value.
    pub sound_at: u64,
    /// Operations until the link works again; 0: it does.
    pub down_for: u32,
    /// The exporter is away.
    pub away: bool,
    /// The end has come: the home's bytes at that moment.
    over: Option<Vec<u8>>,
    pub end: End,
    pub embedded: bool,
}

pub(super) fn options(seed: u64) -> MapOptions {
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

pub(super) type Checked = Result<(), String>;

impl World {
    pub fn new(backend: Backend, seed: u64, program: &Program) -> World {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0f0f);
        let embedded = rng.bool();
        let bytes = program.home.len().next_multiple_of(PAGE);
        let home = if embedded { Home::restartable(bytes, seed) } else { Home::loopback(bytes, seed) };
        home.poke(0, &program.home);
        // Many failures and slow fences on two ways: changes of the way while something is under way.
        let rough = rng.u32(0..4) == 0;
        let plan = Plan {
            seed,
            loss_ppm: rng.u32(0..if rough { 100_000 } else { 20_000 }),
            partial_ppm: rng.u32(0..20_000),
            delay_ppm: 10_000,
            delay_ns: 100_000,
            reorder_ppm: if rough { 600_000 } else { [0, 300_000][rng.usize(..2)] },
            ..Plan::default()
        };
        let (home, valve) = home.behind("faulty", plan.clone()).with_valve();
        let mut valves = vec![valve];
        // Two ways to the same home, every third time.
        let home = if rough || rng.u32(0..3) == 0 {
            let (other, valve) = home.plain().behind("faulty", Plan { seed: seed ^ 1, ..plan }).with_valve();
            valves.push(valve);
            home.or_over(&other)
        } else {
            home
        };
        if rough {
            valves.iter().for_each(|v| v.slow_fences(2_000_000));
        }
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
    pub(super) fn set(&self, s: Status) {
        self.valves.iter().for_each(|v| v.set(s));
    }

    pub(super) fn home(&self) -> Vec<u8> {
        self.rig.home.bytes(0, self.len)
    }

    /// Some page may show the error value.
    pub(super) fn shaky(&self) -> bool {
        self.rig.region.stats().pages_poisoned.get() > self.sound_at
    }

    pub(super) fn is_lost(&self, i: usize) -> bool {
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
        // Who is not there cannot be revoked: every path must be.
        let start = Instant::now();
        while !self.valves.iter().all(|v| v.is_up()) {
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
        self.valves.iter().for_each(|v| v.drained());
        self.over = Some(self.home());
    }

    /// What the region says after the end.
    pub(super) fn last_status(&self) -> Status {
        match (self.end, self.embedded) {
            (End::Revoked, _) => Status::REVOKED,
            (_, true) => Status::STALE,
            _ => Status::PEER_DEAD,
        }
    }

    fn store(&mut self, off: usize, bytes: &[u8]) {
        let by_call = self.rng.u32(0..3) == 0;
        let s = if by_call {
            // SAFETY: the buffer has this many bytes.
            unsafe { self.rig.region.write(off as u64, bytes.as_ptr(), bytes.len()) }
        } else {
            Status::TIMED_OUT
        };
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
        let s = if by_call {
            // SAFETY: the buffer has this many bytes.
            unsafe { self.rig.region.read(off as u64, got.as_mut_ptr(), len) }
        } else {
            Status::TIMED_OUT
        };
        if !s.is_ok() {
            got = self.rig.bytes(off, len);
        }
        self.judge_load(off, &got)
    }

    pub(super) fn lose(&mut self, i: usize, home: u8) {
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
            Op::Acquire { off, len } if len > 0 && region.acquire(off as u64, len as u64).is_ok() => {
                self.model.acquire(off, len);
            }
            Op::Prefetch { off, len } => _ = region.prefetch(off as u64, len.max(1) as u64),
            Op::Invalidate { off, len } if len > 0 && region.invalidate(off as u64, len as u64).is_ok() => {
                self.model.acquire(off, len);
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

    pub fn run(&mut self, program: &Program) -> Checked {
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
