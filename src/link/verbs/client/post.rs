//! Posted writes: gathered into flights, spread over the work lanes when there are many bytes, waited for by ticket.

use super::super::{Place, Verb};
use super::lane::{MOST, Piece};
use super::ops::{Held, PIECE, Pieces};
use super::session::{Posted, Rest, Session, quiet};
use crate::base::Status;
use crate::link::embedded::copy::copy;
use crate::link::{Ticket, WriteOp};
use crate::sys::clock::Deadline;
use crate::sys::sync::SignalsBlocked;
use std::sync::{MutexGuard, PoisonError};

/// Longest wait of a post for room.
const POST_WAIT_MS: u64 = 5000;
/// A batch of more bytes is spread over several lanes, in shares of at least this.
const SHARE: usize = 64 << 10;

/// A batch while it is posted.
struct Posting<'a> {
    s: &'a Session,
    signals: &'a SignalsBlocked,
    trip: u32,
    deadline: Deadline,
    lane: usize,
    /// Bytes after which the next lane has its turn, and those since the last turn.
    share: usize,
    taken: usize,
    pieces: Pieces<MOST>,
    /// Something is under way.
    begun: bool,
}

impl Session {
    /// Starts the writes. Errors mean that none of the sources is used; what fails later the ticket tells. Allocates.
    ///
    /// # Safety
    /// As for [`Link::post`](crate::link::Link::post).
    pub unsafe fn post(&self, ops: &[WriteOp]) -> Result<Ticket, Status> {
        let deadline = Deadline::in_ms(POST_WAIT_MS);
        // SAFETY: passed on from the caller; a batch that could not be begun uses none of its sources.
        let ticket = self.riding(deadline, || unsafe { self.begin(ops, deadline) })?;
        self.posted().push(Posted { ticket, ops: ops.to_vec() });
        Ok(ticket)
    }

    fn posted(&self) -> MutexGuard<'_, Vec<Posted>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Safety
    /// As for [`Session::post`].
    unsafe fn begin(&self, ops: &[WriteOp], deadline: Deadline) -> Result<Ticket, Status> {
        let mut bytes = 0usize;
        for op in ops {
            self.check(op.off.0, op.len as u64, true)?;
            bytes = bytes.saturating_add(op.len);
        }
        if ops.is_empty() {
            self.check(0, 0, true)?;
        }
        self.ready(deadline)?;
        let signals = quiet();
        let trip = self.begin_trip(&signals, deadline)?;
        let lanes = self.lanes.len().saturating_sub(1).max(1);
        let share = (bytes / lanes).max(SHARE);
        let (lane, pieces) = (self.work_lane(), Pieces::new());
        let signals = &signals;
        let mut p = Posting { s: self, signals, trip, deadline, lane, share, taken: 0, pieces, begun: false };
        // SAFETY: passed on from the caller.
        let posted = ops.iter().try_for_each(|op| unsafe { p.add(op) }).and_then(|()| p.fly());
        if let Err(status) = posted {
            if !p.begun {
                self.bounce.give(self.trips.chunks(trip));
                self.trips.forget(trip);
                return Err(status);
            }
            self.trips.fails(trip, status);
        }
        Ok(self.trips.posted(trip))
    }

    fn begin_trip(&self, signals: &SignalsBlocked, deadline: Deadline) -> Result<u32, Status> {
        let mut rest = Rest::new();
        loop {
            if let Some(t) = self.trips.begin() {
                return Ok(t);
            }
            self.lanes.iter().for_each(|l| l.poll(signals, &self.trips));
            if deadline.passed() {
                return Err(Status::BUSY);
            }
            rest.take();
        }
    }

    /// Waits until the sources of a batch are free. One that an outage has cut off is posted again when that is over soon.
    pub fn wait(&self, ticket: Ticket, deadline: Deadline) -> Status {
        let found = {
            let mut all = self.posted();
            let at = all.iter().position(|p| p.ticket == ticket);
            at.map(|i| all.swap_remove(i).ops)
        };
        let Some(ops) = found else { return Status::INVALID_ARGUMENT };
        let mut next = Some(ticket);
        let delivered = self.riding(deadline, || {
            let ticket = match next.take() {
                Some(t) => t,
                // SAFETY: the sources belong to the link until this call returns.
                None => unsafe { self.begin(&ops, deadline) }?,
            };
            self.settle(ticket, deadline).ok()
        });
        delivered.err().unwrap_or(Status::OK)
    }

    /// Waits for the flights of a batch.
    fn settle(&self, ticket: Ticket, deadline: Deadline) -> Status {
        let Some(trip) = self.trips.find(ticket) else { return Status::INVALID_ARGUMENT };
        let signals = quiet();
        let s = self.await_end(&signals, self.trips.lanes(trip), deadline, || self.trips.ended(trip));
        self.bounce.give(self.trips.chunks(trip));
        self.trips.forget(trip);
        s
    }
}

impl Posting<'_> {
    /// Adds one write, in pieces.
    ///
    /// # Safety
    /// The source stays valid until the trip has ended.
    unsafe fn add(&mut self, op: &WriteOp) -> Result<(), Status> {
        let mut done = 0;
        while done < op.len {
            let at = op.src.wrapping_add(done).cast_mut();
            let most = (op.len - done).min(PIECE).min(self.share.saturating_sub(self.taken).max(SHARE));
            // SAFETY: the caller's source.
            let (verb, local) = unsafe { self.source(at, most) }?;
            self.pieces.push(Piece { verb, local, off: op.off.0 + done as u64 });
            self.taken += local.len as usize;
            done += local.len as usize;
            if self.taken >= self.share {
                self.fly()?;
                self.lane = self.s.work_lane();
                self.taken = 0;
            } else if self.pieces.is_full() {
                self.fly()?;
            }
        }
        Ok(())
    }

    /// How the bytes at `at` go, and how many of them.
    ///
    /// # Safety
    /// They are the caller's source.
    unsafe fn source(&mut self, at: *mut u8, len: usize) -> Result<(Verb, Place), Status> {
        let inline = self.s.lanes.get(self.lane).map_or(0, |l| l.inline());
        if len <= inline {
            return Ok((Verb::WriteInline, Place { ptr: at, len: len as u32, lkey: 0 }));
        }
        if let Some(place) = self.s.rigs.known.find(at, len) {
            return Ok((Verb::Write, place));
        }
        let bounce = &self.s.bounce;
        let chunk = match bounce.take() {
            Some(c) => c,
            None => self.make_room()?,
        };
        self.s.trips.holds(self.trip, 1 << chunk);
        let len = len.min(bounce.chunk());
        // SAFETY: a piece that is this trip's, and the caller's source.
        unsafe { copy(bounce.at(chunk), at, len) };
        Ok((Verb::Write, self.s.bounced(bounce.at(chunk), len)?))
    }

    /// The bounce buffer is used up: waits for the trip's own flights, and uses their pieces again.
    fn make_room(&mut self) -> Result<usize, Status> {
        self.fly()?;
        let (s, trip) = (self.s, self.trip);
        let quiet = || s.trips.is_quiet(trip).then_some(Status::OK);
        s.await_end(self.signals, s.trips.lanes(trip), self.deadline, quiet).ok()?;
        s.bounce.give(s.trips.chunks(trip));
        let (held, chunk) = Held::one(s, self.signals, self.deadline)?;
        // The trip gives it back.
        std::mem::forget(held);
        Ok(chunk)
    }

    /// Starts what was gathered.
    fn fly(&mut self) -> Result<(), Status> {
        if self.pieces.all().is_empty() {
            return Ok(());
        }
        let (s, lane) = (self.s, self.lane);
        s.trips.adds(self.trip, lane);
        // SAFETY: sources of the batch, which stay until its ticket was waited for, and pieces that the trip holds.
        let started = unsafe { s.start(self.signals, lane, self.pieces.all(), Some(self.trip), self.deadline) };
        self.pieces.clear();
        match started {
            Ok(_) => {
                self.begun = true;
                if let Some(l) = s.lanes.get(lane) {
                    l.wrote();
                }
                Ok(())
            }
            Err(status) => {
                s.trips.landed(self.trip, status);
                Err(status)
            }
        }
    }
}
