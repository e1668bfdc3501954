//! Pages that could not be had: the error value, or SIGBUS.
//!
//! Where a thread serves faults, SIGBUS is the kernel's: a mark on the page in one view. On a page that its toucher holds it
//! belongs to the state POISONED and goes when that is cleared. On a page that somebody else held too long it is in the
//! book `marked`, and the keeper takes it away.

use super::fault::Served;
use super::harvest::Heat;
use super::pages::{Event, State};
use super::region::Region;
use super::show::Holds;
use super::views::View;
use crate::base::Status;
use crate::base::addr::{PAGE, PageRange};
use crate::sys::sync::SignalsBlocked;

impl Region {
    /// A store to the error value is let through and noted: it is never written back, and the next release says so.
    pub(super) fn show_poisoned(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        page: usize,
        write: bool,
    ) -> Option<Served> {
        if self.pages.apply(page, Event::Clear).is_err() {
            return None;
        }
        let this = PageRange { start: page, end: page + 1 };
        let mut shown = Event::FetchFailed;
        let served = if self.errors_are_sigbus() {
            if self.raise(signals, view, page) {
                shown = Event::FetchRefused;
            }
            Served::Bus
        } else if write {
            let _ = self.admit_written(signals, view, this);
            let _ = self.tracker.unprotect(view, this);
            Served::Retry
        } else {
            let _ = self.admit_clean(signals, view, this, Holds::ErrorValue);
            Served::Retry
        };
        let _ = self.pages.apply(page, shown);
        Some(served)
    }

    /// The fetch failed for good: the page shows the error value or the access fails; its neighbours are as before.
    pub(super) fn fail_run(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        run: PageRange,
        page: usize,
        why: Status,
    ) -> Served {
        self.note_failed(why);
        self.abandon(PageRange { start: run.start, end: page });
        self.abandon(PageRange { start: page + 1, end: run.end });
        if self.errors_are_sigbus() {
            let empty = self.raise(signals, view, page);
            if empty {
                self.give_back(PageRange { start: page, end: page + 1 });
            }
            let failed = if empty { Event::FetchRefused } else { Event::FetchFailed };
            let _ = self.pages.apply(page, if self.has_fault_thread() { failed } else { Event::FetchAbandoned });
            return Served::Bus;
        }
        self.fill_error_value(page);
        let _ = self.admit_clean(signals, view, PageRange { start: page, end: page + 1 }, Holds::ErrorValue);
        let _ = self.pages.apply(page, Event::FetchFailed);
        Served::Retry
    }

    fn fill_error_value(&self, page: usize) {
        self.stats.pages_poisoned.hit();
        // SAFETY: the page lies inside A and FETCHING makes this thread its only user.
        unsafe { std::ptr::write_bytes(self.a_page(page), self.opts.error_byte, PAGE) };
    }

    /// SIGBUS for the toucher of a page that this thread holds: by the kernel where a thread serves, by the handler's chain
    /// elsewhere. True when the kernel's mark does it, so that the page needs no memory.
    fn raise(&self, signals: &SignalsBlocked, view: &View, page: usize) -> bool {
        let this = PageRange { start: page, end: page + 1 };
        if !self.has_fault_thread() {
            return false;
        }
        if self.tracker.poison(view, this) {
            self.stats.pages_poisoned.hit();
            return true;
        }
        self.fill_error_value(page);
        let _ = self.admit_clean(signals, view, this, Holds::ErrorValue);
        false
    }

    /// Somebody holds the page beyond the limit: fail this access, leave the page to its holder. Where the kernel raises
    /// the signal its mark lies on a page that is not ours: the keeper takes it away once the page is free. Without
    /// such a mark the toucher waits on, as under a value policy.
    pub(super) fn give_up(&self, view: &View, page: usize) -> Option<Served> {
        self.stats.fetch_errors.hit();
        if !self.has_fault_thread() {
            return Some(Served::Bus);
        }
        if !self.tracker.poison(view, PageRange { start: page, end: page + 1 }) {
            return None;
        }
        // In this order: a mark that is in the books before it is there could be missed.
        self.pages.marked.set(page);
        self.keeper.kick();
        Some(Served::Bus)
    }

    /// Takes away the kernel's marks that [`Region::give_up`] has left on pages which are free now: the next touch finds
    /// the page as it is.
    pub(super) fn clear_markers(&self) {
        let mut at = 0;
        while let Some(p) = self.pages.marked.next_set(at, self.pages.len()) {
            at = p + 1;
            let _signals = SignalsBlocked::new();
            let this = PageRange { start: p, end: at };
            let done = if self.pages.apply(p, Event::Lock).is_ok() {
                Event::Unlock
            } else if self.pages.apply(p, Event::BeginFetch).is_ok() {
                Event::FetchAbandoned
            } else if self.pages.state(p) == State::Poisoned {
                // Its own mark; goes when the page is cleared.
                self.pages.marked.take(p);
                continue;
            } else {
                continue;
            };
            self.pages.marked.take(p);
            if self.harvest(this, Heat::Hide).is_err() {
                self.pages.marked.set(p);
            }
            let _ = self.pages.apply(p, done);
        }
    }

    /// True while some page may carry a mark that must go.
    pub(super) fn has_markers(&self) -> bool {
        self.pages.marked.next_set(0, self.pages.len()).is_some()
    }
}
