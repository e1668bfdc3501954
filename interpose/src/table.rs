//! The table of hooked names, as data, and the way to the real functions.
//!
//! A real function is looked up on the first call (`dlsym(RTLD_NEXT)`, which does not allocate on success with the glibc
//! versions this library loads on) and cached in an atomic: two threads that race store the same value.

use crate::convert::{Failure, set_errno};
use libc::{
    FILE, gid_t, iovec, off_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, pthread_attr_t, sighandler_t,
    sigset_t, size_t, ssize_t, stat as Stat, statx as Statx, uid_t,
};
use libc::{c_char, c_int, c_void};
use smc_engine::base::stats::Counter;
pub use smc_engine::core::coverage::Family;
use smc_engine::core::coverage::{Off, State};
use smc_engine::policy::{Decision, ReasonCounts};
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

/// The failure of a name that this libc does not have.
#[cold]
pub fn absent<T: Failure>() -> T {
    set_errno(libc::ENOSYS);
    T::FAILED
}

macro_rules! hooks {
    ($( $family:ident $need:ident: fn $name:ident($($a:ident: $t:ty),*) -> $r:ty; )*) => {
        /// The hooks of this table by name.
        #[allow(non_upper_case_globals, missing_docs)]
        pub mod hook {
            use super::{Family, Hook};
            $( pub static $name: Hook = Hook::new(concat!(stringify!($name), "\0"), Family::$family, hooks!(@ $need)); )*
        }

        /// The real functions by name. Each has the contract of the function it is named after. None of them is left by a
        /// cancelled thread, which ends the program in a Rust frame; those that may be are in [`crate::blocking`].
        #[allow(clippy::missing_safety_doc, missing_docs)]
        pub mod real {
            #[allow(clippy::wildcard_imports)]
            use super::*;
            $(
                #[inline(always)]
                pub unsafe fn $name($($a: $t),*) -> $r {
                    let p = hook::$name.real();
                    if p.is_null() { return absent(); }
                    // SAFETY: the name's definition has this C signature, which the table took from its header.
                    let f: unsafe extern "C" fn($($t),*) -> $r = unsafe { std::mem::transmute(p) };
                    // SAFETY: the caller keeps the contract of the function of that name.
                    unsafe { f($($a),*) }
                }
            )*
        }

        /// Every hook of this table.
        static TABLE: &[&Hook] = &[$(&hook::$name),*];
    };
    (@ required) => { true };
    (@ optional) => { false };
}

hooks! {
    Paths required: fn access(path: *const c_char, how: c_int) -> c_int;
    Paths required: fn faccessat(dir: c_int, path: *const c_char, how: c_int, flags: c_int) -> c_int;
    Paths optional: fn euidaccess(path: *const c_char, how: c_int) -> c_int;
    Paths optional: fn eaccess(path: *const c_char, how: c_int) -> c_int;
    Paths required: fn truncate(path: *const c_char, len: off_t) -> c_int;
    Paths required: fn truncate64(path: *const c_char, len: off_t) -> c_int;
    Paths required: fn getxattr(path: *const c_char, name: *const c_char, out: *mut c_void, room: size_t) -> ssize_t;
    Paths required: fn lgetxattr(path: *const c_char, name: *const c_char, out: *mut c_void, room: size_t) -> ssize_t;
    Paths required: fn listxattr(path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t;
    Paths required: fn llistxattr(path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t;
    Paths required: fn stat(path: *const c_char, out: *mut Stat) -> c_int;
    Paths required: fn stat64(path: *const c_char, out: *mut Stat) -> c_int;
    Paths required: fn lstat(path: *const c_char, out: *mut Stat) -> c_int;
    Paths required: fn lstat64(path: *const c_char, out: *mut Stat) -> c_int;
    Paths required: fn fstatat(dir: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;
    Paths required: fn fstatat64(dir: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;
    Paths required: fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: u32, out: *mut Statx) -> c_int;
    Paths optional: fn __xstat(ver: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    Paths optional: fn __xstat64(ver: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    Paths optional: fn __lxstat(ver: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    Paths optional: fn __lxstat64(ver: c_int, path: *const c_char, out: *mut Stat) -> c_int;
    Paths optional: fn __fxstatat(ver: c_int, dir: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;
    Paths optional: fn __fxstatat64(ver: c_int, dir: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int;

    Files required: fn fstat(fd: c_int, out: *mut Stat) -> c_int;
    Files required: fn fstat64(fd: c_int, out: *mut Stat) -> c_int;
    Files optional: fn __fxstat(ver: c_int, fd: c_int, out: *mut Stat) -> c_int;
    Files optional: fn __fxstat64(ver: c_int, fd: c_int, out: *mut Stat) -> c_int;
    Files required: fn fgetxattr(fd: c_int, name: *const c_char, out: *mut c_void, room: size_t) -> ssize_t;
    Files required: fn flistxattr(fd: c_int, out: *mut c_char, room: size_t) -> ssize_t;
    Files required: fn lseek(fd: c_int, by: off_t, whence: c_int) -> off_t;
    Files required: fn lseek64(fd: c_int, by: off_t, whence: c_int) -> off_t;
    Files required: fn ftruncate(fd: c_int, len: off_t) -> c_int;
    Files required: fn ftruncate64(fd: c_int, len: off_t) -> c_int;
    Files required: fn posix_fadvise(fd: c_int, off: off_t, len: off_t, advice: c_int) -> c_int;
    Files required: fn posix_fadvise64(fd: c_int, off: off_t, len: off_t, advice: c_int) -> c_int;
    Files required: fn dup(fd: c_int) -> c_int;
    Files required: fn dup2(fd: c_int, to: c_int) -> c_int;
    Files required: fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    Files required: fn close_range(first: u32, last: u32, flags: c_int) -> c_int;
    Files required: fn closefrom(first: c_int) -> c_int;


    Maps required: fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int;
    Maps optional: fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) -> c_int;
    Maps required: fn mlock(addr: *const c_void, len: size_t) -> c_int;
    Maps optional: fn mlock2(addr: *const c_void, len: size_t, flags: u32) -> c_int;
    Maps required: fn munlock(addr: *const c_void, len: size_t) -> c_int;
    Maps required: fn mlockall(flags: c_int) -> c_int;
    Maps required: fn mincore(addr: *mut c_void, len: size_t, out: *mut u8) -> c_int;
    Maps required: fn brk(end: *mut c_void) -> c_int;
    Maps required: fn sbrk(by: isize) -> *mut c_void;
    Maps required: fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void;
    Maps required: fn remap_file_pages(addr: *mut c_void, len: size_t, prot: c_int, page: size_t, flags: c_int) -> c_int;
    Maps optional: fn process_madvise(who: c_int, list: *const iovec, n: size_t, advice: c_int, flags: u32) -> ssize_t;
    Maps optional: fn mseal(addr: *mut c_void, len: size_t, flags: std::ffi::c_ulong) -> c_int;

    Signals required: fn sigaction(sig: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    Signals optional: fn __sigaction(sig: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    Signals required: fn signal(sig: c_int, handler: sighandler_t) -> sighandler_t;
    Signals optional: fn bsd_signal(sig: c_int, handler: sighandler_t) -> sighandler_t;
    Signals optional: fn ssignal(sig: c_int, handler: sighandler_t) -> sighandler_t;
    Signals optional: fn sysv_signal(sig: c_int, handler: sighandler_t) -> sighandler_t;
    Signals optional: fn __sysv_signal(sig: c_int, handler: sighandler_t) -> sighandler_t;
    Signals optional: fn sigset(sig: c_int, handler: sighandler_t) -> sighandler_t;
    Signals optional: fn sighold(sig: c_int) -> c_int;
    Signals optional: fn sigrelse(sig: c_int) -> c_int;
    Signals optional: fn sigignore(sig: c_int) -> c_int;
    Signals optional: fn siginterrupt(sig: c_int, on: c_int) -> c_int;
    Signals required: fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int;
    Signals required: fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int;
    Signals optional: fn sigblock(set: c_int) -> c_int;
    Signals optional: fn sigsetmask(set: c_int) -> c_int;
    Signals optional: fn siggetmask() -> c_int;
    Signals required: fn sigpending(set: *mut sigset_t) -> c_int;
    Signals optional: fn pthread_attr_setsigmask_np(attr: *mut pthread_attr_t, set: *const sigset_t) -> c_int;
    Signals optional: fn pthread_attr_getsigmask_np(attr: *const pthread_attr_t, set: *mut sigset_t) -> c_int;

    Signals required: fn execve(path: *const c_char, args: *const *mut c_char, env: *const *mut c_char) -> c_int;
    Signals required: fn execv(path: *const c_char, args: *const *mut c_char) -> c_int;
    Signals required: fn execvp(file: *const c_char, args: *const *mut c_char) -> c_int;
    Signals required: fn execvpe(file: *const c_char, args: *const *mut c_char, env: *const *mut c_char) -> c_int;
    Signals required: fn fexecve(fd: c_int, args: *const *mut c_char, env: *const *mut c_char) -> c_int;
    Signals optional: fn execveat(dir: c_int, path: *const c_char, args: *const *mut c_char, env: *const *mut c_char, flags: c_int) -> c_int;
    Signals required: fn posix_spawn(pid: *mut pid_t, path: *const c_char, todo: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, args: *const *mut c_char, env: *const *mut c_char) -> c_int;
    Signals required: fn posix_spawnp(pid: *mut pid_t, file: *const c_char, todo: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, args: *const *mut c_char, env: *const *mut c_char) -> c_int;

    Stdio required: fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    Stdio required: fn fileno(f: *mut FILE) -> c_int;
    Stdio required: fn fileno_unlocked(f: *mut FILE) -> c_int;

    Users required: fn setuid(user: uid_t) -> c_int;
    Users required: fn seteuid(user: uid_t) -> c_int;
    Users required: fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    Users required: fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    Users required: fn setgid(group: gid_t) -> c_int;
    Users required: fn setegid(group: gid_t) -> c_int;
    Users required: fn setregid(real: gid_t, effective: gid_t) -> c_int;
    Users required: fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int;
    Users required: fn setgroups(n: size_t, groups: *const gid_t) -> c_int;
    Users required: fn initgroups(user: *const c_char, group: gid_t) -> c_int;
    Users required: fn capset(header: *mut c_void, data: *const c_void) -> c_int;
}

/// Hooks whose real function redhook keeps; this table only names and counts them.
pub mod mapping {
    use super::{Family, Hook};

    macro_rules! named {
        ($($slot:ident = $name:literal),*) => {
            $(
                #[doc = concat!("`", $name, "`")]
                pub static $slot: Hook = Hook::new(concat!($name, "\0"), Family::Maps, true);
            )*
            /// All of them.
            pub static TABLE: &[&Hook] = &[$(&$slot),*];
        };
    }
    named!(
        MMAP = "mmap",
        MMAP64 = "mmap64",
        MUNMAP = "munmap",
        MREMAP = "mremap",
        MADVISE = "madvise",
        POSIX_MADVISE = "posix_madvise"
    );
}

/// Why calls were passed through.
pub static REASONS: ReasonCounts = ReasonCounts::new();

/// True when the library does this call; otherwise counts the reason.
pub fn handled(d: Decision) -> bool {
    match d {
        Decision::Handle => true,
        Decision::PassThrough(why) => {
            REASONS.hit(why);
            false
        }
        Decision::Refuse(_) => false,
    }
}

/// Every hook of the library.
pub fn all() -> impl Iterator<Item = &'static Hook> {
    let blocking = [
        crate::paths::BLOCKING,
        crate::transfer::BLOCKING,
        crate::descriptors::BLOCKING,
        crate::maps::BLOCKING,
        crate::messages::BLOCKING,
        crate::stdio::BLOCKING,
        crate::signal_waits::BLOCKING,
        crate::exec::LISTS,
    ];
    TABLE
        .iter()
        .chain(mapping::TABLE)
        .chain(crate::malloc::TABLE)
        .chain(crate::dl::TABLE)
        .chain(blocking.into_iter().flatten())
        .copied()
}

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
