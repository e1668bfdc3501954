//! Hooks of the calls that move bytes between a descriptor and memory.
//!
//! For a process without regions each is one test and a jump. Otherwise a `/smc/` descriptor is served here ([`crate::io`]),
//! and on every other one a buffer may lie in a view ([`crate::touch`]).

use crate::blocking::{Frame, leave};
use crate::convert::{CErr, answer, errno, set_errno};
use crate::files;
use crate::io::{self, Way};
use crate::table::{Hook, handled};
use crate::touch::{Use, touch_all, touch_early};
use libc::{c_int, c_void, iovec, size_t, ssize_t};
use smc_engine::policy::posix;

/// The application's buffers as it gave them.
#[derive(Clone, Copy)]
pub enum Buffers {
    /// One.
    One(*const c_void, size_t),
    /// A list.
    List(*const iovec, c_int),
}

impl Buffers {
    /// Calls `f` with the list.
    ///
    /// # Safety
    /// A list has as many entries as it says.
    unsafe fn with<R>(self, f: impl FnOnce(&[iovec]) -> R) -> Result<R, CErr> {
        match self {
            Buffers::One(p, n) => Ok(f(&io::one(p, n))),
            // SAFETY: the caller vouches for the list.
            Buffers::List(p, n) => unsafe { io::list(p, n) }.map(f),
        }
    }
}

/// Serves a call on a `/smc/` descriptor; `None` when it is not one.
///
/// # Safety
/// The buffers are as the hooked function's contract has them.
#[inline(never)]
pub unsafe fn serve(hook: &Hook, fd: c_int, way: Way, bufs: Buffers, at: Option<i64>) -> Option<ssize_t> {
    let before = errno();
    let file = files::get(fd);
    if !handled(posix::file_call(file.is_some())) {
        return None;
    }
    let file = file?;
    hook.hits.hit();
    // SAFETY: the caller vouches for the buffers.
    let moved = |b: &[iovec]| unsafe { io::transfer(&file, way, b, at) };
    // SAFETY: the caller vouches for the list.
    let r = unsafe { bufs.with(moved) };
    Some(answer(before, r.and_then(|r| r)))
}

/// After a call that failed with EFAULT: brings in absent pages of the buffers. True when the call is to be repeated.
///
/// # Safety
/// As for [`serve`].
#[cold]
#[inline(never)]
unsafe fn brought_in(way: Way, bufs: Buffers, before: c_int) -> bool {
    if errno() != libc::EFAULT {
        return false;
    }
    let how = if way == Way::Read { Use::Target } else { Use::Source };
    // SAFETY: the caller vouches for the list, and the kernel has read it.
    let any = unsafe { bufs.with(|b| touch_all(b, how)) } == Ok(true);
    set_errno(if any { before } else { libc::EFAULT });
    any
}

/// One buffer at argument 1; `AT` is the argument that holds the place, 0 when there is none.
fn served<const WRITE: bool, const LIST: bool, const AT: usize>(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let at = (AT != 0).then(|| f.arg::<AT, i64>());
    // SAFETY: the caller of the hook keeps its contract.
    let done = unsafe { serve(hook, f.arg::<0, c_int>(), way(WRITE), buffers(f, LIST), at) };
    if done.is_none() && !WRITE && !LIST && AT == 0 {
        return early::<false>(hook, f);
    }
    done.map(|r| r as usize)
}

/// preadv2 and pwritev2: a place of -1 is the file offset. Of the flags only RWF_HIPRI, which asks for nothing here, is
/// taken: EOPNOTSUPP for the others, as file systems answer.
fn served_with_flags<const WRITE: bool>(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    if f.arg::<4, c_int>() & !libc::RWF_HIPRI != 0 {
        return refused(hook, f.arg::<0, c_int>()).map(|r| r as usize);
    }
    if f.arg::<3, i64>() == -1 { served::<WRITE, true, 0>(hook, f) } else { served::<WRITE, true, 3>(hook, f) }
}

/// EOPNOTSUPP on a `/smc/` descriptor.
#[cold]
#[inline(never)]
fn refused(hook: &Hook, fd: c_int) -> Option<ssize_t> {
    let before = errno();
    let file = files::get(fd);
    if !handled(posix::file_call(file.is_some())) {
        return None;
    }
    hook.hits.hit();
    Some(answer(before, Err(CErr(libc::EOPNOTSUPP))))
}

fn absent<const WRITE: bool, const LIST: bool>(_: &'static Hook, f: &mut Frame) -> bool {
    // SAFETY: as above.
    unsafe { brought_in(way(WRITE), buffers(f, LIST), f.errno as c_int) }
}

fn way(write: bool) -> Way {
    if write { Way::Write } else { Way::Read }
}

fn buffers(f: &Frame, list: bool) -> Buffers {
    if list { Buffers::List(f.arg::<1, _>(), f.arg::<2, _>()) } else { Buffers::One(f.arg::<1, _>(), f.arg::<2, _>()) }
}

/// The fortified reads. Where the room is too small libc itself ends the program.
fn served_checked<const AT: usize, const ROOM: usize>(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    if f.arg::<2, usize>() > f.arg::<ROOM, usize>() { None } else { served::<false, false, AT>(hook, f) }
}

/// Sockets are never ours, but their buffers may lie in a view.
fn early<const WRITE: bool>(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let how = if WRITE { Use::Source } else { Use::Target };
    if touch_early(f.arg::<1, usize>(), f.arg::<2, usize>(), how) {
        hook.hits.hit();
    }
    set_errno(f.errno as c_int);
    None
}

crate::blocking::blocking! {
    Buffers required read, active, -1 => served::<false, false, 0>, absent::<false, false>;
    Buffers required write, active, -1 => served::<true, false, 0>, absent::<true, false>;
    Buffers required pread, active, -1 => served::<false, false, 3>, absent::<false, false>;
    Buffers required pread64, active, -1 => served::<false, false, 3>, absent::<false, false>;
    Buffers required pwrite, active, -1 => served::<true, false, 3>, absent::<true, false>;
    Buffers required pwrite64, active, -1 => served::<true, false, 3>, absent::<true, false>;
    Buffers required readv, active, -1 => served::<false, true, 0>, absent::<false, true>;
    Buffers required writev, active, -1 => served::<true, true, 0>, absent::<true, true>;
    Buffers required preadv, active, -1 => served::<false, true, 3>, absent::<false, true>;
    Buffers required preadv64, active, -1 => served::<false, true, 3>, absent::<false, true>;
    Buffers required pwritev, active, -1 => served::<true, true, 3>, absent::<true, true>;
    Buffers required pwritev64, active, -1 => served::<true, true, 3>, absent::<true, true>;
    Buffers required preadv2, active, -1 => served_with_flags::<false>, absent::<false, true>;
    Buffers required preadv64v2, active, -1 => served_with_flags::<false>, absent::<false, true>;
    Buffers required pwritev2, active, -1 => served_with_flags::<true>, absent::<true, true>;
    Buffers required pwritev64v2, active, -1 => served_with_flags::<true>, absent::<true, true>;
    Buffers optional __read_chk, active, -1 => served_checked::<0, 3>, absent::<false, false>;
    Buffers optional __pread_chk, active, -1 => served_checked::<3, 4>, absent::<false, false>;
    Buffers optional __pread64_chk, active, -1 => served_checked::<3, 4>, absent::<false, false>;
    Buffers required send, active, -1 => early::<true>, leave;
    Buffers required sendto, active, -1 => early::<true>, leave;
    Buffers required recv, active, -1 => early::<false>, leave;
    Buffers required recvfrom, active, -1 => early::<false>, leave;
}
