//! The data path: every operation of both faces, on the slot table alone. No lock, no allocation, no message.

use super::control::{Control, GATE_ENDED, GATE_REVOKED};
use super::slots::{Slot, Table};
use crate::base::Status;
use crate::link::{AtomicOp, RegionKey};
use crate::sys::clock::{Deadline, nap};
use crate::sys::sync::SignalsBlocked;
use crate::sys::thread::is_own;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst, fence};

/// How an operation is protected against the home moving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Repeated when the home moved meanwhile.
    Read,
    /// Counted in flight: the exporter waits for it. Repeating is harmless.
    Write,
    /// As a write, but must not happen twice.
    Atomic,
}

enum Attempt<R> {
    Done(R),
    /// It has not happened, or repeating is harmless.
    Again,
    Fail(Status),
}

/// First wait for a closed gate, in nanoseconds; doubles up to [`NAP_MAX`].
const NAP_MIN: u64 = 20_000;
const NAP_MAX: u64 = 500_000;

/// Runs `f(first byte of [off, off + len))` on the mapped home. Async-signal-safe if `f` is.
pub(super) fn run<R>(
    table: &Table,
    key: RegionKey,
    range: (u64, u64),
    kind: Kind,
    deadline: Deadline,
    f: impl Fn(*mut u8) -> R,
) -> Result<R, Status> {
    let slot = table.enter(key)?;
    let (off, len) = range;
    if off.checked_add(len).is_none_or(|end| end > slot.len.load(SeqCst)) {
        return Err(Status::OUT_OF_RANGE);
    }
    if kind != Kind::Read && slot.writable.load(SeqCst) == 0 {
        return Err(Status::PERMISSION);
    }
    let control = slot.control().ok_or(Status::NOT_FOUND)?;
    let mut wait = NAP_MIN;
    loop {
        usable(&slot, control, key)?;
        match attempt(&slot, control, kind, |base| f(base.wrapping_add(off as usize))) {
            Attempt::Done(r) => return Ok(r),
            Attempt::Fail(s) => return Err(s),
            Attempt::Again => {}
        }
        usable(&slot, control, key)?;
        let left = deadline.left_ns();
        if left == 0 {
            return Err(Status::TIMED_OUT);
        }
        nap(wait.min(left));
        wait = (wait * 2).min(NAP_MAX);
    }
}

/// OK while the exporter has not taken the region away.
pub(super) fn reachable(slot: &Slot) -> Result<(), Status> {
    slot.status().ok()?;
    match slot.control().map_or(0, |c| c.gate.load(SeqCst)) {
        GATE_REVOKED => Err(Status::REVOKED),
        GATE_ENDED => Err(Status::PEER_DEAD),
        _ => Ok(()),
    }
}

fn usable(slot: &Slot, control: &Control, key: RegionKey) -> Result<(), Status> {
    slot.status().ok()?;
    match control.gate.load(SeqCst) {
        GATE_REVOKED => return Err(Status::REVOKED),
        GATE_ENDED => return Err(Status::PEER_DEAD),
        _ => {}
    }
    // Closed by another thread while we waited.
    if slot.key.load(SeqCst) == key.0 { Ok(()) } else { Err(Status::NOT_FOUND) }
}

fn attempt<R>(slot: &Slot, control: &Control, kind: Kind, f: impl Fn(*mut u8) -> R) -> Attempt<R> {
    let Some(map) = slot.pin() else { return Attempt::Again };
    if kind == Kind::Read {
        if !control.passable(map.generation()) {
            return Attempt::Again;
        }
        let r = f(map.base());
        // The bytes were read before the second look.
        fence(SeqCst);
        return if control.passable(map.generation()) { Attempt::Done(r) } else { Attempt::Again };
    }
    // In flight we must not be interrupted by a handler that waits for the gate: the exporter would wait for us for ever.
    // (The library's own threads have no handlers to fear, and are spared two system calls.)
    let _signals = (!is_own()).then(SignalsBlocked::new);
    control.inflight.fetch_add(1, SeqCst);
    let result = if control.passable(map.generation()) {
        let r = f(map.base());
        // The bytes are at the home before the second look.
        fence(SeqCst);
        // A gate that merely closed waits for us, so the write has arrived; a revoked one may not have waited.
        let shut = matches!(control.gate.load(SeqCst), GATE_REVOKED | GATE_ENDED);
        let lost = shut || control.generation.load(SeqCst) != map.generation();
        match (lost, kind) {
            (false, _) => Attempt::Done(r),
            (true, Kind::Atomic) => Attempt::Fail(Status::INTERNAL),
            (true, _) => Attempt::Again,
        }
    } else {
        Attempt::Again
    };
    control.inflight.fetch_sub(1, SeqCst);
    result
}

/// An operation on the word at `off`.
pub(super) fn atomic(table: &Table, key: RegionKey, off: u64, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
    if !off.is_multiple_of(8) {
        return Err(Status::INVALID_ARGUMENT);
    }
    let kind = if op == AtomicOp::Load { Kind::Read } else { Kind::Atomic };
    run(table, key, (off, 8), kind, deadline, |p| {
        // SAFETY: the word is inside the pinned mapping (range checked), 8-byte aligned, and shared memory of atomics.
        let word = unsafe { &*p.cast::<AtomicU64>() };
        match op {
            AtomicOp::Load => word.load(SeqCst),
            AtomicOp::Store(v) => word.swap(v, SeqCst),
            AtomicOp::FetchAdd(v) => word.fetch_add(v, SeqCst),
            AtomicOp::CompareSwap { expected, new } => {
                word.compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|v| v)
            }
        }
    })
}
