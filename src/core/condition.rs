//! How a region is doing: the state machine behind `smc_region_status`.
//!
//! ```text
//!            an access or call failed              the limit is reached, or the link is down for good
//!      OK ───────────────────────────► DEGRADED ───────────────────────────────────────► UNAVAILABLE
//!       ▲                                 │                                                   │
//!       └────── an operation worked ──────┴──────────── (not when down for good) ─────────────┘
//! ```
//!
//! A short drop that an access rode out within its wait is not a failure: the region stays OK. While the region is not OK
//! the keeper asks the home again and again, ever more slowly, so that the state recovers without an access of the program.
//! Where accesses wait, the failing must also have lasted as long as one wait: calls that fail at once do not make a short drop a
//! long one. In UNAVAILABLE no access waits any more: it tries once and fails, so that a program that has gone over to its other
//! path does not hang.

use super::keeper::Keeper;
use super::region::Region;
use crate::base::Status;
use crate::link::Health;
use crate::sys::clock::{Deadline, now};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

/// State of a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Condition {
    /// Accesses work.
    Ok = 1,
    /// Some access or call has failed, and none has worked since.
    Degraded = 2,
    /// So many have failed in a row that none waits any more; or it will not come back.
    Unavailable = 3,
}

/// Failures in a row after which a region is unavailable, unless its options say otherwise.
pub const FAIL_LIMIT: u32 = 8;

/// What a region remembers of its failures. Atomics only: the fault path writes it.
#[derive(Default)]
pub(super) struct Record {
    cause: AtomicI32,
    failures: AtomicU32,
    /// When the first of the operations in a row failed; 0: the last one worked.
    trouble: AtomicU64,
    /// An operation has worked after a failure, and the keeper has not yet done what follows.
    recovered: AtomicBool,
    /// A write-back has failed: what it held is sent again after recovery.
    owing: AtomicBool,
    /// The region was attached to its home anew, and the keeper has not yet done what follows.
    reattached: AtomicBool,
}

impl Region {
    /// The condition and its cause: OK with OK only. Async-signal-safe.
    pub fn condition(&self) -> (Condition, Status) {
        let own = Status(self.record.cause.load(SeqCst));
        let cause = match self.link.health(self.key) {
            Health::Down(s) => return (Condition::Unavailable, s),
            // That the other side is gone is known before an access has failed.
            Health::Retrying(s) if !s.is_transient() => s,
            _ => own,
        };
        match cause {
            Status::OK => (Condition::Ok, Status::OK),
            s if self.failures() >= self.fail_limit() && self.has_failed_long() => (Condition::Unavailable, s),
            s => (Condition::Degraded, s),
        }
    }

    /// OK, or why accesses fail.
    pub fn status(&self) -> Status {
        self.condition().1
    }

    /// True once failures have passed the limit, or the link will not come back.
    pub fn unavailable(&self) -> bool {
        self.condition().0 == Condition::Unavailable
    }

    /// Accesses and calls that have failed since the last operation that worked.
    pub fn failures(&self) -> u32 {
        self.record.failures.load(SeqCst)
    }

    fn has_failed_long(&self) -> bool {
        let since = self.record.trouble.load(SeqCst);
        self.errors_at_once() || now().saturating_sub(since) >= self.opts.wait_ms.saturating_mul(1_000_000)
    }

    fn note_trouble(&self) {
        let _ = self.record.trouble.compare_exchange(0, now(), SeqCst, SeqCst);
    }

    fn fail_limit(&self) -> u32 {
        if self.opts.fail_limit == 0 { FAIL_LIMIT } else { self.opts.fail_limit }
    }

    /// Notes the outcome of an operation at the home. Async-signal-safe.
    pub(super) fn note(&self, s: Status) {
        if s.is_ok() {
            self.record.trouble.store(0, SeqCst);
        } else {
            self.note_trouble();
        }
        let before = self.record.cause.swap(s.0, SeqCst);
        if s.is_ok() && before != 0 {
            self.record.failures.store(0, SeqCst);
            self.record.recovered.store(true, SeqCst);
        }
        if before != s.0 {
            self.keeper.announce();
        }
    }

    /// Notes that an access or a call of the program has failed: the limit counts these. Async-signal-safe.
    pub(super) fn note_failed(&self, s: Status) {
        self.note(s);
        let n = self.record.failures.fetch_add(1, SeqCst).saturating_add(1);
        if n == self.fail_limit() {
            self.keeper.announce();
        }
    }

    /// [`Region::note_failed`] for the result of a call, when it is one.
    pub(super) fn note_call(&self, s: Status) -> Status {
        if !s.is_ok() {
            self.note_failed(s);
        }
        s
    }

    /// A write-back has failed; its pages are dirty again.
    pub(super) fn note_owing(&self) {
        self.record.owing.store(true, SeqCst);
    }

    /// True when waiting for another answer than `s` makes sense. Async-signal-safe.
    pub(super) fn may_come_back(&self, s: Status) -> bool {
        s.is_transient() || (s == Status::PEER_DEAD && matches!(self.link.health(self.key), Health::Retrying(_)))
    }

    /// True when an access that fails with `s` tries again until its deadline.
    pub(super) fn rides_out(&self, s: Status, deadline: Deadline) -> bool {
        self.note_trouble();
        self.may_come_back(s) && !self.errors_at_once() && !deadline.passed() && !self.unavailable()
    }

    /// The home was attached anew: what is clean here may be older than it.
    pub(super) fn note_reattached(&self) {
        self.record.reattached.store(true, SeqCst);
        self.keeper.kick();
    }

    /// Asks the home for a byte.
    pub(super) fn probe(&self) {
        let mut byte = 0u8;
        // SAFETY: one byte of our own.
        let s = unsafe { self.link.fetch(self.key, crate::base::HomeOff(0), &raw mut byte, 1, Deadline::in_ms(1000)) };
        self.note(s);
    }

    /// True once after an operation has worked again.
    pub(super) fn take_recovered(&self) -> bool {
        self.record.recovered.swap(false, SeqCst)
    }

    /// True once after a write-back has failed.
    pub(super) fn take_owing(&self) -> bool {
        self.record.owing.swap(false, SeqCst)
    }
}

/// When the keeper looks after a region that is not well.
#[derive(Default)]
pub(super) struct Watch {
    next_probe: u64,
    pause_ns: u64,
    told: Option<(Condition, Status)>,
    /// What the last line said, and when.
    said: Option<(Condition, u64)>,
}

/// First pause between two probes; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: u64 = 20_000_000;
const PAUSE_MAX: u64 = 1_000_000_000;
/// At most one line in so long, unless it got worse.
const SAY_EVERY: u64 = 1_000_000_000;

impl Watch {
    /// Probes when it is time, and does what a recovery asks for. `resend` sends what is dirty.
    pub(super) fn look(&mut self, region: &Region, now: u64, resend: impl FnOnce()) {
        let (condition, _) = region.condition();
        if condition == Condition::Ok {
            self.pause_ns = 0;
        } else if !matches!(region.link.health(region.key), Health::Down(_)) && now >= self.next_probe {
            region.probe();
            self.pause_ns = (self.pause_ns * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            self.next_probe = now + self.pause_ns;
        }
        region.follow_home();
        let attached = region.record.reattached.swap(false, SeqCst);
        if region.take_recovered() || attached {
            region.heal_poisoned();
            if region.take_owing() {
                resend();
            }
            if attached {
                // What is clean may be older than the home that came back.
                let _ = region.acquire_pages(region.all());
            }
        }
    }

    /// Longest sleep of the keeper, in nanoseconds.
    pub(super) fn limit(&self, now: u64) -> u64 {
        if self.pause_ns == 0 { u64::MAX } else { self.next_probe.saturating_sub(now).max(1_000_000) }
    }

    /// True when the program must be told something: `announced`, or a change that came without an access.
    pub(super) fn is_news(&mut self, region: &Region, announced: bool) -> bool {
        let now = Some(region.condition());
        let changed =
            self.told.is_some_and(|t| Some(t) != now) || (self.told.is_none() && region.status() != Status::OK);
        self.told = now;
        changed || announced
    }

    /// A line for people about a change for the worse: the first failure, and being unavailable.
    pub(super) fn line(&mut self, region: &Region, now: u64) -> Option<String> {
        let (condition, cause) = region.condition();
        let name = region.name();
        let text = match condition {
            Condition::Ok => return None,
            Condition::Degraded => format!("region \"{name}\" is degraded: {cause}"),
            Condition::Unavailable => format!("region \"{name}\" is unavailable: {cause}"),
        };
        if self.said.is_some_and(|(c, at)| c >= condition && now < at + SAY_EVERY) {
            return None;
        }
        self.said = Some((condition, now));
        Some(text)
    }
}

impl Keeper {
    /// The status changed: the keeper tells the program. Async-signal-safe.
    pub(super) fn announce(&self) {
        self.set_announced();
        self.kick();
    }
}
