//! Writes that were delivered to the link and have not arrived yet.

use super::{HomeOff, Status, WriteOp};
use std::sync::{Mutex, PoisonError};

/// The writes held back, each with a copy of its bytes: their sources are free again.
pub(super) struct Held(Mutex<Vec<(HomeOff, Vec<u8>)>>);

impl Held {
    pub(super) fn new() -> Held {
        Held(Mutex::default())
    }

    /// Copies a write.
    ///
    /// # Safety
    /// The source is valid for its length.
    pub(super) unsafe fn keep(&self, op: &WriteOp) {
        // SAFETY: the caller vouches for the source.
        let bytes = unsafe { std::slice::from_raw_parts(op.src, op.len) }.to_vec();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((op.off, bytes));
    }

    /// Lets all of them arrive. Writes to disjoint bytes come last first; an overlapping pair keeps its order, as one
    /// queue pair keeps it.
    pub(super) fn release(&self, mut put: impl FnMut(HomeOff, &[u8]) -> Status) -> Status {
        let mut all = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let overlap = |a: &(HomeOff, Vec<u8>), b: &(HomeOff, Vec<u8>)| {
            a.0.0 < b.0.plus(b.1.len()).0 && b.0.0 < a.0.plus(a.1.len()).0
        };
        while let Some(last) = all.len().checked_sub(1) {
            let pick = all.get(last).and_then(|l| all.iter().position(|e| overlap(e, l))).unwrap_or(last);
            let (off, bytes) = all.remove(pick);
            let s = put(off, &bytes);
            if !s.is_ok() {
                return s;
            }
        }
        Status::OK
    }
}
