//! eventfd and poll(2).

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use super::kept::KeptFd;
use std::os::fd::AsRawFd;

/// A pollable flag.
#[derive(Debug)]
pub struct EventFd(KeptFd);

impl EventFd {
    /// A cleared one, non-blocking and close-on-exec.
    pub fn new() -> Result<EventFd, Errno> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
        // SAFETY: takes two integers.
        let fd = unsafe { syscall(libc::SYS_eventfd2, [0, flags as usize, 0, 0, 0, 0]) }?;
        // SAFETY: fresh descriptor from the kernel.
        Ok(EventFd(KeptFd::new(unsafe { own(fd) }?)))
    }

    /// Makes it readable. Async-signal-safe.
    pub fn set(&self) {
        if !self.0.is_intact() {
            return;
        }
        let one = 1u64;
        // SAFETY: one is live for the call.
        let _ = unsafe { syscall(libc::SYS_write, [self.0.as_raw_fd() as usize, &raw const one as usize, 8, 0, 0, 0]) };
    }

    /// The descriptor.
    pub fn raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Waits until one of `fds` is readable or broken; answers which are. `None` in `timeout_ms` waits for ever.
pub fn readable<const N: usize>(fds: [i32; N], timeout_ms: Option<u32>) -> Result<[bool; N], Errno> {
    let mut p = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let t = timeout_ms.map_or(-1, |ms| i32::try_from(ms).unwrap_or(i32::MAX));
    // SAFETY: p is live for the call and N entries long.
    retry(|| unsafe { syscall(libc::SYS_poll, [p.as_mut_ptr() as usize, N, t as isize as usize, 0, 0, 0]) })?;
    Ok(p.map(|e| e.revents != 0))
}
