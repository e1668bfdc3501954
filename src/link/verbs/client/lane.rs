//! A lane: one queue pair with its completion queue, and the books of what is under way on it.
//!
//! Requests are posted in *flights*: lists with one doorbell whose last request alone asks for a completion. A flight has ended when
//! that completion has come, or when the queue pair is gone: not before, so memory of a flight that has ended is never touched again.
//! Any thread that waits takes completions for all.
//!
//! The lane's lock is held with signals blocked, for a few instructions and one call of the driver.

use super::super::words::Outcome;
use super::super::{Batch, Completion, Completions, Device, Place, QueuePair, Request, Verb};
use super::trips::Trips;
use crate::base::Status;
use crate::base::stats::LinkStats;
use crate::sys::Errno;
use crate::sys::sync::{Lock, LockGuard, SignalsBlocked};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

/// Flights of a lane that can be under way.
pub(super) const FLIGHTS: usize = 64;
/// Requests of a lane that can be under way.
pub(super) const DEPTH: u32 = 256;
/// Most requests of a flight.
pub(super) const MOST: usize = 32;

/// Requests of a short flight: those of the fault face.
pub(super) const FEW: usize = 8;

const FREE: u32 = 0;
const FLYING: u32 = 1;
const ENDED: u32 = 2;
/// Mark of a flight's last request in its name.
const LAST: u64 = 1 << 32;
/// Polls after which a queue pair that was put an end to is destroyed whether or not everything has come back.
const REAP: u32 = 2000;

/// What is to be done, but for where the region lies.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub verb: Verb,
    pub local: Place,
    /// Offset in the region.
    pub off: u64,
}

/// What a lane is made of while it is connected.
pub(super) struct Wires {
    pub pair: QueuePair,
    pub cq: Arc<Completions>,
    pub device: Arc<Device>,
    /// Address of the region's first byte at the other side, and its key.
    pub addr: u64,
    pub rkey: u32,
    /// Both sides flush.
    pub flush: bool,
    /// Requests that still fit.
    pub room: u32,
}

#[derive(Default)]
struct Flight {
    state: AtomicU32,
    /// First failure.
    status: AtomicU32,
    requests: AtomicU32,
    /// Whose it is: 0 for the thread that waits for it, otherwise the trip that counts it, plus one.
    trip: AtomicU32,
}

/// Why a flight could not start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// Too much is under way.
    Full,
    /// The lane is not connected; nothing was posted.
    Down,
}

/// Hands pieces to the device as flight `number`. A function of its own: a signal handler's stack may be small, and is not to hold
/// a long list for a short one.
///
/// # Safety
/// As for [`Lane::start`].
#[inline(never)]
unsafe fn post<const N: usize>(w: &Wires, number: usize, pieces: &[Piece]) -> Result<(), (Errno, usize)> {
    let mut batch = Batch::<N>::new();
    for (n, p) in pieces.iter().enumerate() {
        let last = n + 1 == pieces.len();
        let id = number as u64 | if last { LAST } else { 0 };
        let addr = w.addr.wrapping_add(p.off);
        batch.push(&Request { id, verb: p.verb, local: p.local, addr, rkey: w.rkey, signalled: last });
    }
    // SAFETY: passed on from the caller.
    unsafe { batch.post(&w.pair) }
}

/// One lane.
pub(super) struct Lane {
    lock: Lock,
    wires: UnsafeCell<Option<Wires>>,
    flights: [Flight; FLIGHTS],
    /// To be taken down: something has failed, or somebody has given up.
    broken: AtomicBool,
    /// Flights of writes that were started, and how many of them a READ is known to have followed. Two numbers and no mark: a fence that
    /// finds another one's READ still under way must not take its end for granted.
    written: AtomicU64,
    fenced: AtomicU64,
    /// Bytes that are copied when they are posted.
    inline: AtomicU32,
}

// SAFETY: `wires` is only touched under the lock.
unsafe impl Sync for Lane {}
// SAFETY: all parts may be used by any thread.
unsafe impl Send for Lane {}

impl Lane {
    pub fn new() -> Lane {
        Lane {
            lock: Lock::new(),
            wires: UnsafeCell::new(None),
            flights: [const { Flight::new() }; FLIGHTS],
            broken: AtomicBool::new(false),
            written: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            inline: AtomicU32::new(0),
        }
    }

    /// The wires, for whoever holds the lock.
    #[allow(clippy::mut_from_ref, reason = "the guard proves that nobody else has them")]
    fn wires<'a>(&'a self, _lock: &'a LockGuard<'_>) -> &'a mut Option<Wires> {
        // SAFETY: the lock is held as long as the reference lives.
        unsafe { &mut *self.wires.get() }
    }

    /// A flight of writes was started. Not before: a fence that counts it must have its READ behind it.
    pub fn wrote(&self) {
        self.written.fetch_add(1, SeqCst);
    }

    /// How many flights of writes a READ that is posted now follows; `None` when one has followed all of them.
    pub fn to_fence(&self) -> Option<u64> {
        // In this order: the second number never overtakes the first.
        let fenced = self.fenced.load(SeqCst);
        Some(self.written.load(SeqCst)).filter(|w| *w > fenced)
    }

    /// The READ behind so many flights of writes has come back.
    pub fn note_fenced(&self, flights: u64) {
        self.fenced.fetch_max(flights, SeqCst);
    }

    /// Longest write that needs no registration.
    pub fn inline(&self) -> usize {
        self.inline.load(SeqCst) as usize
    }

    /// True when the lane is to be taken down.
    pub fn is_broken(&self) -> bool {
        self.broken.load(SeqCst)
    }

    /// Asks for the lane to be taken down; false when that was asked before.
    pub fn give_up(&self) -> bool {
        !self.broken.swap(true, SeqCst)
    }

    /// Starts a flight of at most [`MOST`] pieces; answers its number. `trip`: whose books it goes into, if anybody's; otherwise the caller
    /// is to call [`Lane::land`] until that answers.
    ///
    /// # Safety
    /// The local bytes stay valid until the flight has ended.
    pub unsafe fn start(
        &self,
        signals: &SignalsBlocked,
        pieces: &[Piece],
        trip: Option<u32>,
    ) -> Result<usize, Refused> {
        self.launch(signals, pieces.len() as u32, trip, |w, i| {
            if pieces.len() <= FEW {
                // SAFETY: passed on from the caller.
                unsafe { post::<FEW>(w, i, pieces) }
            } else {
                // SAFETY: as above.
                unsafe { post::<MOST>(w, i, pieces) }
            }
        })
    }

    /// Starts the flight that tells when the writes before it are readable at the home: a FLUSH where both sides have it,
    /// otherwise `echo`, a READ. The caller is to call [`Lane::land`] as above.
    ///
    /// # Safety
    /// As for [`Lane::start`].
    pub unsafe fn start_fence(
        &self,
        signals: &SignalsBlocked,
        echo: Piece,
        stats: &LinkStats,
    ) -> Result<usize, Refused> {
        self.launch(signals, 1, None, |w, i| match w.flush {
            true => {
                let posted = w.pair.post_flush(i as u64 | LAST, w.addr, w.rkey);
                posted.map(|()| stats.flushes.hit()).map_err(|e| (e, 0))
            }
            // SAFETY: passed on from the caller.
            false => unsafe { post::<1>(w, i, &[echo]) },
        })
    }

    /// Has `post` start a flight of `count` requests.
    fn launch(
        &self,
        signals: &SignalsBlocked,
        count: u32,
        trip: Option<u32>,
        post: impl FnOnce(&Wires, usize) -> Result<(), (Errno, usize)>,
    ) -> Result<usize, Refused> {
        let lock = self.lock.lock(signals);
        let Some(w) = self.wires(&lock) else { return Err(Refused::Down) };
        if self.is_broken() || w.device.at_hand().is_err() {
            return Err(Refused::Down);
        }
        let free = |f: &Flight| f.state.load(SeqCst) == FREE;
        let Some((i, flight)) = self.flights.iter().enumerate().find(|(_, f)| free(f)).filter(|_| w.room >= count)
        else {
            return Err(Refused::Full);
        };
        flight.status.store(0, SeqCst);
        flight.requests.store(count, SeqCst);
        flight.trip.store(trip.map_or(0, |t| t + 1), SeqCst);
        flight.state.store(FLYING, SeqCst);
        w.room -= count;
        match post(w, i) {
            Ok(()) => Ok(i),
            Err((_, 0)) => {
                flight.state.store(FREE, SeqCst);
                w.room += count;
                self.broken.store(true, SeqCst);
                Err(Refused::Down)
            }
            // Some were taken: they end with the queue pair.
            Err(_) => {
                self.broken.store(true, SeqCst);
                Ok(i)
            }
        }
    }

    /// Takes what has completed, unless another thread does. Async-signal-safe.
    pub fn poll(&self, signals: &SignalsBlocked, trips: &Trips) {
        let Some(lock) = self.lock.try_lock(signals) else { return };
        let Some(w) = self.wires(&lock) else { return };
        let mut room = 0;
        if w.cq.poll(|c| room += self.completed(c, trips)).is_err() {
            self.broken.store(true, SeqCst);
        }
        w.room += room;
    }

    /// Notes a completion; answers how many requests it tells the end of.
    fn completed(&self, c: Completion, trips: &Trips) -> u32 {
        let Some(flight) = self.flights.get((c.id & (LAST - 1)) as usize) else { return 0 };
        if c.outcome != Outcome(0) {
            let status = c.outcome.status().0 as u32;
            let _ = flight.status.compare_exchange(0, status, SeqCst, SeqCst);
            self.broken.store(true, SeqCst);
        }
        if c.id & LAST == 0 {
            return 0;
        }
        flight.end(trips);
        flight.requests.load(SeqCst)
    }

    /// How a flight ended, once it has; its number is free again then. Async-signal-safe.
    pub fn land(&self, flight: usize) -> Option<Status> {
        let f = self.flights.get(flight)?;
        if f.state.load(SeqCst) != ENDED {
            return None;
        }
        let status = Status(f.status.load(SeqCst) as i32);
        f.state.store(FREE, SeqCst);
        Some(status)
    }

    /// Connects the lane. Only when it is down.
    pub fn install(&self, wires: Wires) {
        let signals = SignalsBlocked::new();
        let lock = self.lock.lock(&signals);
        self.inline.store(wires.pair.depth().inline, SeqCst);
        *self.wires(&lock) = Some(wires);
        self.broken.store(false, SeqCst);
    }

    /// Takes the lane down: every flight has ended when this returns, and the device touches nothing of it any more.
    pub fn take_down(&self, trips: &Trips) {
        let taken = {
            let signals = SignalsBlocked::new();
            let lock = self.lock.lock(&signals);
            self.broken.store(true, SeqCst);
            self.wires(&lock).take()
        };
        if let Some(w) = taken {
            w.pair.fail();
            // What was done says so; the rest is flushed. Some of it may never come: of requests without a completion of their own.
            for _ in 0..REAP {
                let quiet = w.cq.poll(|c| _ = self.completed(c, trips)).is_err();
                if quiet || self.flights.iter().all(|f| f.state.load(SeqCst) != FLYING) {
                    break;
                }
                crate::sys::sync::yield_now();
            }
            // The queue pair is destroyed here: the device is done with all of its memory after that.
            drop(w);
        }
        for f in self.flights.iter().filter(|f| f.state.load(SeqCst) == FLYING) {
            let _ = f.status.compare_exchange(0, Status::LINK_DOWN.0 as u32, SeqCst, SeqCst);
            f.end(trips);
        }
    }
}

impl Flight {
    const fn new() -> Flight {
        Flight {
            state: AtomicU32::new(FREE),
            status: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            trip: AtomicU32::new(0),
        }
    }

    fn end(&self, trips: &Trips) {
        match self.trip.load(SeqCst) {
            0 => self.state.store(ENDED, SeqCst),
            t => {
                let status = Status(self.status.load(SeqCst) as i32);
                // Free before the trip counts it: whoever sees the trip's end may start another.
                self.state.store(FREE, SeqCst);
                trips.landed(t - 1, status);
            }
        }
    }
}
