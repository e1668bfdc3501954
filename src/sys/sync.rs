//! Waiting without std: futex words, and a spin lock whose holder has all signals blocked.
//!
//! Rule of the house: a lock that the fault path takes is only ever held with signals blocked, because a signal
//! handler of the application may touch an absent page while its own thread is inside one of our calls.

use super::clock::Deadline;
use super::errno::{Errno, syscall};
use std::sync::atomic::{AtomicU32, Ordering};

/// Waits until `word` is no longer `expected`, a wake, a signal or `timeout_ns`. Async-signal-safe.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: u64) -> Result<(), Errno> {
    let ts =
        libc::timespec { tv_sec: (timeout_ns / 1_000_000_000) as i64, tv_nsec: (timeout_ns % 1_000_000_000) as i64 };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: word lives as long as the borrow, ts for the call.
    unsafe {
        syscall(libc::SYS_futex, [word.as_ptr() as usize, op as usize, expected as usize, &raw const ts as usize, 0, 0])
    }
    .map(drop)
}

/// Wakes up to `n` waiters. Async-signal-safe.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address only as a key.
    let _ = unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, op as usize, n as usize, 0, 0, 0]) };
}

/// Lets another thread run. Async-signal-safe.
pub fn yield_now() {
    // SAFETY: takes nothing and changes nothing.
    let _ = unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// One signal let through in this thread until dropped; the previous mask then returns. Async-signal-safe.
pub struct SignalOpen(#[allow(dead_code, reason = "kept for its drop")] SignalsBlocked);

impl SignalOpen {
    /// Lets signal number `open` through.
    pub fn new(open: i32) -> SignalOpen {
        SignalOpen(SignalsBlocked::change(libc::SIG_UNBLOCK, 1 << (open - 1)))
    }
}

/// All signals blocked in this thread until dropped; the previous mask then returns. Async-signal-safe.
pub struct SignalsBlocked {
    old: Option<u64>,
}

impl SignalsBlocked {
    /// Blocks every signal that can be blocked.
    pub fn new() -> SignalsBlocked {
        SignalsBlocked::change(libc::SIG_SETMASK, u64::MAX)
    }

    /// The same but for signal number `open`, which is let through.
    pub fn but(open: i32) -> SignalsBlocked {
        SignalsBlocked::change(libc::SIG_SETMASK, !(1 << (open - 1)))
    }

    fn change(how: i32, set: u64) -> SignalsBlocked {
        let mut old = 0u64;
        // SAFETY: both words are valid for the call; the kernel's sigset is 8 bytes on x86-64.
        let _ = unsafe {
            syscall(libc::SYS_rt_sigprocmask, [how as usize, &raw const set as usize, &raw mut old as usize, 8, 0, 0])
        };
        SignalsBlocked { old: Some(old) }
    }

    /// For a handler installed with a full mask: the kernel blocked them, and restores them on return.
    pub const fn in_handler() -> SignalsBlocked {
        SignalsBlocked { old: None }
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        SignalsBlocked::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        let Some(old) = self.old else { return };
        // SAFETY: restores the mask this object saved.
        let _ = unsafe {
            syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, &raw const old as usize, 0, 8, 0, 0])
        };
    }
}

/// A futex lock for short critical sections shared with the fault path. The guard borrows a [`SignalsBlocked`], so
/// it cannot be taken with signals open. Async-signal-safe.
#[derive(Default, Debug)]
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

impl Lock {
    /// A free lock.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes the lock; spins briefly, then sleeps. Its holders never block on anything but the lock order below them.
    pub fn lock<'a>(&'a self, _signals: &'a SignalsBlocked) -> LockGuard<'a> {
        if !self.spin() {
            while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
                let _ = futex_wait(&self.0, CONTENDED, 100_000_000);
            }
        }
        LockGuard(self)
    }

    /// Takes the lock if nobody has it. Async-signal-safe.
    pub fn try_lock<'a>(&'a self, _signals: &'a SignalsBlocked) -> Option<LockGuard<'a>> {
        // A closure: a guard that is made and not given out would unlock somebody else's lock.
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok().then(|| LockGuard(self))
    }

    /// Takes the lock unless it stays held until `deadline`: for locks whose holders wait for a far side.
    pub fn lock_until<'a>(&'a self, _signals: &'a SignalsBlocked, deadline: Deadline) -> Option<LockGuard<'a>> {
        if !self.spin() {
            while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
                if deadline.passed() {
                    return None;
                }
                let _ = futex_wait(&self.0, CONTENDED, deadline.left_ns().min(100_000_000));
            }
        }
        Some(LockGuard(self))
    }

    fn spin(&self) -> bool {
        for _ in 0..100 {
            if self.0.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}

/// Releases the lock when dropped.
pub struct LockGuard<'a>(&'a Lock);

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == CONTENDED {
            futex_wake(&self.0.0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_is_given_up_at_the_deadline_and_taken_when_free() {
        let (lock, signals) = (Lock::new(), SignalsBlocked::new());
        let held = lock.lock(&signals);
        assert!(lock.try_lock(&signals).is_none());
        let end = Deadline::in_ms(20);
        assert!(lock.lock_until(&signals, end).is_none());
        assert!(end.passed());
        drop(held);
        assert!(lock.try_lock(&signals).is_some());
        assert!(lock.lock_until(&signals, end).is_some(), "free: the deadline does not matter");
        assert!(lock.lock_until(&signals, Deadline::in_ms(0)).is_some(), "given back by the guard");
    }
}
