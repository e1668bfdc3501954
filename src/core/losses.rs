//! Stores that did not reach the home: where they are, and saying so.

use super::pages::Event;
use super::region::Region;
use crate::base::Status;
use crate::base::addr::PAGE;
use std::sync::atomic::Ordering::SeqCst;

impl Region {
    /// The result of a release that delivered everything there was to deliver is still not OK when stores went to pages
    /// that showed the error value: POISONED, once.
    pub(super) fn judge_release(&self, s: Status) -> Status {
        if s.is_ok() && self.unsent.nowhere.swap(false, SeqCst) { Status::POISONED } else { s }
    }

    /// The bytes of a poisoned page are not the home's, so its stores go nowhere; the next release says so.
    pub(super) fn forget_poisoned(&self, p: usize) {
        if self.pages.dirty.take(p) {
            self.unsent.nowhere.store(true, SeqCst);
        }
    }

    /// [`Region::forget_poisoned`] for a page that nobody holds: it is held meanwhile, so that no mark of its next life
    /// is taken for one of this.
    pub(super) fn forget_stores(&self, p: usize) {
        if self.pages.apply(p, Event::Clear).is_ok() {
            self.forget_poisoned(p);
            let _ = self.pages.apply(p, Event::FetchFailed);
        }
    }

    /// Where stores are that were found and not delivered, as byte ranges of whole pages; at most `most` of them.
    pub fn unreleased(&self, most: usize) -> Vec<(u64, u64)> {
        let (mut at, mut out) = (0, Vec::new());
        while let Some((s, e)) = self.pages.dirty.next_run(at, self.pages.len()).filter(|_| out.len() < most) {
            out.push(((s * PAGE) as u64, self.len().min((e * PAGE) as u64)));
            at = e;
        }
        out
    }
}
