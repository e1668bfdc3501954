//! The table of hooked names, as data, and the way to the real functions.

use crate::convert::{Failure, set_errno};
pub use crate::slot::Hook;
use libc::{
    FILE, gid_t, iovec, off_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t, pthread_attr_t, sighandler_t,
    sigset_t, size_t, ssize_t, stat as Stat, statx as Statx, uid_t,
};
use libc::{c_char, c_int, c_void};
pub use smc_engine::core::coverage::Family;
use smc_engine::policy::{Decision, ReasonCounts};

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
        #[allow(non_snake_case, clippy::missing_safety_doc, missing_docs)]
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
    Maps required: fn shmdt(addr: *const c_void) -> c_int;
    Maps required: fn fork() -> pid_t;
    Maps optional: fn _Fork() -> pid_t;
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
        crate::waits::BLOCKING,
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
