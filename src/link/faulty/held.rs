//! Writes that were delivered to the link and have not arrived yet.

use super::{HomeOff, Status, WriteOp};
use crate::sys::sync::SignalsBlocked;
use std::sync::{Mutex, PoisonError};

/// The writes held back, each with a copy of its bytes: their sources are free again.
pub(super) struct Held(Mutex<Vec<(HomeOff, Vec<u8>)>>);

fn overlap(a: (HomeOff, usize), b: (HomeOff, usize)) -> bool {
    a.0.0 < b.0.plus(b.1).0 && b.0.0 < a.0.plus(a.1).0
}

impl Held {
    pub(super) fn new() -> Held {
        Held(Mutex::default())
    }

    /// Copies a write if it is `chosen`, or overlaps one that is held already: it must not overtake that. False when
    /// the caller has to do it.
    ///
    /// # Safety
    /// The source is valid for its length.
    pub(super) unsafe fn keep(&self, op: &WriteOp, chosen: bool) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = chosen || held.iter().any(|h| overlap((op.off, op.len), (h.0, h.1.len())));
        if keep {
            // SAFETY: the caller vouches for the source.
            let bytes = unsafe { std::slice::from_raw_parts(op.src, op.len) }.to_vec();
            held.push((op.off, bytes));
        }
        keep
    }

    /// Lets all of them arrive. Writes to disjoint bytes come last first; an overlapping pair keeps its order, as one
    /// queue pair keeps it. Nobody's fence returns, and no later write starts, before all are there.
    pub(super) fn release(&self, mut put: impl FnMut(HomeOff, &[u8]) -> Status) -> Status {
        let _signals = SignalsBlocked::new();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(last) = all.len().checked_sub(1) {
            let same = |l: &(HomeOff, Vec<u8>)| all.iter().position(|e| overlap((e.0, e.1.len()), (l.0, l.1.len())));
            let pick = all.get(last).and_then(same).unwrap_or(last);
            let (off, bytes) = all.remove(pick);
            let s = put(off, &bytes);
            if !s.is_ok() {
                return s;
            }
        }
        Status::OK
    }
}
