//! Looking for an exporter that has gone: it may come back with the same memory.

use super::SLOTS;
use super::session::{Phase, Purpose, Session};
use super::slots::Table;
use crate::link::{Access, RegionKey};
use crate::sys::clock::{Deadline, now};
use crate::sys::mem::Mapping;
use std::sync::atomic::Ordering::SeqCst;

/// What was opened, and what alone may take its place.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct What {
    pub name: String,
    pub want: Access,
    pub len: u64,
    pub incarnation: u64,
}

/// How far the search for a lost exporter is.
#[derive(Default)]
pub(super) struct Search {
    /// When to try again.
    pub next: u64,
    pause_ns: u64,
    /// What the new exporter handed over, until the slot can take it: home, generation, control page.
    pub found: Option<(Mapping, u64, Mapping)>,
    /// The slot has it.
    pub taken: bool,
    /// A move that came meanwhile.
    pub pending: Option<(Mapping, u64)>,
}

/// First pause between two searches; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: u64 = 10_000_000;
const PAUSE_MAX: u64 = 1_000_000_000;
/// Time an exporter has to answer a search.
const ANSWER_MS: u64 = 5000;

impl What {
    fn nothing() -> What {
        What { name: String::new(), want: Access::ReadOnly, len: 0, incarnation: 0 }
    }
}

impl Session {
    /// The exporter is gone, or was not found: looks for the name again after a pause.
    pub fn search_again(&mut self) {
        self.fd = None;
        self.phase = Phase::Connecting;
        self.deadline = Deadline::in_ms(ANSWER_MS);
        let nothing = || Purpose::Lost { key: RegionKey(0), what: What::nothing(), search: Search::default() };
        let (key, what, pause) = match std::mem::replace(&mut self.purpose, nothing()) {
            Purpose::Live { key, what, .. } => (key, what, 0),
            Purpose::Lost { key, what, search } => (key, what, search.pause_ns),
            other => return self.purpose = other,
        };
        let pause_ns = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        let search = Search { next: now() + pause_ns, pause_ns, ..Search::default() };
        self.deadline = Deadline(now() + pause_ns + ANSWER_MS * 1_000_000);
        self.purpose = Purpose::Lost { key, what, search };
    }

    /// Attaches the slot to what a search has found, as far as operations under way allow; true when nothing waits.
    pub fn attach(&mut self, table: &Table) -> bool {
        let Purpose::Lost { key, what, search } = &mut self.purpose else { return true };
        let Some(slot) = table.slot(key.0 as usize & (SLOTS - 1)) else { return true };
        if slot.key.load(SeqCst) != key.0 {
            search.found = None;
            return true;
        }
        if let Some((home, generation, control)) = search.found.take() {
            match slot.reattach(home, generation, control) {
                Ok(()) => search.taken = true,
                Err((home, control)) => {
                    search.found = Some((home, generation, control));
                    return false;
                }
            }
        }
        if !search.taken {
            return true;
        }
        if !slot.revive() {
            return false;
        }
        let (key, what, pending) = (*key, what.clone(), search.pending.take());
        self.purpose = Purpose::Live { key, what, beat: 0, pending };
        true
    }
}
