//! Time. Monotonic nanoseconds; deadlines are absolute.

/// Nanoseconds of CLOCK_MONOTONIC. Async-signal-safe.
pub fn now() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: ts is a valid out pointer; the vDSO call cannot fail for CLOCK_MONOTONIC and touches nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}

/// An absolute moment of [`now`]'s clock after which a wait gives up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Deadline(pub u64);

impl Deadline {
    /// `ms` milliseconds from now.
    pub fn in_ms(ms: u64) -> Deadline {
        Deadline(now().saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// `ns` nanoseconds from now.
    pub fn in_ns(ns: u64) -> Deadline {
        Deadline(now().saturating_add(ns))
    }

    /// True once the moment has come.
    pub fn passed(self) -> bool {
        now() >= self.0
    }

    /// Nanoseconds left, 0 when passed.
    pub fn left_ns(self) -> u64 {
        self.0.saturating_sub(now())
    }
}

/// Busy-waits until `moment` (nanoseconds of [`now`]'s clock); for modelled latencies below a scheduler tick.
pub fn spin_until(moment: u64) {
    while now() < moment {
        std::hint::spin_loop();
    }
}

/// Sleeps for `ns` nanoseconds; may return early when a signal arrives. Async-signal-safe.
pub fn nap(ns: u64) {
    let ts = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    // SAFETY: ts is a valid timespec for the duration of the call; no remainder is asked for.
    let _ = unsafe { super::errno::syscall(libc::SYS_nanosleep, [&raw const ts as usize, 0, 0, 0, 0, 0]) };
}
