//! From dirty pages to bytes at the home.
//!
//! *Harvest*: protect the pages that were written and move their marks into the `dirty` bitmap, under the harvest lock.
//! *Push*: lock a dirty page, take its bit, send its bytes, unlock it when the link has let go of the source. Protecting
//! comes before reading, always: a store after the protection is marked again and belongs to the next push.
//!
//! With a twin the bytes sent are the twin's, brought up to date in the same pass as the comparison; without one they are
//! the page's own. What could not be delivered is remembered: the page is dirty again and its runs go out first next time.

use super::options::Policy;
use super::pages::{Event, State};
use super::region::Region;
use crate::base::Status;
use crate::base::addr::PageRange;
use crate::link::WriteOp;
use crate::sys::clock::Deadline;
use crate::sys::sync::SignalsBlocked;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

/// Pages locked at a time: bounds how long signals stay blocked (4 MiB at 100 Gb/s: 0.34 ms).
const BATCH_PAGES: usize = 1024;
/// Messages in a batch.
const BATCH_OPS: usize = 8192;
/// Consecutive dirty epochs after which a page stays writable.
const HOT_AFTER: u32 = 4;
/// Epochs a page stays hot before its stores are sampled again.
const HOT_FOR: u32 = 48;
/// Shortest run of hot pages that is worth a hole in the harvest: below it one scan is cheaper than two.
const HOT_RUN: usize = 8;

/// Reusable buffers of one pusher.
#[derive(Default)]
pub struct Outbox {
    ops: Vec<WriteOp>,
    held: Vec<usize>,
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
        self.push_and_fence(range, &mut outbox, deadline)
    }

    /// What is dirty in `range` now is readable at the home when this returns OK. The caller has harvested.
    pub(super) fn push_and_fence(&self, range: PageRange, out: &mut Outbox, deadline: Deadline) -> Status {
        loop {
            let failed = self.keeper.failed();
            let (_, status) = self.push(range, out, deadline);
            // What the keeper took out of the books is also a store before this call; should it fail, it is ours again.
            self.keeper.wait_for_push();
            if !status.is_ok() {
                return status;
            }
            if self.keeper.failed() == failed {
                return if self.keeper.is_unfenced() { self.fence(deadline) } else { status };
            }
            if deadline.passed() {
                return Status::TIMED_OUT;
            }
        }
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
        self.push(range, &mut outbox, self.deadline()).1
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
        let batches = self.keeper.delivered();
        let s = self.link.fence(self.key, deadline);
        self.note(s);
        if s.is_ok() {
            self.keeper.note_fenced(batches);
        }
        s
    }

    /// Moves the marks of written pages in `range` into the dirty bitmap and protects them again; hot pages are taken
    /// as dirty and stay writable.
    pub(super) fn harvest(&self, range: PageRange, heat: Heat) -> Result<(), Status> {
        let signals = SignalsBlocked::new();
        let mut at = range.start;
        while let Some((start, end)) = self.pages.next_populated(at, range.end) {
            self.harvest_populated(&signals, PageRange { start, end }, heat)?;
            at = end;
        }
        Ok(())
    }

    fn harvest_populated(&self, signals: &SignalsBlocked, range: PageRange, heat: Heat) -> Result<(), Status> {
        let hot = matches!(heat, Heat::Count | Heat::Ignore);
        let mut at = range.start;
        while at < range.end {
            let next_hot = if hot { self.next_hot_run(at, range.end) } else { None };
            let (hot_start, hot_end) = next_hot.unwrap_or((range.end, range.end));
            if at < hot_start {
                self.collect(signals, PageRange { start: at, end: hot_start }, heat == Heat::Hide)?;
                if heat == Heat::Count {
                    self.warm(PageRange { start: at, end: hot_start });
                }
            }
            self.take_hot(PageRange { start: hot_start, end: hot_end });
            at = hot_end.max(at + 1);
        }
        Ok(())
    }

    pub(super) fn collect(&self, signals: &SignalsBlocked, range: PageRange, hide: bool) -> Result<(), Status> {
        let _guard = self.harvest.lock(signals);
        if hide {
            self.each_view(signals, |v| _ = self.tracker.hide(v, range));
        }
        let (mut found, mut failed) = (0, None);
        if self.tracks_by_fault() {
            let mut at = range.start;
            while let Some((start, end)) = self.pages.written.next_run(at, range.end) {
                // Protect in every view, then hand the marks over; the bytes are read after that.
                if !hide {
                    self.each_view(signals, |v| {
                        failed = self.tracker.protect(v, PageRange { start, end }).err().or(failed)
                    });
                }
                found += self.pages.dirty.set_range(start, end);
                (start..end).for_each(|p| _ = self.pages.written.take(p));
                at = end;
            }
        } else {
            self.each_view(signals, |v| match self.tracker.scan(v, range, &self.pages.dirty) {
                Ok(n) => found += n,
                Err(e) => failed = Some(e),
            });
        }
        self.stats.pages_dirtied.add(found as u64);
        failed.map_or(Ok(()), |_| Err(Status::SYSTEM))
    }

    /// Counts a dirty epoch for the dirty pages of the range; pages dirty for long enough turn hot.
    fn warm(&self, range: PageRange) {
        let mut at = range.start;
        while let Some(p) = self.pages.dirty.next_set(at, range.end) {
            if self.pages.heat_up(p) >= HOT_AFTER && self.pages.hot.set(p) {
                self.stats.pages_hot.hit();
            }
            at = p + 1;
        }
    }

    fn next_hot_run(&self, from: usize, end: usize) -> Option<(usize, usize)> {
        let mut at = from;
        while let Some((s, e)) = self.pages.hot.next_run(at, end) {
            if e - s >= HOT_RUN {
                return Some((s, e));
            }
            at = e;
        }
        None
    }

    /// Hot pages are dirty without being asked; from time to time they are protected again to see whether they still are.
    fn take_hot(&self, range: PageRange) {
        for p in range.start..range.end {
            // One that somebody works on just now may have been written all the same.
            if !matches!(self.pages.state(p), State::Remote | State::Poisoned) {
                self.pages.dirty.set(p);
            }
            if self.pages.grow_old(p) >= HOT_FOR {
                self.pages.cool(p, HOT_AFTER - 1);
            }
        }
    }

    /// Sends the dirty pages of `range`; answers how many messages went out and the first failure.
    pub(super) fn push(&self, range: PageRange, out: &mut Outbox, deadline: Deadline) -> (usize, Status) {
        let (mut at, mut sent) = (range.start, 0);
        while let Some(first) = self.pages.dirty.next_set(at, range.end) {
            let signals = SignalsBlocked::new();
            match self.gather(PageRange { start: first, end: range.end }, out, deadline) {
                Ok(next) => at = next,
                Err(s) => return (sent, s),
            }
            let status = self.deliver(out, deadline);
            sent += out.ops.len();
            for p in out.held.drain(..) {
                let _ = self.pages.apply(p, Event::Unlock);
            }
            drop(signals);
            if !status.is_ok() {
                return (sent, status);
            }
        }
        (sent, Status::OK)
    }

    /// Locks dirty pages from `range.start` on, as many as make a batch, and lists what must be sent. Answers where to
    /// go on. Only the first page is waited for: a thread that holds pages never waits for another.
    fn gather(&self, range: PageRange, out: &mut Outbox, deadline: Deadline) -> Result<usize, Status> {
        out.ops.clear();
        let mut at = range.start;
        while let Some(p) = self.pages.dirty.next_set(at, range.end) {
            if out.held.len() >= BATCH_PAGES || out.ops.len() >= BATCH_OPS {
                return Ok(p);
            }
            let locked =
                if out.held.is_empty() { self.pages.lock(p, deadline) } else { self.pages.apply(p, Event::Lock) };
            match locked {
                Ok(()) => self.gather_page(p, out),
                Err(s) if s.is_held() && out.held.is_empty() => return Err(Status::TIMED_OUT),
                Err(s) if s.is_held() => return Ok(p),
                // Poisoned or gone: its bytes are not the home's, or were pushed by whoever dropped it.
                Err(_) => _ = self.pages.dirty.take(p),
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
        let before = out.ops.len();
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
        if out.ops.len() == before {
            self.stats.pages_unchanged.hit();
        }
    }

    /// Lists bytes `[from, from + len)` of page `p`, whose source page is at `src`, without the words that belong to the
    /// home: sending more bytes than the program wrote must not undo what other nodes did to them.
    fn send_run(&self, p: usize, src: *mut u8, from: usize, len: usize, ops: &mut Vec<WriteOp>) {
        let base = self.off(p);
        let mut piece = |s: usize, e: usize| {
            if s < e {
                append(ops, WriteOp { src: src.wrapping_add(s), len: e - s, off: base.plus(s) });
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

    /// Posts the batch and waits until its sources are free; on failure everything in it is dirty again.
    fn deliver(&self, out: &mut Outbox, deadline: Deadline) -> Status {
        if out.ops.is_empty() {
            return Status::OK;
        }
        // SAFETY: the sources lie inside A and T, in pages this thread has locked until the wait has come back.
        let posted = unsafe { self.link.post(self.key, &out.ops) };
        let status = posted.map_or_else(|s| s, |ticket| self.link.wait(self.key, ticket, deadline));
        self.note(status);
        if status.is_ok() {
            self.keeper.note_delivered();
            self.stats.messages.add(out.ops.len() as u64);
            self.stats.bytes_written.add(out.ops.iter().map(|o| o.len as u64).sum());
        } else {
            self.stats.write_errors.hit();
            self.keep_unsent(out);
        }
        status
    }

    fn keep_unsent(&self, out: &mut Outbox) {
        if self.t_page(0).is_some() {
            self.unsent.keep(&out.ops);
        }
        for p in &out.held {
            self.pages.dirty.set(*p);
        }
        self.keeper.note_failed();
    }
}

/// Whether a harvest counts heat, leaves it, or treats hot pages like all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heat {
    /// A release: count.
    Count,
    /// A flush or the keeper: do not count.
    Ignore,
    /// Hot pages are protected and examined too.
    Cool,
    /// As `Cool`, for pages that the caller holds: they are hidden first. Under the same lock, since another harvest in
    /// between would show what it protects.
    Hide,
}

/// Adds a write, merged with the last one where both source and target continue.
fn append(ops: &mut Vec<WriteOp>, op: WriteOp) {
    if let Some(last) = ops.last_mut()
        && last.src.wrapping_add(last.len) == op.src
        && last.off.plus(last.len) == op.off
    {
        last.len += op.len;
        return;
    }
    ops.push(op);
}
