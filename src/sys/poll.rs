//! poll(2) over descriptors, and the counter descriptor that wakes it.

use super::descriptor::own;
use super::errno::{Errno, syscall};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// One descriptor to watch, in the kernel's layout.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

impl PollFd {
    /// Watches for something to read and for hang-up.
    pub fn readable(fd: BorrowedFd<'_>) -> PollFd {
        PollFd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
    }

    /// As [`PollFd::readable`], and for room to write where `too` is true.
    pub fn writable_too(fd: BorrowedFd<'_>, too: bool) -> PollFd {
        let out = if too { libc::POLLOUT } else { 0 };
        PollFd { fd: fd.as_raw_fd(), events: libc::POLLIN | out, revents: 0 }
    }

    /// Something can be read, or the peer has gone (a read then says so).
    pub fn ready(&self) -> bool {
        self.revents != 0
    }

    /// The peer has gone; messages he left may still be there.
    pub fn hung_up(&self) -> bool {
        self.revents & (libc::POLLHUP | libc::POLLERR) != 0
    }
}

/// Waits until a descriptor is ready or `timeout_ms` have passed; a signal counts as time passed.
pub fn poll(fds: &mut [PollFd], timeout_ms: u64) -> Result<usize, Errno> {
    let t = timeout_ms.min(i32::MAX as u64) as usize;
    // SAFETY: the slice is valid for reading and writing during the call; PollFd has the kernel's layout.
    match unsafe { syscall(libc::SYS_poll, [fds.as_mut_ptr() as usize, fds.len(), t, 0, 0, 0]) } {
        Err(Errno::INTR) => {
            fds.iter_mut().for_each(|f| f.revents = 0);
            Ok(0)
        }
        r => r,
    }
}

/// A counter descriptor (eventfd), non-blocking, close-on-exec.
pub fn eventfd() -> Result<OwnedFd, Errno> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: makes a new descriptor and touches no memory.
    let fd = unsafe { syscall(libc::SYS_eventfd2, [0, flags as usize, 0, 0, 0, 0]) }?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    unsafe { own(fd) }
}

/// Adds one to the counter: whoever polls it wakes. Async-signal-safe.
pub fn raise(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let one = 1u64;
    // SAFETY: eight readable bytes.
    unsafe { syscall(libc::SYS_write, [fd.as_raw_fd() as usize, &raw const one as usize, 8, 0, 0, 0]) }.map(drop)
}

/// Reads and forgets what a counter or signal descriptor holds.
pub fn drain(fd: BorrowedFd<'_>) {
    let mut buf = [0u8; 1024];
    // SAFETY: the buffer is writable for its length.
    while unsafe { syscall(libc::SYS_read, [fd.as_raw_fd() as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0]) }
        == Ok(buf.len())
    {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn an_event_wakes_poll_once() {
        let e = eventfd().unwrap();
        let mut p = [PollFd::readable(e.as_fd())];
        assert_eq!(poll(&mut p, 0).unwrap(), 0);
        assert!(!p[0].ready());
        raise(e.as_fd()).unwrap();
        assert_eq!(poll(&mut p, 1000).unwrap(), 1);
        assert!(p[0].ready());
        drain(e.as_fd());
        assert_eq!(poll(&mut p, 0).unwrap(), 0);
    }
}
