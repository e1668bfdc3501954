//! Files opened with O_DIRECT, when the buffers lie in a view: the bytes go by memory of our own.
//!
//! A device that reads the file writes to the page itself, which the kernel notes when the read begins and not when the
//! bytes arrive. A release or an eviction in between would take the page for clean, and its bytes would be lost; copied from
//! here they are stored as any program stores. The other way round all pages must be here at one moment, which is more than
//! touching them can promise: copied from the view each has its own.

use crate::blocking::Frame;
use crate::convert::{CErr, answer};
use crate::io::Way;
use crate::table::Hook;
use crate::touch::{Use, any_view, kind};
use crate::transfer::Buffers;
use libc::{c_int, iovec};
use smc_engine::base::Status;
use smc_engine::sys::errno::syscall;
use smc_engine::sys::mem::{self, Mapping};

/// Read at one time, and most memory of our own.
const STEP: usize = 1 << 20;

/// The whole call, when it goes past the cache and a buffer lies in a view; `None` when the real one is to be made. `at` is
/// the place, `None` the file offset.
pub fn call(hook: &Hook, f: &Frame, way: Way, bufs: Buffers, at: Option<i64>, flags: c_int) -> Option<usize> {
    if !any_view(0, usize::MAX) {
        return None;
    }
    let fd = f.arg::<0, c_int>();
    let (mut meets, mut total) = (false, 0usize);
    bufs.each(Use::Filled, &mut |start, len, how| {
        if how == Use::Filled {
            meets |= len != 0 && any_view(start, len);
            total = total.saturating_add(len);
        }
    });
    if !meets || !is_direct(fd) {
        return None;
    }
    hook.hits.hit();
    Some(answer(f.errno as c_int, moved(fd, way, bufs, total, at.unwrap_or(-1), flags)) as usize)
}

fn is_direct(fd: c_int) -> bool {
    // SAFETY: F_GETFL touches no memory.
    let flags = unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    // On a pipe the flag means something else.
    let device = |(mode, _)| matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK);
    flags.is_ok_and(|f| f as c_int & libc::O_DIRECT != 0) && kind(fd).is_some_and(device)
}

fn moved(fd: c_int, way: Way, bufs: Buffers, total: usize, at: i64, flags: c_int) -> Result<isize, CErr> {
    let own = Mapping::anonymous(STEP.min(total.max(1)).next_multiple_of(STEP), mem::RW).map_err(CErr::from)?;
    let mut done = 0;
    while done < total {
        let want = STEP.min(total - done);
        let place = if at < 0 { at } else { at.saturating_add(done as i64) };
        if way == Way::Write {
            copy(&own, want, way, bufs, done)?;
        }
        let got = match step(fd, way, &own, want, place, flags) {
            Ok(n) => n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        };
        if way == Way::Read {
            copy(&own, got, way, bufs, done)?;
        }
        done += got;
        if got < want {
            break;
        }
    }
    Ok(done as isize)
}

fn step(fd: c_int, way: Way, own: &Mapping, want: usize, at: i64, flags: c_int) -> Result<usize, CErr> {
    let to = iovec { iov_base: own.ptr().cast(), iov_len: want };
    let args = [fd as usize, &raw const to as usize, 1, at as usize, 0, flags as usize];
    let number = if way == Way::Read { libc::SYS_preadv2 } else { libc::SYS_pwritev2 };
    // SAFETY: the list is one entry, and its buffer is as long as it says.
    unsafe { syscall(number, args) }.map_err(CErr::from)
}

/// Copies `n` bytes between our memory and where the buffers' bytes from `skip` on are.
fn copy(own: &Mapping, n: usize, way: Way, bufs: Buffers, skip: usize) -> Result<(), CErr> {
    let (mut before, mut done) = (0usize, 0);
    bufs.each(Use::Filled, &mut |start, len, how| {
        if how != Use::Filled {
            return;
        }
        let (from, to) = (skip.max(before), (skip + n).min(before.saturating_add(len)));
        if from < to {
            let (here, there) = (own.ptr().wrapping_add(from - skip), (start + (from - before)) as *mut u8);
            let (src, dst) = if way == Way::Read { (here, there) } else { (there, here) };
            // SAFETY: `there` is a buffer of the call, which the application may use; a page of it that is absent comes.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, to - from) };
            done += to - from;
        }
        before = before.saturating_add(len);
    });
    if done == n { Ok(()) } else { Err(Status::INTERNAL.into()) }
}
