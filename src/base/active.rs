//! Two words for the whole process that say how much the hooks have to do.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

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

/// The signals whose kernel handler is the library's, as a mask of the kernel's (bit 0 is signal 1). 0 until a back end
/// needs one; bits are never cleared. Written by the engine only.
pub static OWNED: AtomicU64 = AtomicU64::new(0);

/// The value of [`OWNED`]. Async-signal-safe.
#[inline(always)]
pub fn owned() -> u64 {
    OWNED.load(Relaxed)
}
