//! One opened region: its state, its lanes, and how operations wait on them.

use super::lane::{Lane, Piece, Refused};
use super::memory::Bounce;
use super::rig::Rigs;
use super::trips::Trips;
use crate::base::Status;
use crate::link::{Health, Ticket, WriteOp};
use crate::sys::clock::{Deadline, nap, now};
use crate::sys::sync::{SignalsBlocked, yield_now};
use crate::sys::thread::{Waker, is_own};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};

/// An outage younger than this is waited for by operations that have the time: a home that moves, a queue pair that is made anew.
const FLAP_NS: u64 = 500_000_000;
/// Least time of a request before it is given up: giving one up costs its lane.
const GRACE_NS: u64 = 20_000_000;
/// Pause of a waiting operation.
const PAUSE_NS: u64 = 200_000;

const UP: u64 = 0;
const RETRYING: u64 = 1 << 32;
const DOWN: u64 = 2 << 32;

/// A batch, for the case that it is to be posted again.
pub(super) struct Posted {
    pub ticket: Ticket,
    pub ops: Vec<WriteOp>,
}

// SAFETY: the sources belong to the link, whichever thread waits.
unsafe impl Send for Posted {}

/// The data path of a region. Everything here may be used by any thread.
pub(super) struct Session {
    pub len: u64,
    pub writable: bool,
    /// The first is the fault lane.
    pub lanes: Vec<Lane>,
    pub trips: Trips,
    pub rigs: Arc<Rigs>,
    pub bounce: Arc<Bounce>,
    pub attachments: AtomicU64,
    /// The other side performs atomics.
    pub atomics: AtomicBool,
    /// Lane of the next batch.
    pub turn: AtomicUsize,
    /// The region was closed.
    pub closing: AtomicBool,
    /// The thread that looks after it; it runs as long as somebody is in the session.
    pub thread: OnceLock<Waker>,
    /// Posted and not waited for.
    pub posted: Mutex<Vec<Posted>>,
    /// [`UP`], or [`RETRYING`] or [`DOWN`] with a status.
    state: AtomicU64,
    /// When it last stopped being up.
    since: AtomicU64,
}

impl Session {
    /// One that is not connected yet.
    pub fn new(len: u64, writable: bool, lanes: usize, rigs: Arc<Rigs>, bounce: Arc<Bounce>) -> Session {
        Session {
            len,
            writable,
            lanes: (0..lanes).map(|_| Lane::new()).collect(),
            trips: Trips::new(),
            rigs,
            bounce,
            attachments: AtomicU64::new(1),
            atomics: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            thread: OnceLock::new(),
            posted: Mutex::default(),
            state: AtomicU64::new(RETRYING | Status::LINK_DOWN.0 as u64),
            since: AtomicU64::new(now()),
        }
    }

    /// Operations are expected to work.
    pub fn set_up(&self) {
        self.state.store(UP, SeqCst);
    }

    /// Operations answer `s`; it is worked on.
    pub fn set_retrying(&self, s: Status) {
        let before = self.state.swap(RETRYING | s.0 as u64, SeqCst);
        if before == UP {
            self.since.store(now(), SeqCst);
        }
    }

    /// Operations answer `s`, for good.
    pub fn set_down(&self, s: Status) {
        self.state.store(DOWN | s.0 as u64, SeqCst);
    }

    /// Async-signal-safe.
    pub fn health(&self) -> Health {
        let word = self.state.load(SeqCst);
        let status = Status(word as u32 as i32);
        match word & !0xffff_ffff {
            UP => Health::Up,
            RETRYING => Health::Retrying(status),
            _ => Health::Down(status),
        }
    }

    /// OK when operations can go; rides out what has only just begun. Async-signal-safe.
    pub fn ready(&self, deadline: Deadline) -> Result<(), Status> {
        loop {
            let status = match self.health() {
                Health::Up => return Ok(()),
                Health::Down(s) => return Err(s),
                Health::Retrying(s) => s,
            };
            let young = now().saturating_sub(self.since.load(SeqCst)) < FLAP_NS;
            if !status.is_transient() || !young || deadline.passed() || self.closing.load(SeqCst) {
                return Err(status);
            }
            nap(PAUSE_NS);
        }
    }

    /// Runs an operation that may be repeated; once more, and again, when it fails because of an outage that has just begun. One that took
    /// long to fail is not repeated: there may be another path. Async-signal-safe if `op` is.
    pub fn riding<R>(&self, deadline: Deadline, mut op: impl FnMut() -> Result<R, Status>) -> Result<R, Status> {
        let begin = now();
        loop {
            let young = || now().saturating_sub(begin) < FLAP_NS && !deadline.passed() && !self.closing.load(SeqCst);
            match op() {
                Err(Status::LINK_DOWN) if young() => nap(PAUSE_NS),
                r => return r,
            }
        }
    }

    /// Refuses what lies outside the region or the rights.
    pub fn check(&self, off: u64, len: u64, write: bool) -> Result<(), Status> {
        if off.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Status::OUT_OF_RANGE);
        }
        if write && !self.writable { Err(Status::PERMISSION) } else { Ok(()) }
    }

    /// Has the region's thread look at the lanes. Async-signal-safe.
    pub fn alarm(&self) {
        if let Some(t) = self.thread.get() {
            t.wake();
        }
    }

    /// Starts a flight, when there is room for it.
    ///
    /// # Safety
    /// As for [`Lane::start`].
    pub unsafe fn start(
        &self,
        signals: &SignalsBlocked,
        lane: usize,
        pieces: &[Piece],
        trip: Option<u32>,
        deadline: Deadline,
    ) -> Result<usize, Status> {
        // SAFETY: passed on from the caller.
        let start = |l: &Lane| unsafe { l.start(signals, pieces, trip) };
        self.launch(signals, lane, pieces.len(), deadline, start)
    }

    /// Starts the flight that tells when the writes before it on this lane are readable at the home.
    ///
    /// # Safety
    /// As for [`Lane::start_fence`].
    pub unsafe fn start_fence(
        &self,
        signals: &SignalsBlocked,
        lane: usize,
        echo: Piece,
        deadline: Deadline,
    ) -> Result<usize, Status> {
        // SAFETY: passed on from the caller.
        self.launch(signals, lane, 1, deadline, |l| unsafe { l.start_fence(signals, echo, &self.rigs.stats) })
    }

    fn launch(
        &self,
        signals: &SignalsBlocked,
        lane: usize,
        requests: usize,
        deadline: Deadline,
        start: impl Fn(&Lane) -> Result<usize, Refused>,
    ) -> Result<usize, Status> {
        let (l, mut rest) = (self.lanes.get(lane).ok_or(Status::INTERNAL)?, Rest::new());
        loop {
            match start(l) {
                Ok(flight) => {
                    self.rigs.stats.doorbells.hit();
                    self.rigs.stats.requests.add(requests as u64);
                    if l.is_broken() {
                        self.alarm();
                    }
                    return Ok(flight);
                }
                Err(Refused::Down) => {
                    self.alarm();
                    return Err(self.outage());
                }
                Err(Refused::Full) if deadline.passed() => return Err(Status::TIMED_OUT),
                Err(Refused::Full) => l.poll(signals, &self.trips),
            }
            rest.take();
        }
    }

    /// Why the lanes do not work now.
    pub fn outage(&self) -> Status {
        match self.health() {
            Health::Up => Status::LINK_DOWN,
            Health::Retrying(s) | Health::Down(s) => s,
        }
    }

    /// Waits until `ended` answers, taking completions of `lanes` (bits); at the deadline those lanes are given up, and what is under way on
    /// them ends soon after, in the hands of the region's thread. Async-signal-safe if `ended` is.
    pub fn await_end(
        &self,
        signals: &SignalsBlocked,
        lanes: u32,
        deadline: Deadline,
        mut ended: impl FnMut() -> Option<Status>,
    ) -> Status {
        let limit = Deadline(deadline.0.max(now().saturating_add(GRACE_NS)));
        let (mut rest, mut late, mut told) = (Rest::new(), false, false);
        let of = |bits: u32| self.lanes.iter().enumerate().filter(move |(i, _)| bits >> i & 1 == 1).map(|(_, l)| l);
        loop {
            of(lanes).for_each(|l| l.poll(signals, &self.trips));
            if let Some(s) = ended() {
                if of(lanes).any(Lane::is_broken) {
                    self.alarm();
                }
                return if late && !s.is_ok() { Status::TIMED_OUT } else { s };
            }
            if !late && limit.passed() {
                late = true;
                of(lanes).for_each(|l| _ = l.give_up());
            }
            if !told && of(lanes).any(Lane::is_broken) {
                told = true;
                self.alarm();
            }
            rest.take();
        }
    }

    /// Starts a flight and waits for its end.
    ///
    /// # Safety
    /// As for [`Lane::start`]; the flight has ended when this returns.
    pub unsafe fn fly(
        &self,
        signals: &SignalsBlocked,
        lane: usize,
        pieces: &[Piece],
        deadline: Deadline,
    ) -> Result<(), Status> {
        // SAFETY: passed on from the caller.
        let flight = unsafe { self.start(signals, lane, pieces, None, deadline) }?;
        let l = self.lanes.get(lane).ok_or(Status::INTERNAL)?;
        self.await_end(signals, 1 << lane, deadline, || l.land(flight)).ok()
    }
}

/// Signals blocked for an operation: a lock that the fault face takes is about to be held. The library's own threads have none to fear.
pub(super) fn quiet() -> SignalsBlocked {
    if is_own() { SignalsBlocked::in_handler() } else { SignalsBlocked::new() }
}

/// Pauses of a thread that waits: none at first, then ever longer ones. Async-signal-safe.
pub(super) struct Rest(u32);

impl Rest {
    pub fn new() -> Rest {
        Rest(0)
    }

    pub fn take(&mut self) {
        self.0 = self.0.saturating_add(1);
        match self.0 {
            0..=500 => std::hint::spin_loop(),
            501..=1500 => yield_now(),
            1501..=3000 => nap(10_000),
            _ => nap(100_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::DeviceWish;

    fn session() -> Session {
        let bounce = Arc::new(Bounce::new(4096).expect("memory"));
        Session::new(8192, false, 2, Rigs::new(DeviceWish::default(), false), bounce)
    }

    #[test]
    fn ranges_and_rights_are_checked_here() {
        let s = session();
        assert_eq!(s.check(0, 8192, false), Ok(()));
        assert_eq!(s.check(8191, 2, false), Err(Status::OUT_OF_RANGE));
        assert_eq!(s.check(u64::MAX, 2, false), Err(Status::OUT_OF_RANGE));
        assert_eq!(s.check(0, 1, true), Err(Status::PERMISSION));
    }

    #[test]
    fn a_young_outage_is_waited_for_and_an_old_one_is_not() {
        let s = session();
        assert_eq!(s.ready(Deadline::in_ms(0)), Err(Status::LINK_DOWN));
        let began = now();
        assert_eq!(s.ready(Deadline::in_ms(20_000)), Err(Status::LINK_DOWN));
        assert!((400_000_000..15_000_000_000).contains(&(now() - began)), "{}", now() - began);
        s.set_up();
        assert_eq!((s.ready(Deadline::in_ms(0)), s.health()), (Ok(()), Health::Up));
        s.set_retrying(Status::PEER_DEAD);
        assert_eq!(s.ready(Deadline::in_ms(20_000)), Err(Status::PEER_DEAD));
        s.set_down(Status::REVOKED);
        assert_eq!(s.health(), Health::Down(Status::REVOKED));
        assert_eq!(s.ready(Deadline::in_ms(20_000)), Err(Status::REVOKED));
    }
}
