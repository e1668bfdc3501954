//! System calls of the application whose buffers lie in a view.
//!
//! With the `thread` back end the kernel waits for an absent page as it does for any other. With the others it answers
//! EFAULT. Then the pages of the buffer are touched from here, which brings them in as any load or store does, and the
//! call is made once more. Only ranges the engine knows are touched: a truly bad address still gets its EFAULT.
//!
//! A datagram that meets an absent page is lost with the first call, so the buffers of the receive calls are touched before.

use libc::iovec;
use smc_engine::base::PAGE;
use smc_engine::core::engine::Engine;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// What the kernel will do with a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Read it.
    Source,
    /// Write it.
    Target,
}

/// Brings in the pages of `[start, start + len)` that belong to views; true when there were any.
pub fn touch(start: usize, len: usize, how: Use) -> bool {
    let Some(engine) = Engine::running() else { return false };
    let Some(end) = start.checked_add(len) else { return false };
    let mut any = false;
    let mut at = start;
    while at < end {
        if engine.find(at).is_some() {
            any = true;
            let p = at as *mut u8;
            match how {
                // SAFETY: the engine knows the byte as part of a live view, where a load is always served.
                Use::Source => drop(unsafe { p.read_volatile() }),
                Use::Target => {
                    // SAFETY: as above; an atomic is needed because the byte may be in use by other threads.
                    let byte = unsafe { AtomicU8::from_ptr(p) };
                    // Adds nothing to the byte, but the page counts as stored to.
                    byte.fetch_or(0, Relaxed);
                }
            }
        }
        at = (at & !(PAGE - 1)).saturating_add(PAGE);
    }
    any
}

/// The same for a list of buffers.
pub fn touch_all(bufs: &[iovec], how: Use) -> bool {
    // Every buffer, not only up to the first hit.
    bufs.iter().filter(|b| touch(b.iov_base as usize, b.iov_len, how)).count() > 0
}
