//! Signals taken one at a time, locks on files, and what the kernel knows of this process.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
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

/// Real user and group of this process.
pub fn real_ids() -> (u32, u32) {
    // SAFETY: has no arguments and cannot fail.
    let uid = unsafe { libc::getuid() };
    // SAFETY: as above.
    let gid = unsafe { libc::getgid() };
    (uid, gid)
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
