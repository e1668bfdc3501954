//! Raw system calls with the error as a value: the application's `errno` is never read or written.

use std::fmt;

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// The operation was interrupted.
    pub const INTR: Errno = Errno(libc::EINTR);
    /// Try again.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// It exists already.
    pub const EXIST: Errno = Errno(libc::EEXIST);
    /// No memory, or the limit of mappings is reached.
    pub const NOMEM: Errno = Errno(libc::ENOMEM);
    /// A message is larger than its receiver allows.
    pub const MSGSIZE: Errno = Errno(libc::EMSGSIZE);
    /// The peer closed the connection with data unread.
    pub const CONNRESET: Errno = Errno(libc::ECONNRESET);
    /// Nobody listens.
    pub const CONNREFUSED: Errno = Errno(libc::ECONNREFUSED);
    /// No answer came in time.
    pub const TIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    /// The address is taken.
    pub const ADDRINUSE: Errno = Errno(libc::EADDRINUSE);
    /// The reader is gone.
    pub const PIPE: Errno = Errno(libc::EPIPE);
    /// The peer broke the protocol.
    pub const PROTO: Errno = Errno(libc::EPROTO);
    /// An argument that the call does not take.
    pub const INVAL: Errno = Errno(libc::EINVAL);
    /// No such descriptor.
    pub const BADF: Errno = Errno(libc::EBADF);
    /// A request that this kind of file does not know.
    pub const NOTTY: Errno = Errno(libc::ENOTTY);
    /// No such thing.
    pub const NOENT: Errno = Errno(libc::ENOENT);
    /// Not a folder.
    pub const NOTDIR: Errno = Errno(libc::ENOTDIR);

    /// The device has gone, or never was.
    pub const NODEV: Errno = Errno(libc::ENODEV);
    /// The device does not answer, or has gone.
    pub const IO: Errno = Errno(libc::EIO);
    /// Not known here.
    pub const OPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    /// Not permitted.
    pub const PERM: Errno = Errno(libc::EPERM);
    /// Access denied.
    pub const ACCES: Errno = Errno(libc::EACCES);
    /// An address that cannot be used.
    pub const FAULT: Errno = Errno(libc::EFAULT);
    /// Not implemented.
    pub const NOSYS: Errno = Errno(libc::ENOSYS);

    /// Descriptors or kernel memory are exhausted: worth trying again later.
    pub fn is_exhaustion(self) -> bool {
        matches!(self.0, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)
    }

    /// Symbolic name, `E?` for one that is not in the short table.
    pub fn name(self) -> &'static str {
        match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::EBADF => "EBADF",
            libc::EAGAIN => "EAGAIN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::EINVAL => "EINVAL",
            libc::ENFILE => "ENFILE",
            libc::EMFILE => "EMFILE",
            libc::ENOSPC => "ENOSPC",
            libc::EPIPE => "EPIPE",
            libc::ENOSYS => "ENOSYS",
            libc::EPROTO => "EPROTO",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::ECONNRESET => "ECONNRESET",
            libc::ETIMEDOUT => "ETIMEDOUT",
            _ => "E?",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Issues a system call by number; the kernel's answer is the return value. Async-signal-safe.
///
/// # Safety
/// The arguments must satisfy what the call `nr` demands of them: pointers valid for the lengths given, and no effect
/// on memory or descriptors that somebody else relies on.
pub unsafe fn syscall(nr: libc::c_long, a: [usize; 6]) -> Result<usize, Errno> {
    #[cfg(feature = "inject")]
    if let Some(e) = super::inject::failure(nr) {
        return Err(e);
    }
    let ret: isize;
    // SAFETY: the x86-64 system call convention clobbers rcx and r11 only; the caller vouches for the arguments.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as usize) }
}

/// Runs `f`, which calls into a C library, and leaves `errno` as it was; answers what `f` left there too (0: nothing).
/// Async-signal-safe if `f` is.
pub fn around<T>(f: impl FnOnce() -> T) -> (T, Errno) {
    // SAFETY: the address of the calling thread's errno is always good.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.replace(0) };
    let answer = f();
    // SAFETY: as above.
    (answer, Errno(unsafe { errno.replace(before) }))
}

/// Repeats `f` while it answers EINTR.
pub fn retry<T>(mut f: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match f() {
            Err(Errno::INTR) => {}
            r => return r,
        }
    }
}
