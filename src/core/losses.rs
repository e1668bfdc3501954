//! Stores that did not reach the home: where they are, and saying so.
//!
//! *Unreleased* stores are kept and sent again by the next release, and by the keeper once the home is back. *Lost* ones
//! are given up: they went to a page that showed the error value, or nobody is left to keep them, or the home is gone for
//! good. Both are named by ranges of bytes: exactly where there is a twin to compare with, by whole pages elsewhere.

use super::engine::Engine;
use super::harvest::Heat;
use super::pages::{Event, State};
use super::region::Region;
use crate::base::Status;
use crate::base::addr::{PAGE, PageRange};
use crate::base::config::LogLevel;
use crate::link::Health;
use crate::sys::clock::Deadline;
use crate::sys::process::say;
use crate::sys::sync::SignalsBlocked;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// A range of bytes of a region: first, and one past the last.
pub type Range = (u64, u64);

/// Ranges kept at most; more are joined with their neighbours, so that nothing lost goes unnamed.
const MOST: usize = 4096;

/// What a region has lost.
#[derive(Default)]
pub(super) struct Losses {
    lost: Mutex<Ranges>,
    /// Those of them that went to pages that showed the error value, and of which no release has said so yet.
    untold: Mutex<Ranges>,
    /// There are some.
    any_untold: AtomicBool,
    /// The program knows: nothing is left to be written to stderr.
    said: AtomicBool,
}

/// Sorted ranges, a bounded number of them.
#[derive(Default)]
struct Ranges(Vec<Range>);

impl Ranges {
    fn add(&mut self, r: Range) {
        let at = self.0.partition_point(|x| x.0 < r.0);
        self.0.insert(at, r);
        join(&mut self.0, 0);
        let mut gap = PAGE as u64;
        while self.0.len() > MOST {
            join(&mut self.0, gap);
            gap *= 2;
        }
    }

    /// Takes out what lies in `part`; true when there was any.
    fn take(&mut self, part: Range) -> bool {
        let mut found = false;
        let list = std::mem::take(&mut self.0);
        for (s, e) in list {
            let inside = (s.max(part.0), e.min(part.1));
            if inside.0 >= inside.1 {
                self.0.push((s, e));
                continue;
            }
            found = true;
            self.0.extend([(s, inside.0), (inside.1, e)].into_iter().filter(|(s, e)| s < e));
        }
        found
    }
}

/// Every lock is taken with signals blocked.
fn locked(m: &Mutex<Ranges>) -> std::sync::MutexGuard<'_, Ranges> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Losses {
    fn add(&self, r: Range) {
        locked(&self.lost).add(r);
        locked(&self.untold).add(r);
        self.any_untold.store(true, SeqCst);
    }

    /// True, once, when stores of that range were lost.
    fn tell(&self, part: Range) -> bool {
        if !self.any_untold.load(SeqCst) {
            return false;
        }
        let _signals = SignalsBlocked::new();
        let mut untold = locked(&self.untold);
        let told = untold.take(part);
        self.any_untold.store(!untold.0.is_empty(), SeqCst);
        told
    }
}

/// Joins sorted ranges that overlap, touch, or are at most `gap` apart.
fn join(list: &mut Vec<Range>, gap: u64) {
    list.dedup_by(|next, kept| {
        let near = next.0 <= kept.1.saturating_add(gap);
        if near {
            kept.1 = kept.1.max(next.1);
        }
        near
    });
}

impl Region {
    /// The result of a release of `range` that delivered everything there was to deliver is still not OK when stores there
    /// went to pages that showed the error value: POISONED, once.
    pub(super) fn judge_release(&self, range: PageRange, s: Status) -> Status {
        let bytes = ((range.start * PAGE) as u64, (range.end * PAGE) as u64);
        if s.is_ok() && self.losses.tell(bytes) { Status::POISONED } else { s }
    }

    /// The bytes of a poisoned page are not the home's, so its stores go nowhere: they are lost, and the next release
    /// says so. Called with signals blocked.
    pub(super) fn forget_poisoned(&self, p: usize) {
        if self.pages.dirty.get(p) {
            // In this order: a release that does not find the page dirty any more finds its loss. The page is held, so
            // nobody else takes the bit.
            self.losses.add(self.page_range(p));
            self.pages.dirty.take(p);
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

    fn page_range(&self, p: usize) -> Range {
        let start = (p * PAGE) as u64;
        (start, start + self.valid_bytes(p) as u64)
    }

    /// Where stores are that were found and not delivered; at most `most` ranges.
    pub fn unreleased(&self, most: usize) -> Vec<Range> {
        // What the keeper is sending is not in the books.
        let signals = SignalsBlocked::new();
        let _pause = self.keeper.pushes.pause(&signals);
        let (mut at, mut out) = (0, Vec::new());
        while let Some(p) = self.pages.dirty.next_set(at, self.pages.len()).filter(|_| out.len() <= most) {
            self.name_page(p, &mut out);
            join(&mut out, 0);
            at = p + 1;
        }
        out.truncate(most);
        out
    }

    /// Adds the ranges of one dirty page: what a failed delivery held, and what differs from the twin.
    fn name_page(&self, p: usize, out: &mut Vec<Range>) {
        let _signals = SignalsBlocked::new();
        let start = (p * PAGE) as u64;
        let len = self.valid_bytes(p);
        let Some(twin) = self.t_page(p) else { return out.push(self.page_range(p)) };
        if self.pages.lock(p, Deadline::in_ms(100)).is_err() {
            if self.pages.state(p) != State::Remote {
                out.push(self.page_range(p));
            }
            return;
        }
        let mut runs: Vec<Range> = Vec::new();
        self.unsent.each(p, |from, n| runs.push((start + from as u64, start + (from + n) as u64)));
        let mut open = None;
        for i in 0..=len {
            // SAFETY: i is below the page's length where it is read; both pages lie inside A and T. The program may store
            // into A meanwhile: then that store is named or not.
            let differs = i < len && unsafe { differ(self.a_page(p), twin, i) };
            match (differs, open) {
                (true, None) => open = Some(i),
                (false, Some(from)) => {
                    runs.push((start + from as u64, start + i as u64));
                    open = None;
                }
                _ => {}
            }
        }
        let _ = self.pages.apply(p, Event::Unlock);
        runs.sort_unstable();
        out.append(&mut runs);
    }

    /// Where stores are that were given up since the region was mapped; and, when the home is gone for good, those that
    /// are still held here and will never be sent. Sorted.
    pub fn lost(&self, most: usize) -> Vec<Range> {
        let mut all = Vec::new();
        if matches!(self.link.health(self.key), Health::Down(_)) {
            // Stores that no release has looked for are lost too, and those of which nobody will say any more that they
            // have arrived.
            self.doubt_delivered();
            let _ = self.harvest(self.all(), Heat::Ignore);
            all = self.unreleased(most);
        }
        self.with_losses(all, most)
    }

    /// Joins what is on record as lost to `all`. Last of all: the keeper may give up a store that is being looked for, which then
    /// is on record before its page is no longer dirty.
    fn with_losses(&self, mut all: Vec<Range>, most: usize) -> Vec<Range> {
        {
            let _signals = SignalsBlocked::new();
            all.extend_from_slice(&locked(&self.losses.lost).0);
        }
        all.sort_unstable();
        join(&mut all, 0);
        all.truncate(most);
        all
    }

    /// Everything that has not reached the home and will not, now that nobody keeps the pages: what was lost before, and
    /// what is unreleased. Whoever asks tells the program; nothing goes to stderr any more.
    pub fn give_up_unreleased(&self, most: usize) -> Vec<Range> {
        self.losses.said.store(true, SeqCst);
        let mut all = self.unreleased(most);
        all.append(&mut self.lost(most));
        all.sort_unstable();
        join(&mut all, 0);
        all.truncate(most);
        all
    }

    /// Says on stderr which stores are lost: for programs that no call can tell.
    pub(super) fn say_lost(&self, why: Status) {
        const MOST_NAMED: usize = 16;
        if self.losses.said.load(SeqCst) || !Engine::speaks(LogLevel::Error) {
            return;
        }
        let ranges = self.give_up_unreleased(MOST_NAMED + 1);
        if !ranges.is_empty() {
            say(&format!("region \"{}\": {why}; stores are lost at {}", self.name(), names(&ranges, MOST_NAMED)));
        }
    }
}

/// True when byte `i` of a page is not its twin's.
///
/// # Safety
/// Both pointers are valid for `i + 1` bytes.
pub(super) unsafe fn differ(a: *mut u8, t: *mut u8, i: usize) -> bool {
    // SAFETY: as the caller vouches.
    let own = unsafe { a.wrapping_add(i).read_volatile() };
    // SAFETY: as above.
    own != unsafe { t.wrapping_add(i).read_volatile() }
}

/// Ranges as text, at most `most` of them: `0..8, 64..128, ...`.
pub fn names(ranges: &[Range], most: usize) -> String {
    let mut list: Vec<String> = ranges.iter().take(most).map(|(s, e)| format!("{s}..{e}")).collect();
    if ranges.len() > most {
        list.push("...".into());
    }
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_join_and_stay_bounded() {
        let mut l = Ranges::default();
        for i in 0..3 * MOST as u64 {
            l.add((i * 100, i * 100 + 10));
        }
        l.add((5, 100));
        assert!(l.0.len() <= MOST && l.0.windows(2).all(|w| w[0].1 < w[1].0), "{} ranges", l.0.len());
        let covered = |at: u64| l.0.iter().any(|r| (r.0..r.1).contains(&at));
        assert!((0..3 * MOST as u64).all(|i| covered(i * 100) && covered(i * 100 + 9)), "something lost is not named");
    }

    #[test]
    fn a_loss_is_told_once_and_to_whoever_releases_it() {
        let l = Losses::default();
        l.add((0, 100));
        l.add((200, 300));
        assert!(!l.tell((100, 200)), "nothing was lost there");
        assert!(l.tell((50, 60)) && !l.tell((50, 60)));
        assert!(l.tell((0, 55)), "the part before it is not told yet");
        assert!(l.tell((0, 100)), "nor the part behind");
        assert!(!l.tell((0, 200)) && l.tell((0, u64::MAX)) && !l.tell((0, u64::MAX)));
        assert_eq!(locked(&l.lost).0, [(0, 100), (200, 300)], "it stays on record");
    }

    #[test]
    fn ranges_in_words() {
        assert_eq!(names(&[(0, 8), (64, 128)], 2), "0..8, 64..128");
        assert_eq!(names(&[(0, 8), (64, 128)], 1), "0..8, ...");
    }
}
