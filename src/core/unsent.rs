//! What write-back could not deliver.

use crate::base::addr::PAGE;
use crate::link::WriteOp;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Runs whose delivery failed, as (offset, length) inside one page each: the twin already holds their bytes, so no
/// comparison will find them again. Shared by all pushers of a region.
#[derive(Default)]
pub struct Unsent {
    any: AtomicBool,
    runs: Mutex<Vec<(u64, usize)>>,
}

impl Unsent {
    /// Remembers what a failed batch held, cut at page boundaries.
    pub(super) fn keep(&self, ops: &[WriteOp]) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        for op in ops {
            let (mut off, end) = (op.off.0, op.off.plus(op.len).0);
            while off < end {
                let stop = end.min((off / PAGE as u64 + 1) * PAGE as u64);
                runs.push((off, (stop - off) as usize));
                off = stop;
            }
        }
        runs.sort_unstable();
        runs.dedup();
        self.any.store(!runs.is_empty(), SeqCst);
    }

    /// Calls `send` with the page's undelivered runs, as offset in the page and length, and forgets them. The twin holds
    /// their bytes, or newer ones that are sent after them.
    pub(super) fn take(&self, p: usize, mut send: impl FnMut(usize, usize)) {
        if !self.any.load(SeqCst) {
            return;
        }
        let base = (p * PAGE) as u64;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|(off, len)| {
            let mine = (base..base + PAGE as u64).contains(off);
            if mine {
                send((*off - base) as usize, *len);
            }
            !mine
        });
        self.any.store(!runs.is_empty(), SeqCst);
    }

    /// Calls `f` with the page's undelivered runs, as offset in the page and length, and keeps them.
    pub(super) fn each(&self, p: usize, mut f: impl FnMut(usize, usize)) {
        let base = (p * PAGE) as u64;
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = runs.iter().filter(|(off, _)| (base..base + PAGE as u64).contains(off));
        mine.for_each(|(off, len)| f((off - base) as usize, *len));
    }

    /// True when the page has undelivered runs.
    pub fn has(&self, p: usize) -> bool {
        let pages = (p * PAGE) as u64..((p + 1) * PAGE) as u64;
        self.any.load(SeqCst)
            && self.runs.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|(o, _)| pages.contains(o))
    }
}
