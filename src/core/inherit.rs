//! What the kernel hands down when a program image is replaced: the thread's mask, signals that wait for it, and which
//! signals are ignored. It hands down its own, so for that moment its own is what the program believes.

use super::delivery;
use super::disposition;
use super::sigmask::{self, MARK};
use crate::base::active;
use crate::sys::signal;

/// What [`take_back`] has to put back.
#[derive(Debug)]
pub struct Handed {
    mask: u64,
    ignored: u64,
}

/// Tells the kernel what the program believes, for the calling thread, and with `ignored` which signals the process ignores.
/// A view that this thread touches before [`take_back`] may end the process, if the program has the signal blocked or
/// ignored. Async-signal-safe.
pub fn hand_down(ignored: bool) -> Handed {
    let owned = active::owned();
    let mask = signal::mask().unwrap_or(0);
    let believed = sigmask::to_program(mask, owned);
    if believed != mask {
        // Blocked for good first: then what waits under the mark's number waits under its own.
        let _ = signal::set_mask(mask | believed);
        if let Some(info) = signal::take_waiting(MARK) {
            delivery::send_on(info);
        }
        let _ = signal::set_mask(believed);
    }
    Handed { mask, ignored: if ignored { disposition::ignore_what_is_ignored() } else { 0 } }
}

/// The image was not replaced: everything is as it was before [`hand_down`]. Async-signal-safe.
pub fn take_back(handed: Handed) {
    disposition::own_again(handed.ignored);
    let _ = signal::set_mask(handed.mask);
}
