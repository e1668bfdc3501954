//! A wire in LogGP terms: latency, gap per message, bytes per time. Batched messages pipeline: they share one latency.
//!
//! An operation's data moves by the inner link while the modelled time passes; the operation ends when both are done. So a
//! host slower than the wire shows in the figures, and a figure never undercuts the wire.

use crate::sys::clock::now;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Price of messages. The default is a 100 Gb/s link through one switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wire {
    /// One way, in nanoseconds: a completed put of few bytes takes twice that.
    pub latency_ns: u64,
    /// Between two messages of one sender, in nanoseconds.
    pub gap_ns: u64,
    /// Gigabits per second.
    pub gbps: u64,
}

impl Default for Wire {
    fn default() -> Wire {
        Wire { latency_ns: 2000, gap_ns: 10, gbps: 100 }
    }
}

/// The wire with its occupation.
pub(super) struct Line {
    wire: Wire,
    /// Moment at which the sender's end is free again.
    free_at: AtomicU64,
}

impl Line {
    pub(super) fn new(wire: Wire) -> Line {
        Line { wire, free_at: AtomicU64::new(0) }
    }

    /// Queues `messages` with `bytes` in all; answers the moment at which their acknowledgement (or the data asked for)
    /// is back. Async-signal-safe.
    pub(super) fn occupy(&self, messages: usize, bytes: usize) -> u64 {
        let busy = messages as u64 * self.wire.gap_ns + bytes as u64 * 8 / self.wire.gbps;
        let mut free = self.free_at.load(SeqCst);
        loop {
            let sent = free.max(now()) + busy;
            match self.free_at.compare_exchange_weak(free, sent, SeqCst, SeqCst) {
                Ok(_) => return sent + 2 * self.wire.latency_ns,
                Err(other) => free = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_shares_one_latency_and_messages_queue() {
        let line = Line::new(Wire { latency_ns: 1_000_000, gap_ns: 100, gbps: 8 });
        let t0 = now();
        let first = line.occupy(10, 1000);
        assert!(first >= t0 + 10 * 100 + 1000 + 2_000_000);
        let second = line.occupy(1, 0);
        assert_eq!(second, first + 100, "the second waits for the first to be sent, not for its answer");
    }
}
