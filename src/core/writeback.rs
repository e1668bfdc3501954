//! From dirty pages to bytes at the home.
//!
//! *Harvest*: protect the pages that were written and move their marks into the `dirty` bitmap, under the harvest lock.
//! *Push*: lock a dirty page, take its bit, send its bytes, unlock it when the link has let go of the source. Protecting
//! comes before reading, always: a store after the protection is marked again and belongs to the next push.
//!
//! With a twin the bytes sent are the twin's, brought up to date in the same pass as the comparison; without one they are
//! the page's own. What could not be delivered is remembered: the page is dirty again and its runs go out first next time.

use super::harvest::Heat;
use super::options::Policy;
use super::pages::{Event, State};
use super::regcache::Buffer;
use super::region::Region;
use super::unsent::Runs;
use crate::base::Status;
use crate::base::addr::{PAGE, PageRange};
use crate::link::{Ticket, WriteOp};
use crate::sys::clock::Deadline;
use crate::sys::sync::SignalsBlocked;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

/// Pages locked at a time: bounds how long signals stay blocked (4 MiB at 100 Gb/s: 0.34 ms).
const WINDOW_PAGES: usize = 1024;
/// Most pieces of a window: a link has room for a few times as many ([`Link::post`](crate::link::Link::post)).
const WINDOW_PIECES: usize = 16;
/// Pages of the first piece of a window: small, so that the wire starts early.
const FIRST_PIECE: usize = 64;
/// Pages of the others.
const PIECE: usize = 256;
/// Messages of a piece.
const PIECE_OPS: usize = 4096;

/// Reusable buffers of one pusher.
#[derive(Default)]
pub struct Outbox {
    ops: Ops,
    held: Vec<usize>,
    pieces: Vec<Piece>,
}

/// A posted part of a window: its ticket, and where its writes and its pages end in the outbox.
struct Piece {
    ticket: Result<Option<Ticket>, Status>,
    /// The attachment to the home it was posted to.
    home: u64,
    ops: usize,
    held: usize,
    /// The registered buffer its bytes are sent from, where they pass one.
    buffer: Option<Buffer>,
}

impl Outbox {
    fn clear(&mut self) {
        self.ops = Ops { list: std::mem::take(&mut self.ops.list), posted: 0 };
        self.ops.list.clear();
        self.held.clear();
        self.pieces.clear();
    }
}

// SAFETY: the raw sources in `ops` point into A and T of the region that owns the outbox, and are used only while their
// pages are locked.
unsafe impl Send for Outbox {}

impl Region {
    /// All earlier stores in `[off, off + len)` are readable at the home when this returns OK; a length of 0 means to
    /// the end. On failure every byte that was not delivered is still dirty.
    pub fn release(&self, off: u64, len: u64) -> Status {
        match self.range(off, len) {
            Ok(r) => self.release_pages(r),
            Err(s) => s,
        }
    }

    /// [`Region::release`] by pages.
    pub(super) fn release_pages(&self, range: PageRange) -> Status {
        self.stats.releases.hit();
        let mut outbox = self.outbox();
        let deadline = self.deadline();
        self.pages.new_epoch(range.start, range.end);
        if let Err(s) = self.harvest(range, Heat::Count) {
            return s;
        }
        let status = self.push_and_fence(range, &mut outbox, deadline);
        self.judge_release(range, self.note_call(status))
    }

    /// What is dirty in `range` now is readable at the home when this returns OK. The caller has harvested.
    pub(super) fn push_and_fence(&self, range: PageRange, out: &mut Outbox, deadline: Deadline) -> Status {
        loop {
            let failed = self.keeper.failed();
            let (sent, status) = self.push(range, out, deadline);
            let deadline = if sent > 0 { self.deadline() } else { deadline };
            // What the keeper took out of the books is also a store before this call; should it fail, it is ours again.
            self.keeper.pushes.wait();
            if !status.is_ok() {
                // Nothing is fenced now, so nothing that was delivered is known to be there.
                self.doubt_delivered();
                return status;
            }
            if self.keeper.failed() == failed {
                let s = if self.keeper.is_unfenced() { self.fence(deadline) } else { status };
                // BUSY: the home was attached anew in between; what it does not have is dirty again.
                if s != Status::BUSY {
                    return s;
                }
            }
            if deadline.passed() {
                return Status::TIMED_OUT;
            }
        }
    }

    /// What was delivered and not fenced is unreleased from now on.
    pub(super) fn doubt_delivered(&self) {
        let _signals = SignalsBlocked::new();
        self.unfenced.give_up(|runs| self.take_back(runs));
    }

    /// Starts write-back and returns: posted, not fenced.
    pub fn flush(&self, off: u64, len: u64) -> Status {
        let range = match self.range(off, len) {
            Ok(r) => r,
            Err(s) => return s,
        };
        let mut outbox = self.outbox();
        if let Err(s) = self.harvest(range, Heat::Ignore) {
            return s;
        }
        let status = self.push(range, &mut outbox, self.deadline()).1;
        self.note_call(status)
    }

    /// Marks a range as written by somebody the tracking cannot see (a device that wrote a view).
    pub fn mark_dirty(&self, off: u64, len: u64) -> Status {
        let Ok(range) = self.range(off, len) else { return Status::OUT_OF_RANGE };
        for p in range.start..range.end {
            if let Err(s) = self.ensure(p, self.deadline()) {
                return s;
            }
            self.pages.dirty.set(p);
        }
        Status::OK
    }

    /// Everything delivered so far becomes readable at the home.
    pub(super) fn fence(&self, deadline: Deadline) -> Status {
        let _signals = SignalsBlocked::new();
        let home = || self.link.attachments(self.key);
        let back = |runs| self.take_back(runs);
        let Some(fence) = self.unfenced.begin_fence(home(), || self.keeper.delivered(), back) else {
            return self.left_behind();
        };
        let s = self.link.fence(self.key, deadline);
        self.note(s);
        if !s.is_ok() {
            self.unfenced.give_up(back);
            return s;
        }
        if !self.unfenced.end_fence(home(), fence, back) {
            return self.left_behind();
        }
        self.keeper.note_fenced(fence.batches);
        s
    }

    /// The home was attached anew since the last fence: what went before is dirty again.
    fn left_behind(&self) -> Status {
        self.note_reattached();
        Status::BUSY
    }

    /// Looks whether the home was attached anew.
    pub(super) fn follow_home(&self) {
        let _signals = SignalsBlocked::new();
        let back = |runs| self.take_back(runs);
        if self.unfenced.begin_fence(self.link.attachments(self.key), || 0, back).is_none() {
            self.left_behind();
        }
    }

    /// What was delivered and not fenced is dirty again: whether it is at the home is not known, and sending it again is
    /// always allowed. Its pages are here: none is given up before a fence. Called with signals blocked and the log locked.
    fn take_back(&self, runs: Runs) {
        if runs.is_empty() {
            return;
        }
        let pages = |(off, len): &(u64, usize)| PageRange::covering(*off, *len as u64);
        let all: Vec<PageRange> = runs.iter().map(pages).collect();
        if self.t_page(0).is_some() {
            self.unsent.keep(runs.into_iter());
        }
        all.iter().for_each(|r| _ = self.pages.dirty.set_range(r.start, r.end));
        self.note_owing();
        self.keeper.note_failed();
    }

    /// Sends the dirty pages of `range`; answers how many messages went out and the first failure. A deadline is for the next answer only.
    pub(super) fn push(&self, range: PageRange, out: &mut Outbox, deadline: Deadline) -> (usize, Status) {
        let (mut at, mut sent, mut deadline) = (range.start, 0, deadline);
        while let Some(first) = self.pages.dirty.next_set(at, range.end) {
            let signals = SignalsBlocked::new();
            let (next, posted) = self.post_window(PageRange { start: first, end: range.end }, out, deadline);
            let delivered = self.deliver(out, deadline);
            drop(signals);
            sent += out.ops.list.len();
            let status = posted.and(delivered);
            let fenced = if status.is_ok() && self.unfenced.is_full() { self.fence(deadline) } else { status };
            // BUSY: the home was attached anew; what it does not have is dirty again, which the caller finds.
            if !fenced.is_ok() && (!status.is_ok() || fenced != Status::BUSY) {
                return (sent, fenced);
            }
            (at, deadline) = (next, self.deadline());
        }
        (sent, Status::OK)
    }

    /// Locks, compares and posts up to a window of pages, piece by piece: the first piece is on the wire while the next
    /// is gathered. Answers where to go on.
    fn post_window(&self, range: PageRange, out: &mut Outbox, deadline: Deadline) -> (usize, Status) {
        out.clear();
        let (mut at, mut piece) = (range.start, FIRST_PIECE);
        while at < range.end && out.held.len() < WINDOW_PAGES && out.pieces.len() < WINDOW_PIECES {
            let held = out.held.len();
            let buffer = self.way.staged().and_then(|c| c.take(&self.stats));
            if self.way.staged().is_some_and(|c| c.buffer_size() > 0) && buffer.is_none() && held > 0 {
                // Those of this window are free again when it was delivered.
                return (at, Status::OK);
            }
            let piece_now = buffer.as_ref().map_or(piece, |b| piece.min(b.len() / PAGE));
            let next = match self.gather(PageRange { start: at, end: range.end }, piece_now, out, deadline) {
                Ok(next) => next,
                Err(s) => return (at, s),
            };
            let blocked = next == at && out.held.len() == held;
            let home = self.link.attachments(self.key);
            let ticket = self.post_piece(&mut out.ops, buffer.as_ref());
            out.pieces.push(Piece { ticket, home, ops: out.ops.posted, held: out.held.len(), buffer });
            if blocked || out.pieces.last().is_some_and(|p| p.ticket.is_err()) {
                return (next, Status::OK);
            }
            (at, piece) = (next, PIECE);
        }
        (at, Status::OK)
    }

    fn post_piece(&self, ops: &mut Ops, buffer: Option<&Buffer>) -> Result<Option<Ticket>, Status> {
        let posted = std::mem::replace(&mut ops.posted, ops.list.len());
        let fresh = ops.list.get_mut(posted..).unwrap_or(&mut []);
        if let Some(b) = buffer {
            // SAFETY: the sources lie inside A and T, in pages this thread has locked.
            unsafe { b.stage(fresh, &self.stats) };
        }
        if fresh.is_empty() {
            return Ok(None);
        }
        // SAFETY: the sources lie inside A and T, in pages this thread keeps locked until `deliver` has waited.
        unsafe { self.link.post(self.key, fresh) }.map(Some)
    }

    /// Locks dirty pages from `range.start` on, at most `count`, and lists what must be sent. Answers where to go on.
    /// Only a window's first page is waited for: a thread that holds pages never waits for another.
    fn gather(&self, range: PageRange, count: usize, out: &mut Outbox, deadline: Deadline) -> Result<usize, Status> {
        let (mut at, most, ops) = (range.start, out.held.len() + count, out.ops.list.len() + PIECE_OPS);
        while let Some(p) = self.pages.dirty.next_set(at, range.end) {
            if out.held.len() >= most || out.ops.list.len() >= ops {
                return Ok(p);
            }
            let first = out.held.is_empty();
            match if first { self.pages.lock(p, deadline) } else { self.pages.apply(p, Event::Lock) } {
                Ok(()) => self.gather_page(p, out),
                Err(s) if s.is_held() && first => return Err(Status::TIMED_OUT),
                Err(s) if s.is_held() => return Ok(p),
                Err(State::Poisoned) => self.forget_stores(p),
                // Gone: its bytes were pushed by whoever dropped it. A mark seen now belongs to its next life.
                Err(_) => {}
            }
            at = p + 1;
        }
        Ok(range.end)
    }

    fn gather_page(&self, p: usize, out: &mut Outbox) {
        out.held.push(p);
        if !self.pages.dirty.take(p) {
            return;
        }
        self.stats.pages_pushed.hit();
        let before = out.ops.list.len();
        let len = self.valid_bytes(p);
        match self.t_page(p) {
            None => self.send_run(p, self.a_page(p), 0, len, &mut out.ops),
            Some(twin) => {
                self.unsent.take(p, |from, len| self.send_run(p, twin, from, len, &mut out.ops));
                let (lines, whole) = (self.opts.policy != Policy::Byte, self.opts.policy == Policy::Page);
                let mut changed = false;
                let run = |o, n| {
                    changed = true;
                    if !whole {
                        self.send_run(p, twin, o, n, &mut out.ops);
                    }
                };
                // SAFETY: both pages lie inside A and T, and BUSY makes this thread the twin's only user.
                unsafe { self.differ.page(self.a_page(p), twin, len, lines, run) };
                if whole && changed {
                    self.send_run(p, twin, 0, len, &mut out.ops);
                }
            }
        }
        if out.ops.list.len() == before {
            self.stats.pages_unchanged.hit();
        }
    }

    /// Lists bytes `[from, from + len)` of page `p`, whose source page is at `src`, without the words that belong to the
    /// home: sending more bytes than the program wrote must not undo what other nodes did to them.
    fn send_run(&self, p: usize, src: *mut u8, from: usize, len: usize, ops: &mut Ops) {
        let base = self.off(p);
        let mut piece = |s: usize, e: usize| {
            if s < e {
                ops.add(WriteOp { src: src.wrapping_add(s), len: e - s, off: base.plus(s) });
            }
        };
        let (mut at, end) = (from, from + len);
        if self.opts.policy != Policy::Byte && self.has_home_words.load(SeqCst) {
            let words = self.home_words.lock().unwrap_or_else(PoisonError::into_inner);
            for w in words.range((base.0 + from as u64).saturating_sub(7)..base.0 + end as u64) {
                let word = w.saturating_sub(base.0) as usize;
                piece(at, word.max(at));
                at = at.max(word + 8);
            }
        }
        piece(at, end);
    }

    /// Waits for the posted pieces in order and unlocks their pages; what failed is dirty again.
    fn deliver(&self, out: &mut Outbox, deadline: Deadline) -> Status {
        let (mut op, mut page, mut worst, mut deadline) = (0, 0, Status::OK, deadline);
        for p in &mut out.pieces {
            let ops = out.ops.list.get(op..p.ops).unwrap_or(&[]);
            let held = out.held.get(page..p.held).unwrap_or(&[]);
            (op, page) = (p.ops, p.held);
            let status = match p.ticket {
                Ok(Some(t)) => self.link.wait(self.key, t, deadline),
                Ok(None) => Status::OK,
                Err(s) => s,
            };
            if status.is_ok() {
                deadline = self.deadline();
            }
            drop(p.buffer.take());
            if !ops.is_empty() {
                self.settle(ops, held, status, p.home);
            }
            held.iter().for_each(|p| _ = self.pages.apply(*p, Event::Unlock));
            worst = worst.and(status);
        }
        worst
    }

    fn settle(&self, ops: &[WriteOp], held: &[usize], status: Status, home: u64) {
        self.note(status);
        if status.is_ok() && self.unfenced.add(ops, home, || self.keeper.note_delivered()) {
            self.stats.messages.add(ops.len() as u64);
            self.stats.bytes_written.add(ops.iter().map(|o| o.len as u64).sum());
            return;
        }
        self.stats.write_errors.hit();
        if self.t_page(0).is_some() {
            self.unsent.keep(ops.iter().map(|o| (o.off.0, o.len)));
        }
        held.iter().for_each(|p| _ = self.pages.dirty.set(*p));
        self.note_owing();
        self.keeper.note_failed();
    }
}

/// The writes of a window, in order. Those below `posted` belong to the link.
#[derive(Default)]
struct Ops {
    list: Vec<WriteOp>,
    posted: usize,
}

impl Ops {
    /// Adds a write, merged with the last one that is not posted yet where both source and target continue.
    fn add(&mut self, op: WriteOp) {
        if let Some(last) = self.list.get_mut(self.posted..).and_then(<[WriteOp]>::last_mut)
            && last.src.wrapping_add(last.len) == op.src
            && last.off.plus(last.len) == op.off
        {
            last.len += op.len;
            return;
        }
        self.list.push(op);
    }
}
