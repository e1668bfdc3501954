//! When the runner is interrupted, no case outlives it.
//!
//! Cases are in process groups of their own, so a Ctrl-C at the terminal does not reach them: the handler passes it on.

use std::sync::atomic::{AtomicI32, Ordering};

/// Most cases that run at a time.
pub const SLOTS: usize = 256;

/// Process groups of the running cases; 0 is a free slot.
static GROUPS: [AtomicI32; SLOTS] = [const { AtomicI32::new(0) }; SLOTS];

/// Kills every registered group on SIGINT and SIGTERM, then lets the signal end the runner.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler = handle as extern "C" fn(i32);
        // SAFETY: the handler only loads atomics and calls async-signal-safe functions.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

extern "C" fn handle(signal: i32) {
    for group in &GROUPS {
        let group = group.load(Ordering::SeqCst);
        if group > 0 {
            // SAFETY: the group belongs to a child that is not reaped while it is registered.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
    }
    // SAFETY: the default action is always a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: ends this process by the signal it was sent, once the handler returns.
    unsafe { libc::raise(signal) };
}

/// A case's group, registered until dropped. Drop it before the leader is reaped.
pub struct Registered(Option<&'static AtomicI32>);

impl Registered {
    /// Registers the group of this leader. With all slots taken the case only loses this protection.
    pub fn new(leader: u32) -> Registered {
        let take =
            |slot: &&AtomicI32| slot.compare_exchange(0, leader as i32, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        Registered(GROUPS.iter().find(take))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, Ordering::SeqCst);
        }
    }
}
