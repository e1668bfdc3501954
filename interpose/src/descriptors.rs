//! Calls on descriptors that move no bytes: seek, sync, duplicate, close, fcntl.
//!
//! fsync, fdatasync and close release: all earlier stores through the region are at the home when they return 0.
//!
//! The library's own descriptors are left open by what closes many numbers at once; close of one answers EBADF, and dup2 onto
//! one EBUSY.

use crate::blocking::{Frame, leave};
use crate::convert::{CErr, answer, errno, set_errno};
use crate::files::{self, Held};
use crate::io;
use crate::table::{Hook, handled, hook, real};
use libc::{c_char, c_int, c_void, off_t, size_t, ssize_t};
use smc_engine::base::Status;
use smc_engine::core::engine::Engine;
use smc_engine::policy::posix;
use smc_engine::sys::descriptor;
use smc_engine::sys::errno::syscall;
use smc_engine::sys::{kept, thread};

/// What the library has to say goes there, unless the program has closed it: what it opens there then is another file.
const STDERR: c_int = 2;

/// The open file behind `fd`, or `None` with the reason counted.
fn ours(fd: c_int) -> Option<Held> {
    if !files::any() {
        return None;
    }
    let file = files::get(fd);
    if handled(posix::file_call(file.is_some())) { file } else { None }
}

macro_rules! file_hooks {
    ([$fd:ident] $( fn $name:ident($($a:ident: $t:ty),*) -> $r:ty = |$f:ident| $do:expr; )*) => { $(
        /// The libc function of that name, extended to `/smc/` files.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> $r {
            if let Some($f) = ours($fd) {
                hook::$name.hits.hit();
                let before = errno();
                return answer(before, $do);
            }
            // SAFETY: the arguments are the caller's own.
            unsafe { real::$name($($a),*) }
        }
    )* };
}

file_hooks! {
    [fd]
    fn fgetxattr(fd: c_int, name: *const c_char, out: *mut c_void, room: size_t) -> ssize_t = |_f| Err(CErr(libc::EOPNOTSUPP));
    fn flistxattr(fd: c_int, out: *mut c_char, room: size_t) -> ssize_t = |_f| Err(CErr(libc::EOPNOTSUPP));
    fn lseek(fd: c_int, by: off_t, whence: c_int) -> off_t = |f| io::seek(&f, by, whence);
    fn lseek64(fd: c_int, by: off_t, whence: c_int) -> off_t = |f| io::seek(&f, by, whence);
    fn ftruncate(fd: c_int, len: off_t) -> c_int = |f| same_size(&f, len);
    fn ftruncate64(fd: c_int, len: off_t) -> c_int = |f| same_size(&f, len);
    // Answers the error itself and leaves errno alone.
    fn posix_fadvise(fd: c_int, off: off_t, len: off_t, advice: c_int) -> c_int = |f| Ok(advise(&f, off, len, advice));
    fn posix_fadvise64(fd: c_int, off: off_t, len: off_t, advice: c_int) -> c_int = |f| Ok(advise(&f, off, len, advice));
}

/// Everything stored through the region is at the home afterwards.
fn release(f: &Held) -> Result<c_int, CErr> {
    let region = f.region()?;
    CErr::ok(region.release(0, region.len())).map(|()| 0)
}

fn same_size(f: &Held, len: off_t) -> Result<c_int, CErr> {
    let region = f.region()?;
    if f.mode().write && u64::try_from(len) == Ok(region.len()) { Ok(0) } else { Err(Status::INVALID_ARGUMENT.into()) }
}

/// WILLNEED prefetches; the others have no effect.
fn advise(f: &Held, off: off_t, len: off_t, advice: c_int) -> c_int {
    let Ok(region) = f.region() else { return libc::EIO };
    let (Ok(off), Ok(len)) = (u64::try_from(off), u64::try_from(len)) else { return libc::EINVAL };
    if !(libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice) {
        return libc::EINVAL;
    }
    let rest = region.len().saturating_sub(off);
    let len = if len == 0 { rest } else { len.min(rest) };
    if advice == libc::POSIX_FADV_WILLNEED && len > 0 {
        // Advice: a page that cannot be had now is tried again when it is touched.
        let _ = region.prefetch(off, len);
    }
    0
}

/// After a successful duplication: `new` is one more number of `from`'s file.
fn shared(from: &Held, new: c_int) -> c_int {
    if from.inherited() || new < 0 {
        return new;
    }
    match files::share(from, new) {
        Ok(()) => new,
        Err(e) => {
            crate::paths::close_raw(new);
            answer(0, Err(e))
        }
    }
}

/// dup(2), extended to `/smc/` files: the new number shares offset and flags.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let from = ours(fd);
    // SAFETY: the arguments are the caller's own.
    let new = unsafe { real::dup(fd) };
    match from {
        Some(f) => {
            hook::dup.hits.hit();
            shared(&f, new)
        }
        None => new,
    }
}

/// dup2(2), extended to `/smc/` files. A `/smc/` file that was `to` before is closed; what that could not write back is lost
/// silently, as it is for every file: call fsync first.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: the arguments are the caller's own.
    duplicate_onto(&hook::dup2, fd, to, || unsafe { real::dup2(fd, to) })
}

/// dup3(2), extended to `/smc/` files, as [`dup2`].
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the arguments are the caller's own.
    duplicate_onto(&hook::dup3, fd, to, || unsafe { real::dup3(fd, to, flags) })
}

fn duplicate_onto(hook: &Hook, fd: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    let (from, old) = (ours(fd), ours(to));
    if fd != to && spared(to) {
        hook.hits.hit();
        return answer(0, Err(CErr(libc::EBUSY)));
    }
    if from.is_some() && !files::fits(to) && to >= 0 {
        return answer(0, Err(CErr(libc::EMFILE)));
    }
    let new = real();
    if new < 0 || fd == to {
        return new;
    }
    if to == STDERR {
        descriptor::stderr_is(true);
    }
    if let Some(old) = old.filter(|o| !o.inherited()) {
        let _ = release(&old);
        files::remove(to);
    }
    match from {
        Some(f) => {
            hook.hits.hit();
            shared(&f, new)
        }
        None => new,
    }
}

/// The library's own descriptors stay open, as if the program had none of these numbers. Not in a fork child, which has
/// no use for them.
fn spared(fd: c_int) -> bool {
    kept::is_kept(fd) && ours_here()
}

/// True in the process, and on a thread with the table, that the list of kept numbers is about.
fn ours_here() -> bool {
    Engine::running().is_some() && !thread::is_own()
}

/// close_range(2), extended to `/smc/` files: each is released and forgotten.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    // With CLOSE_RANGE_CLOEXEC nothing is closed, and with CLOSE_RANGE_UNSHARE not for the other threads.
    if files::any() && first <= last && flags == 0 {
        for fd in files::numbers(first, last) {
            forget(&hook::close_range, fd);
        }
    }
    if (first..=last).contains(&2) && flags == 0 {
        descriptor::stderr_is(false);
    }
    if flags & CLOEXEC != 0 || first > last || !ours_here() {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real::close_range(first, last, flags) };
    }
    around_kept(first, last, flags)
}

/// CLOSE_RANGE_CLOEXEC.
const CLOEXEC: c_int = 4;

/// Closes what lies between the library's descriptors.
fn around_kept(first: u32, last: u32, flags: c_int) -> c_int {
    let mut from = first;
    while let Some(own) = kept::first_in(from, last) {
        hook::close_range.hits.hit();
        // SAFETY: a part of the caller's range.
        if own > from && unsafe { real::close_range(from, own - 1, flags) } != 0 {
            return -1;
        }
        if own == last {
            return 0;
        }
        from = own + 1;
    }
    // SAFETY: the rest of the caller's range.
    unsafe { real::close_range(from, last, flags) }
}

/// closefrom(3), as [`close_range`]. Answers nothing in C.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) -> c_int {
    let from = u32::try_from(first).unwrap_or(0);
    if !files::any() && (!ours_here() || kept::first_in(from, u32::MAX).is_none()) {
        // SAFETY: the argument is the caller's own.
        return unsafe { real::closefrom(first) };
    }
    hook::closefrom.hits.hit();
    let before = errno();
    // SAFETY: as closefrom, where the kernel has the call.
    if unsafe { close_range(from, u32::MAX, 0) } != 0 {
        // SAFETY: the argument is the caller's own.
        unsafe { real::closefrom(first) };
    }
    set_errno(before);
    0
}

/// Before a number is closed: releases, and forgets it, if it is ours.
fn forget(hook: &Hook, fd: c_int) {
    let Some(f) = ours(fd).filter(|f| !f.inherited()) else { return };
    hook.hits.hit();
    // As with dup2, nobody is told of a failure.
    let _ = release(&f);
    files::remove(fd);
}

fn synced(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let file = ours(f.arg::<0, c_int>())?;
    hook.hits.hit();
    let before = errno();
    Some(answer(before, release(&file)) as usize)
}

/// close: releases. EIO when that failed; the descriptor is closed all the same.
fn closed(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let fd = f.arg::<0, c_int>();
    if spared(fd) {
        hook.hits.hit();
        return Some(answer::<c_int>(0, Err(CErr(libc::EBADF))) as usize);
    }
    if fd == STDERR {
        descriptor::stderr_is(false);
    }
    close_ours(hook, fd).map(|r| r as usize)
}

/// Closes a number that is ours; `None` when it is not.
pub fn close_ours(hook: &Hook, fd: c_int) -> Option<c_int> {
    let before = errno();
    let file = ours(fd).filter(|f| !f.inherited())?;
    hook.hits.hit();
    let released = release(&file);
    files::remove(fd);
    drop(file);
    crate::paths::close_raw(fd);
    Some(answer(before, released.map_err(|_| CErr(libc::EIO))))
}

/// fcntl. Variadic in C; the third argument is passed in the same register either way.
fn controlled(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    control(hook, f.arg::<0, c_int>(), f.arg::<1, c_int>(), f.arg::<2, usize>()).map(|r| r as usize)
}

crate::blocking::blocking! {
    Files required close, stderr, -1 => closed, leave;
    Files required fsync, active, -1 => synced, leave;
    Files required fdatasync, active, -1 => synced, leave;
    Files required fcntl, active, -1 => controlled, leave;
    Files required fcntl64, active, -1 => controlled, leave;
}

/// fcntl of a `/smc/` file; `None` when the real one is to be called.
///
/// Duplicates share the open file; F_GETFL and F_SETFL work on its flags, of which O_APPEND and O_NONBLOCK can change;
/// record locks answer EINVAL, as on any file that cannot be locked.
fn control(hook: &Hook, fd: c_int, cmd: c_int, arg: usize) -> Option<c_int> {
    let f = ours(fd)?;
    hook.hits.hit();
    Some(match cmd {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => shared(&f, duplicate(fd, cmd, arg)),
        libc::F_GETFL => f.flags(),
        libc::F_SETFL => {
            f.set_flags(libc::O_APPEND | libc::O_NONBLOCK, arg as c_int);
            0
        }
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            answer(0, Err(CErr(libc::EINVAL)))
        }
        _ => return None,
    })
}

/// F_DUPFD by system call, with errno as C has it.
fn duplicate(fd: c_int, cmd: c_int, least: usize) -> c_int {
    // SAFETY: the argument is a number; no memory is touched.
    let new = unsafe { syscall(libc::SYS_fcntl, [fd as usize, cmd as usize, least, 0, 0, 0]) };
    answer(errno(), new.map(|n| n as c_int).map_err(CErr::from))
}
