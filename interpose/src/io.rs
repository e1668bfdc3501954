//! Reading, writing and seeking in `/smc/` files: the descriptor side of a region, through the same pages as its views.
//!
//! A read at the end answers 0. A write that would pass the end is short, and one at the end fails with ENOSPC: a region
//! does not grow, so with O_APPEND every write fails so. The offset is moved before the bytes are: threads that share
//! it get different bytes. A buffer that cannot be accessed is a crash here, not EFAULT.

use crate::convert::CErr;
use crate::files::Held;
use libc::{c_int, c_void, iovec};
use smc_engine::core::region::Region;
use smc_engine::policy::posix::{self, Whence};
use std::sync::atomic::Ordering::Relaxed;

/// Most buffers of one call, and most bytes: as the kernel has it.
const IOV_MAX: usize = 1024;
const MOST: usize = 0x7fff_f000;

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Region to buffers.
    Read,
    /// Buffers to region.
    Write,
}

/// One transfer.
///
/// `at` is the place of a pread or pwrite; without it the file offset is used and moved.
///
/// # Safety
/// The buffers are valid for the transfer.
pub unsafe fn transfer(file: &Held, way: Way, bufs: &[iovec], at: Option<i64>) -> Result<isize, CErr> {
    let mode = file.mode();
    let allowed = if way == Way::Read { mode.read } else { mode.write };
    if !allowed {
        return Err(CErr(libc::EBADF));
    }
    let region = file.region()?;
    let total = bufs.iter().try_fold(0usize, |n, b| n.checked_add(b.iov_len)).filter(|n| isize::try_from(*n).is_ok());
    let total = total.ok_or(CErr(libc::EINVAL))?.min(MOST);
    let (off, n) = match at {
        Some(at) => {
            let at = u64::try_from(at).map_err(|_| CErr(libc::EINVAL))?;
            let off = if way == Way::Write { posix::write_start(mode, at, region.len()) } else { at };
            (off, posix::clamp(off, total, region.len()))
        }
        None => reserve(file, way, total, region.len()),
    };
    if n == 0 {
        return if way == Way::Write && total != 0 { Err(CErr(libc::ENOSPC)) } else { Ok(0) };
    }
    // SAFETY: the caller vouches for the buffers, and n is at most their sum.
    let moved = unsafe { pieces(region, way, bufs, off, n) };
    match moved {
        Err((_, done)) if done > 0 => {
            give_back(file, at, off, n, done);
            Ok(done as isize)
        }
        Err((e, _)) => {
            give_back(file, at, off, n, 0);
            Err(e)
        }
        Ok(()) => Ok(n as isize),
    }
}

/// Takes the next `want` bytes from the file offset: (start, count).
fn reserve(file: &Held, way: Way, want: usize, len: u64) -> (u64, usize) {
    let mode = file.mode();
    let start = |off| if way == Way::Write { posix::write_start(mode, off, len) } else { off };
    let next = |off| {
        let n = posix::clamp(start(off), want, len);
        (n != 0).then(|| start(off) + n as u64)
    };
    let off = match file.offset().fetch_update(Relaxed, Relaxed, next) {
        Ok(old) | Err(old) => start(old),
    };
    (off, posix::clamp(off, want, len))
}

/// After a failure: the offset stands behind the bytes that were moved, unless somebody has moved it since.
fn give_back(file: &Held, at: Option<i64>, off: u64, n: usize, done: usize) {
    if at.is_none() {
        let _ = file.offset().compare_exchange(off + n as u64, off + done as u64, Relaxed, Relaxed);
    }
}

/// Moves the first `n` bytes of the buffers; on failure says how many were moved before.
///
/// # Safety
/// As for [`transfer`].
unsafe fn pieces(region: &Region, way: Way, bufs: &[iovec], off: u64, n: usize) -> Result<(), (CErr, usize)> {
    let mut done = 0;
    for b in bufs {
        let len = b.iov_len.min(n - done);
        if len == 0 {
            continue;
        }
        let from = off + done as u64;
        let status = match way {
            // SAFETY: the caller vouches for the buffer.
            Way::Read => unsafe { region.read(from, b.iov_base.cast(), len) },
            // SAFETY: the caller vouches for the buffer.
            Way::Write => unsafe { region.write(from, b.iov_base.cast_const().cast(), len) },
        };
        CErr::ok(status).map_err(|e| (e, done))?;
        done += len;
    }
    Ok(())
}

/// One buffer as a list.
pub fn one(buf: *const c_void, n: usize) -> [iovec; 1] {
    [iovec { iov_base: buf.cast_mut(), iov_len: n }]
}

/// A C list of buffers.
///
/// # Safety
/// `iov` points to `n` entries.
pub unsafe fn list<'a>(iov: *const iovec, n: c_int) -> Result<&'a [iovec], CErr> {
    match usize::try_from(n) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller vouches for n entries.
        Ok(n) if n <= IOV_MAX && !iov.is_null() => Ok(unsafe { std::slice::from_raw_parts(iov, n) }),
        _ => Err(CErr(libc::EINVAL)),
    }
}

/// lseek.
pub fn seek(file: &Held, by: i64, whence: c_int) -> Result<i64, CErr> {
    let len = file.region()?.len();
    let whence = match whence {
        libc::SEEK_SET => Whence::Set,
        libc::SEEK_CUR => Whence::Cur,
        libc::SEEK_END => Whence::End,
        libc::SEEK_DATA => Whence::Data,
        libc::SEEK_HOLE => Whence::Hole,
        _ => return Err(CErr(libc::EINVAL)),
    };
    let target = |cur| match posix::seek(whence, by, cur, len) {
        None => Err(CErr(libc::EINVAL)),
        Some(Err(())) => Err(CErr(libc::ENXIO)),
        Some(Ok(to)) => Ok(to),
    };
    let moved = file.offset().fetch_update(Relaxed, Relaxed, |cur| target(cur).ok());
    match moved {
        Ok(old) | Err(old) => target(old).map(|to| to as i64),
    }
}
