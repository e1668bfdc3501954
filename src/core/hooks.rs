//! What the engine knows of the library around it: whether hooks stand before libc's functions.

use crate::sys::dl;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static DISABLED: AtomicBool = AtomicBool::new(false);

/// State of the hooks in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// No hooks, or the program's calls do not reach them.
    Absent,
    /// There, and passing everything through.
    Disabled,
    /// There, and acting.
    Active,
}

/// Told by the hooks when they are loaded: they pass everything through.
pub fn disable() {
    DISABLED.store(true, Relaxed);
}

/// State of the hooks: asks the loader whether the program's `msync` is this library's. Takes the loader's lock.
pub fn mode() -> Mode {
    if !dl::is_beside(c"msync", &raw const DISABLED as usize) {
        return Mode::Absent;
    }
    if DISABLED.load(Relaxed) { Mode::Disabled } else { Mode::Active }
}
