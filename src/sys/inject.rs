//! Failure on demand, for the suite: the n-th of the operations that can fail does. Compiled in by the feature `inject` only.
//!
//! System calls that the kernel never refuses when asked as we ask (the mask, the time, the own numbers, a futex, closing)
//! are left out: failing them would test what cannot be.

use super::errno::Errno;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Off.
const OFF: u64 = u64::MAX;

/// Operations still to pass before one fails; [`OFF`].
static LEFT: AtomicU64 = AtomicU64::new(OFF);
static PASSED: AtomicU64 = AtomicU64::new(0);
/// Number of the system call that failed plus one; [`LINK`] for an operation of a link.
static STRUCK: AtomicU64 = AtomicU64::new(0);

/// What [`struck`] answers for an operation of a link.
pub const LINK: u64 = 1 << 32;

/// What [`struck`] answers for an allocation.
pub const HEAP: u64 = 1 << 33;

/// From now on `n` operations pass and the next fails; `u64::MAX - 1` only counts.
pub fn arm(n: u64) {
    PASSED.store(0, SeqCst);
    STRUCK.store(0, SeqCst);
    LEFT.store(n, SeqCst);
}

/// Nothing fails any more. Answers how many operations there were.
pub fn disarm() -> u64 {
    LEFT.store(OFF, SeqCst);
    PASSED.load(SeqCst)
}

/// What failed: 0 for nothing, the number of a system call plus one, [`LINK`], or [`HEAP`].
pub fn struck() -> u64 {
    STRUCK.load(SeqCst)
}

/// Counts an operation; true when it is the one that fails.
fn strikes(what: u64) -> bool {
    if LEFT.load(SeqCst) == OFF {
        return false;
    }
    PASSED.fetch_add(1, SeqCst);
    let down = |n: u64| match n {
        OFF => None,
        0 => Some(OFF),
        n => Some(n - 1),
    };
    let hit = LEFT.fetch_update(SeqCst, SeqCst, down) == Ok(0);
    if hit {
        STRUCK.store(what, SeqCst);
    }
    hit
}

/// Counts an allocation.
pub(super) fn allocation_fails() -> bool {
    strikes(HEAP)
}

/// Counts an operation of a link.
pub fn link_fails() -> bool {
    strikes(LINK)
}

/// The error a system call is to answer instead of being made.
pub(super) fn failure(nr: libc::c_long) -> Option<Errno> {
    let e = match nr {
        libc::SYS_mmap | libc::SYS_mremap | libc::SYS_mprotect | libc::SYS_munmap | libc::SYS_unshare => libc::ENOMEM,
        libc::SYS_madvise | libc::SYS_ioctl | libc::SYS_mlock | libc::SYS_munlock => libc::ENOMEM,
        libc::SYS_memfd_create | libc::SYS_openat | libc::SYS_socket | libc::SYS_accept4 => libc::EMFILE,
        libc::SYS_eventfd2 | libc::SYS_userfaultfd | libc::SYS_pipe2 | libc::SYS_pidfd_open => libc::EMFILE,
        libc::SYS_connect | libc::SYS_recvmsg => libc::ENOMEM,
        libc::SYS_sendmsg => libc::ENOBUFS,
        libc::SYS_bind | libc::SYS_listen => libc::EADDRINUSE,
        libc::SYS_read | libc::SYS_write => libc::EAGAIN,
        libc::SYS_poll => libc::EINTR,
        libc::SYS_fallocate | libc::SYS_ftruncate => libc::ENOSPC,
        libc::SYS_fcntl => libc::EBUSY,
        _ => return None,
    };
    strikes(nr as u64 + 1).then_some(Errno(e))
}
