//! Descriptors of the program's table, in threads that have a table of their own.
//!
//! A library that keeps a number and uses it in whatever thread calls it finds nothing, or something else, in a thread of ours
//! ([`thread`](super::thread)). So the file is put there under the same number before such a call.

use super::errno::{Errno, syscall};
use super::process::pid;

/// True when something is open under the number in the calling thread's table. Async-signal-safe.
pub fn is_open(fd: i32) -> bool {
    // SAFETY: asks for flags; touches no memory.
    unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) }.is_ok()
}

/// Makes number `fd` of the table that the process's first thread uses (the program's) the same file in the calling thread,
/// which has a table of its own; nothing is done when the number is taken there. Numbers of [`numbered`] descriptors mean
/// one file for ever, so what is found there is what is meant. It stays until the thread ends. Async-signal-safe.
///
/// [`numbered`]: super::kept::KeptFd::numbered
pub fn take(fd: i32) -> Result<(), Errno> {
    if is_open(fd) {
        return Ok(());
    }
    // SAFETY: takes numbers only.
    let process = unsafe { syscall(libc::SYS_pidfd_open, [pid() as usize, 0, 0, 0, 0, 0]) }?;
    // SAFETY: as above; it makes a descriptor in this thread's table.
    let copy = unsafe { syscall(libc::SYS_pidfd_getfd, [process, fd as usize, 0, 0, 0, 0]) };
    close(process);
    let copy = copy?;
    if copy == fd as usize {
        return Ok(());
    }
    // SAFETY: the number was free above, and the table is this thread's alone.
    let put = unsafe { syscall(libc::SYS_dup3, [copy, fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0]) };
    close(copy);
    put.map(drop)
}

fn close(fd: usize) {
    // SAFETY: made above, in a table of this thread's own.
    let _ = unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::channel::channel;
    use super::super::kept::KeptFd;
    use super::super::{poll, thread};
    use super::*;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
    use std::time::Duration;

    #[test]
    fn a_borrowed_number_is_the_same_file() {
        let event = KeptFd::numbered(poll::eventfd().unwrap());
        let other = KeptFd::numbered(poll::eventfd().unwrap());
        let n = event.as_raw_fd();
        assert!(other.as_raw_fd() > n, "a number was given twice");
        let (tx, rx) = channel();
        let t = thread::spawn("smc-test", move |_| {
            let before = is_open(n);
            let took = take(n).and_then(|()| take(n));
            // SAFETY: taken above; the table lives as long as this thread.
            let raised = poll::raise(unsafe { BorrowedFd::borrow_raw(n) });
            tx.send((before, took, raised, take(60_000))).unwrap();
        })
        .unwrap();
        let (before, took, raised, absent) = rx.wait(Duration::from_secs(20)).unwrap();
        t.join();
        assert_eq!((before, took, raised, absent), (false, Ok(()), Ok(()), Err(Errno::BADF)));
        let mut p = [poll::PollFd::readable(event.as_fd())];
        assert_eq!(poll::poll(&mut p, 0), Ok(1), "another file was raised");
    }
}
