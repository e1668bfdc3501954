//! Stops every writer of a range for a moment: synchronous write-protection by userfaultfd.
//!
//! A thread that stores into a frozen range sleeps in its fault until the range is thawed, then retries the store on
//! whatever is mapped there by then. Loads go on. With the full mode a system call that writes into the range sleeps
//! too; where only the user mode is permitted such a call answers EFAULT instead.

use super::descriptor::own;
use super::errno::{Errno, syscall};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

const USER_MODE_ONLY: usize = 1;
const UFFDIO_API: usize = 0xc018_aa3f;
const UFFDIO_REGISTER: usize = 0xc020_aa00;
const UFFDIO_UNREGISTER: usize = 0x8010_aa01;
const UFFDIO_WAKE: usize = 0x8010_aa02;
const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
/// ioctl on /dev/userfaultfd that makes a context.
const USERFAULTFD_IOC_NEW: usize = 0xaa00;
const API: u64 = 0xaa;
const FEATURE_WP: u64 = 1;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const REGISTER_MODE_WP: u64 = 2;
const WP_ON: u64 = 1;

/// A range whose writers sleep until this object is dropped.
#[derive(Debug)]
pub struct Freeze {
    uffd: OwnedFd,
    start: usize,
    len: usize,
    replaced: bool,
}

fn ioctl(fd: BorrowedFd<'_>, cmd: usize, arg: &mut [u64]) -> Result<(), Errno> {
    // SAFETY: the argument is valid for the struct the command takes (three or four words, by construction below); the
    // command changes only how faults of a range are delivered.
    unsafe { syscall(libc::SYS_ioctl, [fd.as_raw_fd() as usize, cmd, arg.as_mut_ptr() as usize, 0, 0, 0]) }.map(drop)
}

fn context() -> Result<OwnedFd, Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: makes a descriptor and touches no memory.
    let full = unsafe { syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]) };
    let fd = full.or_else(|_| by_device(flags)).or_else(|_| {
        // SAFETY: makes a descriptor and touches no memory.
        unsafe { syscall(libc::SYS_userfaultfd, [flags | USER_MODE_ONLY, 0, 0, 0, 0, 0]) }
    })?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    unsafe { own(fd) }
}

fn by_device(flags: usize) -> Result<usize, Errno> {
    let dev = super::procfs::open(c"/dev/userfaultfd", libc::O_RDWR)?;
    // SAFETY: the argument is a number.
    unsafe { syscall(libc::SYS_ioctl, [dev.as_raw_fd() as usize, USERFAULTFD_IOC_NEW, flags, 0, 0, 0]) }
}

impl Freeze {
    /// True when this host lets us freeze memory files.
    pub fn available() -> bool {
        context().is_ok_and(|c| {
            ioctl(super::freeze::fd(&c), UFFDIO_API, &mut [API, FEATURE_WP | FEATURE_WP_SHMEM, 0]).is_ok()
        })
    }

    /// Freezes `[start, start + len)`, page aligned: one mapping of a memory file, or (`anonymous`) private memory.
    ///
    /// # Safety
    /// The thawing thread must not itself store into the range before it drops the object.
    pub unsafe fn new(start: usize, len: usize, anonymous: bool) -> Result<Freeze, Errno> {
        let uffd = context()?;
        let kind = if anonymous { FEATURE_WP_UNPOPULATED } else { FEATURE_WP_SHMEM };
        ioctl(fd(&uffd), UFFDIO_API, &mut [API, FEATURE_WP | kind, 0])?;
        ioctl(fd(&uffd), UFFDIO_REGISTER, &mut [start as u64, len as u64, REGISTER_MODE_WP, 0])?;
        let f = Freeze { uffd, start, len, replaced: false };
        // EAGAIN: the address space is changing under us (another thread's mmap); the kernel asks for a repeat.
        for _ in 0..1000 {
            match ioctl(fd(&f.uffd), UFFDIO_WRITEPROTECT, &mut [start as u64, len as u64, WP_ON]) {
                Ok(()) => return Ok(f),
                Err(Errno::AGAIN) => super::sync::yield_now(),
                Err(e) => return Err(e),
            }
        }
        Err(Errno::AGAIN)
    }

    /// Thaws a range whose mapping was replaced meanwhile: sleepers are only woken.
    pub fn thaw_replaced(mut self) {
        self.replaced = true;
    }
}

impl Drop for Freeze {
    fn drop(&mut self) {
        let (start, len) = (self.start as u64, self.len as u64);
        if !self.replaced {
            let _ = ioctl(fd(&self.uffd), UFFDIO_WRITEPROTECT, &mut [start, len, 0]);
            let _ = ioctl(fd(&self.uffd), UFFDIO_UNREGISTER, &mut [start, len]);
        }
        // Said aloud and not left to close: a fork child may hold a copy of the descriptor.
        let _ = ioctl(fd(&self.uffd), UFFDIO_WAKE, &mut [start, len]);
    }
}

fn fd(f: &OwnedFd) -> BorrowedFd<'_> {
    use std::os::fd::AsFd;
    f.as_fd()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::sys::mem::{self, Mapping};
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    use std::time::Duration;

    /// A writer hammers the word; while the range is frozen it stands still, after the thaw it goes on.
    fn writer_sleeps(m: &'static Mapping, anonymous: bool) {
        // SAFETY: the mapping lives for ever (leaked by the callers) and is aligned.
        let word: &'static AtomicU64 = unsafe { &*(m.ptr() as *const AtomicU64) };
        let stop: &'static AtomicU64 = Box::leak(Box::default());
        let w = std::thread::spawn(move || {
            while stop.load(SeqCst) == 0 {
                word.fetch_add(1, SeqCst);
            }
        });
        for _ in 0..20 {
            // SAFETY: this thread only loads while the range is frozen.
            let f = unsafe { Freeze::new(m.addr(), m.len(), anonymous) }.unwrap();
            let a = word.load(SeqCst);
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(word.load(SeqCst), a, "a store came through");
            drop(f);
            let until = std::time::Instant::now() + Duration::from_secs(5);
            while word.load(SeqCst) == a {
                assert!(std::time::Instant::now() < until, "the writer did not wake");
            }
        }
        stop.store(1, SeqCst);
        w.join().unwrap();
    }

    #[test]
    fn stores_sleep_while_frozen() {
        if !Freeze::available() {
            eprintln!("skipped: no userfaultfd here");
            return;
        }
        let fd = mem::memfd(c"freeze", 1 << 16).unwrap();
        writer_sleeps(Box::leak(Box::new(Mapping::shared(fd.as_fd(), 0, 1 << 16, mem::RW).unwrap())), false);
        writer_sleeps(Box::leak(Box::new(Mapping::anonymous(1 << 16, mem::RW).unwrap())), true);
    }
}
