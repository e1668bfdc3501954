//! The library's own threads, and the mark that tells a fork child from its parent.
//!
//! An own thread has every signal of the application blocked and a descriptor table of its own: the application's `close_range` cannot
//! blind it, its sockets are not inherited by fork children (which would keep a dead exporter's connections open), and
//! it holds none of the application's descriptors open.

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use super::mem::{Mapping, RW};
use super::poll;
use super::sync::SignalsBlocked;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::thread::JoinHandle;

/// The signal that wakes an own thread: directed to that thread alone, where it is always blocked, so no handler runs
/// and the application's disposition does not matter. Linux itself never raises it on x86.
const WAKE: i32 = libc::SIGSTKFLT;

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

/// True on an own thread: descriptor numbers there mean something else than in the rest of the process, so a hook must
/// pass its calls through unseen. Async-signal-safe.
pub fn is_own() -> bool {
    OWN.try_with(Cell::get).unwrap_or(false)
}

/// Handle of a running own thread.
#[derive(Debug)]
pub struct OwnThread {
    pid: usize,
    tid: usize,
    join: JoinHandle<()>,
}

/// The thread's end: a descriptor in its own table that becomes readable on [`OwnThread::wake`].
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Forgets the wakes so far.
    pub fn clear(&self) {
        poll::drain(self.0.as_fd());
    }
}

impl OwnThread {
    /// Makes the thread poll its [`Wake`]. Async-signal-safe.
    pub fn wake(&self) {
        // SAFETY: the signal is blocked in that thread and only ever read from its signal descriptor.
        let _ = unsafe { syscall(libc::SYS_tgkill, [self.pid, self.tid, WAKE as usize, 0, 0, 0]) };
    }

    /// Waits until it has ended.
    pub fn join(self) {
        let _ = self.join.join();
    }
}

/// Starts a thread named `name` (shown by `ps -L`; at most 15 bytes are kept).
///
/// Descriptors that `body` opens live in the thread's own table: they must never be dropped by another thread.
pub fn spawn(name: &str, body: impl FnOnce(Wake) + Send + 'static) -> Result<OwnThread, Errno> {
    let (tx, rx) = mpsc::sync_channel(1);
    let run = move || {
        become_own();
        // SAFETY: gettid touches no memory and cannot fail.
        let tid = unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
        own_table();
        match wake_descriptor() {
            Ok(w) => {
                let _ = tx.send(Ok(tid));
                body(w);
            }
            Err(e) => {
                let _ = tx.send(Err(e));
            }
        }
    };
    let blocked = SignalsBlocked::new();
    let spawned = std::thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(run);
    drop(blocked);
    let join = spawned.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
    let tid = rx.recv().unwrap_or(Err(Errno(libc::EIO)))?;
    Ok(OwnThread { pid: std::process::id() as usize, tid, join })
}

/// Makes the calling thread one of our own: blocks its signals, and hooks pass its calls through unseen.
pub fn become_own() {
    OWN.set(true);
    block_signals();
}

/// Blocks all signals but the two that the C library sends to its own threads: `setuid` in the application waits until
/// every thread has handled the second one.
fn block_signals() {
    let mask = !(0b11u64 << 31);
    // SAFETY: the mask is eight readable bytes; only this thread is concerned.
    let _ = unsafe {
        syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, &raw const mask as usize, 0, 8, 0, 0])
    };
}

fn wake_descriptor() -> Result<Wake, Errno> {
    let mask = 1u64 << (WAKE - 1);
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the mask is eight readable bytes, the kernel's sigset on x86-64.
    let fd = unsafe { syscall(libc::SYS_signalfd4, [usize::MAX, &raw const mask as usize, 8, flags as usize, 0, 0]) }?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    Ok(Wake(unsafe { own(fd) }?))
}

/// Gives the calling thread an empty descriptor table of its own. Where the kernel refuses, it goes on with the shared one.
fn own_table() {
    const UNSHARE: usize = 2;
    // SAFETY: with UNSHARE the call works on a private copy of the table, so nobody else loses a descriptor.
    if unsafe { syscall(libc::SYS_close_range, [0, u32::MAX as usize, UNSHARE, 0, 0, 0]) }.is_err() {
        // SAFETY: separates this thread's table; touches no memory.
        if unsafe { syscall(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]) }.is_err() {
            return;
        }
        for fd in 0..4096 {
            // SAFETY: the table is private since the unshare above.
            let _ = unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
        }
    }
    // 0, 1 and 2 stay free, see `own`: a stray message to stderr lands nowhere.
}

/// A page that the kernel wipes in fork children: tells parent from child without a system call.
#[derive(Debug)]
pub struct ForkMark {
    page: Option<Mapping>,
    pid: u32,
}

impl ForkMark {
    /// Marks the calling process.
    pub fn new() -> ForkMark {
        let page = Mapping::anonymous(crate::base::PAGE, RW)
            .ok()
            .filter(|m| m.advise(0, m.len(), libc::MADV_WIPEONFORK).is_ok());
        if let Some(m) = &page {
            // SAFETY: the mapping was just made with a writable page.
            unsafe { m.ptr().write_volatile(1) };
        }
        ForkMark { page, pid: std::process::id() }
    }

    /// True in a fork child of the process that made the mark. Async-signal-safe.
    pub fn in_child(&self) -> bool {
        match &self.page {
            // SAFETY: the page stays mapped as long as this object; the kernel gives a child a zero page.
            Some(m) => (unsafe { m.ptr().read_volatile() }) == 0,
            // SAFETY: getpid touches no memory.
            None => retry(|| unsafe { syscall(libc::SYS_getpid, [0; 6]) }) != Ok(self.pid as usize),
        }
    }
}

impl Default for ForkMark {
    fn default() -> Self {
        ForkMark::new()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn an_own_thread_wakes_and_has_its_own_descriptors() {
        let (tx, rx) = mpsc::channel();
        let mine = poll::eventfd().unwrap();
        let n = mine.as_raw_fd();
        let t = spawn("smc-test", move |w| {
            // SAFETY: F_GETFD touches no memory.
            let seen = unsafe { syscall(libc::SYS_fcntl, [n as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) };
            let mut p = [poll::PollFd::readable(w.fd())];
            let r = poll::poll(&mut p, 5000);
            w.clear();
            assert!(is_own());
            tx.send((seen, r, poll::poll(&mut p, 0))).unwrap();
        })
        .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        t.wake();
        let (seen, woken, after) = rx.recv().unwrap();
        t.join();
        if n > 3 {
            assert_eq!(seen, Err(Errno(libc::EBADF)), "the application's descriptor is open in the own thread");
        }
        assert_eq!((woken, after), (Ok(1), Ok(0)));
        assert!(!is_own());
        assert!(!ForkMark::new().in_child());
    }
}
