//! Codes as text, and the calling thread's last failure in words.
//!
//! The texts lie in a small ring keyed by thread id: a library that may be opened late has little thread-local memory,
//! and a thread's destructors are no place for ours.

use super::types::smc_status;
use crate::base::{Error, Status};
use crate::sys::process::tid;
use crate::sys::sync::yield_now;
use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Failures remembered, over all threads.
const ENTRIES: usize = 64;
/// Longest text kept, in bytes.
const TEXT: usize = 512;

struct Entry {
    /// 0: unused.
    tid: u32,
    /// When it was written: the oldest goes first.
    stamp: u64,
    len: usize,
    text: [u8; TEXT],
}

struct Ring {
    entries: [Entry; ENTRIES],
    clock: u64,
}

static RING: Mutex<Ring> =
    Mutex::new(Ring { entries: [const { Entry { tid: 0, stamp: 0, len: 0, text: [0; TEXT] } }; ENTRIES], clock: 0 });

/// The ring, or nothing when it stays taken: in a fork child its owner may not exist any more.
fn ring() -> Option<MutexGuard<'static, Ring>> {
    for _ in 0..1000 {
        match RING.try_lock() {
            Ok(r) => return Some(r),
            Err(TryLockError::Poisoned(p)) => return Some(p.into_inner()),
            Err(TryLockError::WouldBlock) => yield_now(),
        }
    }
    None
}

impl Write for Entry {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        for c in s.chars() {
            let mut utf8 = [0; 4];
            let bytes = c.encode_utf8(&mut utf8).as_bytes();
            // Cut between characters.
            let Some(room) = self.text.get_mut(self.len..self.len + bytes.len()) else { return Err(std::fmt::Error) };
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
        Ok(())
    }
}

/// Keeps the text of a failure for [`smc_last_error`].
pub(super) fn remember(e: &Error) {
    let me = tid();
    let Some(mut ring) = ring() else { return };
    ring.clock += 1;
    let stamp = ring.clock;
    let own = ring.entries.iter().position(|e| e.tid == me);
    let oldest = || ring.entries.iter().enumerate().min_by_key(|(_, e)| e.stamp).map(|(i, _)| i);
    let at = own.or_else(oldest).unwrap_or(0);
    if let Some(entry) = ring.entries.get_mut(at) {
        (entry.tid, entry.stamp, entry.len) = (me, stamp, 0);
        // What does not fit is cut.
        let _ = write!(entry, "{e}");
    }
}

impl From<Status> for smc_status {
    fn from(s: Status) -> smc_status {
        use smc_status as C;
        match s {
            Status::OK => C::Ok,
            Status::INVALID_ARGUMENT => C::InvalidArgument,
            Status::NOT_SUPPORTED => C::NotSupported,
            Status::NO_RESOURCES => C::NoResources,
            Status::NOT_FOUND => C::NotFound,
            Status::EXISTS => C::Exists,
            Status::PERMISSION => C::Permission,
            Status::BUSY => C::Busy,
            Status::TIMED_OUT => C::TimedOut,
            Status::FORKED => C::Forked,
            Status::OUT_OF_RANGE => C::OutOfRange,
            Status::DIRTY => C::Dirty,
            Status::POISONED => C::Poisoned,
            Status::LOST => C::Lost,
            Status::LINK_DOWN => C::LinkDown,
            Status::PEER_DEAD => C::PeerDead,
            Status::REVOKED => C::Revoked,
            Status::REFUSED => C::Refused,
            Status::PROTOCOL => C::Protocol,
            Status::STALE => C::Stale,
            Status::SYSTEM => C::System,
            Status::NO_BACKEND => C::NoBackend,
            _ => C::Internal,
        }
    }
}

/// One English sentence for a status, without a full stop; "unknown status" for a number this version does not know.
/// Constant, never NULL, not to be freed. Async-signal-safe.
#[unsafe(no_mangle)]
pub extern "C" fn smc_strerror(status: i32) -> *const c_char {
    Status(status).text_c().as_ptr()
}

/// Name of a status as in this header without its prefix ("LINK_DOWN"); "UNKNOWN" for a number this version does not know.
/// Constant, never NULL, not to be freed. Async-signal-safe.
#[unsafe(no_mangle)]
pub extern "C" fn smc_status_name(status: i32) -> *const c_char {
    Status(status).name_c().as_ptr()
}

/// The calling thread's last failure in words: what was attempted, why it failed, what to do.
///
/// Copies the text, cut to fit, with a NUL to `buf` when `len` is not 0, and returns the text's whole length in bytes
/// without the NUL (at most 512); 0 when this thread has no failure on record. A successful call does not clear it, so
/// look at it after a call has failed and before the next one. The last 64 failures of all threads are kept. Needs no
/// context. Works in a fork child, where the record may be empty. `buf` may be NULL when `len` is 0.
///
/// # Safety
/// `buf` is writable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_last_error(buf: *mut c_char, len: usize) -> usize {
    let me = tid();
    let ring = ring();
    let entry = ring.as_ref().and_then(|r| r.entries.iter().find(|e| e.tid == me));
    let text = entry.and_then(|e| e.text.get(..e.len)).unwrap_or_default();
    // SAFETY: as the caller vouches.
    unsafe { super::call::copy_text(text, buf, len) };
    text.len()
}

/// A NUL-terminated copy; text with a NUL inside is cut there.
pub(super) fn c_text(s: &str) -> std::ffi::CString {
    let upto = s.split('\0').next().unwrap_or_default();
    std::ffi::CString::new(upto).unwrap_or_default()
}

/// Text of C as Rust sees it.
pub(super) fn rust_text(s: &CStr) -> Option<&str> {
    s.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_header() {
        for s in Status::ALL {
            assert_eq!(smc_status::from(*s) as i32, s.0, "{s:?}");
        }
    }

    fn last() -> String {
        let mut buf = [0u8; 600];
        // SAFETY: the buffer is as long as said.
        let n = unsafe { smc_last_error(buf.as_mut_ptr().cast(), buf.len()) };
        String::from_utf8(buf[..n].to_vec()).unwrap()
    }

    #[test]
    fn each_thread_has_its_own_and_long_text_is_cut() {
        remember(&Error::new(Status::SYSTEM, "a", "b"));
        std::thread::spawn(|| {
            assert_eq!(last(), "");
            remember(&Error::new(Status::SYSTEM, "x", "ö".repeat(TEXT)));
            assert!(last().len() <= TEXT && last().ends_with('ö'));
        })
        .join()
        .unwrap();
        assert_eq!(last(), "cannot a: b");
        for _ in 0..ENTRIES {
            std::thread::spawn(|| remember(&Error::new(Status::SYSTEM, "y", "z"))).join().unwrap();
        }
        let mut two = [1u8; 3];
        remember(&Error::new(Status::SYSTEM, "c", "d"));
        // SAFETY: two of three bytes are offered.
        assert_eq!(unsafe { smc_last_error(two.as_mut_ptr().cast(), 2) }, 11);
        assert_eq!(two, [b'c', 0, 1]);
    }
}
