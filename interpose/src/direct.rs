//! Reading a file opened with O_DIRECT into a view.
//!
//! The device then writes to the page itself, which the kernel notes when the read begins and not when the bytes arrive.
//! A release or an eviction in between would take the page for clean, and its bytes would be lost. So the file is read
//! into memory of our own, and copied from there as any program stores.

use crate::blocking::Frame;
use crate::convert::{CErr, answer};
use crate::table::Hook;
use crate::touch::{Use, any_view};
use crate::transfer::Buffers;
use libc::{c_int, iovec};
use smc_engine::base::Status;
use smc_engine::sys::errno::syscall;
use smc_engine::sys::mem::{self, Mapping};

/// Read at one time, and most memory of our own.
const STEP: usize = 1 << 20;

/// The whole call, when it reads past the cache into a view; `None` when the real one is to be made. `at` is the place,
/// `None` the file offset.
pub fn read(hook: &Hook, f: &Frame, bufs: Buffers, at: Option<i64>, flags: c_int) -> Option<usize> {
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
    Some(answer(f.errno as c_int, moved(fd, bufs, total, at.unwrap_or(-1), flags)) as usize)
}

fn is_direct(fd: c_int) -> bool {
    // SAFETY: F_GETFL touches no memory.
    let flags = unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.is_ok_and(|f| f as c_int & libc::O_DIRECT != 0)
}

fn moved(fd: c_int, bufs: Buffers, total: usize, at: i64, flags: c_int) -> Result<isize, CErr> {
    let own = Mapping::anonymous(STEP.min(total.max(1)).next_multiple_of(STEP), mem::RW).map_err(CErr::from)?;
    let mut done = 0;
    while done < total {
        let want = STEP.min(total - done);
        let place = if at < 0 { at } else { at.saturating_add(done as i64) };
        let got = match step(fd, &own, want, place, flags) {
            Ok(n) => n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        };
        scatter(&own, got, bufs, done)?;
        done += got;
        if got < want {
            break;
        }
    }
    Ok(done as isize)
}

fn step(fd: c_int, own: &Mapping, want: usize, at: i64, flags: c_int) -> Result<usize, CErr> {
    let to = iovec { iov_base: own.ptr().cast(), iov_len: want };
    let args = [fd as usize, &raw const to as usize, 1, at as usize, 0, flags as usize];
    // SAFETY: the list is one entry, and its buffer is as long as it says.
    unsafe { syscall(libc::SYS_preadv2, args) }.map_err(CErr::from)
}

/// Copies `got` bytes to where the buffers' bytes from `skip` on are.
fn scatter(own: &Mapping, got: usize, bufs: Buffers, skip: usize) -> Result<(), CErr> {
    let (mut before, mut done) = (0usize, 0);
    bufs.each(Use::Filled, &mut |start, len, how| {
        if how != Use::Filled {
            return;
        }
        let (from, to) = (skip.max(before), (skip + got).min(before.saturating_add(len)));
        if from < to {
            let (src, dst) = (own.ptr().wrapping_add(from - skip), (start + (from - before)) as *mut u8);
            // SAFETY: a buffer of the call, which the application may store to; a page of it that is absent comes.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, to - from) };
            done += to - from;
        }
        before = before.saturating_add(len);
    });
    if done == got { Ok(()) } else { Err(Status::INTERNAL.into()) }
}
