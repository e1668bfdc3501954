//! Hooks of the calls that move bytes between a descriptor and memory.
//!
//! For a process without regions each is one test and a jump. Otherwise a `/smc/` descriptor is served here ([`crate::io`]),
//! and on every other one a buffer may lie in a view ([`crate::touch`], [`crate::direct`]).

use crate::blocking::Frame;
use crate::bounce::Nested;
use crate::convert::{CErr, answer, errno, set_errno};
use crate::direct;
use crate::files;
use crate::io::{self, Way};
use crate::table::{Hook, handled};
use crate::touch::{self, Each, Use};
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

    /// Names each buffer; a list that cannot be read has none.
    pub fn each(self, how: Use, each: Each) {
        match self {
            Buffers::One(p, n) => each(p as usize, n, how),
            Buffers::List(p, n) => touch::vector(p as usize, usize::try_from(n).unwrap_or(0), how, each),
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

/// One buffer or a list at argument 1; `AT` is the argument that holds the place, 0 when there is none.
fn served<const WRITE: bool, const LIST: bool, const AT: usize>(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let at = (AT != 0).then(|| f.arg::<AT, i64>());
    // SAFETY: the caller of the hook keeps its contract.
    let done = unsafe { serve(hook, f.arg::<0, c_int>(), way(WRITE), buffers(f, LIST), at) };
    // A place of -1 is an error here, and the file offset to the call that direct makes.
    let at = at.map(|at| if at == -1 { i64::MIN } else { at });
    match done {
        Some(n) => Some(n as usize),
        None => direct::call(hook, f, way(WRITE), buffers(f, LIST), at, 0).or_else(|| passed::<WRITE, LIST>(hook, f)),
    }
}

/// preadv2 and pwritev2: a place of -1 is the file offset. Of the flags only RWF_HIPRI, which asks for nothing here, is
/// taken: EOPNOTSUPP for the others, as file systems answer.
fn served_with_flags<const WRITE: bool>(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let flags = f.arg::<4, c_int>();
    if flags & !libc::RWF_HIPRI != 0 {
        return match refused(hook, f.arg::<0, c_int>()) {
            Some(n) => Some(n as usize),
            None => direct::call(hook, f, way(WRITE), buffers(f, true), Some(f.arg::<3, i64>()), flags)
                .or_else(|| passed::<WRITE, true>(hook, f)),
        };
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

/// Not ours: what lies in a view is brought in before.
fn passed<const WRITE: bool, const LIST: bool>(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let list = |f: &Frame, each: Each| named(f, WRITE, LIST, each);
    if WRITE {
        touch::before(hook, f, list);
    } else {
        let nested = if LIST { Nested::Vector } else { Nested::Nothing };
        touch::before_once(hook, f, nested, |f| !touch::keeps(f.arg::<0, c_int>()), list);
    }
    None
}

fn absent<const WRITE: bool, const LIST: bool>(_: &'static Hook, f: &mut Frame) -> bool {
    if !WRITE && errno() == libc::EFAULT && !touch::keeps(f.arg::<0, c_int>()) {
        set_errno(libc::EFAULT);
        return false;
    }
    touch::again(f, |f, each| named(f, WRITE, LIST, each))
}

/// The buffers. What is read from a file fills them, as far as the file goes.
fn named(f: &Frame, write: bool, list: bool, each: Each) {
    if write {
        return buffers(f, list).each(Use::Source, each);
    }
    let fd = f.arg::<0, c_int>();
    buffers(f, list).each(Use::Target, &mut |at, len, how| {
        let size = || touch::kind(fd).filter(|(mode, _)| mode & libc::S_IFMT == libc::S_IFREG).map(|(_, size)| size);
        match touch::is_long(at, len).then(size).flatten() {
            Some(size) => each(at, len.min(usize::try_from(size).unwrap_or(usize::MAX)), Use::Filled),
            None => each(at, len, how),
        }
    });
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
}
