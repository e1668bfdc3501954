//! One flag for the whole process: has anybody ever opened a region here?

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// 0 until the first region was opened, then 1 for ever. The preload hooks read it, in assembly too, and jump straight to
/// the real functions while it is 0.
pub static ACTIVE: AtomicU32 = AtomicU32::new(0);

/// Called by the engine before it makes the first region known to anybody.
pub fn mark() {
    ACTIVE.store(1, Relaxed);
}

/// True once [`mark`] was called. Async-signal-safe.
#[inline(always)]
pub fn active() -> bool {
    ACTIVE.load(Relaxed) != 0
}
