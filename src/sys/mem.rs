//! Address space and memory files, by system call and never through the hooked names.

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Readable.
pub const READ: i32 = libc::PROT_READ;
/// Readable and writable.
pub const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// No access.
pub const NONE: i32 = libc::PROT_NONE;

/// A mapping that is unmapped when dropped. The pointer is never turned into a reference: other threads, other
/// processes and NICs write this memory at any moment.
#[derive(Debug)]
pub struct Mapping {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a Mapping is an address and a length; access to the memory is raw and its users synchronise themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// First byte.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// First byte as a number.
    pub fn addr(&self) -> usize {
        self.ptr as usize
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for an empty mapping (never made by this module).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Maps `len` bytes of `fd` from `offset`, shared. `hint` 0 lets the kernel choose the place.
    pub fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize, prot: i32) -> Result<Mapping, Errno> {
        // SAFETY: without MAP_FIXED the kernel picks free address space, so nothing existing is touched.
        let at = unsafe { mmap(0, len, prot, libc::MAP_SHARED, fd.as_raw_fd(), offset) }?;
        Ok(Mapping { ptr: at as *mut u8, len })
    }

    /// As [`Mapping::shared`], at an address that a huge page can have.
    pub fn shared_aligned(fd: BorrowedFd<'_>, len: usize, prot: i32) -> Result<Mapping, Errno> {
        let reserved = Mapping::anonymous(len + HUGE, NONE)?;
        let (start, end) = (reserved.addr(), reserved.addr() + reserved.len());
        let at = start.next_multiple_of(HUGE);
        // SAFETY: `[at, at + len)` lies inside the reservation, which nobody uses.
        unsafe { mmap(at, len, prot, libc::MAP_SHARED | libc::MAP_FIXED, fd.as_raw_fd(), 0) }?;
        let _ = reserved.forget();
        for (from, to) in [(start, at), (at + len, end)] {
            if from < to {
                // SAFETY: what is left of the reservation on either side.
                let _ = unsafe { munmap(from, to - from) };
            }
        }
        Ok(Mapping { ptr: at as *mut u8, len })
    }

    /// Puts huge pages under a fresh mapping where the kernel can (shared memory: Linux 6.1): its pages are copied,
    /// found and shown faster. The same memory as populating it, and about as much time.
    pub fn collapse(&self) {
        if self.len < HUGE {
            return;
        }
        let _ = self.advise(0, self.len, HUGEPAGE);
        // The kernel wants a page to start from. Asked for, not touched: where memory is short that is an error here and
        // would be a signal there.
        for at in (0..self.len).step_by(HUGE) {
            if self.advise(at, crate::base::PAGE, POPULATE_WRITE).is_err() {
                return;
            }
        }
        let _ = self.advise(0, self.len, COLLAPSE);
    }

    /// Maps `len` bytes of zeroed private memory.
    pub fn anonymous(len: usize, prot: i32) -> Result<Mapping, Errno> {
        // SAFETY: as in `shared`.
        let at = unsafe { mmap(0, len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0) }?;
        Ok(Mapping { ptr: at as *mut u8, len })
    }

    /// Takes over a range somebody else mapped.
    ///
    /// # Safety
    /// `[ptr, ptr + len)` is a mapping that nobody else will unmap.
    pub unsafe fn adopt(ptr: *mut u8, len: usize) -> Mapping {
        Mapping { ptr, len }
    }

    /// Gives the range up without unmapping it.
    pub fn forget(self) -> (*mut u8, usize) {
        let m = std::mem::ManuallyDrop::new(self);
        (m.ptr, m.len)
    }

    /// madvise on the page range `[from, from + len)` of this mapping, both in bytes. Async-signal-safe.
    pub fn advise(&self, from: usize, len: usize, advice: i32) -> Result<(), Errno> {
        if from.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the range is inside a mapping this object owns; what the advice does to its content is the caller's wish.
        unsafe { syscall(libc::SYS_madvise, [self.addr() + from, len, advice as usize, 0, 0, 0]) }.map(drop)
    }

    /// mprotect on `[from, from + len)` of this mapping. Async-signal-safe.
    pub fn protect(&self, from: usize, len: usize, prot: i32) -> Result<(), Errno> {
        if from.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the range is inside a mapping this object owns.
        unsafe { syscall(libc::SYS_mprotect, [self.addr() + from, len, prot as usize, 0, 0, 0]) }.map(drop)
    }

    /// Gives a fresh mapping without access the protection `prot`, so that no page is in it. A program that locks all its
    /// future memory (mlockall) has every accessible mapping filled at once: too much, and behind the watch.
    pub fn unlocked(&self, prot: i32) -> Result<(), Errno> {
        let _ = unlock(self.addr(), self.len);
        self.protect(0, self.len, prot)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this object owns the mapping and nobody can reach it through the object any more.
        let _ = unsafe { munmap(self.addr(), self.len) };
    }
}

/// mmap(2). Async-signal-safe.
///
/// # Safety
/// With MAP_FIXED the range `[addr, addr + len)` must be the caller's to replace.
pub unsafe fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: u64) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe {
        syscall(libc::SYS_mmap, [addr, len, prot as usize, flags as usize, fd as isize as usize, offset as usize])
    }
}

/// munmap(2). Async-signal-safe.
///
/// # Safety
/// The range must be the caller's to give back.
pub unsafe fn munmap(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe { syscall(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) }.map(drop)
}

/// Drop the mapping's pages (their bytes stay in the memory file).
pub const DONTNEED: i32 = libc::MADV_DONTNEED;
/// The same for pages that are locked into memory; since kernel 5.18.
pub const DONTNEED_LOCKED: i32 = 24;
/// A fork child does not get the mapping.
pub const DONTFORK: i32 = libc::MADV_DONTFORK;
/// Core dumps leave the mapping out.
pub const DONTDUMP: i32 = libc::MADV_DONTDUMP;
/// A fork child sees zeros.
pub const WIPEONFORK: i32 = libc::MADV_WIPEONFORK;
/// Use huge pages where the kernel may.
pub const HUGEPAGE: i32 = libc::MADV_HUGEPAGE;
/// Never use huge pages.
pub const NOHUGEPAGE: i32 = libc::MADV_NOHUGEPAGE;
/// Put huge pages there now, whatever the system's defaults are.
pub const COLLAPSE: i32 = 25;
/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;
/// Bring all pages in now, writable.
pub const POPULATE_WRITE: i32 = 23;

/// Seal: the file cannot shrink.
pub const SEAL_SHRINK: i32 = libc::F_SEAL_SHRINK;
/// Seal: the file cannot grow.
pub const SEAL_GROW: i32 = libc::F_SEAL_GROW;
/// Seal: no new writable mapping, no write.
pub const SEAL_FUTURE_WRITE: i32 = 0x10;
/// Shared mapping.
pub const MAP_SHARED: i32 = libc::MAP_SHARED;
/// Private mapping.
pub const MAP_PRIVATE: i32 = libc::MAP_PRIVATE;
/// No file behind it.
pub const MAP_ANONYMOUS: i32 = libc::MAP_ANONYMOUS;
/// No memory set aside for it.
pub const MAP_NORESERVE: i32 = libc::MAP_NORESERVE;
/// Replace what is mapped there.
pub const MAP_FIXED: i32 = libc::MAP_FIXED;

/// madvise(2) by address. Async-signal-safe.
///
/// # Safety
/// The range must be the caller's, and losing its pages must be what he wants where the advice drops them.
pub unsafe fn advise(addr: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe { syscall(libc::SYS_madvise, [addr, len, advice as usize, 0, 0, 0]) }.map(drop)
}

/// mprotect(2) by address. Async-signal-safe.
///
/// # Safety
/// The range must be the caller's.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the range.
    unsafe { syscall(libc::SYS_mprotect, [addr, len, prot as usize, 0, 0, 0]) }.map(drop)
}

/// mlock(2): brings the pages in and keeps them in RAM.
pub fn lock(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no content; the kernel checks the range.
    unsafe { syscall(libc::SYS_mlock, [addr, len, 0, 0, 0, 0]) }.map(drop)
}

/// munlock(2).
pub fn unlock(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no content; the kernel checks the range.
    unsafe { syscall(libc::SYS_munlock, [addr, len, 0, 0, 0, 0]) }.map(drop)
}

/// Bytes this process may lock (RLIMIT_MEMLOCK); `None` for no limit.
pub fn lock_limit() -> Option<u64> {
    let mut limit = [0u64; 2];
    // SAFETY: the kernel writes two words there.
    unsafe { syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_MEMLOCK as usize, 0, limit.as_mut_ptr() as usize, 0, 0]) }
        .ok()?;
    Some(limit[0]).filter(|n| *n != u64::MAX)
}

/// The limit of what may be pinned, in words, for who was refused.
pub fn lock_limit_words() -> String {
    match lock_limit() {
        Some(n) => format!("RLIMIT_MEMLOCK is {n} bytes; raise it: ulimit -l, limits.conf, LimitMEMLOCK="),
        None => "RLIMIT_MEMLOCK is not the cause".to_owned(),
    }
}

/// A memory file of `len` bytes, close-on-exec, sealable. `name` shows in /proc/PID/maps.
///
/// Tries MFD_NOEXEC_SEAL first (hosts with vm.memfd_noexec=2 refuse anything else), then without (kernels before 6.3).
pub fn memfd(name: &std::ffi::CStr, len: u64) -> Result<OwnedFd, Errno> {
    const NOEXEC_SEAL: u32 = 8;
    let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let open = |flags: u32| {
        // SAFETY: name is NUL-terminated and outlives the call.
        unsafe { syscall(libc::SYS_memfd_create, [name.as_ptr() as usize, flags as usize, 0, 0, 0, 0]) }
    };
    let fd = match open(base | NOEXEC_SEAL) {
        Err(Errno(libc::EINVAL)) => open(base)?,
        r => r?,
    };
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    let fd = unsafe { own(fd) }?;
    // SAFETY: resizes a file only we hold.
    retry(|| unsafe { syscall(libc::SYS_ftruncate, [fd.as_raw_fd() as usize, len as usize, 0, 0, 0, 0]) })?;
    Ok(fd)
}

/// Adds seals (F_SEAL_*) to a memory file.
pub fn seal(fd: BorrowedFd<'_>, seals: i32) -> Result<(), Errno> {
    // SAFETY: fcntl with an integer argument touches no memory.
    unsafe { syscall(libc::SYS_fcntl, [fd.as_raw_fd() as usize, libc::F_ADD_SEALS as usize, seals as usize, 0, 0, 0]) }
        .map(drop)
}

/// Gives the pages of `[from, from + len)` of a memory file back to the system. Async-signal-safe.
pub fn punch_hole(fd: BorrowedFd<'_>, from: u64, len: u64) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the content of the caller's own file is his to drop.
    retry(|| unsafe {
        syscall(libc::SYS_fallocate, [fd.as_raw_fd() as usize, mode as usize, from as usize, len as usize, 0, 0])
    })
    .map(drop)
}

/// Bytes of memory a memory file occupies now.
pub fn file_blocks(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut st = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: st is a valid out buffer of the size the kernel writes on x86-64.
    unsafe { syscall(libc::SYS_fstat, [fd.as_raw_fd() as usize, st.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    // SAFETY: zeroed, then filled by the kernel; every bit pattern is a valid stat.
    let st = unsafe { st.assume_init() };
    Ok(st.st_blocks as u64 * 512)
}

/// From this many bytes on a copy that its reader will not find in the cache anyway goes past it: the destination's lines
/// need not be read first (measured here: a fifth faster for 256 KiB).
pub const STREAM_FROM: usize = 64 << 10;

/// Copies `len` bytes; large ones with non-temporal stores. Async-signal-safe.
///
/// # Safety
/// `[src, src + len)` is readable, `[dst, dst + len)` writable, and they do not overlap.
pub unsafe fn copy_streaming(dst: *mut u8, src: *const u8, len: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    if len < STREAM_FROM || !(dst as usize).is_multiple_of(16) {
        // SAFETY: the caller vouches for both ranges.
        return unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    }
    let whole = len & !63;
    for at in (0..whole).step_by(64) {
        for part in [0, 16, 32, 48] {
            // SAFETY: at + part + 16 <= len.
            let v = unsafe { _mm_loadu_si128(src.wrapping_add(at + part).cast()) };
            // SAFETY: as above, and dst is 16-byte aligned.
            unsafe { _mm_stream_si128(dst.wrapping_add(at + part).cast(), v) };
        }
    }
    // SAFETY: SSE is part of x86-64; the fence makes the streamed stores ordered like others.
    unsafe { _mm_sfence() };
    // SAFETY: the rest of both ranges.
    unsafe { std::ptr::copy_nonoverlapping(src.wrapping_add(whole), dst.wrapping_add(whole), len - whole) };
}

/// Copies `len` bytes to two places with non-temporal stores, reading each once. Async-signal-safe.
///
/// # Safety
/// As for [`copy_streaming`], for both; the destinations and `len` are multiples of 64.
pub unsafe fn stream_pair(first: *mut u8, second: *mut u8, src: *const u8, len: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for at in (0..len).step_by(64) {
        let mut line = [const { std::mem::MaybeUninit::uninit() }; 4];
        for (i, part) in line.iter_mut().enumerate() {
            // SAFETY: at + 64 <= len.
            part.write(unsafe { _mm_loadu_si128(src.wrapping_add(at + i * 16).cast()) });
        }
        for to in [first, second] {
            for (i, part) in line.iter().enumerate() {
                // SAFETY: every part was written above.
                let v = unsafe { part.assume_init() };
                // SAFETY: at + 64 <= len, and both destinations are aligned.
                unsafe { _mm_stream_si128(to.wrapping_add(at + i * 16).cast(), v) };
            }
        }
    }
    // SAFETY: SSE is part of x86-64; the fence makes the streamed stores ordered like others.
    unsafe { _mm_sfence() };
}
