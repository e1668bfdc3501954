//! Batches of posted writes, each of one or more flights: the tickets of the work face.

use crate::base::Status;
use crate::link::Ticket;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// Batches that can be under way.
const TRIPS: usize = 64;

#[derive(Default)]
struct Trip {
    /// 0: free.
    ticket: AtomicU64,
    /// Flights that have not ended, and one for the thread that still posts.
    pending: AtomicU32,
    /// First failure.
    status: AtomicU32,
    /// Lanes that it uses.
    lanes: AtomicU32,
    /// Pieces of the bounce buffer that it uses.
    chunks: AtomicU64,
}

/// All of a region's. Atomics only.
pub(super) struct Trips {
    all: [Trip; TRIPS],
    last: AtomicU64,
}

impl Trips {
    pub fn new() -> Trips {
        Trips { all: std::array::from_fn(|_| Trip::default()), last: AtomicU64::new(0) }
    }

    /// Begins one; `None` when too many are under way.
    pub fn begin(&self) -> Option<u32> {
        let (i, t) = self.all.iter().enumerate().find(|(_, t)| {
            // One that is being set up has a ticket that nobody gets.
            t.ticket.compare_exchange(0, u64::MAX, SeqCst, SeqCst).is_ok()
        })?;
        t.pending.store(1, SeqCst);
        t.status.store(0, SeqCst);
        t.lanes.store(0, SeqCst);
        t.chunks.store(0, SeqCst);
        Some(i as u32)
    }

    fn of(&self, trip: u32) -> Option<&Trip> {
        self.all.get(trip as usize)
    }

    /// A flight on `lane` is about to start.
    pub fn adds(&self, trip: u32, lane: usize) {
        if let Some(t) = self.of(trip) {
            t.pending.fetch_add(1, SeqCst);
            t.lanes.fetch_or(1 << lane, SeqCst);
        }
    }

    /// A flight has ended, or did not start.
    pub fn landed(&self, trip: u32, status: Status) {
        if let Some(t) = self.of(trip) {
            let _ = t.status.compare_exchange(0, status.0 as u32, SeqCst, SeqCst);
            t.pending.fetch_sub(1, SeqCst);
        }
    }

    /// Something went wrong with it.
    pub fn fails(&self, trip: u32, status: Status) {
        if let Some(t) = self.of(trip) {
            let _ = t.status.compare_exchange(0, status.0 as u32, SeqCst, SeqCst);
        }
    }

    /// It uses these pieces of the bounce buffer too.
    pub fn holds(&self, trip: u32, chunks: u64) {
        if let Some(t) = self.of(trip) {
            t.chunks.fetch_or(chunks, SeqCst);
        }
    }

    /// The pieces that it used, once nothing is under way; they are the caller's then.
    pub fn chunks(&self, trip: u32) -> u64 {
        self.of(trip).map_or(0, |t| t.chunks.swap(0, SeqCst))
    }

    /// True when no flight of it is under way, for the thread that still posts.
    pub fn is_quiet(&self, trip: u32) -> bool {
        self.of(trip).is_none_or(|t| t.pending.load(SeqCst) == 1)
    }

    /// Lanes that it uses, as bits.
    pub fn lanes(&self, trip: u32) -> u32 {
        self.of(trip).map_or(0, |t| t.lanes.load(SeqCst))
    }

    /// All is posted: its ticket.
    pub fn posted(&self, trip: u32) -> Ticket {
        let n = self.last.fetch_add(1, SeqCst) + 1;
        let ticket = n << 8 | u64::from(trip);
        if let Some(t) = self.of(trip) {
            t.ticket.store(ticket, SeqCst);
            t.pending.fetch_sub(1, SeqCst);
        }
        Ticket(ticket)
    }

    /// The trip of a ticket that was not waited for yet.
    pub fn find(&self, ticket: Ticket) -> Option<u32> {
        let trip = (ticket.0 & 0xff) as u32;
        (ticket.0 != 0 && self.of(trip)?.ticket.load(SeqCst) == ticket.0).then_some(trip)
    }

    /// How it ended, once it has.
    pub fn ended(&self, trip: u32) -> Option<Status> {
        let t = self.of(trip)?;
        (t.pending.load(SeqCst) == 0).then(|| Status(t.status.load(SeqCst) as i32))
    }

    /// Its number is free again.
    pub fn forget(&self, trip: u32) {
        if let Some(t) = self.of(trip) {
            t.ticket.store(0, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_ticket_is_good_once_and_tells_the_first_failure() {
        let trips = Trips::new();
        let a = trips.begin().unwrap();
        trips.adds(a, 1);
        trips.adds(a, 3);
        assert!(!trips.is_quiet(a));
        trips.landed(a, Status::OK);
        let ticket = trips.posted(a);
        assert_eq!((trips.find(ticket), trips.ended(a), trips.lanes(a)), (Some(a), None, 0b1010));
        trips.landed(a, Status::LINK_DOWN);
        trips.fails(a, Status::REVOKED);
        assert_eq!(trips.ended(a), Some(Status::LINK_DOWN));
        trips.forget(a);
        assert_eq!(trips.find(ticket), None);
        let b = trips.begin().unwrap();
        assert_eq!(b, a, "the number was not given back");
        assert_ne!(trips.posted(b), ticket);
        assert_eq!(trips.find(ticket), None, "an old ticket is good again");
    }

    #[test]
    fn there_is_an_end_to_them() {
        let trips = Trips::new();
        let all: Vec<_> = std::iter::from_fn(|| trips.begin()).collect();
        assert_eq!(all.len(), TRIPS);
        let ticket = trips.posted(all[5]);
        assert_eq!(trips.find(ticket), Some(5));
        trips.forget(5);
        assert_eq!(trips.begin(), Some(5));
    }
}
