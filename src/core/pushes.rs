//! What the keeper has taken out of the books, and who must not look meanwhile.
//!
//! A push takes a page's dirty bit before its bytes are delivered, and sets it again when that fails. Whoever counts on the
//! bits must know that no push of the keeper's is under way: either that what was under way at its call is over, or, to
//! name what is not at the home, that none begins before it is through.

use crate::sys::clock::nap;
use crate::sys::sync::SignalsBlocked;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// The keeper's pushes.
#[derive(Default)]
pub(super) struct Pushes {
    /// Odd while the keeper pushes.
    under_way: AtomicU64,
    /// How many ask for none to begin.
    paused: AtomicU32,
}

/// A push of the keeper's, until dropped.
pub(super) struct Push<'a>(&'a Pushes);

/// No push is under way, and none begins, until dropped.
pub(super) struct Pause<'a>(&'a Pushes);

impl Pushes {
    /// The keeper's alone: a push begins. `None`: not now.
    pub(super) fn begin(&self) -> Option<Push<'_>> {
        self.under_way.fetch_add(1, SeqCst);
        let push = Push(self);
        // After the count is odd: either this sees the pause, or who pauses sees the push and waits for it.
        (self.paused.load(SeqCst) == 0).then_some(push)
    }

    /// Returns when a push that had begun before this call is over.
    pub(super) fn wait(&self) {
        let seen = self.under_way.load(SeqCst);
        while seen % 2 == 1 && self.under_way.load(SeqCst) == seen {
            nap(20_000);
        }
    }

    /// Lets none begin. Signals stay blocked meanwhile: a handler of the program in this thread could wait for room
    /// that only the keeper can make.
    pub(super) fn pause(&self, _signals: &SignalsBlocked) -> Pause<'_> {
        self.paused.fetch_add(1, SeqCst);
        self.wait();
        Pause(self)
    }
}

impl Drop for Push<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_add(1, SeqCst);
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.paused.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn none_begins_in_a_pause_and_a_pause_waits_for_one() {
        let (pushes, signals, over) = (Pushes::default(), SignalsBlocked::new(), AtomicBool::new(false));
        std::thread::scope(|s| {
            let push = pushes.begin().expect("nobody pauses");
            s.spawn(|| {
                let signals = SignalsBlocked::new();
                let _pause = pushes.pause(&signals);
                assert!(over.load(SeqCst), "the pause has begun beside a push");
            });
            nap(5_000_000);
            over.store(true, SeqCst);
            drop(push);
        });
        let pause = pushes.pause(&signals);
        assert!(pushes.begin().is_none());
        // A begin that was refused is no push.
        pushes.wait();
        drop(pause);
        assert!(pushes.begin().is_some());
    }
}
