//! Harvest: which pages were written since they were last protected.
//!
//! The marks the kernel (or, under fault tracking, our handler) has made move into the `dirty` bitmap under the harvest
//! lock, and the pages are protected again. Pages dirty in several consecutive epochs turn *hot*: they stay writable
//! without a fault and count as dirty in every harvest.

use super::region::Region;
use crate::base::Status;
use crate::base::addr::PageRange;
use crate::sys::sync::SignalsBlocked;

/// Consecutive dirty epochs after which a page stays writable.
const HOT_AFTER: u32 = 4;
/// Epochs a page stays hot before its stores are sampled again.
const HOT_FOR: u32 = 48;
/// Shortest run of hot pages that is worth a hole in the harvest: below it one scan is cheaper than two.
const HOT_RUN: usize = 8;

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

impl Region {
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
                self.collect(signals, PageRange { start: at, end: hot_start }, heat)?;
            }
            if hot_start < hot_end {
                self.take_hot(signals, PageRange { start: hot_start, end: hot_end });
            }
            at = hot_end.max(at + 1);
        }
        Ok(())
    }

    pub(super) fn collect(&self, signals: &SignalsBlocked, range: PageRange, heat: Heat) -> Result<(), Status> {
        let _guard = self.harvest.lock(signals);
        let (mut found, mut failed) = (0, None);
        if heat == Heat::Hide {
            self.each_view(signals, |v| failed = self.tracker.hide(v, range).err().or(failed));
        }
        if self.tracks_by_fault() {
            let mut at = range.start;
            while let Some((start, end)) = self.pages.written.next_run(at, range.end) {
                // Protect in every view, then hand the marks over; the bytes are read after that.
                let mut open = failed;
                if heat != Heat::Hide {
                    self.each_view(signals, |v| {
                        open = self.tracker.protect(v, PageRange { start, end }).err().or(open);
                    });
                }
                found += self.pages.dirty.set_range(start, end);
                // What could not be protected can still be written without a fault, and stays marked.
                if open.is_none() {
                    (start..end).for_each(|p| _ = self.pages.written.take(p));
                }
                failed = open;
                at = end;
            }
        } else {
            self.each_view(signals, |v| match self.tracker.scan(v, range, &self.pages.dirty) {
                Ok(n) => found += n,
                Err(e) => failed = Some(e),
            });
        }
        self.stats.pages_dirtied.add(found as u64);
        if heat == Heat::Count {
            self.warm(range);
        }
        failed.map_or(Ok(()), |_| Err(Status::SYSTEM))
    }

    /// Counts a dirty epoch for the dirty pages of the range; pages dirty for long enough turn hot. Under the harvest
    /// lock, like every use of `hot`: who drops a page cools it while it is hidden and then harvests, so a page is never
    /// hot, nor marked for being hot, once it is gone.
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
    fn take_hot(&self, signals: &SignalsBlocked, range: PageRange) {
        let _guard = self.harvest.lock(signals);
        let mut at = range.start;
        while at < range.end {
            let (epoch, next) = self.pages.epoch_at(at);
            let end = next.min(range.end);
            self.pages.dirty.set_where(&self.pages.hot, at, end);
            if epoch.is_multiple_of(HOT_FOR) {
                (at..end).for_each(|p| self.pages.cool(p, HOT_AFTER - 1));
            }
            at = end;
        }
    }
}
