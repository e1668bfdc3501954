//! Signals taken one at a time, locks on files, and what the kernel knows of this process.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Signals that are received by [`Signals::next`] and interrupt nothing.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks `signals` in this thread and in the threads it starts from here on.
    pub fn block(signals: &[i32]) -> Signals {
        let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: set is a live out buffer.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: sigemptyset has filled it.
        let mut set = unsafe { set.assume_init() };
        for s in signals {
            // SAFETY: set is a live signal set; a number that is no signal is refused.
            unsafe { libc::sigaddset(&raw mut set, *s) };
        }
        // SAFETY: set is a live signal set; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        Signals(set)
    }

    /// The next signal and the number that came with it (0 without one), or `None` when none came in `wait`.
    pub fn next(&self, wait: Duration) -> Option<(i32, u64)> {
        let t = libc::timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: set and time are live for the call, info is a live out buffer.
        let s = unsafe { libc::sigtimedwait(&raw const self.0, info.as_mut_ptr(), &raw const t) };
        // SAFETY: zeroed, then filled by the call; every bit pattern is a valid siginfo_t.
        let info = unsafe { info.assume_init() };
        // SAFETY: a signal sent with a number carries one.
        let number = if info.si_code == libc::SI_QUEUE { unsafe { info.si_value() }.sival_ptr.addr() } else { 0 };
        // It is an int for the sender.
        (s > 0).then_some((s, (number & 0xffff_ffff) as u64))
    }
}

/// True when this process was started with `signal` ignored, as by nohup.
pub fn ignored(signal: i32) -> bool {
    let mut old = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: old is a live out buffer; no action is set.
    unsafe { libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr()) };
    // SAFETY: zeroed, then filled by the call; every bit pattern is a valid sigaction.
    unsafe { old.assume_init() }.sa_sigaction == libc::SIG_IGN
}

/// Takes over a descriptor that this process was started with. To be called before it opens anything itself.
pub fn inherited(fd: i32) -> std::io::Result<File> {
    // SAFETY: sets a flag of a descriptor; a bad one is refused.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is open, and nothing in this process has opened it: it was given to us.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// An extended attribute of at most 64 bytes; `None` when the file has none, or its file system knows none.
pub fn attribute(f: &File, name: &CStr) -> Option<Vec<u8>> {
    let mut buf = vec![0u8; 64];
    // SAFETY: the name ends in NUL and the buffer has the length given.
    let n = unsafe { libc::fgetxattr(f.as_raw_fd(), name.as_ptr(), buf.as_mut_ptr().cast(), buf.len()) };
    buf.truncate(usize::try_from(n).ok()?);
    Some(buf)
}

/// Sets an extended attribute, where the file system knows them.
pub fn set_attribute(f: &File, name: &CStr, value: &[u8]) {
    // SAFETY: the name ends in NUL and the value has the length given.
    let _ = unsafe { libc::fsetxattr(f.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
}

/// Removes an extended attribute.
pub fn remove_attribute(f: &File, name: &CStr) {
    // SAFETY: the name ends in NUL.
    let _ = unsafe { libc::fremovexattr(f.as_raw_fd(), name.as_ptr()) };
}

/// Locks a file for this process alone; false when another has it. Ends when the file is closed.
pub fn lock_alone(f: &File) -> std::io::Result<bool> {
    // SAFETY: flock touches no memory.
    match unsafe { libc::flock(f.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(true),
        _ => match std::io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
            e => Err(e),
        },
    }
}

/// Who this process is.
pub struct Ids {
    pub user: u32,
    pub effective_user: u32,
    pub group: u32,
    pub effective_group: u32,
}

/// Users and groups of this process.
pub fn ids() -> Ids {
    // SAFETY: has no arguments and cannot fail.
    let user = unsafe { libc::getuid() };
    // SAFETY: as above.
    let effective_user = unsafe { libc::geteuid() };
    // SAFETY: as above.
    let group = unsafe { libc::getgid() };
    // SAFETY: as above.
    let effective_group = unsafe { libc::getegid() };
    Ids { user, effective_user, group, effective_group }
}

/// True when the kernel would start this file: it has an execute bit for us, and its file system is not mounted noexec.
pub fn may_execute(p: &Path) -> bool {
    let Ok(path) = CString::new(p.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is NUL-terminated and lives for the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// True when the file system of this file is mounted nosuid.
pub fn no_set_user_id(p: &Path) -> bool {
    let Ok(path) = CString::new(p.as_os_str().as_bytes()) else { return false };
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the path is NUL-terminated and found is a live out buffer.
    let done = unsafe { libc::statvfs(path.as_ptr(), found.as_mut_ptr()) };
    // SAFETY: zeroed, then filled by the call; every bit pattern is a valid statvfs.
    done == 0 && unsafe { found.assume_init() }.f_flag & libc::ST_NOSUID != 0
}

/// True when programs started by this process gain no privileges from their files.
pub fn no_new_privileges() -> bool {
    // SAFETY: this request takes no pointer.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// True when the file has the extended attribute.
pub fn has_attribute(p: &Path, name: &CStr) -> bool {
    let Ok(path) = CString::new(p.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are NUL-terminated and live for the call; a size of 0 asks for the length only.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

/// Calls the preloaded library's `smc_hooks_each`; `None` when no library is loaded. This program has a copy of its own,
/// which is not exported and so not found.
///
/// # Safety
/// `each` may be called with NULL.
pub unsafe fn hooks_each(
    each: unsafe extern "C" fn(*const smc_engine::capi::coverage::smc_hook_info, *mut libc::c_void) -> i32,
) -> Option<u32> {
    use smc_engine::capi::coverage::smc_hook_fn;
    // SAFETY: the name is NUL-terminated.
    let p = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"smc_hooks_each".as_ptr()) };
    if p.is_null() {
        return None;
    }
    // SAFETY: the library's definition has this C signature; enum smc_status is an unsigned int there.
    let f: unsafe extern "C" fn(smc_hook_fn, *mut libc::c_void) -> u32 = unsafe { std::mem::transmute(p) };
    // SAFETY: as the caller vouches.
    Some(unsafe { f(Some(each), std::ptr::null_mut()) })
}

/// What the Rust runtime changes before `main`: it ignores SIGPIPE, and opens /dev/null for closed standard descriptors.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// Runs before the runtime: notes how this process was started.
extern "C" fn note() {
    PIPE_IGNORED.store(ignored(libc::SIGPIPE), Relaxed);
    for (fd, closed) in (0..).zip(&CLOSED) {
        // SAFETY: asks for the flags of a descriptor; a closed one is refused.
        closed.store(unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0, Relaxed);
    }
}

/// Gives the program that this process becomes the signals and descriptors this process was started with.
pub fn as_at_start() {
    let action = if PIPE_IGNORED.load(Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: no handler is installed, so nothing can run.
    unsafe { libc::signal(libc::SIGPIPE, action) };
    for (fd, closed) in (0..).zip(&CLOSED) {
        if closed.load(Relaxed) {
            // Not closed yet: a failure may still have to be told, and must not meet another file under this number.
            // SAFETY: sets a flag of a descriptor.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

/// This process's environment, entry by entry.
pub fn environment() -> Vec<CString> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut all = Vec::new();
    // SAFETY: nobody changes the environment in this tool; it is NULL or ends in NULL.
    let mut p = unsafe { environ };
    while !p.is_null() {
        // SAFETY: p is an entry, the NULL at the end included.
        let line = unsafe { *p };
        if line.is_null() {
            break;
        }
        // SAFETY: an entry is a NUL-terminated string.
        all.push(unsafe { CStr::from_ptr(line) }.to_owned());
        // SAFETY: the entry was not the last one.
        p = unsafe { p.add(1) };
    }
    all
}

/// execve. Comes back only when it fails.
pub fn execute(file: &CStr, argv: &[CString], env: &[CString]) -> std::io::Error {
    let pointers = |l: &[CString]| -> Vec<*const libc::c_char> {
        l.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: the strings and both NULL-terminated arrays live for the call.
    unsafe { libc::execve(file.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    std::io::Error::last_os_error()
}

/// True when the shell's pattern fits the whole text.
pub fn matches(pattern: &str, text: &OsStr) -> bool {
    let (Ok(pattern), Ok(text)) = (CString::new(pattern), CString::new(text.as_bytes())) else { return false };
    // SAFETY: both strings are NUL-terminated and live for the call.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), 0) == 0 }
}
