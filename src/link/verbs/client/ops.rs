//! The operations that wait for their end: fetch, put, fence, atomics.

use super::super::{Place, Verb};
use super::lane::{FEW, Piece};
use super::memory::Bounce;
use super::session::{Rest, Session, quiet};
use crate::base::Status;
use crate::link::embedded::copy::copy;
use crate::link::{AtomicOp, Ticket};
use crate::sys::clock::Deadline;
use crate::sys::sync::SignalsBlocked;
use std::sync::atomic::Ordering::SeqCst;

/// Longest request: every device takes as much.
pub(super) const PIECE: usize = 1 << 20;
/// Lane of the fault face.
const FAULTS: usize = 0;

/// Pieces of the bounce buffer, given back when dropped. Only once nothing is under way to or from them.
pub(super) struct Held<'a> {
    bounce: &'a Bounce,
    chunks: u64,
}

impl<'a> Held<'a> {
    fn none(bounce: &'a Bounce) -> Held<'a> {
        Held { bounce, chunks: 0 }
    }

    /// One piece, when there is one within the deadline.
    pub fn one(s: &'a Session, signals: &SignalsBlocked, deadline: Deadline) -> Result<(Held<'a>, usize), Status> {
        let mut rest = Rest::new();
        loop {
            if let Some(c) = s.bounce.take() {
                return Ok((Held { bounce: &s.bounce, chunks: 1 << c }, c));
            }
            s.lanes.iter().for_each(|l| l.poll(signals, &s.trips));
            if deadline.passed() {
                return Err(Status::TIMED_OUT);
            }
            rest.take();
        }
    }

    fn add(&mut self, chunk: usize) {
        self.chunks |= 1 << chunk;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.bounce.give(self.chunks);
    }
}

impl Session {
    /// A piece of the bounce buffer as the device knows it.
    pub(super) fn bounced(&self, ptr: *mut u8, len: usize) -> Result<Place, Status> {
        self.rigs.known.find(ptr, len).ok_or(Status::LINK_DOWN)
    }

    /// Copies from the home. Async-signal-safe.
    ///
    /// # Safety
    /// As for [`Link::fetch`](crate::link::Link::fetch).
    pub unsafe fn fetch(&self, off: u64, dst: *mut u8, len: usize, deadline: Deadline) -> Result<(), Status> {
        self.check(off, len as u64, false)?;
        self.ready(deadline)?;
        let signals = quiet();
        match self.rigs.known.find(dst, len) {
            // SAFETY: the destination is the caller's, and registered.
            Some(place) => unsafe { self.fetch_direct(&signals, off, place, len, deadline) },
            // SAFETY: the destination is the caller's.
            None => unsafe { self.fetch_bounced(&signals, off, dst, len, deadline) },
        }
    }

    unsafe fn fetch_direct(
        &self,
        signals: &SignalsBlocked,
        off: u64,
        to: Place,
        len: usize,
        deadline: Deadline,
    ) -> Result<(), Status> {
        let mut done = 0;
        while done < len {
            let mut pieces = Pieces::<FEW>::new();
            while done < len && !pieces.is_full() {
                let n = PIECE.min(len - done);
                let local = Place { ptr: to.ptr.wrapping_add(done), len: n as u32, lkey: to.lkey };
                pieces.push(Piece { verb: Verb::Read, local, off: off + done as u64 });
                done += n;
            }
            // SAFETY: pieces of the destination; the flight has ended when this returns.
            unsafe { self.fly(signals, FAULTS, pieces.all(), deadline) }?;
        }
        Ok(())
    }

    unsafe fn fetch_bounced(
        &self,
        signals: &SignalsBlocked,
        off: u64,
        dst: *mut u8,
        len: usize,
        deadline: Deadline,
    ) -> Result<(), Status> {
        let chunk = self.bounce.chunk();
        let mut done = 0;
        while done < len {
            let (mut held, first) = Held::one(self, signals, deadline)?;
            let (mut pieces, mut next) = (Pieces::<FEW>::new(), Some(first));
            let mut end = done;
            while let Some(c) = next.take() {
                held.add(c);
                let n = chunk.min(len - end);
                let local = self.bounced(self.bounce.at(c), n)?;
                pieces.push(Piece { verb: Verb::Read, local, off: off + end as u64 });
                end += n;
                if end < len && !pieces.is_full() {
                    next = self.bounce.take();
                }
            }
            // SAFETY: pieces of the buffer, held until the flight has ended.
            unsafe { self.fly(signals, FAULTS, pieces.all(), deadline) }?;
            for p in pieces.all() {
                // SAFETY: the bytes have arrived; the destination is the caller's.
                unsafe { copy(dst.wrapping_add(done), p.local.ptr, p.local.len as usize) };
                done += p.local.len as usize;
            }
        }
        Ok(())
    }

    /// A READ behind writes of the same queue pair: its answer says that they are readable at the home.
    fn echo(&self) -> Result<Piece, Status> {
        Ok(Piece { verb: Verb::Read, local: self.bounced(self.bounce.sink(), 1)?, off: 0 })
    }

    /// Posts a READ of one byte on the fault lane, to see whether it comes back. For the region's thread.
    pub(super) fn beat(&self, signals: &SignalsBlocked) -> Option<Ticket> {
        let (echo, trip) = ([self.echo().ok()?], self.trips.begin()?);
        self.trips.adds(trip, FAULTS);
        // SAFETY: it goes to the buffer's page for such answers, which lives as long as the link.
        if let Err(s) = unsafe { self.start(signals, FAULTS, &echo, Some(trip), Deadline(0)) } {
            self.trips.landed(trip, s);
        }
        Some(self.trips.posted(trip))
    }

    /// Copies to the home; readable there when this returns. Async-signal-safe.
    ///
    /// # Safety
    /// As for [`Link::put`](crate::link::Link::put).
    pub unsafe fn put(&self, off: u64, src: *const u8, len: usize, deadline: Deadline) -> Result<(), Status> {
        self.check(off, len as u64, true)?;
        self.ready(deadline)?;
        let signals = quiet();
        let inline = self.lanes.get(FAULTS).map_or(0, |l| l.inline());
        let mut done = 0;
        while done < len {
            let at = src.wrapping_add(done).cast_mut();
            let left = len - done;
            let mut held = Held::none(&self.bounce);
            let n = left.min(PIECE);
            let (verb, local) = if left <= inline {
                (Verb::WriteInline, Place { ptr: at, len: left as u32, lkey: 0 })
            } else if let Some(place) = self.rigs.known.find(at, n) {
                (Verb::Write, place)
            } else {
                let (h, c) = Held::one(self, &signals, deadline)?;
                held = h;
                let n = n.min(self.bounce.chunk());
                // SAFETY: a held piece of the buffer, and the caller's source.
                unsafe { copy(self.bounce.at(c), at, n) };
                (Verb::Write, self.bounced(self.bounce.at(c), n)?)
            };
            let pieces = [Piece { verb, local, off: off + done as u64 }, self.echo()?];
            // SAFETY: the caller's source or a held piece; the flight has ended when this returns.
            unsafe { self.fly(&signals, FAULTS, &pieces, deadline) }?;
            drop(held);
            done += local.len as usize;
        }
        Ok(())
    }

    /// Makes delivered writes readable: a READ, or a FLUSH, behind the last write of each lane.
    pub fn fence(&self, deadline: Deadline) -> Result<(), Status> {
        self.ready(deadline)?;
        let signals = quiet();
        let echo = self.echo()?;
        let mut flights = [None; 32];
        let mut first = Ok(());
        for (i, (lane, flight)) in self.lanes.iter().zip(&mut flights).enumerate() {
            let Some(writes) = lane.to_fence() else { continue };
            // SAFETY: it goes to the buffer's page for such answers, which lives as long as the link.
            match unsafe { self.start_fence(&signals, i, echo, deadline) } {
                Ok(f) => *flight = Some((f, writes)),
                Err(s) => first = first.and(Err(s)),
            }
        }
        for (i, (lane, flight)) in self.lanes.iter().zip(flights).enumerate() {
            let Some((f, writes)) = flight else { continue };
            match self.await_end(&signals, 1 << i, deadline, || lane.land(f)) {
                Status::OK => lane.note_fenced(writes),
                s => first = first.and(Err(s)),
            }
        }
        first
    }

    /// Operates on the word at `off`; answers its old value.
    pub fn atomic(&self, off: u64, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        if !off.is_multiple_of(8) {
            return Err(Status::INVALID_ARGUMENT);
        }
        self.check(off, 8, op != AtomicOp::Load)?;
        self.ready(deadline)?;
        if op != AtomicOp::Load && !self.atomics.load(SeqCst) {
            return Err(Status::NOT_SUPPORTED);
        }
        let signals = quiet();
        let one = |verb| self.word(&signals, off, verb, deadline);
        match op {
            AtomicOp::Load => one(Verb::Read),
            AtomicOp::FetchAdd(n) => one(Verb::FetchAdd(n)),
            AtomicOp::CompareSwap { expected, new } => one(Verb::CompareSwap { expected, new }),
            AtomicOp::Store(new) => {
                // Devices have no exchange: compare-and-swap until nobody was faster.
                let mut expected = one(Verb::Read)?;
                loop {
                    let old = one(Verb::CompareSwap { expected, new })?;
                    if old == expected {
                        return Ok(old);
                    }
                    if deadline.passed() {
                        return Err(Status::TIMED_OUT);
                    }
                    expected = old;
                }
            }
        }
    }

    /// One request that answers a word.
    fn word(&self, signals: &SignalsBlocked, off: u64, verb: Verb, deadline: Deadline) -> Result<u64, Status> {
        let (_held, c) = Held::one(self, signals, deadline)?;
        let at = self.bounce.at(c);
        let pieces = [Piece { verb, local: self.bounced(at, 8)?, off }];
        let lane = self.work_lane();
        // SAFETY: a held piece of the buffer; the flight has ended before it is given back.
        let flight = unsafe { self.start(signals, lane, &pieces, None, deadline) }?;
        let l = self.lanes.get(lane).ok_or(Status::INTERNAL)?;
        match self.await_end(signals, 1 << lane, deadline, || l.land(flight)) {
            // SAFETY: the device has written the word; pieces begin at multiples of a word.
            Status::OK => Ok(unsafe { at.cast::<u64>().read_volatile() }),
            // It was on its way: nobody knows whether it was done.
            _ if verb != Verb::Read => Err(Status::INTERNAL),
            s => Err(s),
        }
    }

    /// Work lanes in turn.
    pub(super) fn work_lane(&self) -> usize {
        let work = self.lanes.len().saturating_sub(1).max(1);
        1 + self.turn.fetch_add(1, SeqCst) % work
    }
}

/// Up to `N` pieces, on the stack.
pub(super) struct Pieces<const N: usize> {
    list: [Piece; N],
    len: usize,
}

impl<const N: usize> Pieces<N> {
    pub fn new() -> Pieces<N> {
        let nothing = Place { ptr: std::ptr::null_mut(), len: 0, lkey: 0 };
        Pieces { list: [Piece { verb: Verb::Read, local: nothing, off: 0 }; N], len: 0 }
    }

    pub fn push(&mut self, p: Piece) {
        if let Some(place) = self.list.get_mut(self.len) {
            *place = p;
            self.len += 1;
        }
    }

    pub fn is_full(&self) -> bool {
        self.len == N
    }

    pub fn all(&self) -> &[Piece] {
        self.list.get(..self.len).unwrap_or_default()
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}
