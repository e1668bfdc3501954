//! The library's own threads, and the mark that tells a fork child from its parent.
//!
//! An own thread has every signal of the application blocked and a descriptor table of its own: the application's `close_range` cannot
//! blind it, its sockets are not inherited by fork children (which would keep a dead exporter's connections open), and
//! it holds none of the application's descriptors open. It follows the application when that changes its user ([`follow`]).

use super::channel::channel;
use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use super::follow;
use super::mem::{Mapping, RW};
use super::poll;
use super::process;
use super::pthread::Pthread;
use super::sync::{SignalOpen, SignalsBlocked};
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The signal that wakes an own thread: directed to that thread alone, where it is always blocked, so no handler runs
/// and the application's disposition does not matter. Linux itself never raises it on x86.
const WAKE: i32 = libc::SIGSTKFLT;

/// Bytes of an own thread's stack.
const STACK: usize = 512 << 10;

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
    thread: Started,
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
        self.waker().wake();
    }

    /// What others may wake it with, as long as it is known to run.
    pub fn waker(&self) -> Waker {
        Waker { pid: self.pid, tid: self.tid }
    }

    /// Waits until it has ended.
    pub fn join(self) {
        self.thread.join();
    }
}

/// [`OwnThread::wake`] without the handle.
#[derive(Clone, Copy, Debug)]
pub struct Waker {
    pid: usize,
    tid: usize,
}

impl Waker {
    /// Of the calling thread.
    pub fn own() -> Waker {
        Waker { pid: process::pid() as usize, tid: process::tid() as usize }
    }

    /// Makes the thread poll its [`Wake`]. Only while that thread runs: its number may become another's. Async-signal-safe.
    pub fn wake(self) {
        // SAFETY: the signal is blocked in that thread and only ever read from its signal descriptor.
        let _ = unsafe { syscall(libc::SYS_tgkill, [self.pid, self.tid, WAKE as usize, 0, 0, 0]) };
    }
}

/// A running own thread. Dropping it lets the thread go on by itself.
#[derive(Debug)]
pub struct Started {
    thread: Pthread,
    place: follow::Place,
}

impl Started {
    /// Waits until it has ended.
    pub fn join(self) {
        // The C library frees the thread's memory under a lock that it holds while it waits for threads to follow.
        let open = SignalOpen::new(follow::SIGSETXID);
        self.thread.join();
        drop(open);
        // Only now: until its end the thread follows.
        drop(self.place);
    }
}

/// Starts a thread named `name` (shown by `ps -L`; at most 15 bytes are kept).
///
/// Descriptors that `body` opens live in the thread's own table: they must never be dropped by another thread.
pub fn spawn(name: &str, body: impl FnOnce(Wake) + Send + 'static) -> Result<OwnThread, Errno> {
    let (tx, rx) = channel();
    let run = move || {
        own_table();
        match wake_descriptor() {
            Ok(w) => {
                let _ = tx.send(Ok(process::tid() as usize));
                drop(tx);
                body(w);
            }
            Err(e) => {
                let _ = tx.send(Err(e));
            }
        }
    };
    let thread = start(name, run)?;
    let tid = rx.until_the_end().next().unwrap_or(Err(Errno(libc::EIO)))?;
    Ok(OwnThread { pid: process::pid() as usize, tid, thread })
}

/// Starts an own thread that shares the program's descriptors until it leaves them.
pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Started, Errno> {
    // The new thread inherits the mask: no signal of the program ever runs on it.
    let signals = SignalsBlocked::but(follow::SIGSETXID);
    let (thread, place) = follow::born(&signals, |number| {
        Pthread::start(name, STACK, move || {
            OWN.set(true);
            follow::enter(number);
            block_signals();
            body();
        })
    })?;
    Ok(Started { thread, place })
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
        ForkMark { page, pid: process::pid() }
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

impl ForkMark {
    /// True in a child that shares the memory of the process that made the mark (vfork). Async-signal-safe.
    pub fn is_borrowed(&self) -> bool {
        !self.in_child() && super::process::pid() != self.pid
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
        let (tx, rx) = channel();
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
        let (seen, woken, after) = rx.wait(std::time::Duration::from_secs(20)).unwrap();
        t.join();
        if n > 3 {
            assert_eq!(seen, Err(Errno(libc::EBADF)), "the application's descriptor is open in the own thread");
        }
        assert_eq!((woken, after), (Ok(1), Ok(0)));
        assert!(!is_own());
        assert!(!ForkMark::new().in_child());
    }
}
