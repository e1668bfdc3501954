//! Descriptors of the library in the program's table, kept out of the program's way.
//!
//! They have high numbers, so that the program gets the ones it would get without the library, and they are listed, so that
//! the hooks of close and its relatives can leave them open. A program that closes them past the hooks (a system call by
//! number) may give their numbers to files of its own: before anything is written or closed, it is made sure that the
//! number still is what it was.

use super::errno::{Errno, syscall};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Numbers below this can be listed.
const MOST: usize = 65536;
static LIST: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];
/// How many are listed; the fast path of the hooks.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn word(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let n = usize::try_from(fd).ok()?;
    Some((LIST.get(n / 64)?, 1 << (n % 64)))
}

/// True when the number belongs to the library, in the program's table. Async-signal-safe.
pub fn is_kept(fd: i32) -> bool {
    COUNT.load(SeqCst) != 0 && word(fd).is_some_and(|(w, bit)| w.load(SeqCst) & bit != 0)
}

/// The lowest number of the library's in `[first, last]`. Async-signal-safe.
pub fn first_in(first: u32, last: u32) -> Option<u32> {
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    first_set(&LIST, first, last)
}

/// The lowest set bit in `[first, last]`, a word at a time: a program closes thousands of numbers at once.
fn first_set(words: &[AtomicU64], first: u32, last: u32) -> Option<u32> {
    let mut at = first;
    while at <= last {
        let rest = words.get(at as usize / 64)?.load(SeqCst) >> (at % 64);
        if rest != 0 {
            return Some(at + rest.trailing_zeros()).filter(|n| *n <= last);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// What tells one open file from another.
#[derive(Clone, Copy, Debug, Default)]
struct Identity {
    device: u64,
    inode: u64,
    mode: u32,
    /// Of the text behind the number in /proc: files without a name share one inode. 0 where it cannot be read, as after
    /// chroot or setuid.
    text: u64,
}

impl Identity {
    fn of(fd: i32) -> Option<Identity> {
        let mut st = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: st is a valid out buffer of the size the kernel writes on x86-64.
        unsafe { syscall(libc::SYS_fstat, [fd as usize, st.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
        // SAFETY: zeroed, then filled by the kernel; every bit pattern is a valid stat.
        let st = unsafe { st.assume_init() };
        Some(Identity { device: st.st_dev, inode: st.st_ino, mode: st.st_mode, text: text_of(fd) })
    }

    fn may_be(&self, was: &Identity) -> bool {
        let text = self.text == was.text || self.text == 0 || was.text == 0;
        text && (self.device, self.inode, self.mode) == (was.device, was.inode, was.mode)
    }
}

/// Hash of the first bytes of what /proc says about a number; 0 where there is no /proc.
fn text_of(fd: i32) -> u64 {
    let mut name = *b"/proc/thread-self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let digits = (0..10).rev().map(|i| (fd as u32 / 10u32.pow(i) % 10) as u8 + b'0').skip_while(|d| *d == b'0');
    name.iter_mut().skip(21).zip(digits).for_each(|(to, d)| *to = d);
    let mut text = [0u8; 64];
    let args = [libc::AT_FDCWD as usize, name.as_ptr() as usize, text.as_mut_ptr() as usize, text.len(), 0, 0];
    // SAFETY: name is NUL-terminated, text writable for its length.
    let n = unsafe { syscall(libc::SYS_readlinkat, args) }.unwrap_or(0);
    let hash = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    text.iter().take(n).fold(if n == 0 { 0 } else { 0xcbf2_9ce4_8422_2325 }, hash)
}

/// A descriptor of the library in the program's table.
#[derive(Debug)]
pub struct KeptFd {
    fd: ManuallyDrop<OwnedFd>,
    id: Identity,
}

impl KeptFd {
    /// Takes a descriptor over; it gets another number where a high one is free.
    pub fn new(fd: OwnedFd) -> KeptFd {
        KeptFd::at(fd, None)
    }

    /// As [`KeptFd::new`], at a number that none made by this function had before, as long as there are such: for those that
    /// threads with tables of their own borrow by number ([`borrow`](super::borrow)).
    pub fn numbered(fd: OwnedFd) -> KeptFd {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let kept = KeptFd::at(fd, Some(NEXT.load(SeqCst)));
        NEXT.store(kept.as_raw_fd() as usize + 1, SeqCst);
        kept
    }

    fn at(fd: OwnedFd, from: Option<usize>) -> KeptFd {
        let fd = from.and_then(|n| moved(fd.as_raw_fd(), n)).or_else(|| moved(fd.as_raw_fd(), 0)).unwrap_or(fd);
        let id = Identity::of(fd.as_raw_fd()).unwrap_or_default();
        if let Some((w, bit)) = word(fd.as_raw_fd()) {
            w.fetch_or(bit, SeqCst);
            COUNT.fetch_add(1, SeqCst);
        }
        KeptFd { fd: ManuallyDrop::new(fd), id }
    }

    /// True while the number still is what it was.
    pub fn is_intact(&self) -> bool {
        Identity::of(self.fd.as_raw_fd()).is_some_and(|now| now.may_be(&self.id))
    }
}

/// The same file at a number that programs rarely use, and not below `least`.
fn moved(fd: i32, least: usize) -> Option<OwnedFd> {
    use std::os::fd::FromRawFd;
    let mut limit = [0u64; 2];
    let out = limit.as_mut_ptr() as usize;
    // SAFETY: the kernel writes two words there.
    unsafe { syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, 0, out, 0, 0]) }.ok()?;
    let from = ((limit[0].min(1024) / 4 * 3) as usize).max(least);
    // SAFETY: an integer argument; touches no memory.
    let high =
        unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, from, 0, 0, 0]) }.ok()?;
    // SAFETY: the kernel just gave us this descriptor.
    Some(unsafe { OwnedFd::from_raw_fd(high as i32) })
}

impl AsFd for KeptFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for KeptFd {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Drop for KeptFd {
    fn drop(&mut self) {
        let fd = self.fd.as_raw_fd();
        if let Some((w, bit)) = word(fd) {
            w.fetch_and(!bit, SeqCst);
            COUNT.fetch_sub(1, SeqCst);
        }
        if self.is_intact() {
            // SAFETY: still ours, and not used again.
            let _: Result<usize, Errno> = unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::sys::mem;
    use std::os::fd::IntoRawFd;

    #[test]
    fn the_first_of_a_range_is_found() {
        let set = [0, 5, 63, 64, 191];
        let words = [const { AtomicU64::new(0) }; 4];
        set.iter().for_each(|n| _ = words[n / 64].fetch_or(1 << (n % 64), SeqCst));
        for from in 0..300 {
            for to in (0..300).chain([u32::MAX]) {
                let want = set.iter().map(|n| *n as u32).find(|n| (from..=to).contains(n));
                assert_eq!(first_set(&words, from, to), want, "{from}..={to}");
            }
        }
    }

    #[test]
    fn a_number_that_was_taken_away_is_left_alone() {
        let kept = KeptFd::new(mem::memfd(c"kept", 4096).unwrap());
        let fd = kept.as_raw_fd();
        assert!(is_kept(fd) && kept.is_intact());
        assert_eq!(first_in(fd as u32, fd as u32), Some(fd as u32));
        // Another file takes its place, as after a close that nobody has seen.
        let other = mem::memfd(c"other", 4096).unwrap().into_raw_fd();
        // SAFETY: both are numbers of this test.
        unsafe { syscall(libc::SYS_dup3, [other as usize, fd as usize, libc::O_CLOEXEC as usize, 0, 0, 0]) }.unwrap();
        assert!(!kept.is_intact());
        drop(kept);
        assert!(!is_kept(fd));
        // SAFETY: F_GETFD touches no memory.
        let open = |fd: i32| unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) };
        assert!(open(fd).is_ok(), "somebody else's file was closed");
        for n in [fd, other] {
            // SAFETY: numbers of this test.
            let _ = unsafe { syscall(libc::SYS_close, [n as usize, 0, 0, 0, 0, 0]) };
        }
        let kept = KeptFd::new(mem::memfd(c"kept", 4096).unwrap());
        let fd = kept.as_raw_fd();
        drop(kept);
        assert!(open(fd).is_err(), "it leaks");
    }
}
