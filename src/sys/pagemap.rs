//! PAGEMAP_SCAN: which pages were written since they were last protected, and protect them again, in one call.

use super::descriptor::own;
use super::errno::{Errno, syscall};
use super::kept::KeptFd;
use std::os::fd::AsRawFd;

const PAGEMAP_SCAN: usize = 0xc060_6610;
const WP_MATCHING: u64 = 1;
const CHECK_WPASYNC: u64 = 2;
/// Written since write-protected. The only category ever asked for: WRITTEN|PRESENT misses reclaimed dirty pages.
const IS_WRITTEN: u64 = 2;

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 0x60);

/// A run of written pages, as addresses `[start, end)`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Run {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Categories of the pages.
    pub categories: u64,
}

/// An open /proc/self/pagemap. It describes the process that opened it: a fork child must open its own.
#[derive(Debug)]
pub struct Pagemap(KeptFd);

impl Pagemap {
    /// Opens it; EACCES in a process that is not dumpable.
    pub fn open() -> Result<Pagemap, Errno> {
        let path = c"/proc/self/pagemap";
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: path is NUL-terminated and static.
        let fd = unsafe {
            syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0])
        }?;
        // SAFETY: fresh descriptor from the kernel.
        Ok(Pagemap(KeptFd::new(unsafe { own(fd) }?)))
    }

    /// The descriptor, for threads that keep a descriptor table of their own.
    pub fn raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Finds written pages in `[start, end)` and, with `protect`, write-protects them in the same pass (atomically
    /// per page). Answers the number of runs put into `out` and the address where the walk stopped: less than `end`
    /// when `out` is full. Async-signal-safe.
    pub fn scan(&self, start: usize, end: usize, protect: bool, out: &mut [Run]) -> Result<(usize, usize), Errno> {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: if protect { WP_MATCHING | CHECK_WPASYNC } else { 0 },
            start: start as u64,
            end: end as u64,
            vec: out.as_mut_ptr() as u64,
            vec_len: out.len() as u64,
            category_mask: IS_WRITTEN,
            return_mask: IS_WRITTEN,
            ..ScanArg::default()
        };
        // SAFETY: arg and out are live for the call; protecting pages of a range the caller tracks is what he asked for.
        let n = unsafe {
            syscall(libc::SYS_ioctl, [self.0.as_raw_fd() as usize, PAGEMAP_SCAN, &raw mut arg as usize, 0, 0, 0])
        }?;
        Ok((n, arg.walk_end as usize))
    }
}
