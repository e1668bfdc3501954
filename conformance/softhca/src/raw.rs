//! System calls, made by the instruction itself.
//!
//! Hardware does not go through the C library of the program that uses it. A preloaded library that hooks `read`,
//! `mmap` or `madvise` must therefore never see what the soft HCA does with registered memory: everything here
//! bypasses it, and leaves `errno` alone. Errors are positive errno values.

use std::arch::asm;
use std::sync::atomic::AtomicU32;

/// One system call.
///
/// # Safety
/// The arguments must be what the call of number `nr` takes; memory it writes must be the caller's to give.
pub unsafe fn call(nr: libc::c_long, a: [usize; 6]) -> Result<usize, i32> {
    let ret: isize;
    // SAFETY: the x86-64 system call convention; the caller vouches for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") nr as isize => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack))
    };
    if (-4095..0).contains(&ret) { Err(-ret as i32) } else { Ok(ret as usize) }
}

/// A system call whose arguments are plain numbers: nothing it could do to memory.
fn plain(nr: libc::c_long, a: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: used in this module only, for calls that take no pointer.
    unsafe { call(nr, a) }
}

/// An owned descriptor.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// The number, for whoever owns the descriptor from now on.
    pub fn keep(self) -> i32 {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Takes over a descriptor that the kernel has just made for us.
    pub fn own(number: usize) -> Fd {
        Fd(number as i32)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = plain(libc::SYS_close, [self.0 as usize, 0, 0, 0, 0, 0]);
    }
}

/// A counting descriptor: readable while its count is above 0, each read takes 1 off.
pub fn semaphore() -> Result<Fd, i32> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE;
    plain(libc::SYS_eventfd2, [0, flags as usize, 0, 0, 0, 0]).map(Fd::own)
}

/// A doorbell: readable once rung, a read takes all.
pub fn bell() -> Result<Fd, i32> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    plain(libc::SYS_eventfd2, [0, flags as usize, 0, 0, 0, 0]).map(Fd::own)
}

/// Another descriptor of the same file.
pub fn copy(fd: i32) -> Result<Fd, i32> {
    plain(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, 0, 0, 0, 0]).map(Fd::own)
}

/// The calling thread's number.
pub fn thread() -> u32 {
    plain(libc::SYS_gettid, [0; 6]).unwrap_or(0) as u32
}

/// False when two threads are known to have different descriptor tables.
pub fn share_descriptors(a: u32, b: u32) -> bool {
    const FILES: usize = 2;
    plain(libc::SYS_kcmp, [a as usize, b as usize, FILES, 0, 0, 0]).map_or(true, |order| order == 0)
}

/// Adds 1 to either kind.
pub fn ring(fd: &Fd) {
    ring_number(fd.0);
}

/// Adds 1 to what is behind a number.
pub fn ring_number(fd: i32) {
    let one = 1u64;
    // SAFETY: eight readable bytes.
    let _ = unsafe { call(libc::SYS_write, [fd as usize, &raw const one as usize, 8, 0, 0, 0]) };
}

/// Reads into `to`.
pub fn read(fd: i32, to: &mut [u8]) -> Result<usize, i32> {
    // SAFETY: `to` is ours for the call and its length is given.
    unsafe { call(libc::SYS_read, [fd as usize, to.as_mut_ptr() as usize, to.len(), 0, 0, 0]) }
}

/// Reads into `to` what is there now; `EAGAIN` when nothing is.
pub fn read_now(fd: &Fd, to: &mut [u8]) -> Result<usize, i32> {
    let part = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let (at, nowhere) = (&raw const part as usize, usize::MAX);
    // SAFETY: the vector names `to`, which is ours for the call.
    unsafe { call(libc::SYS_preadv2, [fd.0 as usize, at, 1, nowhere, nowhere, libc::RWF_NOWAIT as usize]) }
}

/// Writes from `from`.
pub fn write(fd: &Fd, from: &[u8]) -> Result<usize, i32> {
    // SAFETY: `from` lives through the call and its length is given.
    unsafe { call(libc::SYS_write, [fd.0 as usize, from.as_ptr() as usize, from.len(), 0, 0, 0]) }
}

/// Reads at an offset.
pub fn pread(fd: &Fd, to: &mut [u8], at: u64) -> Result<usize, i32> {
    // SAFETY: `to` is ours for the call and its length is given.
    unsafe { call(libc::SYS_pread64, [fd.0 as usize, to.as_mut_ptr() as usize, to.len(), at as usize, 0, 0]) }
}

/// Writes at an offset.
pub fn pwrite(fd: &Fd, from: &[u8], at: u64) -> Result<usize, i32> {
    // SAFETY: `from` lives through the call and its length is given.
    unsafe { call(libc::SYS_pwrite64, [fd.0 as usize, from.as_ptr() as usize, from.len(), at as usize, 0, 0]) }
}

/// Opens a file; `path` ends in a NUL.
pub fn open(path: &std::ffi::CStr, flags: i32) -> Result<Fd, i32> {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: `path` is a string that lives through the call.
    unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0]) }.map(Fd::own)
}

/// Makes a file of `len` zero bytes without a name.
pub fn memfd(name: &std::ffi::CStr, len: usize) -> Result<Fd, i32> {
    let flags = libc::MFD_CLOEXEC as usize;
    // SAFETY: `name` is a string that lives through the call.
    let fd = unsafe { call(libc::SYS_memfd_create, [name.as_ptr() as usize, flags, 0, 0, 0, 0]) }.map(Fd::own)?;
    plain(libc::SYS_ftruncate, [fd.0 as usize, len, 0, 0, 0, 0])?;
    Ok(fd)
}

/// Maps `len` bytes of a file, shared, readable and writable, at a place the kernel chooses.
pub fn map_shared(fd: &Fd, len: usize) -> Result<usize, i32> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: a new mapping at a free place takes nothing from anyone.
    unsafe { call(libc::SYS_mmap, [0, len, prot, libc::MAP_SHARED as usize, fd.0 as usize, 0]) }
}

/// Removes a mapping that this library has made.
///
/// # Safety
/// Nothing may use the range any more, and it must be the caller's own.
pub unsafe fn unmap(addr: usize, len: usize) {
    // SAFETY: the caller vouches.
    let _ = unsafe { call(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) };
}

/// Waits while `word` is `value`, at most `ns` nanoseconds.
pub fn futex_wait(word: &AtomicU32, value: u32, ns: u64) {
    let t = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let op = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let at = word.as_ptr() as usize;
    // SAFETY: the word and the time live through the call.
    let _ = unsafe { call(libc::SYS_futex, [at, op, value as usize, &raw const t as usize, 0, 0]) };
}

/// Wakes whoever waits for `word` to change.
pub fn futex_wake(word: &AtomicU32) {
    let op = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel only takes the address as a name.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, op, i32::MAX as usize, 0, 0, 0]) };
}

/// Now, in nanoseconds of CLOCK_MONOTONIC: the same clock in every process of the host.
pub fn now() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is ours; the call only writes it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Asks the scheduler to run the calling thread soon after it wakes, in turns of 0.1 ms, even where others compute: what
/// wakes it is work for a device, which would need no processor. Kernels before 6.12 do not know how; nothing else
/// changes then.
pub fn run_promptly() {
    // `struct sched_attr`: size and policy, flags, nice and priority, runtime, deadline, period.
    let mut attr = [0u64; 6];
    let len = size_of_val(&attr);
    // SAFETY: the call fills no more than the `len` bytes it is told of.
    if unsafe { call(libc::SYS_sched_getattr, [0, attr.as_mut_ptr() as usize, len, 0, 0, 0]) }.is_err() {
        return;
    }
    attr[0] = attr[0] & !0xffff_ffff | len as u64;
    attr[3] = 100_000;
    // SAFETY: the call reads as many bytes as the structure says it has.
    let _ = unsafe { call(libc::SYS_sched_setattr, [0, attr.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// A new epoll instance.
pub fn epoll() -> Result<Fd, i32> {
    plain(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]).map(Fd::own)
}

/// Watches a descriptor for input; `token` comes back with the event.
pub fn epoll_add(epoll: &Fd, fd: &Fd, token: u64) -> Result<(), i32> {
    let event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32, u64: token };
    let op = libc::EPOLL_CTL_ADD as usize;
    let at = &raw const event as usize;
    // SAFETY: `event` lives through the call, which only reads it.
    unsafe { call(libc::SYS_epoll_ctl, [epoll.0 as usize, op, fd.0 as usize, at, 0, 0]) }.map(drop)
}

/// Waits for events, at most `ns` nanoseconds; `None` waits for ever. Returns the tokens seen.
pub fn epoll_wait(epoll: &Fd, ns: Option<u64>, tokens: &mut Vec<u64>) {
    const MAX: usize = 32;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX];
    let t = libc::timespec {
        tv_sec: (ns.unwrap_or(0) / 1_000_000_000) as i64,
        tv_nsec: (ns.unwrap_or(0) % 1_000_000_000) as i64,
    };
    let timeout = if ns.is_some() { &raw const t as usize } else { 0 };
    let at = events.as_mut_ptr() as usize;
    // SAFETY: `events` and `t` are ours and live through the call; MAX is the length of `events`.
    let got = unsafe { call(libc::SYS_epoll_pwait2, [epoll.0 as usize, at, MAX, timeout, 0, 8]) };
    tokens.clear();
    tokens.extend(events[..got.unwrap_or(0)].iter().map(|e| e.u64));
}
