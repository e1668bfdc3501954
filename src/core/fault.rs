//! A touch of a page that is not shown, or a store to one that is protected: bring it, show it.
//!
//! Everything here may run in a signal handler of the application's thread: no allocation, no lock but page locks and
//! the harvest lock, every wait with a limit.

use super::harvest::Heat;
use super::pages::{Event, State};
use super::regcache;
use super::region::Region;
use super::show::Holds;
use super::views::View;
use crate::base::Status;
use crate::base::addr::PageRange;
use crate::sys::Errno;
use crate::sys::clock::{Deadline, nap};
use crate::sys::sync::SignalsBlocked;

/// How often a page is shown again that the kernel had no memory to show, and the pause between.
const SHOW_TRIES: u32 = 50;
const SHOW_PAUSE_NS: u64 = 1_000_000;

/// True when trying again would go on for ever: no memory or no mapping is left, or the program has closed our descriptor
/// past the hooks.
fn is_fatal(shown: Result<(), Errno>) -> bool {
    matches!(shown, Err(Errno::NOMEM | Errno::BADF | Errno::NOTTY))
}

/// How a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// The access will succeed when it is tried again.
    Retry,
    /// The access must fail with SIGBUS.
    Bus,
}

impl Region {
    /// Serves a fault at `page` of `view`. `write` tells a store from a load.
    pub(super) fn serve(&self, signals: &SignalsBlocked, view: &View, page: usize, write: bool) -> Served {
        let deadline = self.deadline();
        let mut tries = 0;
        loop {
            let state = self.pages.state(page);
            let done = match state {
                State::Remote => self.bring_and_show(signals, view, page, write, deadline),
                State::Poisoned => self.show_poisoned(signals, view, page, write),
                State::Fetching | State::Busy => {
                    self.pages.wait(page, deadline);
                    None
                }
                State::Resident => self.show_resident(signals, view, page, write, deadline),
            };
            match done {
                // The kernel had no memory to show it: that may pass, and the page is here.
                Some(Served::Bus) if tries < SHOW_TRIES && self.pages.state(page) == State::Resident => {
                    tries += 1;
                    nap(SHOW_PAUSE_NS);
                }
                Some(served) => return served,
                None => {}
            }
            // Under a value policy the wait goes on: its holder has a deadline too, and its bytes are not ours to fill.
            if deadline.passed()
                && state.is_held()
                && self.errors_are_sigbus()
                && let Some(served) = self.give_up(view, page)
            {
                return served;
            }
        }
    }

    /// Makes a page resident without showing it: for reads and writes through a descriptor.
    pub(super) fn ensure(&self, page: usize, deadline: Deadline) -> Result<(), Status> {
        loop {
            match self.pages.state(page) {
                State::Resident => return Ok(()),
                State::Poisoned => return Err(Status::POISONED),
                State::Remote => match self.bring(page, deadline) {
                    Ok(_) => {}
                    Err(Status::BUSY) => {}
                    Err(s) => return Err(s),
                },
                State::Fetching | State::Busy => {
                    self.pages.wait(page, deadline);
                    if deadline.passed() {
                        return Err(Status::TIMED_OUT);
                    }
                }
            }
        }
    }

    fn bring_and_show(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        page: usize,
        write: bool,
        deadline: Deadline,
    ) -> Option<Served> {
        match self.claim(page, deadline) {
            Err(Status::BUSY) => return None,
            // No room within the deadline.
            Err(s) => {
                self.pages.apply(page, Event::BeginFetch).ok()?;
                return Some(self.fail_run(signals, view, PageRange { start: page, end: page + 1 }, page, s));
            }
            Ok(run) => match self.fetch_run(run, deadline) {
                Ok(()) => {
                    self.stats.faults.hit();
                    let shown = self.show_run(signals, view, run, page, write);
                    self.finish(run);
                    if is_fatal(shown) {
                        return Some(Served::Bus);
                    }
                    self.detector.brought(page, run.start, self.read_ahead(run));
                }
                Err(s) => return Some(self.fail_run(signals, view, run, page, s)),
            },
        }
        Some(Served::Retry)
    }

    /// Once a reader has its full window, the keeper brings what comes next; answers where the reader will fault again.
    fn read_ahead(&self, run: PageRange) -> usize {
        if self.opts.readahead == 0 || run.len() < self.detector.full() {
            return run.end;
        }
        self.keeper.read_ahead(run.end);
        (run.end + self.opts.readahead).min(self.pages.len())
    }

    /// Brings the unit of `page` into A and leaves it hidden. `Err(BUSY)`: somebody else was faster, look again.
    pub(super) fn bring(&self, page: usize, deadline: Deadline) -> Result<PageRange, Status> {
        let _signals = SignalsBlocked::new();
        let run = self.claim(page, deadline)?;
        match self.fetch_run(run, deadline) {
            Ok(()) => {
                self.finish(run);
                Ok(run)
            }
            Err(s) => {
                self.abandon(run);
                self.note_failed(s);
                Err(s)
            }
        }
    }

    /// Brings the REMOTE pages of `[start, end)` and shows them, clean, in every view. For prefetch on own threads.
    pub(super) fn prefetch_step(&self, start: usize, end: usize) -> Result<(), Status> {
        let deadline = self.deadline();
        let mut at = start;
        while at < end {
            let signals = SignalsBlocked::new();
            let run = PageRange { start: at, end: self.pages.begin_run(at, end) };
            if run.is_empty() {
                at += 1;
                continue;
            }
            if let Err(s) = self.fetch_run(run, deadline) {
                self.abandon(run);
                self.note(s);
                return Err(s);
            }
            self.each_view(&signals, |v| _ = self.admit_clean(&signals, v, run, Holds::Home));
            self.finish(run);
            at = run.end;
        }
        Ok(())
    }

    /// Chooses the run of pages to bring for a fault at `page` and takes all of them to FETCHING: the page's unit, or
    /// the read window, as far as the neighbours are REMOTE.
    fn claim(&self, page: usize, deadline: Deadline) -> Result<PageRange, Status> {
        let unit = self.unit();
        let window = self.detector.window(page, unit).min(self.room());
        self.make_room(window, deadline)?;
        self.pages.apply(page, Event::BeginFetch).map_err(|_| Status::BUSY)?;
        let unit_start = page - page % unit;
        let mut run = PageRange { start: page, end: page + 1 };
        while run.start > unit_start && self.pages.apply(run.start - 1, Event::BeginFetch).is_ok() {
            run.start -= 1;
        }
        let end = (unit_start + window).max(page + 1).min(self.pages.len());
        run.end = self.pages.begin_run(run.end, end);
        Ok(run)
    }

    /// A paged region waits here, within the deadline, until the keeper has evicted enough.
    fn make_room(&self, window: usize, deadline: Deadline) -> Result<(), Status> {
        if self.budget == usize::MAX {
            return Ok(());
        }
        let hard = self.budget + self.budget / 16;
        while self.pages.resident() + window > hard.max(window) {
            self.keeper.kick();
            if deadline.passed() {
                return Err(Status::TIMED_OUT);
            }
            nap(20_000);
        }
        if self.pages.resident() + window > self.budget {
            self.keeper.kick();
        }
        Ok(())
    }

    /// The home's bytes into A (and T). Rides short drops out until the deadline.
    fn fetch_run(&self, run: PageRange, deadline: Deadline) -> Result<(), Status> {
        let status = loop {
            let s = self.fetch_once(run, deadline);
            if s.is_ok() || !self.rides_out(s, deadline) {
                break s;
            }
            nap(200_000);
        };
        // A drop that was ridden out is not a failure; what comes of one is for the caller to say.
        if status.is_ok() {
            self.note(status);
            self.stats.pages_fetched.add(run.len() as u64);
            self.stats.pages_prefetched.add(run.len() as u64 - 1);
            self.stats.bytes_fetched.add(self.valid_run(run) as u64);
        } else {
            self.stats.fetch_errors.hit();
        }
        status.ok()
    }

    fn fetch_once(&self, run: PageRange, deadline: Deadline) -> Status {
        let len = self.valid_run(run);
        let (own, off) = (self.a_page(run.start), self.off(run.start));
        let (from, to) = ((self.key, off), [self.t_page(run.start), Some(own)]);
        match self.way.staged() {
            // SAFETY: the run lies inside A and T, and FETCHING makes this thread their only user.
            Some(cache) => unsafe { cache.fetch(from, to, len, deadline, &self.stats) },
            // SAFETY: as above.
            None => unsafe { regcache::fetch_plain(&*self.link, from, to, len, deadline) },
        }
    }

    /// Shows a fetched run: all clean, except the faulting page of a store, which would fault again at once.
    /// NOMEM: the page cannot be shown (mprotect at the limit of mappings), and trying again would go on for ever.
    fn show_run(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        run: PageRange,
        page: usize,
        write: bool,
    ) -> Result<(), Errno> {
        let this = PageRange { start: page, end: page + 1 };
        if write {
            for part in [PageRange { start: run.start, end: page }, PageRange { start: page + 1, end: run.end }] {
                if !part.is_empty() {
                    let _ = self.admit_clean(signals, view, part, Holds::Home);
                }
            }
            self.admit_written(signals, view, this)
        } else {
            self.admit_clean(signals, view, run, Holds::Home)
        }
    }

    /// Shows pages that may be written without a further fault: the books say so first.
    pub(super) fn admit_written(&self, signals: &SignalsBlocked, view: &View, range: PageRange) -> Result<(), Errno> {
        let _guard = self.tracks_by_fault().then(|| self.harvest.lock(signals));
        if self.tracks_by_fault() {
            self.pages.written.set_range(range.start, range.end);
        }
        self.tracker.admit(view, range, false)
    }

    /// The page is here but the access faulted: another thread was faster, another view shows it, the kernel reclaimed
    /// the mapping, or a store met the protection. Never fetched again: that would overwrite new stores.
    fn show_resident(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        page: usize,
        write: bool,
        deadline: Deadline,
    ) -> Option<Served> {
        if self.pages.lock(page, deadline).is_err() {
            return None;
        }
        self.stats.spurious_faults.hit();
        let this = PageRange { start: page, end: page + 1 };
        let shown = if !self.tracks_by_fault() {
            // The mark it may carry moves to the books before the page is shown without it.
            let noted = self.collect(signals, this, Heat::Ignore).is_ok();
            self.tracker.admit(view, this, noted && !write)
        } else if write {
            self.let_through(signals, view, page)
        } else {
            // Under the lock: a harvest between the question and the answer would leave the page writable and unmarked.
            let _guard = self.harvest.lock(signals);
            match self.pages.written.get(page) {
                true => self.tracker.admit(view, this, false),
                false => self.admit_and_look(view, this, Holds::Home),
            }
        };
        let _ = self.pages.apply(page, Event::Unlock);
        Some(if is_fatal(shown) { Served::Bus } else { Served::Retry })
    }

    /// A store under fault tracking: mark, then unprotect, the resident pages of the granule.
    fn let_through(&self, signals: &SignalsBlocked, view: &View, page: usize) -> Result<(), Errno> {
        let g = self.tracker.granule();
        let block = PageRange { start: page - page % g, end: page - page % g + g }.intersect(view.pages);
        let mut run = PageRange { start: page, end: page + 1 };
        while run.end < block.end && self.pages.apply(run.end, Event::Lock).is_ok() {
            run.end += 1;
        }
        let shown = {
            let _guard = self.harvest.lock(signals);
            self.pages.written.set_range(run.start, run.end);
            self.tracker.admit(view, run, false).and_then(|()| self.tracker.unprotect(view, run))
        };
        (page + 1..run.end).for_each(|p| _ = self.pages.apply(p, Event::Unlock));
        shown
    }

    fn finish(&self, run: PageRange) {
        (run.start..run.end).for_each(|p| _ = self.pages.apply(p, Event::Fetched));
    }

    pub(super) fn abandon(&self, run: PageRange) {
        self.give_back(run);
        (run.start..run.end).for_each(|p| _ = self.pages.apply(p, Event::FetchAbandoned));
    }
}
