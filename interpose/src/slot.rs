//! One hooked name: its slot with the real function, what belongs to it, what the self-test has found.
//!
//! A real function is looked up on the first call (`dlsym(RTLD_NEXT)`, which does not allocate on success with the glibc
//! versions this library loads on) and cached in an atomic: two threads that race store the same value.

use libc::c_void;
use smc_engine::base::stats::Counter;
use smc_engine::core::coverage::{Family, Off, State};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::*};

/// One hooked name.
#[repr(C)]
pub struct Hook {
    /// The real function; null until it was looked up. First, because assembly jumps through it.
    real: AtomicPtr<c_void>,
    name: &'static str,
    /// What it belongs to.
    pub family: Family,
    /// Every supported libc has it. An optional name may be absent: its hook then fails with ENOSYS.
    pub required: bool,
    /// Calls that the library acted on. Calls that went straight to the real function are not counted: that would
    /// cost them a write to shared memory.
    pub hits: Counter,
    /// The stub that the slot starts at; `None`: null.
    first: Option<unsafe extern "C" fn()>,
    /// The real function, kept by the self-test while the slot is as before the first call. Null until then.
    kept: AtomicPtr<c_void>,
    /// What the self-test found: a number of `State`.
    state: AtomicU8,
    /// Name of the object that has taken the name.
    by: [AtomicU8; BY],
}

/// Most bytes of an object's name that are kept.
pub const BY: usize = 40;

impl Hook {
    const fn with(name: &'static str, family: Family, required: bool, first: Option<unsafe extern "C" fn()>) -> Hook {
        let slot = match first {
            Some(f) => f as *mut c_void,
            None => std::ptr::null_mut(),
        };
        Hook {
            real: AtomicPtr::new(slot),
            name,
            family,
            required,
            hits: Counter::new(),
            first,
            kept: AtomicPtr::new(std::ptr::null_mut()),
            state: AtomicU8::new(0),
            by: [const { AtomicU8::new(0) }; BY],
        }
    }

    /// A hook whose real function is looked up on the first call. `name` ends in NUL.
    pub const fn new(name: &'static str, family: Family, required: bool) -> Hook {
        Hook::with(name, family, required, None)
    }

    /// A hook that jumps to `first` until [`Hook::set`] was called.
    pub const fn starting_at(
        name: &'static str,
        family: Family,
        required: bool,
        first: unsafe extern "C" fn(),
    ) -> Hook {
        Hook::with(name, family, required, Some(first))
    }

    /// Name of the hooked function.
    pub fn name(&self) -> &'static str {
        self.name.trim_end_matches('\0')
    }

    /// The real function or null.
    #[inline(always)]
    pub fn real(&self) -> *mut c_void {
        let p = self.real.load(Relaxed);
        if p.is_null() { self.look_up() } else { p }
    }

    /// Stores the real function.
    pub fn set(&self, p: *mut c_void) {
        self.real.store(p, Relaxed);
    }

    /// The next definition of the name after this library, or null.
    pub fn next(&self) -> *mut c_void {
        // SAFETY: name is NUL-terminated (every constructor's caller writes it so) and static.
        unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) }
    }

    /// The name, NUL-terminated.
    pub fn c_name(&self) -> &'static std::ffi::CStr {
        std::ffi::CStr::from_bytes_with_nul(self.name.as_bytes()).unwrap_or(c"")
    }

    /// Self-test: puts the slot back to where it was before the first call, so that the next call of the hook is
    /// noticed ([`Hook::passed`]) and nothing is added to the path of later ones. `real` is what the slot holds.
    pub fn arm(&self, real: *mut c_void) {
        self.kept.store(real, Release);
        self.real.store(self.first.map_or(std::ptr::null_mut(), |f| f as *mut c_void), Release);
    }

    /// Self-test: the slot as it was. What was kept stays for a thread that is still on its way through the stub.
    pub fn disarm(&self) {
        self.real.store(self.kept.load(Acquire), Release);
    }

    /// On the way of a first call: true when there was one before and the self-test has armed the hook. The slot is then
    /// filled again.
    pub fn passed(&self) -> bool {
        let kept = self.kept.load(Acquire);
        if kept.is_null() {
            return false;
        }
        crate::selftest::note(self);
        self.set(kept);
        true
    }

    /// What the slot holds, if that is a real function.
    pub fn filled(&self) -> *mut c_void {
        let p = self.real.load(Acquire);
        if self.first.is_some_and(|f| p == f as *mut c_void) { std::ptr::null_mut() } else { p }
    }

    /// True for a slot that starts at a stub.
    pub fn starts_at_stub(&self) -> bool {
        self.first.is_some()
    }

    /// In a hook whose slot is used by nobody: tells the self-test, while it asks.
    #[inline(always)]
    pub fn seen(&self) {
        if !self.real.load(Relaxed).is_null() {
            crate::selftest::note(self);
        }
    }

    /// What the self-test found.
    pub fn state(&self) -> State {
        State::ALL.get(usize::from(self.state.load(Relaxed))).copied().unwrap_or(State::Untested)
    }

    /// Keeps what the self-test found, and who has the name otherwise.
    pub fn found(&self, state: State, by: &[u8]) {
        for (to, from) in self.by.iter().zip(by.iter().take(BY - 1)) {
            to.store(*from, Relaxed);
        }
        self.state.store(state as u8, Relaxed);
    }

    /// Name of the object that has the name, ended by a zero.
    pub fn by(&self) -> [u8; BY] {
        self.by.each_ref().map(|b| b.load(Relaxed))
    }

    /// What the hook tells the tables of files and views. Births after the real call, deaths before it.
    pub fn announces(&self) -> &'static str {
        ANNOUNCES.iter().find(|(names, _)| names.contains(&self.name())).map_or("", |(_, what)| what)
    }

    /// What would lose stores silently without this hook.
    pub fn needed_by(&self) -> Off {
        NEEDED.iter().find(|(names, _)| names.contains(&self.name())).map_or(Off::Nothing, |(_, off)| *off)
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self) -> *mut c_void {
        if self.passed() {
            return self.filled();
        }
        let p = self.next();
        self.set(p);
        p
    }
}

/// What hooks announce.
const ANNOUNCES: &[(&[&str], &str)] = &[
    (&["open", "open64", "openat", "openat64", "creat", "creat64", "fopen", "fopen64"], "birth of a descriptor, after"),
    (
        &["__open_2", "__open64_2", "__openat_2", "__openat64_2", "dup", "fcntl", "fcntl64"],
        "birth of a descriptor, after",
    ),
    (&["close", "close_range", "closefrom"], "death of a descriptor, before"),
    // The number changes hands inside the real call: the old file is held meanwhile.
    (&["dup2", "dup3"], "birth and death of a descriptor, after"),
    (&["mmap", "mmap64"], "birth of a view, after; death of views replaced, before"),
    (&["munmap", "mremap"], "death of a view, before"),
];

/// Hooks whose calls must not pass unseen: without them stores of a view are lost, or a call that promises to release
/// answers 0 and does not.
const NEEDED: &[(&[&str], Off)] = &[
    (&["close", "fsync", "fdatasync"], Off::Opening),
    (&["mmap", "mmap64", "munmap", "mremap", "mprotect", "madvise", "msync"], Off::Mapping),
];

/// Makes `$first`, the stub at which a slot starts: the first call of any name of a family fills all its slots by
/// `$resolve`, then goes on as if nothing had been.
macro_rules! first_call {
    ($first:ident, $slot:ident, $resolve:ident) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $first() {
            std::arch::naked_asm!(
                ".cfi_startproc", "endbr64",
                "push rdi", ".cfi_adjust_cfa_offset 8", "push rsi", ".cfi_adjust_cfa_offset 8",
                "push rdx", ".cfi_adjust_cfa_offset 8",
                "call {resolve}",
                "pop rdx", ".cfi_adjust_cfa_offset -8", "pop rsi", ".cfi_adjust_cfa_offset -8",
                "pop rdi", ".cfi_adjust_cfa_offset -8",
                "jmp qword ptr [rip + {slot}]", ".cfi_endproc",
                resolve = sym $resolve, slot = sym $slot)
        }
    };
}
pub(crate) use first_call;
