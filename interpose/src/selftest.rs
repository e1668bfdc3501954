//! Self-test of the hooks: does a call that the program makes come here?
//!
//! Every name is resolved as the program's own scope resolves it. Where that leads to this library, or to another object
//! that may pass the call on, a call that cannot do anything is made through it (`close(-1)`, `stat("")`), and the hook is
//! seen to be passed. For that the hook's slot is put back to where it was before the first call, so the stub of first
//! calls notices it: later calls pay nothing. The six mapping hooks, which have no slot, pay one relaxed load.
//!
//! Runs with the first region, or when the coverage is asked for; in the constructor libc is not there yet. It takes the
//! loader's lock, does not allocate and keeps errno. A name without a harmless call is looked up only.

use crate::convert::{CErr, errno, set_errno};
use crate::elf::Object;
use crate::table::{self, Family, Hook};
use crate::{blocking, dl, malloc, report};
use libc::{c_int, c_void};
use smc_engine::core::coverage::{Off, Provider, Row, State};
use smc_engine::policy::Reason;
use smc_engine::sys::dl as names;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering::*};

/// What the engine is given when the library is loaded.
pub static PROVIDER: Provider = Provider { test, rows, reasons };

/// Where the errno of the testing thread is; 0 while none tests.
static TESTER: AtomicUsize = AtomicUsize::new(0);
/// The hook that the testing thread has passed.
static PASSED: AtomicPtr<Hook> = AtomicPtr::new(std::ptr::null_mut());
/// Bit of each [`Off`] that is.
static OFF: AtomicU8 = AtomicU8::new(0);

fn this_thread() -> usize {
    // SAFETY: answers an address of the calling thread.
    unsafe { libc::__errno_location() as usize }
}

/// A hook that the self-test has armed was passed. Other threads' calls are no proof: they may come another way.
#[cold]
#[inline(never)]
pub fn note(hook: &Hook) {
    if TESTER.load(Acquire) == this_thread() {
        PASSED.store(std::ptr::from_ref(hook).cast_mut(), Release);
    }
}

/// EOPNOTSUPP, with the reason on stderr, for a way in that the self-test has switched off.
pub fn permit(off: Off) -> Result<(), CErr> {
    if OFF.load(Relaxed) & bit(off) == 0 {
        return Ok(());
    }
    let guilty = table::all().find(|h| h.needed_by() == off && h.state() == State::Shadowed);
    if let Some(h) = guilty {
        let by = h.by();
        report::log(
            report::Level::Error,
            format_args!(
                "{} is off: calls of {} go to {} and not to libsmc; put libsmc.so first in LD_PRELOAD",
                off.name(),
                h.name(),
                text(&by)
            ),
        );
    }
    Err(CErr(libc::EOPNOTSUPP))
}

fn bit(off: Off) -> u8 {
    1 << off as u8
}

fn text(by: &[u8]) -> &str {
    let name = by.split(|b| *b == 0).next().unwrap_or(&[]);
    std::str::from_utf8(name).unwrap_or("?")
}

fn test() {
    let before = errno();
    let own = &raw const OFF as usize;
    let libc = Object::libc();
    TESTER.store(this_thread(), Release);
    for hook in table::all() {
        examine(hook, own, libc.as_ref());
        if hook.state() == State::Shadowed && hook.needed_by() != Off::Nothing {
            OFF.fetch_or(bit(hook.needed_by()), Relaxed);
        }
    }
    TESTER.store(0, Release);
    set_errno(before);
}

fn examine(hook: &'static Hook, own: usize, libc: Option<&Object>) {
    let name = hook.c_name();
    // This library defines the name, so the lookup never fails, which would allocate.
    let definition = names::definition(name);
    let ours = names::same_object(definition, own);
    if ours && libc.is_some_and(|o| !o.defines(name)) {
        return hook.found(State::Absent, b"");
    }
    let fired = call_of(hook.name()).is_some_and(|args| fires(hook, definition, args));
    let state = match (ours, fired) {
        (true, true) => State::Fires,
        // Tried, and not seen: the name leads here, so this is a defect of ours and no cover.
        (true, false) if call_of(hook.name()).is_some() => State::Shadowed,
        (true, false) => State::Bound,
        (false, true) => State::Forwarded,
        (false, false) => State::Shadowed,
    };
    if ours {
        return hook.found(state, if state == State::Shadowed { b"libsmc itself" } else { b"" });
    }
    names::with_object_name(definition, |by| hook.found(state, if by.is_empty() { b"the program" } else { by }));
}

/// Fills the slot as a first call does; null when there is no real function.
fn real(hook: &'static Hook) -> *mut c_void {
    if !hook.starts_at_stub() {
        return hook.real();
    }
    if hook.filled().is_null() {
        match hook.family {
            Family::Heap => malloc::resolve(),
            Family::Loader => dl::resolve(),
            _ => blocking::resolve(hook),
        }
    }
    hook.filled()
}

/// True for a hook without a slot of its own.
fn slotless(hook: &Hook) -> bool {
    table::mapping::TABLE.iter().any(|h| std::ptr::eq(*h, hook))
}

/// Makes the call through `definition` and sees whether the hook is passed. Another thread's call may empty the slot
/// first: a few attempts.
fn fires(hook: &'static Hook, definition: usize, args: [usize; 6]) -> bool {
    let slotless = slotless(hook);
    let real = if slotless { std::ptr::from_ref(hook).cast_mut().cast() } else { real(hook) };
    if real.is_null() {
        return false;
    }
    // SAFETY: the loader answered a function of this name; each takes at most six integers and pointers.
    let f: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize =
        unsafe { std::mem::transmute(definition) };
    let [a, b, c, d, e, g] = args;
    for _ in 0..8 {
        PASSED.store(std::ptr::null_mut(), Release);
        if slotless {
            hook.set(real)
        } else {
            hook.arm(real)
        }
        // SAFETY: `call_of` gives arguments with which the function of that name fails, or has no effect.
        unsafe { f(a, b, c, d, e, g) };
        if slotless {
            hook.set(std::ptr::null_mut())
        } else {
            hook.disarm()
        }
        if std::ptr::eq(PASSED.load(Acquire), hook) {
            return true;
        }
    }
    false
}

/// Room for the answer of a call that fails before it writes one.
#[repr(align(16))]
struct Scratch([AtomicU8; 512]);
static SCRATCH: Scratch = Scratch([const { AtomicU8::new(0) }; 512]);

const EMPTY: &CStr = c"";
const XATTR: &CStr = c"user.libsmc";
const BAD: usize = usize::MAX;
const HERE: usize = libc::AT_FDCWD as usize;
/// No page begins here, so no range is meant.
const NOWHERE: usize = 1;
const NO_TIME: &[i64; 2] = &[0, 0];

/// Arguments with which a function has no effect; `None` where there are none: what allocates, opens an object, needs a
/// stream or a block, starts a program, or interrupts other threads. (malloc_usable_size of NULL is 0 with most allocators;
/// LeakSanitizer's does not survive it.)
fn call_of(name: &str) -> Option<[usize; 6]> {
    let (path, attr, out) = (EMPTY.as_ptr() as usize, XATTR.as_ptr() as usize, SCRATCH.0.as_ptr() as usize);
    Some(match name {
        // Nothing has an empty name.
        "open" | "open64" | "creat" | "creat64" | "__open_2" | "__open64_2" => [path, 0, 0, 0, 0, 0],
        "access" | "euidaccess" | "eaccess" | "truncate" | "truncate64" => [path, 0, 0, 0, 0, 0],
        "openat" | "openat64" | "__openat_2" | "__openat64_2" | "faccessat" => [HERE, path, 0, 0, 0, 0],
        "stat" | "stat64" | "lstat" | "lstat64" => [path, out, 0, 0, 0, 0],
        "fstatat" | "fstatat64" => [HERE, path, out, 0, 0, 0],
        "statx" => [HERE, path, 0, 0, out, 0],
        "__xstat" | "__xstat64" | "__lxstat" | "__lxstat64" => [1, path, out, 0, 0, 0],
        "__fxstatat" | "__fxstatat64" => [1, HERE, path, out, 0, 0],
        "getxattr" | "lgetxattr" => [path, attr, 0, 0, 0, 0],
        "listxattr" | "llistxattr" => [path, 0, 0, 0, 0, 0],
        // No descriptor is -1.
        "fstat" | "fstat64" | "fgetxattr" => [BAD, if name == "fgetxattr" { attr } else { out }, 0, 0, 0, 0],
        "__fxstat" | "__fxstat64" => [1, BAD, out, 0, 0, 0],
        "flistxattr" | "lseek" | "lseek64" | "ftruncate" | "ftruncate64" => [BAD, 0, 0, 0, 0, 0],
        "posix_fadvise" | "posix_fadvise64" | "dup" | "close" | "fsync" | "fdatasync" => [BAD, 0, 0, 0, 0, 0],
        "dup2" | "dup3" => [BAD, BAD, 0, 0, 0, 0],
        "fcntl" | "fcntl64" => [BAD, libc::F_GETFD as usize, 0, 0, 0, 0],
        "read" | "write" | "pread" | "pread64" | "pwrite" | "pwrite64" => [BAD, 0, 0, 0, 0, 0],
        "readv" | "writev" | "preadv" | "preadv64" | "pwritev" | "pwritev64" => [BAD, 0, 0, 0, 0, 0],
        "preadv2" | "preadv64v2" | "pwritev2" | "pwritev64v2" => [BAD, 0, 0, 0, 0, 0],
        "__read_chk" | "__pread_chk" | "__pread64_chk" | "vmsplice" => [BAD, 0, 0, 0, 0, 0],
        "send" | "sendto" | "sendmsg" | "sendmmsg" | "recv" | "recvfrom" | "recvmsg" | "recvmmsg" => {
            [BAD, 0, 0, 0, 0, 0]
        }
        "__recv_chk" | "connect" | "bind" | "accept" | "accept4" | "getsockname" | "getpeername" => {
            [BAD, 0, 0, 0, 0, 0]
        }
        "getsockopt" | "setsockopt" | "epoll_ctl" | "msgsnd" | "socketpair" => [BAD, 0, 0, 0, 0, 0],
        "epoll_wait" | "epoll_pwait" | "epoll_pwait2" => [BAD, out, 1, 0, 0, 0],
        "msgrcv" => [BAD, out, 0, 0, libc::IPC_NOWAIT as usize, 0],
        "pipe" => [0; 6],
        "pipe2" => [0, BAD, 0, 0, 0, 0],
        // Nothing to wait for, and no time.
        "poll" | "ppoll" | "__poll_chk" | "__ppoll_chk" => {
            [0, 0, if name.contains("ppoll") { NO_TIME.as_ptr() as usize } else { 0 }, 0, 0, 0]
        }
        "select" | "pselect" => [BAD, 0, 0, 0, 0, 0],
        // Unknown flags, and too long an answer.
        "getrandom" => [0, 0, BAD, 0, 0, 0],
        "getentropy" => [0, BAD, 0, 0, 0, 0],
        "waitpid" | "wait4" => [BAD, 0, BAD, 0, 0, 0],
        "wait3" => [0, BAD, 0, 0, 0, 0],
        "waitid" => [BAD, 0, 0, 0, 0, 0],
        "process_vm_readv" | "process_vm_writev" => [0, 0, 0, 0, 0, BAD],
        "readlink" => [path, out, 1, 0, 0, 0],
        "readlinkat" => [HERE, path, out, 1, 0, 0],
        // No bytes.
        "fread" | "fread_unlocked" | "fwrite" | "fwrite_unlocked" | "__fread_chk" | "__fread_unlocked_chk" => [0; 6],
        "mlock" | "munlock" | "brk" | "sbrk" | "mlockall" => [0; 6],
        "mlock2" => [0, 0, BAD, 0, 0, 0],
        "mincore" | "mseal" | "pkey_mprotect" => [NOWHERE, 0, 0, 0, 0, 0],
        "shmdt" => [NOWHERE, 0, 0, 0, 0, 0],
        "shmat" | "process_madvise" => [BAD, 0, 0, 0, 0, 0],
        "fdopen" => [BAD, path, 0, 0, 0, 0],
        // An empty range, or one that begins inside a page.
        "close_range" => [1, 0, 0, 0, 0, 0],
        // No descriptor has such a number.
        "closefrom" => [c_int::MAX as usize, 0, 0, 0, 0, 0],
        "mmap" | "mmap64" => [0, 0, 0, 0, BAD, 0],
        "munmap" | "mremap" | "mprotect" | "msync" => [NOWHERE, 0, 0, 0, 0, 0],
        "madvise" | "posix_madvise" => [NOWHERE, 0, BAD, 0, 0, 0],
        "free" | "cfree" | "free_sized" | "free_aligned_sized" => [0; 6],
        // libc refuses these before it tells another thread; their relatives interrupt every one first.
        "seteuid" | "setegid" => [BAD, 0, 0, 0, 0, 0],
        // No header.
        "capset" => [0, 0, 0, 0, 0, 0],
        // No signal is -1, no change of a mask, no set of signals to wait for.
        "sigaction" | "__sigaction" | "signal" | "bsd_signal" | "ssignal" | "sysv_signal" | "__sysv_signal"
        | "sigset" | "sighold" | "sigrelse" | "sigignore" | "siginterrupt" => [BAD, 0, 0, 0, 0, 0],
        "sigprocmask" | "pthread_sigmask" | "sigblock" | "siggetmask" => [0; 6],
        "sigsuspend" | "__sigsuspend" | "sigwait" | "sigwaitinfo" | "sigtimedwait" => [0; 6],
        "sigpending" => [out, 0, 0, 0, 0, 0],
        "dlsym" => [0, c"close".as_ptr() as usize, 0, 0, 0, 0],
        _ => return None,
    })
}

fn rows(f: &mut dyn FnMut(&Row)) {
    for h in table::all() {
        let by = h.by();
        f(&Row {
            name: h.name(),
            family: h.family,
            required: h.required,
            announces: h.announces(),
            needed_by: h.needed_by(),
            state: h.state(),
            hits: h.hits.get(),
            by: text(&by),
        });
    }
}

fn reasons(f: &mut dyn FnMut(&'static str, u64)) {
    for r in Reason::ALL {
        f(r.name(), table::REASONS.get(*r));
    }
}
