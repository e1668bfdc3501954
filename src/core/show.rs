//! Showing a page whose first store must be noted.
//!
//! The kernel maps it write-protected at once, but for Linux 5.19 to 6.3: there it is mapped, and protected a moment later.
//! A store in that moment passes unseen. So what the page should hold is compared with what it holds once it is
//! protected, and a page that differs counts as written. The harvest lock is held over all of it: a thread that stored, and then
//! releases, waits for the answer.

use super::losses::differ;
use super::region::Region;
use super::views::View;
use crate::base::addr::PageRange;
use crate::sys::Errno;
use crate::sys::sync::SignalsBlocked;

/// What a page that is shown holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// What its twin holds.
    Home,
    /// The error value.
    ErrorValue,
}

impl Region {
    /// Shows held pages; their first store is noted.
    pub(super) fn admit_clean(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        run: PageRange,
        holds: Holds,
    ) -> Result<(), Errno> {
        let _guard = self.tracker.protects_late().then(|| self.harvest.lock(signals));
        self.admit_and_look(view, run, holds)
    }

    /// [`Region::admit_clean`] for a caller that has the harvest lock.
    pub(super) fn admit_and_look(&self, view: &View, run: PageRange, holds: Holds) -> Result<(), Errno> {
        self.tracker.admit(view, run, true)?;
        if self.tracker.protects_late() {
            (run.start..run.end).filter(|p| !self.is_as_shown(*p, holds)).for_each(|p| _ = self.pages.written.set(p));
        }
        Ok(())
    }

    fn is_as_shown(&self, p: usize, holds: Holds) -> bool {
        let len = self.valid_bytes(p);
        match (holds, self.t_page(p)) {
            // SAFETY: both pages lie inside A and T; the page is held, so nobody else changes the twin.
            (Holds::Home, Some(twin)) => (0..len).all(|i| unsafe { !differ(self.a_page(p), twin, i) }),
            // Where pages are protected late there is a twin; see Region::new.
            (Holds::Home, None) => false,
            (Holds::ErrorValue, _) => (0..len).all(|i| {
                // SAFETY: i is inside the page, which lies inside A.
                unsafe { self.a_page(p).wrapping_add(i).read_volatile() == self.opts.error_byte }
            }),
        }
    }
}
