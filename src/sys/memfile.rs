//! What is asked of a memory file and of the pages behind it, beside mapping it ([`super::mem`]).

use super::errno::{Errno, retry, syscall};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Nobody may change the seals.
pub const SEAL_SEAL: i32 = libc::F_SEAL_SEAL;

/// Sets the permission bits of the file.
pub fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    // SAFETY: fchmod touches no memory.
    unsafe { syscall(libc::SYS_fchmod, [fd.as_raw_fd() as usize, mode as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Gets the pages of `[from, from + len)` now, so that a lack of memory is an error and not a SIGBUS later.
pub fn reserve(fd: BorrowedFd<'_>, from: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: allocates blocks of a file; no content changes.
    retry(|| unsafe { syscall(libc::SYS_fallocate, [fd.as_raw_fd() as usize, 0, from, len, 0, 0]) }).map(drop)
}

/// Its seals (F_SEAL_*); `None` for a descriptor that is no memory file.
pub fn seals(fd: BorrowedFd<'_>) -> Option<i32> {
    // SAFETY: F_GET_SEALS touches no memory.
    let r = unsafe { syscall(libc::SYS_fcntl, [fd.as_raw_fd() as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0]) };
    r.ok().map(|s| s as i32)
}

fn seek(fd: BorrowedFd<'_>, to: usize, whence: i32) -> Result<usize, Errno> {
    // SAFETY: lseek touches no memory; nobody uses the position of our memory files.
    unsafe { syscall(libc::SYS_lseek, [fd.as_raw_fd() as usize, to, whence as usize, 0, 0, 0]) }
}

/// Its length in bytes.
pub fn size(fd: BorrowedFd<'_>) -> Option<u64> {
    seek(fd, 0, libc::SEEK_END).ok().map(|s| s as u64)
}

/// The parts of the first `len` bytes that have pages, as (offset, length).
pub fn segments(fd: BorrowedFd<'_>, len: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = seek(fd, at, libc::SEEK_DATA).ok().filter(|s| *s < len)?;
        at = seek(fd, start, libc::SEEK_HOLE).unwrap_or(len).min(len);
        Some((start, at - start))
    })
}

/// Moves the mapping `[from, from + len)` to `to`, over what is mapped there.
///
/// # Safety
/// Both ranges are the caller's: the first to give up, the second to replace.
pub unsafe fn move_over(from: usize, len: usize, to: usize) -> Result<(), Errno> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller vouches for both ranges.
    unsafe { syscall(libc::SYS_mremap, [from, len, len, flags as usize, to, 0]) }.map(drop)
}
