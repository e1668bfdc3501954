//! Giving local copies up: acquire, invalidate and eviction.
//!
//! Order, always: lock the pages, hide them, then harvest them. Hiding keeps the mark of a dirty page, so a store
//! can come before the hiding (and is found) or after it (and faults, and waits for the lock), never between.

use super::harvest::Heat;
use super::options::Policy;
use super::pages::{Event, State};
use super::region::Region;
use super::writeback::Outbox;
use crate::base::Status;
use crate::base::addr::{PAGE, PageRange};
use crate::sys::clock::Deadline;
use crate::sys::sync::SignalsBlocked;

/// Pages dropped per step: one hiding call, one scan, signals blocked meanwhile.
const STEP: usize = 512;

/// A page's worth of bytes for merging.
#[repr(align(64))]
struct Scratch([u8; PAGE]);

/// What happens to a dirty page when its range is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dirty {
    /// Own stores survive: merged over the home's bytes (or kept whole under the page policy).
    Merge,
    /// It stays, and the caller is told.
    Refuse,
}

impl Region {
    /// Later loads in `[off, off + len)` see the home as of now or later; own unreleased stores survive. A length of 0
    /// means to the end.
    pub fn acquire(&self, off: u64, len: u64) -> Status {
        self.stats.acquires.hit();
        self.range(off, len).map_or_else(|s| s, |r| self.acquire_pages(r))
    }

    /// [`Region::acquire`] by pages.
    pub(super) fn acquire_pages(&self, range: PageRange) -> Status {
        self.drop_range(range, Dirty::Merge)
    }

    /// Pages that show the error value go, to be fetched again on touch: the home can be reached again.
    pub(super) fn heal_poisoned(&self) {
        let mut at = 0;
        while let Some((start, end)) = self.pages.next_populated(at, self.pages.len()) {
            (start..end).filter(|p| self.pages.state(*p) == State::Poisoned).for_each(|p| self.clear_poison(p));
            at = end;
        }
    }

    /// Drops clean pages of the range; DIRTY when it holds unreleased stores, which stay as they are.
    pub fn invalidate(&self, off: u64, len: u64) -> Status {
        let Ok(range) = self.range(off, len) else { return Status::OUT_OF_RANGE };
        let settled = self.settle_hot(range);
        if settled.is_ok() { self.drop_range(range, Dirty::Refuse) } else { settled }
    }

    /// Whether a hot page holds unreleased stores is not known without a twin: it is written back, which is always
    /// allowed, and protected, so that it is known.
    fn settle_hot(&self, range: PageRange) -> Status {
        if self.t_page(0).is_some() || self.pages.hot.next_set(range.start, range.end).is_none() {
            return Status::OK;
        }
        let mut outbox = self.outbox();
        let mut at = range.start;
        while let Some((start, end)) = self.pages.hot.next_run(at, range.end) {
            let run = PageRange { start, end };
            self.cool_all(run);
            let pushed = match self.harvest(run, Heat::Cool) {
                Ok(()) => self.push(run, &mut outbox, self.deadline()).1,
                Err(s) => s,
            };
            if !pushed.is_ok() {
                return pushed;
            }
            at = end;
        }
        Status::OK
    }

    /// Release, then acquire. Hot pages are examined like all others: the acquire needs to know what is dirty.
    pub fn barrier(&self) -> Status {
        let released = {
            let mut outbox = self.outbox();
            let deadline = self.deadline();
            self.stats.releases.hit();
            self.cool_all(self.all());
            match self.harvest(self.all(), Heat::Cool) {
                Ok(()) => self.push_and_fence(self.all(), &mut outbox, deadline),
                Err(s) => s,
            }
        };
        let released = self.judge_release(self.all(), released);
        if released.is_ok() { self.acquire(0, 0) } else { released }
    }

    fn cool_all(&self, range: PageRange) {
        let mut at = range.start;
        while let Some(p) = self.pages.hot.next_set(at, range.end) {
            // A hot page may have been written at any moment; it is dirty until compared or sent.
            self.pages.dirty.set(p);
            self.pages.cool(p, 0);
            at = p + 1;
        }
    }

    fn drop_range(&self, range: PageRange, dirty: Dirty) -> Status {
        self.clear_markers();
        let mut worst = Status::OK;
        let mut at = range.start;
        while let Some((start, end)) = self.pages.next_populated(at, range.end) {
            // A deadline for each step: it is for the next thing to happen.
            let step = PageRange { start, end: end.min(start + STEP) };
            let (next, s) = self.drop_step(step, dirty, self.deadline());
            worst = if worst.is_ok() { s } else { worst };
            if s == Status::TIMED_OUT {
                return s;
            }
            at = next;
        }
        worst
    }

    /// Drops a step's worth of pages from `range.start` on; answers where to go on.
    fn drop_step(&self, range: PageRange, dirty: Dirty, deadline: Deadline) -> (usize, Status) {
        let _signals = SignalsBlocked::new();
        let run = match self.lock_run(range, deadline) {
            Ok(Some(run)) => run,
            Ok(None) => return (range.end, Status::OK),
            Err(s) => return (range.end, s),
        };
        self.cool_all(run);
        let harvested = self.harvest(run, Heat::Hide);
        let mut worst = harvested.err().unwrap_or_else(|| self.fence_sent(deadline));
        for p in run.start..run.end {
            let s = self.drop_page(p, dirty, deadline, worst.is_ok());
            worst = if worst.is_ok() { s } else { worst };
        }
        (run.end, worst)
    }

    /// Locks the first run of resident pages in `range`. Waits for held pages at its start, clears poisoned ones.
    fn lock_run(&self, range: PageRange, deadline: Deadline) -> Result<Option<PageRange>, Status> {
        let mut p = range.start;
        while p < range.end {
            match self.pages.lock(p, deadline) {
                Ok(()) => break,
                Err(State::Poisoned) => {
                    self.clear_poison(p);
                    continue;
                }
                Err(s) if s.is_held() => return Err(Status::TIMED_OUT),
                Err(_) => {}
            }
            p += 1;
        }
        if p >= range.end {
            return Ok(None);
        }
        let mut run = PageRange { start: p, end: p + 1 };
        while run.end < range.end && self.pages.apply(run.end, Event::Lock).is_ok() {
            run.end += 1;
        }
        Ok(Some(run))
    }

    /// What was sent of pages that are about to be dropped must be readable at the home before they are fetched again,
    /// or own stores would vanish from sight. The pages are locked: nothing more is sent of them.
    fn fence_sent(&self, deadline: Deadline) -> Status {
        if self.keeper.is_unfenced() { self.fence(deadline) } else { Status::OK }
    }

    fn clear_poison(&self, p: usize) {
        let _signals = SignalsBlocked::new();
        if self.pages.apply(p, Event::Clear).is_err() {
            return;
        }
        let this = PageRange { start: p, end: p + 1 };
        // The mark a store left on the poisoned page must not outlive it.
        let _ = self.harvest(this, Heat::Hide);
        self.forget_poisoned(p);
        self.give_back(this);
        let _ = self.pages.apply(p, Event::FetchAbandoned);
    }

    /// One locked, hidden, harvested page.
    fn drop_page(&self, p: usize, dirty: Dirty, deadline: Deadline, sound: bool) -> Status {
        let is_dirty = self.pages.dirty.get(p) && !(sound && self.is_unchanged(p));
        if !is_dirty && sound {
            self.pages.dirty.take(p);
            self.stats.pages_dropped.hit();
            self.give_back(PageRange { start: p, end: p + 1 });
            let _ = self.pages.apply(p, Event::Drop);
            return Status::OK;
        }
        let status = match dirty {
            // What is under way may not be at the home yet: merging now would take an own store for an old byte.
            _ if !is_dirty || !sound => Status::OK,
            Dirty::Refuse => Status::DIRTY,
            Dirty::Merge => self.merge_home(p, deadline),
        };
        let _ = self.pages.apply(p, Event::Unlock);
        status
    }

    /// True when the twin says that a marked page holds no store: hot pages and whole granules are marked in advance. The
    /// page is hidden and locked.
    fn is_unchanged(&self, p: usize) -> bool {
        let Some(twin) = self.t_page(p).filter(|_| !self.unsent.has(p)) else { return false };
        let len = self.valid_bytes(p);
        // SAFETY: the page is hidden and locked: nobody writes A or T here, and both have the page's bytes.
        let own = unsafe { std::slice::from_raw_parts(self.a_page(p), len) };
        // SAFETY: as above.
        own == unsafe { std::slice::from_raw_parts(twin, len) }
    }

    /// The home's bytes wherever this process has not stored since the last synchronisation; its own stores elsewhere.
    /// Without a twin (page policy) this process is the page's only writer and the page is right as it is.
    fn merge_home(&self, p: usize, deadline: Deadline) -> Status {
        let Some(twin) = self.t_page(p) else { return Status::OK };
        if self.unsent.has(p) {
            // Its stores are only in the twin's books now; they must reach the home before the page may change.
            return Status::LINK_DOWN;
        }
        let mut home = Scratch([0; PAGE]);
        let len = self.valid_bytes(p);
        // SAFETY: home is a page of our own; the page is locked.
        let s = unsafe { self.link.fetch(self.key, self.off(p), home.0.as_mut_ptr(), len, deadline) };
        self.note(s);
        if !s.is_ok() {
            return s;
        }
        let whole_lines = self.opts.policy == Policy::Line;
        let page = self.a_page(p);
        let unit = if whole_lines { super::pages::diff::LINE } else { 1 };
        for (i, fresh) in home.0.get(..len).unwrap_or(&[]).chunks(unit).enumerate() {
            let (a, t) = (page.wrapping_add(i * unit), twin.wrapping_add(i * unit));
            // SAFETY: the page is hidden and locked: nobody else touches A or T here; `fresh.len()` bytes from
            // i * unit are inside the page.
            unsafe { merge_piece(a, t, fresh) };
        }
        Status::OK
    }

    /// Evicts up to `want` pages starting the search at `hand`; answers the new hand and how many went. Called by the
    /// region's keeper only: `out` is its own.
    pub(super) fn evict(&self, hand: usize, want: usize, out: &mut Outbox) -> (usize, usize) {
        let (mut at, mut gone, mut looked) = (hand % self.pages.len().max(1), 0, 0);
        // Two rounds: the first may find nothing but young pages.
        while gone < want && looked < 2 * self.pages.len() {
            let end = (at + STEP.min(want.max(16))).min(self.pages.len());
            let (next, n) = self.evict_step(PageRange { start: at, end }, out);
            gone += n;
            looked += next - at;
            at = if next >= self.pages.len() { 0 } else { next };
        }
        (at, gone)
    }

    fn evict_step(&self, range: PageRange, out: &mut Outbox) -> (usize, usize) {
        let deadline = self.deadline();
        let poisoned = |p: &usize| self.pages.state(*p) == State::Poisoned;
        let healed = (range.start..range.end).filter(poisoned).map(|p| self.clear_poison(p)).count();
        if healed > 0 {
            return (range.end, healed);
        }
        let Some(run) = self.push_run_clean(range, out, deadline) else { return (range.end, 0) };
        let _signals = SignalsBlocked::new();
        let Some(run) = self.try_lock_run(run) else { return (range.end, 0) };
        self.cool_all(run);
        let sound = self.harvest(run, Heat::Hide).is_ok() && self.fence_sent(deadline).is_ok();
        let mut gone = 0;
        for p in run.start..run.end {
            // Written again since the push: stays for a later round. Its bytes are in A, so showing it again is cheap.
            let stays = !sound || self.pages.dirty.get(p);
            if !stays {
                self.give_back(PageRange { start: p, end: p + 1 });
                gone += 1;
            }
            let _ = self.pages.apply(p, if stays { Event::Unlock } else { Event::Drop });
        }
        self.stats.pages_evicted.add(gone as u64);
        (run.end, gone)
    }

    /// Writes the first resident run of `range` back, so that dropping it needs no network.
    fn push_run_clean(&self, range: PageRange, out: &mut Outbox, deadline: Deadline) -> Option<PageRange> {
        let resident = |p: &usize| self.pages.state(*p) == State::Resident && !self.pages.take_young(*p);
        let start = (range.start..range.end).find(resident)?;
        let end = (start..range.end).find(|p| !resident(p)).unwrap_or(range.end);
        let run = PageRange { start, end };
        self.cool_all(run);
        self.harvest(run, Heat::Cool).ok()?;
        let (sent, status) = self.push(run, out, deadline);
        let fenced = sent == 0 || self.fence(deadline).is_ok();
        (status.is_ok() && fenced).then_some(run)
    }

    fn try_lock_run(&self, range: PageRange) -> Option<PageRange> {
        let start = (range.start..range.end).find(|p| self.pages.apply(*p, Event::Lock).is_ok())?;
        let mut end = start + 1;
        while end < range.end && self.pages.apply(end, Event::Lock).is_ok() {
            end += 1;
        }
        Some(PageRange { start, end })
    }
}

/// Where the own bytes equal the twin's, both take the home's; elsewhere the twin alone learns what the home has.
///
/// # Safety
/// `a` and `t` are valid for `fresh.len()` bytes and nobody else touches them.
unsafe fn merge_piece(a: *mut u8, t: *mut u8, fresh: &[u8]) {
    // SAFETY: the caller vouches for both.
    let own = unsafe { std::slice::from_raw_parts_mut(a, fresh.len()) };
    // SAFETY: as above; the two pages do not overlap.
    let twin = unsafe { std::slice::from_raw_parts_mut(t, fresh.len()) };
    if own == twin {
        own.copy_from_slice(fresh);
    }
    twin.copy_from_slice(fresh);
}
