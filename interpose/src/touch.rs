//! System calls of the application whose buffers lie in a view.
//!
//! With the `thread` back end the kernel waits for an absent page as it does for any other. With the others it answers
//! EFAULT. Then the pages of the buffer are touched from here, which brings them in as any load or store does, and the
//! call is made once more. Only addresses the engine knows are touched: a truly bad address still gets its EFAULT.
//!
//! A datagram, or the value of an eventfd, that meets an absent page is lost with the first call: short buffers of reading
//! calls are touched before.

use libc::iovec;
use smc_engine::base::PAGE;
use smc_engine::core::engine::Engine;
use smc_engine::core::views;

/// What the kernel will do with a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Read it.
    Source,
    /// Write it.
    Target,
}

/// Longest buffer touched before a call. What takes its data away with the call that fails (datagrams, counters, signals)
/// is no longer; a long buffer belongs to a stream or file, where nothing is lost, and bringing all of it would be waste.
const EARLY_MOST: usize = 64 << 10;

/// As [`touch`], for calls that have not failed. A buffer outside every view costs a look at the table.
pub fn touch_early(start: usize, len: usize, how: Use) -> bool {
    len != 0 && len <= EARLY_MOST && views::any_in(start, len) && touch(start, len, how)
}

/// Brings in the pages of `[start, start + len)` that belong to views; true when there were any. Pages of a read-only view
/// are not stored to: the call gets its EFAULT, as from any read-only mapping. Takes no lock and gives nothing up: it may
/// run in a signal handler of the program.
pub fn touch(start: usize, len: usize, how: Use) -> bool {
    if Engine::running().is_none() {
        return false;
    }
    let Some(end) = start.checked_add(len) else { return false };
    let mut any = false;
    let mut at = start;
    while at < end {
        let p = at as *mut u8;
        match (views::access(at), how) {
            (None, _) => {}
            (Some(_), Use::Source) => {
                any = true;
                // SAFETY: the byte is part of a live view, where a load is always served.
                let _ = unsafe { p.read_volatile() };
            }
            (Some(writable), Use::Target) if writable => {
                any = true;
                store_nothing(p);
            }
            (Some(_), Use::Target) => return false,
        }
        at = (at & !(PAGE - 1)).saturating_add(PAGE);
    }
    any
}

/// A store that changes nothing, atomic because other threads may use the byte. In assembly, because a compiler may turn
/// `fetch_or(0)` into a load, or into nothing at all.
fn store_nothing(p: *mut u8) {
    // SAFETY: the caller has found the byte in a live view, where a store is always served; its value stays.
    unsafe { std::arch::asm!("lock or byte ptr [{p}], 0", p = in(reg) p, options(nostack)) };
}

/// The same for a list of buffers.
pub fn touch_all(bufs: &[iovec], how: Use) -> bool {
    // Every buffer, not only up to the first hit.
    bufs.iter().filter(|b| touch(b.iov_base as usize, b.iov_len, how)).count() > 0
}
