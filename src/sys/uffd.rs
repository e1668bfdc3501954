//! userfaultfd: numbers, structures and the calls the engine uses. Sizes are checked at compile time.
//!
//! Own module because the published crates lack CONTINUE_MODE_WP, POISON and PAGEMAP_SCAN, and stop at an unreadable
//! /dev/userfaultfd although the system call would work.

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use super::kept::KeptFd;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Faults arrive as SIGBUS in the faulting thread.
pub const FEATURE_SIGBUS: u64 = 1 << 7;
/// Minor faults on shared memory.
pub const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
/// Write protection of shared memory.
pub const FEATURE_WP_SHMEM: u64 = 1 << 12;
/// Write protection sticks to pages that are not present.
pub const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// UFFDIO_POISON.
pub const FEATURE_POISON: u64 = 1 << 14;
/// The kernel resolves write-protect faults itself and remembers the page as written.
pub const FEATURE_WP_ASYNC: u64 = 1 << 15;

const API: u64 = 0xAA;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const MODE_MINOR: u64 = 4;
const USER_MODE_ONLY: i32 = 1;

/// _IOWR(0xAA, nr, size) and friends.
const fn ioc(dir: u64, nr: u64, size: usize) -> u64 {
    (dir << 30) | ((size as u64) << 16) | (API << 8) | nr
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RangeArg {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArg {
    range: RangeArg,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct ContinueArg {
    range: RangeArg,
    mode: u64,
    mapped: i64,
}

#[repr(C)]
struct WriteProtectArg {
    range: RangeArg,
    mode: u64,
}

const IOC_API: u64 = ioc(3, 0x3F, size_of::<ApiArg>());
const IOC_REGISTER: u64 = ioc(3, 0x00, size_of::<RegisterArg>());
const IOC_WAKE: u64 = ioc(2, 0x02, size_of::<RangeArg>());
const IOC_WRITEPROTECT: u64 = ioc(3, 0x06, size_of::<WriteProtectArg>());
const IOC_CONTINUE: u64 = ioc(3, 0x07, size_of::<ContinueArg>());
const IOC_POISON: u64 = ioc(3, 0x08, size_of::<ContinueArg>());
const IOC_NEW: u64 = API << 8;

const _: () = assert!(IOC_API == 0xc018_aa3f && IOC_REGISTER == 0xc020_aa00 && IOC_CONTINUE == 0xc020_aa07);
const _: () = assert!(IOC_WRITEPROTECT == 0xc018_aa06 && IOC_WAKE == 0x8010_aa02 && IOC_POISON == 0xc020_aa08);

/// One fault as the kernel reports it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Msg {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    ptid: u64,
}

const _: () = assert!(size_of::<Msg>() == 32);

impl Msg {
    /// True for a page fault, the only event this library asks for.
    pub fn is_fault(&self) -> bool {
        self.event == 0x12
    }
    /// Address touched.
    pub fn addr(&self) -> usize {
        self.address as usize
    }
    /// The access was a write.
    pub fn is_write(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// A userfaultfd context.
#[derive(Debug)]
pub struct Uffd {
    fd: KeptFd,
    full: bool,
    features: u64,
}

/// Where a context was obtained, tried in this order.
type Way = fn() -> Result<(OwnedFd, bool), Errno>;
const WAYS: [Way; 3] = [open_syscall_full, open_device, open_syscall_user];

fn open_syscall(extra: i32) -> Result<OwnedFd, Errno> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | extra;
    // SAFETY: takes an integer; the new descriptor belongs to us.
    let fd = unsafe { syscall(libc::SYS_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) }?;
    // SAFETY: fresh descriptor from the kernel.
    unsafe { own(fd) }
}

fn open_syscall_full() -> Result<(OwnedFd, bool), Errno> {
    Ok((open_syscall(0)?, true))
}

fn open_syscall_user() -> Result<(OwnedFd, bool), Errno> {
    Ok((open_syscall(USER_MODE_ONLY)?, false))
}

fn open_device() -> Result<(OwnedFd, bool), Errno> {
    let path = c"/dev/userfaultfd";
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: path is NUL-terminated and static.
    let dev = unsafe {
        syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0])
    }?;
    // SAFETY: fresh descriptor from the kernel.
    let dev = unsafe { own(dev) }?;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the ioctl takes an integer and gives a descriptor.
    let fd =
        unsafe { syscall(libc::SYS_ioctl, [dev.as_raw_fd() as usize, IOC_NEW as usize, flags as usize, 0, 0, 0]) }?;
    // SAFETY: fresh descriptor from the kernel.
    Ok((unsafe { own(fd) }?, true))
}

impl Uffd {
    /// Opens a context with exactly `features`: system call, then /dev/userfaultfd, then user-mode-only.
    /// Answers why each way failed when none works. Allocates only that text.
    pub fn open(features: u64) -> Result<Uffd, String> {
        let mut why = String::new();
        for (way, name) in WAYS.iter().zip(["userfaultfd(2)", "/dev/userfaultfd", "userfaultfd(2) user-mode-only"]) {
            match way().and_then(|(fd, full)| handshake(fd, full, features)) {
                Ok(u) => return Ok(u),
                Err(e) => why.push_str(&format!("{}{name}: {e}", if why.is_empty() { "" } else { ", " })),
            }
        }
        Err(why)
    }

    /// Opens a user-mode-only context although a full one may be had: for tests of that mode.
    pub fn open_user_only(features: u64) -> Result<Uffd, Errno> {
        open_syscall_user().and_then(|(fd, full)| handshake(fd, full, features))
    }

    /// True when kernel-mode faults (system calls on absent pages) are delivered too.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// True when all of `features` were granted.
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.fd.as_fd()
    }

    fn ioctl<T>(&self, nr: u64, arg: *mut T) -> Result<(), Errno> {
        // SAFETY: every caller in this module passes a live structure of the type the ioctl number encodes.
        unsafe { syscall(libc::SYS_ioctl, [self.fd.as_raw_fd() as usize, nr as usize, arg as usize, 0, 0, 0]) }
            .map(drop)
    }

    /// Watches `[start, start + len)` for missing, minor and write-protect faults.
    ///
    /// # Safety
    /// The range is a shared memory-file mapping whose faults the caller will serve from now on.
    pub unsafe fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let range = RangeArg { start: start as u64, len: len as u64 };
        let mut arg = RegisterArg { range, mode: MODE_MISSING | MODE_WP | MODE_MINOR, ioctls: 0 };
        self.ioctl(IOC_REGISTER, &raw mut arg)
    }

    /// Wakes threads waiting on the range. Async-signal-safe.
    pub fn wake(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mut arg = RangeArg { start: start as u64, len: len as u64 };
        self.ioctl(IOC_WAKE, &raw mut arg)
    }

    /// Maps the page-cache pages of `[start, start + len)` and wakes waiters. `clean` maps them write-protected, so
    /// that the first store is tracked; otherwise they count as written. Pages that are mapped already are left as
    /// they are, and their waiters woken. Async-signal-safe.
    pub fn admit(&self, start: usize, len: usize, clean: bool) -> Result<(), Errno> {
        const CONTINUE_MODE_WP: u64 = 2;
        let mode = if clean { CONTINUE_MODE_WP } else { 0 };
        self.per_page(IOC_CONTINUE, start, len, mode)
    }

    /// Makes touches of absent pages in the range fail with SIGBUS until the pages are admitted or dropped.
    /// Async-signal-safe.
    pub fn poison(&self, start: usize, len: usize) -> Result<(), Errno> {
        self.per_page(IOC_POISON, start, len, 0)
    }

    /// CONTINUE and POISON share the shape: they may stop early (`mapped`), answer EEXIST for a page that is there
    /// (which does not wake: measured) and EAGAIN while the address space changes.
    fn per_page(&self, nr: u64, start: usize, len: usize, mode: u64) -> Result<(), Errno> {
        let (mut at, end) = (start, start + len);
        let mut again = 0u32;
        while at < end {
            let range = RangeArg { start: at as u64, len: (end - at) as u64 };
            let mut arg = ContinueArg { range, mode, mapped: 0 };
            match self.ioctl(nr, &raw mut arg) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {
                    at += arg.mapped.max(0) as usize;
                    let _ = self.wake(at, crate::base::PAGE);
                    at += crate::base::PAGE;
                }
                Err(Errno::AGAIN) => {
                    at += arg.mapped.max(0) as usize;
                    again += 1;
                    if again > 10_000 {
                        return Err(Errno::AGAIN);
                    }
                    std::hint::spin_loop();
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Sets or clears write protection on the range; clearing wakes waiters. Async-signal-safe.
    pub fn write_protect(&self, start: usize, len: usize, on: bool) -> Result<(), Errno> {
        let mut again = 0u32;
        loop {
            let range = RangeArg { start: start as u64, len: len as u64 };
            let mut arg = WriteProtectArg { range, mode: u64::from(on) };
            match self.ioctl(IOC_WRITEPROTECT, &raw mut arg) {
                Err(Errno::AGAIN) if again < 10_000 => again += 1,
                r => return r,
            }
        }
    }

    /// Reads waiting faults into `buf`, without blocking; AGAIN when there is none. Async-signal-safe.
    pub fn read(&self, buf: &mut [Msg]) -> Result<usize, Errno> {
        let bytes = size_of_val(buf);
        // SAFETY: buf is valid for `bytes` writes and every bit pattern is a valid Msg.
        let n = retry(|| unsafe {
            syscall(libc::SYS_read, [self.fd.as_raw_fd() as usize, buf.as_mut_ptr() as usize, bytes, 0, 0, 0])
        })?;
        Ok(n / size_of::<Msg>())
    }
}

fn handshake(fd: OwnedFd, full: bool, features: u64) -> Result<Uffd, Errno> {
    let mut arg = ApiArg { api: API, features, ioctls: 0 };
    // SAFETY: arg is a live uffdio_api.
    unsafe { syscall(libc::SYS_ioctl, [fd.as_raw_fd() as usize, IOC_API as usize, &raw mut arg as usize, 0, 0, 0]) }?;
    Ok(Uffd { fd: KeptFd::new(fd), full, features: arg.features & features })
}
