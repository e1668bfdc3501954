//! What must be true of loads, of the home, and of what is named as lost.

use super::world::{Checked, ERROR, World};
use crate::sim::map::Owner;
use smc_engine::base::{PAGE, Status};
use smc_engine::core::condition::Condition;
use std::time::{Duration, Instant};

impl World {
    pub(super) fn judge_load(&mut self, off: usize, got: &[u8]) -> Checked {
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
    pub(super) fn released(&mut self, off: usize, len: usize) -> Checked {
        let home = self.home();
        self.model.release(off, len);
        for (i, now) in home.iter().copied().enumerate().skip(off).take(len) {
            if now == self.model.byte(i) || self.model.is_dirty(i) {
                continue;
            }
            if self.doubtful[i] && self.is_lost(i) {
                self.lose(i, now);
                continue;
            }
            return Err(format!(
                "home byte {i} is {:02x}, expected {:02x} (doubtful {}, lost {})",
                now,
                self.model.byte(i),
                self.doubtful[i],
                self.is_lost(i)
            ));
        }
        self.doubtful[off..off + len].fill(false);
        Ok(())
    }

    /// With the home within reach everything can be settled: all stores are at the home or named, and no page shows the
    /// error value.
    pub(super) fn settle(&mut self) -> Checked {
        self.down_for = 0;
        self.set(Status::OK);
        if std::mem::take(&mut self.away) {
            self.rig.home.restart(1);
        }
        let start = Instant::now();
        let mut tries = Vec::new();
        loop {
            if start.elapsed() > Duration::from_secs(10) {
                let last = &tries[tries.len().saturating_sub(4)..];
                let n = tries.len();
                return Err(format!(
                    "it does not recover: {:?}, {n} tries, the last {last:?}",
                    self.rig.region.condition()
                ));
            }
            let region = &self.rig.region;
            let sync = || [region.release(0, 0), region.acquire(0, 0)];
            let [released, acquired] = sync();
            tries.push((start.elapsed(), [released, acquired]));
            if !matches!(released, Status::OK | Status::POISONED) || !acquired.is_ok() {
                std::thread::sleep(Duration::from_micros(300));
                continue;
            }
            let before = region.stats().pages_poisoned.get();
            // The keeper heals too; it must be through with it.
            if region.condition().0 == Condition::Ok {
                let again = sync();
                if again == [Status::OK; 2] {
                    self.released(0, self.len)?;
                    self.model.acquire(0, self.len);
                    self.sound_at = before;
                    return Ok(());
                }
                tries.push((start.elapsed(), again));
            }
        }
    }

    /// The home is out of reach for good: nothing has reached it since, and what is not there is named.
    pub(super) fn judge_end(&mut self, snapshot: &[u8]) -> Checked {
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
                    lost.iter()
                        .filter(|r| r.0 < ((page + 1) * PAGE) as u64 && r.1 > (page * PAGE) as u64)
                        .collect::<Vec<_>>()
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
        let strange =
            (0..self.len).find(|i| named(*i) && owners[*i] != Owner::Local && !self.shaky() && self.sound_at == 0);
        strange.map_or(Ok(()), |i| Err(format!("byte {i} of {:?} is named as lost", owners[i])))
    }
}
