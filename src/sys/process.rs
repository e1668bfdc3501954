//! Facts about this process and host.

use super::descriptor;
use super::errno::syscall;
use std::os::fd::AsRawFd;

/// Process id, by system call: a cached value would be wrong in a raw-clone child. Async-signal-safe.
pub fn pid() -> u32 {
    // SAFETY: getpid has no arguments and no effect.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u32
}

/// Effective user id.
pub fn euid() -> u32 {
    // SAFETY: geteuid has no arguments, no effect, and cannot fail.
    unsafe { syscall(libc::SYS_geteuid, [0; 6]) }.unwrap_or(0) as u32
}

/// Thread id. Async-signal-safe.
pub fn tid() -> u32 {
    // SAFETY: gettid has no arguments and no effect.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// True under valgrind, which runs one thread at a time: one that waits for another by anything but a system call waits
/// for ever. Asked by its client request, which is no work at all on a bare processor.
pub fn under_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let ask = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0u64;
    // SAFETY: the rotations add up to 128 bits and restore rdi, the exchange changes nothing; valgrind reads `ask`.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
            in("rax") ask.as_ptr(), inout("rdx") answer, options(nostack, readonly)
        );
    }
    answer != 0
}

/// True when a tracer has been there from the start or now. It may hold all threads but the one that it looks at. Allocates.
pub fn is_traced() -> bool {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("TracerPid:"));
    line.is_some_and(|l| l.trim() != "0")
}

/// A line on stderr, in one piece. Allocates.
pub fn say(text: &str) {
    descriptor::to_stderr(format!("libsmc: {text}\n").as_bytes());
}

/// [`say`] for a thread with a descriptor table of its own, in which no stderr is kept open: the process's is borrowed for
/// the one line. Where the kernel does not lend it, nothing is said. Allocates.
pub fn say_aside(text: &str) {
    if !descriptor::has_stderr() {
        return;
    }
    let line = format!("libsmc: {text}\n");
    // SAFETY: pidfd_open takes numbers only.
    let Ok(own) = (unsafe { syscall(libc::SYS_pidfd_open, [pid() as usize, 0, 0, 0, 0, 0]) }) else { return };
    // SAFETY: as above; it copies descriptor 2 of the process's own table into this thread's.
    if let Ok(fd) = unsafe { syscall(libc::SYS_pidfd_getfd, [own, 2, 0, 0, 0, 0]) } {
        // SAFETY: the line is readable for its length.
        let _ = unsafe { syscall(libc::SYS_write, [fd, line.as_ptr() as usize, line.len(), 0, 0, 0]) };
        // SAFETY: our own descriptor, made above.
        let _ = unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    }
    // SAFETY: as above.
    let _ = unsafe { syscall(libc::SYS_close, [own, 0, 0, 0, 0, 0]) };
}

/// A number that nobody can guess.
pub fn random() -> u64 {
    let mut n = 0u64;
    // SAFETY: n is eight writable bytes.
    let got = unsafe { syscall(libc::SYS_getrandom, [&raw mut n as usize, 8, 0, 0, 0, 0]) };
    // Only a kernel that is still starting has none: then what differs between processes and moments must do.
    if got == Ok(8) { n } else { super::clock::now().rotate_left(32) ^ u64::from(pid()) }
}

/// Fills `out` (at most 256 bytes) with bytes that nobody can guess, or fails: for keys, where no substitute will do.
pub fn random_bytes(out: &mut [u8]) -> Result<(), super::Errno> {
    // SAFETY: out is writable for its length.
    let got = super::errno::retry(|| unsafe {
        syscall(libc::SYS_getrandom, [out.as_mut_ptr() as usize, out.len(), 0, 0, 0, 0])
    })?;
    // The kernel gives up to 256 bytes in one piece.
    if got == out.len() { Ok(()) } else { Err(super::Errno(libc::EIO)) }
}

/// MemAvailable in bytes, or 1 GiB when /proc cannot be read. Allocates.
pub fn mem_available() -> u64 {
    let text = super::procfs::read(c"/proc/meminfo", 1 << 16).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(1 << 30, |k| k * 1024)
}

/// Leaves the process's descriptor table for a private copy that holds only `keep`: descriptors the program closes
/// later (close_range, daemonising) stay open for this thread, and nothing of the program's is held open by it.
pub fn private_descriptors(keep: &[i32]) -> Result<(), super::Errno> {
    // SAFETY: affects only this thread's view of descriptors.
    unsafe { syscall(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]) }?;
    let mut sorted: Vec<u32> = keep.iter().filter(|f| **f >= 0).map(|f| *f as u32).collect();
    sorted.sort_unstable();
    let mut from = 0u32;
    for fd in sorted.into_iter().chain([u32::MAX]) {
        if let Some(to) = fd.checked_sub(1).filter(|to| *to >= from) {
            // SAFETY: closes descriptors of the private table made above.
            let _ = unsafe { syscall(libc::SYS_close_range, [from as usize, to as usize, 0, 0, 0, 0]) };
        }
        from = fd.saturating_add(1);
    }
    Ok(())
}

/// True when a system call can read the byte at `p`: tries to write it to a pipe of our own.
pub fn can_read(p: *const u8) -> bool {
    let mut ends = [0i32; 2];
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: ends is a valid out array of two descriptors.
    if unsafe { syscall(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, flags as usize, 0, 0, 0, 0]) }.is_err() {
        return false;
    }
    // SAFETY: the kernel just gave us both; nobody else knows them.
    let [reader, writer] = ends.map(|fd| unsafe { descriptor::own(fd as usize) });
    let (Ok(_reader), Ok(writer)) = (reader, writer) else { return false };
    // SAFETY: the kernel checks the address itself; that is the question asked.
    let n = unsafe { syscall(libc::SYS_write, [writer.as_raw_fd() as usize, p as usize, 1, 0, 0, 0]) };
    n == Ok(1)
}

/// Calls `f` with the bounds of every mapping of this process and the start of its file's path, as far as /proc tells.
/// Does not allocate.
pub fn each_mapping(mut f: impl FnMut(usize, usize, &[u8])) {
    let Ok(fd) = super::procfs::open(c"/proc/thread-self/maps", libc::O_RDONLY) else { return };
    let mut buf = [0u8; 4096];
    let (mut column, mut bounds, mut path, mut len) = (0, [0usize; 2], [0u8; 32], 0);
    loop {
        let args = [fd.as_raw_fd() as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0];
        // SAFETY: the buffer is writable for its length.
        let Ok(n @ 1..) = super::errno::retry(|| unsafe { syscall(libc::SYS_read, args) }) else { return };
        for c in buf.iter().take(n) {
            match (*c, column) {
                (b'\n', _) => {
                    f(bounds[0], bounds[1], path.get(..len).unwrap_or_default());
                    (column, bounds, len) = (0, [0; 2], 0);
                }
                (b'-', 0) | (b' ', 1) | (b'/', 2) => column += 1,
                (c, 0 | 1) => {
                    let digit = (c as char).to_digit(16).unwrap_or(0) as usize;
                    bounds[column] = bounds[column] << 4 | digit;
                }
                (c, 3) if len < path.len() => {
                    path[len] = c;
                    len += 1;
                }
                _ => {}
            }
        }
    }
}

/// Copies bytes at any address of this process; false when they cannot be read. Never faults. Async-signal-safe.
pub fn read_own(addr: usize, out: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: both vectors are live, `local` points to `out`; the kernel checks the address asked for.
    let n = unsafe {
        syscall(
            libc::SYS_process_vm_readv,
            [pid() as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0],
        )
    };
    n == Ok(out.len())
}

/// Writes to this process's memory; false when the memory is not there or not writable. Async-signal-safe.
pub fn write_own(addr: usize, bytes: &[u8]) -> bool {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: both vectors are live, `local` points to `bytes`, which is only read; the kernel checks the address asked for,
    // and what lies there is the caller's to write.
    let n = unsafe {
        syscall(
            libc::SYS_process_vm_writev,
            [pid() as usize, &raw const local as usize, 1, &raw const remote as usize, 1, 0],
        )
    };
    n == Ok(bytes.len())
}
