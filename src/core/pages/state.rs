//! The page state machine, as a pure function. [`super::table`] applies it atomically; nothing else changes a state.
//!
//! ```text
//!            BeginFetch            Fetched               Lock
//!   REMOTE ─────────────► FETCHING ───────► RESIDENT ◄────────► BUSY
//!     ▲ ▲                  │  ▲ │                       Unlock   │
//!     │ └── FetchAbandoned ┘  │ └ FetchFailed ► POISONED         │
//!     │                       └────── Clear ───────┘             │
//!     └───────────────────────────────────────────────── Drop ───┘
//! ```
//! A poisoned page that is shown again or given up is held as FETCHING meanwhile, so that it never shows once it is REMOTE.
//!
//! `BUSY` is a resident page whose bytes somebody is moving (push, drop, merge, admit, emulated store). The holder has all
//! signals blocked, so a handler of the application can never wait for its own thread.

/// Where a page's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// Only at the home.
    Remote = 0,
    /// Being brought; others wait.
    Fetching = 1,
    /// Here, clean or dirty.
    Resident = 2,
    /// Shows the error value or fails with SIGBUS: never compared, never written back.
    Poisoned = 3,
    /// Here, and locked by one thread.
    Busy = 4,
}

/// What happens to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A thread starts to bring it.
    BeginFetch,
    /// Its bytes have arrived.
    Fetched,
    /// They could not be had, and the page now shows the error value.
    FetchFailed,
    /// They could not be had, and a touch fails with SIGBUS: nothing of the page is here.
    FetchRefused,
    /// They could not be had, and the page is as before.
    FetchAbandoned,
    /// A thread wants to move its bytes.
    Lock,
    /// And is done.
    Unlock,
    /// The local copy is given up.
    Drop,
    /// A thread works on a page with the error value: it abandons it, or shows it again (`FetchFailed`).
    Clear,
}

impl State {
    /// Every state, for exhaustive tests.
    pub const ALL: [State; 5] = [State::Remote, State::Fetching, State::Resident, State::Poisoned, State::Busy];

    /// The state with this number; numbers outside the table cannot occur (the table masks and only stores these).
    pub fn from_bits(bits: u32) -> State {
        match bits {
            0 => State::Remote,
            1 => State::Fetching,
            2 => State::Resident,
            3 => State::Poisoned,
            _ => State::Busy,
        }
    }

    /// True while one thread works on the page and others must wait.
    pub fn is_held(self) -> bool {
        matches!(self, State::Fetching | State::Busy)
    }
}

/// The state after `event`, or `None` when the event is not allowed in `state`.
pub fn next(state: State, event: Event) -> Option<State> {
    match (state, event) {
        (State::Remote, Event::BeginFetch) => Some(State::Fetching),
        (State::Fetching, Event::Fetched) => Some(State::Resident),
        (State::Fetching, Event::FetchFailed | Event::FetchRefused) => Some(State::Poisoned),
        (State::Fetching, Event::FetchAbandoned) => Some(State::Remote),
        (State::Resident, Event::Lock) => Some(State::Busy),
        (State::Busy, Event::Unlock) => Some(State::Resident),
        (State::Busy, Event::Drop) => Some(State::Remote),
        (State::Poisoned, Event::Clear) => Some(State::Fetching),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 9] = [
        Event::BeginFetch,
        Event::Fetched,
        Event::FetchFailed,
        Event::FetchRefused,
        Event::FetchAbandoned,
        Event::Lock,
        Event::Unlock,
        Event::Drop,
        Event::Clear,
    ];

    /// Every (state, event) pair: a held page changes only by its holder's events, and a page that is not held
    /// never becomes resident without passing through FETCHING.
    #[test]
    fn exhaustive() {
        let mut allowed = 0;
        for s in State::ALL {
            for e in EVENTS {
                let Some(n) = next(s, e) else { continue };
                allowed += 1;
                assert_ne!(n, s, "{s:?} {e:?}: every allowed event changes the state");
                if n == State::Resident {
                    assert!(s.is_held(), "{s:?} {e:?}");
                }
                if s == State::Poisoned {
                    assert_eq!(n, State::Fetching, "a poisoned page is only ever fetched anew");
                }
            }
        }
        assert_eq!(allowed, 9);
    }

    /// From every state every other state can be reached: nothing is a trap.
    #[test]
    fn no_dead_ends() {
        for from in State::ALL {
            let mut seen = vec![from];
            let mut i = 0;
            while let Some(&s) = seen.get(i) {
                seen.extend(
                    EVENTS.iter().filter_map(|e| next(s, *e)).filter(|n| !seen.contains(n)).collect::<Vec<_>>(),
                );
                i += 1;
            }
            assert!(State::ALL.iter().all(|s| seen.contains(s)), "{from:?} reaches only {seen:?}");
        }
    }

    #[test]
    fn bits_round_trip() {
        assert!(State::ALL.iter().all(|s| State::from_bits(*s as u32) == *s));
    }
}
