//! Descriptors of our own, out of the program's way.

use super::errno::{Errno, syscall};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Numbers below are stdin, stdout and stderr to everybody, also when the program was started with them closed: it may
/// open a file there, or print into what it finds.
const FIRST: i32 = 3;

/// A descriptor that the kernel has just given us, under a number that nobody takes for a standard one. EMFILE when there
/// is none; the descriptor is closed then. Async-signal-safe.
///
/// # Safety
/// It is fresh: nobody else knows it.
pub unsafe fn own(fd: usize) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller vouches for it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    if fd.as_raw_fd() >= FIRST {
        return Ok(fd);
    }
    let words = [fd.as_raw_fd() as usize, libc::F_DUPFD_CLOEXEC as usize, FIRST as usize, 0, 0, 0];
    // SAFETY: makes a descriptor and touches no memory. The low number is closed at the end of this function.
    let high = unsafe { syscall(libc::SYS_fcntl, words) }?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(high as i32) })
}

/// True when what is open under number 2 is not stderr but a file of the program's.
static NO_STDERR: AtomicBool = AtomicBool::new(false);

/// Notes whether this process was started without stderr. To be called before anything else can open a descriptor.
pub fn note_stderr() {
    // SAFETY: asks for flags; touches no memory.
    let open = unsafe { syscall(libc::SYS_fcntl, [2, libc::F_GETFD as usize, 0, 0, 0, 0]) }.is_ok();
    NO_STDERR.store(!open, Relaxed);
}

/// The program has closed number 2, or put something there that is meant to be stderr.
#[inline(always)]
pub fn stderr_is(open: bool) {
    NO_STDERR.store(!open, Relaxed);
}

/// Writes to stderr, if there is one; an error is the program's wish. Async-signal-safe.
pub fn to_stderr(text: &[u8]) {
    if !NO_STDERR.load(Relaxed) {
        // SAFETY: the text is readable for its length.
        let _ = unsafe { syscall(libc::SYS_write, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
    }
}

/// False when nothing must be said.
pub fn has_stderr() -> bool {
    !NO_STDERR.load(Relaxed)
}
