//! Writes that were delivered to the link and have not arrived yet.

use super::{HomeOff, Status, WriteOp};
use crate::sys::clock::nap;
use crate::sys::sync::SignalsBlocked;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// The writes held back, each with a copy of its bytes: their sources are free again.
pub(super) struct Held {
    writes: Mutex<(u64, Vec<Write>)>,
    /// How often they were to be forgotten: done by whoever comes next, because it may be said in a signal handler.
    forgotten: AtomicU64,
    /// Odd while one of them arrives: it is past the look at `forgotten`.
    arriving: AtomicU64,
}

/// Offset and bytes.
type Write = (HomeOff, Vec<u8>);
type Writes<'a> = std::sync::MutexGuard<'a, (u64, Vec<Write>)>;

fn overlap(a: (HomeOff, usize), b: (HomeOff, usize)) -> bool {
    a.0.0 < b.0.plus(b.1).0 && b.0.0 < a.0.plus(a.1).0
}

/// The write that must come before `pick`: the first in the chain of overlapping earlier ones, or `pick` itself.
fn first_of(all: &[Write], mut pick: usize) -> usize {
    while let Some((off, bytes)) = all.get(pick) {
        let before = all.iter().take(pick).position(|e| overlap((e.0, e.1.len()), (*off, bytes.len())));
        match before {
            Some(earlier) => pick = earlier,
            None => break,
        }
    }
    pick
}

impl Held {
    pub(super) fn new() -> Held {
        Held { writes: Mutex::default(), forgotten: AtomicU64::new(0), arriving: AtomicU64::new(0) }
    }

    /// None of them arrives from here on: one that is arriving has arrived when this returns. Async-signal-safe: who lets
    /// them arrive has signals blocked.
    pub(super) fn forget(&self) {
        self.forgotten.fetch_add(1, SeqCst);
        let seen = self.arriving.load(SeqCst);
        while seen % 2 == 1 && self.arriving.load(SeqCst) == seen {
            nap(20_000);
        }
    }

    /// Lets one arrive, unless they were forgotten since `life`.
    fn arrive(&self, life: u64, put: impl FnOnce() -> Status) -> Status {
        // Odd before the look: either it sees that they are forgotten, or who forgets sees this.
        self.arriving.fetch_add(1, SeqCst);
        let s = if self.life() == life { put() } else { Status::LINK_DOWN };
        self.arriving.fetch_add(1, SeqCst);
        s
    }

    /// To be asked when a batch begins, for [`Held::keep`].
    pub(super) fn life(&self) -> u64 {
        self.forgotten.load(SeqCst)
    }

    fn lock(&self) -> Writes<'_> {
        let mut held = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let life = self.life();
        if std::mem::replace(&mut held.0, life) != life {
            held.1.clear();
        }
        held
    }

    /// Copies a write if it is `chosen`, or overlaps one that is held already: it must not overtake that. False when
    /// the caller has to do it. LINK_DOWN when everything was forgotten since the batch began.
    ///
    /// # Safety
    /// The source is valid for its length.
    pub(super) unsafe fn keep(&self, op: &WriteOp, chosen: bool, life: u64) -> Result<bool, Status> {
        let mut locked = self.lock();
        if locked.0 != life {
            return Err(Status::LINK_DOWN);
        }
        let held = &mut locked.1;
        let keep = chosen || held.iter().any(|h| overlap((op.off, op.len), (h.0, h.1.len())));
        if keep {
            // SAFETY: the caller vouches for the source.
            let bytes = unsafe { std::slice::from_raw_parts(op.src, op.len) }.to_vec();
            // One that it covers would arrive just before it: nobody can tell. What is sent again and again while nothing
            // arrives must not pile up.
            held.retain(|h| !(op.off.0 <= h.0.0 && h.0.plus(h.1.len()).0 <= op.off.plus(op.len).0));
            held.push((op.off, bytes));
        }
        Ok(keep)
    }

    /// Lets all of them arrive. Writes to disjoint bytes come last first; an overlapping pair keeps its order, as one
    /// queue pair keeps it. Nobody's fence returns, and no later write starts, before all are there.
    pub(super) fn release(&self, mut put: impl FnMut(HomeOff, &[u8]) -> Status) -> Status {
        let _signals = SignalsBlocked::new();
        let mut locked = self.lock();
        let (life, all) = &mut *locked;
        while let Some(pick) = all.len().checked_sub(1).map(|last| first_of(all, last)) {
            let Some((off, bytes)) = all.get(pick) else { break };
            let s = self.arrive(*life, || put(*off, bytes));
            if !s.is_ok() {
                return s;
            }
            all.remove(pick);
        }
        Status::OK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain: the last overlaps the second only, the second overlaps the first. The first comes first all the same.
    #[test]
    fn overlapping_writes_keep_their_order() {
        let held = Held::new();
        let keep = |off: u64, value: u8, len: usize| {
            let bytes = vec![value; len];
            // SAFETY: the buffer is live for the call.
            let _ = unsafe { held.keep(&WriteOp { src: bytes.as_ptr(), len, off: HomeOff(off) }, true, 0) };
        };
        keep(10, 1, 6);
        keep(12, 2, 9);
        keep(18, 3, 3);
        keep(100, 4, 1);
        let mut home = [0u8; 128];
        let mut order = Vec::new();
        let s = held.release(|off, bytes| {
            let at = off.0 as usize;
            home[at..at + bytes.len()].copy_from_slice(bytes);
            order.push(bytes[0]);
            Status::OK
        });
        assert_eq!((s, order), (Status::OK, vec![4, 1, 2, 3]), "what is alone overtakes, what overlaps does not");
        assert_eq!((home[11], home[15], home[17], home[20]), (1, 2, 2, 3));
    }

    /// A write that could not be delivered stays for the next fence.
    #[test]
    fn a_failed_delivery_is_kept() {
        let held = Held::new();
        // SAFETY: the buffer is live for the call.
        let kept = unsafe { held.keep(&WriteOp { src: [7u8].as_ptr(), len: 1, off: HomeOff(3) }, true, 0) };
        assert_eq!(kept, Ok(true));
        assert_eq!(held.release(|_, _| Status::LINK_DOWN), Status::LINK_DOWN);
        let mut got = None;
        assert_eq!(
            held.release(|off, b| {
                got = Some((off, b.to_vec()));
                Status::OK
            }),
            Status::OK
        );
        assert_eq!(got, Some((HomeOff(3), vec![7])));
    }

    #[test]
    fn what_is_sent_again_does_not_pile_up() {
        let held = Held::new();
        for value in 0..100u8 {
            let bytes = [value; 8];
            for off in [8u64, 10, 24] {
                // SAFETY: the buffer is live for the call.
                let kept = unsafe { held.keep(&WriteOp { src: bytes.as_ptr(), len: 8, off: HomeOff(off) }, true, 0) };
                assert_eq!(kept, Ok(true));
            }
        }
        let mut home = [0u8; 32];
        let mut n = 0;
        held.release(|off, bytes| {
            home[off.0 as usize..off.0 as usize + bytes.len()].copy_from_slice(bytes);
            n += 1;
            Status::OK
        });
        assert_eq!((n, home[8], home[17], home[31]), (3, 99, 99, 99));
    }

    /// A path that was left: nothing it held arrives, nor what a batch under way adds; later batches are its own again.
    #[test]
    fn what_is_forgotten_never_arrives() {
        let held = Held::new();
        let op = WriteOp { src: [7u8].as_ptr(), len: 1, off: HomeOff(3) };
        // SAFETY: the byte is a constant.
        let keep = |life| unsafe { held.keep(&op, true, life) };
        let life = held.life();
        assert_eq!(keep(life), Ok(true));
        held.forget();
        assert_eq!(keep(life), Err(Status::LINK_DOWN));
        assert_eq!(keep(held.life()), Ok(true));
        let mut n = 0;
        held.release(|_, _| {
            n += 1;
            Status::OK
        });
        assert_eq!(n, 1);
    }

    /// One that is arriving while they are forgotten has arrived when that returns: what comes over another path afterwards
    /// is newer.
    #[test]
    fn forgetting_waits_for_what_is_arriving() {
        let held = Held::new();
        // SAFETY: the byte is a constant.
        let kept = unsafe { held.keep(&WriteOp { src: [7u8].as_ptr(), len: 1, off: HomeOff(3) }, true, 0) };
        assert_eq!(kept, Ok(true));
        let (begun, arrived) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                held.release(|_, _| {
                    begun.store(1, SeqCst);
                    nap(20_000_000);
                    arrived.store(1, SeqCst);
                    Status::OK
                })
            });
            while begun.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            held.forget();
            assert_eq!(arrived.load(SeqCst), 1);
        });
    }
}
