//! Operations performed at the home: flags, counters and locks that every node sees at once.
//!
//! The local copy of the word follows, in the page and in the twin alike, so that no later write-back undoes what
//! another node does to the word.

use super::pages::Event;
use super::region::Region;
use crate::base::addr::PAGE;
use crate::base::{HomeOff, Status};
use crate::link::{Access, AtomicOp};
use crate::sys::clock::{Deadline, nap};
use crate::sys::sync::SignalsBlocked;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How [`Region::wait_until`] compares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Cmp {
    /// Equal.
    Eq = 1,
    /// Not equal.
    Ne = 2,
    /// Less than (unsigned).
    Lt = 3,
    /// Less than or equal.
    Le = 4,
    /// Greater than.
    Gt = 5,
    /// Greater than or equal.
    Ge = 6,
}

impl Cmp {
    /// The comparison with this number in `smc.h`.
    pub fn from_u32(n: u32) -> Option<Cmp> {
        [Cmp::Eq, Cmp::Ne, Cmp::Lt, Cmp::Le, Cmp::Gt, Cmp::Ge].into_iter().find(|c| *c as u32 == n)
    }

    /// True when `have CMP want`.
    pub fn holds(self, have: u64, want: u64) -> bool {
        match self {
            Cmp::Eq => have == want,
            Cmp::Ne => have != want,
            Cmp::Lt => have < want,
            Cmp::Le => have <= want,
            Cmp::Gt => have > want,
            Cmp::Ge => have >= want,
        }
    }
}

impl Region {
    /// Performs `op` at the home on the word at `off` (8-byte aligned) and answers its old value.
    pub fn at_home(&self, off: u64, op: AtomicOp) -> Result<u64, Status> {
        self.check_word(off, op)?;
        if op == AtomicOp::Load {
            return self.operate(off, op);
        }
        // A handler of the program may wait for the keeper, which takes this lock too.
        let _signals = SignalsBlocked::new();
        self.home_words.lock().unwrap_or_else(PoisonError::into_inner).insert(off);
        self.has_home_words.store(true, SeqCst);
        let page = HomeOff(off).page().0;
        // A page that is here is locked while the word changes at the home, so that no push or merge sees half of it.
        let held = self.pages.lock(page, self.deadline());
        match held {
            Err(s) if s.is_held() => return Err(Status::TIMED_OUT),
            _ => {}
        }
        let old = self.operate(off, op);
        if held.is_ok() {
            if let Ok(old) = old {
                self.follow(page, off, new_value(op, old));
            }
            let _ = self.pages.apply(page, Event::Unlock);
        }
        old
    }

    /// Reads the word at the home until `have CMP want`, and answers it; TIMED_OUT after `timeout_ms`.
    pub fn wait_until(&self, off: u64, cmp: Cmp, want: u64, timeout_ms: u64) -> Result<u64, Status> {
        let deadline = Deadline::in_ms(timeout_ms);
        let mut pause = 0;
        loop {
            let have = self.at_home(off, AtomicOp::Load)?;
            if cmp.holds(have, want) {
                return Ok(have);
            }
            if deadline.passed() {
                return Err(Status::TIMED_OUT);
            }
            // Polls hard for the first 64 reads, then ever less often, up to once in 200 us.
            pause = if pause < 64 { pause + 1 } else { (pause * 5 / 4).min(200_000) };
            if pause > 64 {
                nap(pause.min(deadline.left_ns()));
            }
        }
    }

    fn check_word(&self, off: u64, op: AtomicOp) -> Result<(), Status> {
        if !off.is_multiple_of(8) {
            return Err(Status::INVALID_ARGUMENT);
        }
        if off.checked_add(8).is_none_or(|end| end > self.len()) {
            return Err(Status::OUT_OF_RANGE);
        }
        if op != AtomicOp::Load && self.opts.access == Access::ReadOnly {
            return Err(Status::PERMISSION);
        }
        Ok(())
    }

    fn operate(&self, off: u64, op: AtomicOp) -> Result<u64, Status> {
        self.stats.home_ops.hit();
        let r = self.link.atomic(self.key, HomeOff(off), op, self.deadline());
        match r {
            Ok(_) => self.note(Status::OK),
            Err(s) => self.note_failed(s),
        }
        r
    }

    /// Brings the local copies of the word to `value`.
    fn follow(&self, page: usize, off: u64, value: u64) {
        let within = (off % PAGE as u64) as usize;
        for copy in [Some(self.a_page(page)), self.t_page(page)].into_iter().flatten() {
            // SAFETY: within is a multiple of 8 below PAGE; the page lies inside A or T, both page aligned. The
            // program may load the word meanwhile, so the store is atomic.
            let word = unsafe { AtomicU64::from_ptr(copy.wrapping_add(within).cast()) };
            word.store(value, SeqCst);
        }
    }
}

fn new_value(op: AtomicOp, old: u64) -> u64 {
    match op {
        AtomicOp::Load => old,
        AtomicOp::Store(v) => v,
        AtomicOp::FetchAdd(n) => old.wrapping_add(n),
        AtomicOp::CompareSwap { expected, new } => {
            if old == expected {
                new
            } else {
                old
            }
        }
    }
}
