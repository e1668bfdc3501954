//! What write-back could not deliver, or delivered and does not know to have arrived.
//!
//! A write that the link has taken is at the home for certain only after a fence. When a fence fails, or the home was
//! attached anew in between, what went before it is taken back: it is sent again, and named if it never can be.

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

/// Writes that were delivered and not fenced, and the attachment to the home they belong to. Every lock is taken with
/// signals blocked.
#[derive(Default)]
pub struct Unfenced {
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    attachment: u64,
    /// Number of the batch, offset, length; in the order of their batches.
    runs: Vec<(u64, u64, usize)>,
}

/// A fence under way.
#[derive(Clone, Copy)]
pub(super) struct Fence {
    /// The home's attachment when it began.
    attachment: u64,
    /// The batches it is for: all before it.
    pub(super) batches: u64,
}

/// Runs of delivered writes: offset and length.
pub(super) type Runs = Vec<(u64, usize)>;

impl Log {
    fn take(&mut self) -> Runs {
        std::mem::take(&mut self.runs).into_iter().map(|(_, off, len)| (off, len)).collect()
    }

    /// False when this is not the home of before: what was delivered there goes to `back`.
    fn is_at(&mut self, attachment: u64, back: impl FnOnce(Runs)) -> bool {
        let same = self.attachment == attachment;
        if !same {
            self.attachment = attachment;
            back(self.take());
        }
        same
    }
}

/// Delivered writes after which a pusher fences of its own accord: what is remembered of them must stay small.
const MOST_UNFENCED: usize = 32 << 10;

impl Unfenced {
    /// Nothing delivered to a home that was just attached.
    pub(super) fn new(attachment: u64) -> Unfenced {
        Unfenced { log: Mutex::new(Log { attachment, runs: Vec::new() }) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a batch delivered to the home of `attachment`; `number` counts it. False, and nothing done, when that is no
    /// longer the home.
    pub(super) fn add(&self, ops: &[WriteOp], attachment: u64, number: impl FnOnce() -> u64) -> bool {
        let mut log = self.lock();
        if log.attachment != attachment {
            return false;
        }
        // Under the lock: who asks how many there are finds all of them here.
        let n = number();
        log.runs.extend(ops.iter().map(|o| (n, o.off.0, o.len)));
        true
    }

    /// What a fence that begins now is for: as many batches as `number` says, all of them noted. `None` when the home of
    /// `attachment` is another than before: what was delivered to that goes to `back`.
    ///
    /// `back` makes its runs dirty again before anybody else can ask here: whoever finds nothing noted finds them dirty.
    pub(super) fn begin_fence(
        &self,
        attachment: u64,
        number: impl FnOnce() -> u64,
        back: impl FnOnce(Runs),
    ) -> Option<Fence> {
        let mut log = self.lock();
        log.is_at(attachment, back).then(|| Fence { attachment, batches: number() })
    }

    /// What `fence` is for has arrived. False, and as above, when the home is another than when it began: that may have been
    /// seen, and what was delivered taken back, by somebody else meanwhile.
    pub(super) fn end_fence(&self, attachment: u64, fence: Fence, back: impl FnOnce(Runs)) -> bool {
        let mut log = self.lock();
        let same = log.is_at(attachment, back) && fence.attachment == attachment;
        if same {
            log.runs.retain(|(n, _, _)| *n > fence.batches);
        }
        same
    }

    /// Nothing of it is known to arrive: all goes to `back`.
    pub(super) fn give_up(&self, back: impl FnOnce(Runs)) {
        let mut log = self.lock();
        back(log.take());
    }

    /// True when it is time for a fence.
    pub(super) fn is_full(&self) -> bool {
        self.lock().runs.len() > MOST_UNFENCED
    }
}

impl Unsent {
    /// Remembers what a failed batch held, cut at page boundaries.
    pub(super) fn keep(&self, ops: impl Iterator<Item = (u64, usize)>) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        for (mut off, len) in ops {
            let end = off + len as u64;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::HomeOff;

    fn delivered(u: &Unfenced, attachment: u64, off: u64, number: u64) -> bool {
        u.add(&[WriteOp { src: std::ptr::null(), len: 8, off: HomeOff(off) }], attachment, || number)
    }

    #[test]
    fn a_fence_is_for_what_was_delivered_before_it() {
        let u = Unfenced::new(1);
        assert!(delivered(&u, 1, 0, 1));
        let fence = u.begin_fence(1, || 1, |_| panic!("the home is the same")).expect("the same home");
        assert!(delivered(&u, 1, 64, 2));
        assert!(u.end_fence(1, fence, |_| panic!("the home is the same")));
        let mut left = Runs::new();
        u.give_up(|runs| left = runs);
        assert_eq!(left, [(64, 8)]);
    }

    /// Whoever sees the new home first takes back what went to the old one: another's fence that was under way has then
    /// made nothing readable, although it ends well at the new one.
    #[test]
    fn a_fence_across_a_change_of_home_has_fenced_nothing() {
        let u = Unfenced::new(1);
        assert!(delivered(&u, 1, 0, 1));
        let fence = u.begin_fence(1, || 1, |_| panic!("the home is the same")).expect("the same home");
        let mut back = Runs::new();
        assert!(u.begin_fence(2, || 1, |runs| back = runs).is_none());
        assert_eq!(back, [(0, 8)]);
        assert!(delivered(&u, 2, 64, 2));
        assert!(!u.end_fence(2, fence, |runs| assert!(runs.is_empty())));
        let mut left = Runs::new();
        u.give_up(|runs| left = runs);
        assert_eq!(left, [(64, 8)], "what went to the new home is still to be fenced");
    }
}
