//! The memory behind an export: a memory file, mapped at one address, that can be moved to another file in place.

use super::CallerMemory;
use crate::base::addr::round_up_page;
use crate::base::{Error, PAGE, Result, Status};
use crate::link::{Access, MemoryKind};
use crate::sys::Errno;
use crate::sys::freeze::Freeze;
use crate::sys::mem::{self, Mapping};
use crate::sys::{memfile, procfs};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes copied between two calls of the beat.
const CHUNK: usize = 64 << 20;
const SEALS: i32 = mem::SEAL_SHRINK | mem::SEAL_GROW | memfile::SEAL_SEAL;

/// One file with a second mapping of it, through which it is filled before, and wiped after its time.
struct File {
    fd: OwnedFd,
    /// For reading only. Opened at once: after a change of user the file would be another user's.
    reader: std::result::Result<OwnedFd, Errno>,
    alias: Mapping,
}

/// The home. Owned by the service thread, whose descriptor table its files live in.
pub(super) struct Home {
    file: File,
    base: usize,
    len: usize,
    /// Memory of the caller: becomes private again at the end.
    callers: bool,
    read_only: bool,
    pub kind: MemoryKind,
    /// How often it has moved.
    pub generation: u64,
}

fn fail(status: Status, call: &str, e: Errno) -> Error {
    Error::new(status, "prepare memory for export", format!("{call}: {e}"))
}

impl Home {
    /// Fresh zeroed memory.
    pub fn create(len: usize, access: Access) -> Result<Home> {
        let len = round_up_page(len).filter(|n| (PAGE..=isize::MAX as usize).contains(n));
        let len =
            len.ok_or_else(|| Error::new(Status::INVALID_ARGUMENT, "allocate memory", "the length is 0 or too large"))?;
        let file = File::new(len)?;
        let map =
            Mapping::shared(file.fd.as_fd(), 0, len, mem::RW).map_err(|e| fail(Status::NO_RESOURCES, "mmap", e))?;
        map.advise(0, len, mem::DONTFORK).map_err(|e| fail(Status::SYSTEM, "MADV_DONTFORK", e))?;
        let read_only = access == Access::ReadOnly;
        file.seal(read_only)?;
        let base = map.forget().0 as usize;
        Ok(Home { file, base, len, callers: false, read_only, kind: MemoryKind::System, generation: 1 })
    }

    /// The caller's memory, moved onto a file in place.
    pub fn adopt(at: &CallerMemory, access: Access, beat: &mut dyn FnMut()) -> Result<Home> {
        let kind = classify(at.addr, at.len)?;
        let file = File::new(at.len)?;
        // SAFETY: this thread stores only through the alias while the range is frozen. Where freezing is not possible the
        // caller has promised that nobody writes (Memory::at).
        let freeze = unsafe { Freeze::new(at.addr, at.len, true) }.ok();
        file.fill_from_private(at.addr, at.len, beat)?;
        let read_only = access == Access::ReadOnly;
        // SAFETY: `classify` found private anonymous memory in all of the range, and the caller gave it to us to replace.
        unsafe { file.place(at.addr, at.len) }?;
        if let Some(f) = freeze {
            f.thaw_replaced();
        }
        let mut home = Home { file, base: at.addr, len: at.len, callers: true, read_only, kind, generation: 1 };
        home.lock_pages();
        home.file.seal(read_only)?;
        Ok(home)
    }

    pub fn base(&self) -> usize {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The descriptor for a client that may write.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd.as_fd()
    }

    /// A descriptor for a client that may only read.
    pub fn read_only_fd(&self) -> std::result::Result<BorrowedFd<'_>, Errno> {
        self.file.reader.as_ref().map(OwnedFd::as_fd).map_err(|e| *e)
    }

    /// Moves the bytes to a new file at the same address and wipes the old one. Clients must have been stopped before.
    /// When it fails everything is as it was; `BUSY` when our own writers cannot be stopped and are not said to be `quiesced`.
    pub fn relocate(&mut self, quiesced: bool, beat: &mut dyn FnMut()) -> Result<()> {
        let new = File::new(self.len)?;
        // SAFETY: this thread stores only through the alias of the new file while the range is frozen.
        let freeze = match unsafe { Freeze::new(self.base, self.len, false) } {
            Ok(f) => Some(f),
            Err(_) if quiesced => None,
            Err(e) => {
                let why = format!(
                    "threads of this process may be writing the memory and cannot be stopped (userfaultfd: {e})"
                );
                let e = Error::new(Status::BUSY, "move the exported memory", why);
                return Err(e.remedy("stop the writers and revoke again with quiesced = true, or permit userfaultfd"));
            }
        };
        new.fill_from_file(&self.file, self.len, beat)?;
        // SAFETY: the range is this home's own mapping.
        unsafe { new.place(self.base, self.len) }?;
        if let Some(f) = freeze {
            f.thaw_replaced();
        }
        if !self.callers {
            self.dont_fork();
        }
        let old = std::mem::replace(&mut self.file, new);
        self.lock_pages();
        old.wipe(self.len, self.read_only, beat);
        self.generation += 1;
        // The same call has succeeded on the file before; and the move cannot be undone any more.
        let _ = self.file.seal(self.read_only);
        Ok(())
    }

    /// Ends the export: the caller's memory becomes private again, library memory is unmapped; the file is wiped.
    pub fn retire(self, beat: &mut dyn FnMut()) {
        if self.callers {
            // With no memory left for the copy the caller keeps the shared pages: his bytes matter more than our tidiness.
            if self.back_to_private(beat).is_err() {
                return;
            }
        } else {
            // SAFETY: made by `create`; the export has ended, so the range is nobody's any more.
            let _ = unsafe { mem::munmap(self.base, self.len) };
        }
        self.file.wipe(self.len, self.read_only, beat);
    }

    fn back_to_private(&self, beat: &mut dyn FnMut()) -> std::result::Result<(), Errno> {
        let private = Mapping::anonymous(self.len, mem::RW)?;
        if self.kind == MemoryKind::Pinned {
            let _ = mem::lock(private.addr(), self.len);
        }
        // SAFETY: this thread stores only into `private` while the range is frozen; else as promised in Memory::at.
        let freeze = unsafe { Freeze::new(self.base, self.len, false) }.ok();
        for (from, len) in memfile::segments(self.file.fd.as_fd(), self.len) {
            copy_chunks(private.ptr().wrapping_add(from), (self.base + from) as *const u8, len, beat);
        }
        let (from, _) = private.forget();
        // SAFETY: moves our fresh mapping over the home's own range.
        let moved = unsafe { memfile::move_over(from as usize, self.len, self.base) };
        if moved.is_ok()
            && let Some(f) = freeze
        {
            f.thaw_replaced();
        }
        moved.map(drop)
    }

    /// Page-locked memory stays page-locked on its new pages, as far as the limits allow.
    fn lock_pages(&mut self) {
        if self.kind == MemoryKind::Pinned && mem::lock(self.base, self.len).is_err() {
            self.kind = MemoryKind::System;
        }
    }

    fn dont_fork(&self) {
        // SAFETY: the home's own range; only fork children are concerned.
        let _ = unsafe { mem::advise(self.base, self.len, mem::DONTFORK) };
    }
}

/// Another description of the file, that cannot be written through.
fn open_reader(fd: &OwnedFd) -> std::result::Result<OwnedFd, Errno> {
    // Not /proc/self: that shows the descriptors of the main thread.
    let path = CString::new(format!("/proc/thread-self/fd/{}", fd.as_raw_fd())).map_err(|_| Errno::NOENT)?;
    procfs::open_read(&path)
}

impl File {
    fn new(len: usize) -> Result<File> {
        let fd = mem::memfd(c"libsmc-home", len as u64).map_err(|e| fail(Status::NO_RESOURCES, "memfd_create", e))?;
        memfile::set_mode(fd.as_fd(), 0o600).map_err(|e| fail(Status::SYSTEM, "fchmod", e))?;
        let alias = Mapping::shared(fd.as_fd(), 0, len, mem::RW).map_err(|e| fail(Status::NO_RESOURCES, "mmap", e))?;
        alias.advise(0, len, mem::DONTFORK).map_err(|e| fail(Status::SYSTEM, "MADV_DONTFORK", e))?;
        let _ = alias.advise(0, len, mem::DONTDUMP);
        Ok(File { reader: open_reader(&fd), fd, alias })
    }

    /// No client can shrink the file under us, nor add a seal that would keep us from wiping it. For read-only exports
    /// nobody can become a writer any more; our own mappings are older than the seal.
    fn seal(&self, read_only: bool) -> Result<()> {
        const FUTURE_WRITE: i32 = 0x10;
        let seals = SEALS | if read_only { FUTURE_WRITE } else { 0 };
        mem::seal(self.fd.as_fd(), seals).map_err(|e| fail(Status::SYSTEM, "F_ADD_SEALS", e))
    }

    /// Gets the pages now, so that a lack of memory is an error here and not a SIGBUS in the copy.
    fn reserve(&self, from: usize, len: usize) -> Result<()> {
        memfile::reserve(self.fd.as_fd(), from, len)
            .map_err(|e| fail(Status::NO_RESOURCES, "no memory for the copy", e))
    }

    fn fill_from_file(&self, old: &File, len: usize, beat: &mut dyn FnMut()) -> Result<()> {
        for (from, n) in memfile::segments(old.fd.as_fd(), len) {
            self.reserve(from, n)?;
            copy_chunks(self.alias.ptr().wrapping_add(from), old.alias.ptr().wrapping_add(from), n, beat);
        }
        Ok(())
    }

    /// Copies private memory; pages of zeros stay holes.
    fn fill_from_private(&self, addr: usize, len: usize, beat: &mut dyn FnMut()) -> Result<()> {
        for at in (0..len).step_by(PAGE) {
            let src = (addr + at) as *const u8;
            if is_zero_page(src) {
                continue;
            }
            self.reserve(at, PAGE)?;
            copy_chunks(self.alias.ptr().wrapping_add(at), src, PAGE, &mut || {});
            if at.is_multiple_of(CHUNK) {
                beat();
            }
        }
        Ok(())
    }

    /// Maps the file over `[addr, addr + len)`.
    ///
    /// # Safety
    /// The range is the caller's to replace.
    unsafe fn place(&self, addr: usize, len: usize) -> Result<()> {
        let flags = mem::MAP_SHARED | mem::MAP_FIXED;
        // SAFETY: passed on to the caller.
        let r = unsafe { mem::mmap(addr, len, mem::RW, flags, self.fd.as_raw_fd(), 0) };
        r.map(drop).map_err(|e| fail(Status::NO_RESOURCES, "mmap", e))
    }

    /// Makes the bytes zero for whoever still has the file.
    fn wipe(self, len: usize, read_only: bool, beat: &mut dyn FnMut()) {
        // The seal against writers forbids holes too; zeros through the alias then do.
        if !read_only && mem::punch_hole(self.fd.as_fd(), 0, len as u64).is_ok() {
            return;
        }
        for (from, n) in memfile::segments(self.fd.as_fd(), len) {
            for at in (from..from + n).step_by(CHUNK) {
                // SAFETY: inside the alias; nobody here relies on the old file's content.
                unsafe { std::ptr::write_bytes(self.alias.ptr().wrapping_add(at), 0, CHUNK.min(from + n - at)) };
                beat();
            }
        }
    }
}

fn copy_chunks(dst: *mut u8, src: *const u8, len: usize, beat: &mut dyn FnMut()) {
    for at in (0..len).step_by(CHUNK) {
        let n = CHUNK.min(len - at);
        // SAFETY: the callers pass mapped ranges of `len` bytes that do not overlap. Other processes may still write the
        // source (a client that is being revoked): what of it is copied does not matter.
        unsafe { std::ptr::copy_nonoverlapping(src.wrapping_add(at), dst.wrapping_add(at), n) };
        beat();
    }
}

fn is_zero_page(p: *const u8) -> bool {
    // SAFETY: the caller passes a mapped, readable page; it is frozen or quiet during the call.
    unsafe { std::slice::from_raw_parts(p.cast::<u64>(), PAGE / 8) }.iter().all(|w| *w == 0)
}

/// What the caller's memory is; an error when it cannot be exported in place.
fn classify(addr: usize, len: usize) -> Result<MemoryKind> {
    let no = |s, why: &str| {
        let e = Error::new(s, format!("export the memory at {addr:#x}"), why);
        Err(e.remedy("pass whole pages of malloc or private anonymous mmap memory, or let the library allocate"))
    };
    let end = addr.checked_add(len);
    let Some(end) = end.filter(|_| addr.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len != 0) else {
        return no(Status::INVALID_ARGUMENT, "address and length must be whole pages");
    };
    let vmas = procfs::vmas(addr, end).map_err(|e| fail(Status::SYSTEM, "/proc/self/smaps", e))?;
    let mut at = addr;
    for v in &vmas {
        if v.start > at {
            break;
        }
        let plain = v.name.is_empty() || v.name == "[heap]" || v.name.starts_with("[anon:");
        if v.inode != 0 || &v.perms != b"rw-p" || !plain {
            return no(Status::NOT_SUPPORTED, "it is not private anonymous read-write memory");
        }
        if [b"ht", b"um", b"uw", b"ui", b"io", b"pf", b"sl"].iter().any(|f| v.has(f)) {
            return no(Status::NOT_SUPPORTED, "it is huge-page, device, sealed or userfaultfd memory");
        }
        at = v.end;
    }
    if at < end {
        return no(Status::INVALID_ARGUMENT, "part of it is not mapped");
    }
    Ok(if vmas.iter().all(|v| v.has(b"lo")) { MemoryKind::Pinned } else { MemoryKind::System })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_private_anonymous_whole_pages() {
        let m = Mapping::anonymous(4 * PAGE, mem::RW).unwrap();
        assert_eq!(classify(m.addr(), m.len()).unwrap(), MemoryKind::System);
        assert_eq!(classify(m.addr() + 8, PAGE).unwrap_err().status, Status::INVALID_ARGUMENT);
        assert_eq!(classify(m.addr(), 0).unwrap_err().status, Status::INVALID_ARGUMENT);
        m.protect(PAGE, PAGE, mem::READ).unwrap();
        assert_eq!(classify(m.addr(), m.len()).unwrap_err().status, Status::NOT_SUPPORTED);
        let fd = mem::memfd(c"x", 4 * PAGE as u64).unwrap();
        let s = Mapping::shared(fd.as_fd(), 0, PAGE, mem::RW).unwrap();
        assert_eq!(classify(s.addr(), PAGE).unwrap_err().status, Status::NOT_SUPPORTED);
        if mem::lock(m.addr(), PAGE).is_ok() {
            assert_eq!(classify(m.addr(), PAGE).unwrap(), MemoryKind::Pinned);
        }
    }

    #[test]
    fn segments_skip_holes() {
        let fd = mem::memfd(c"x", 16 * PAGE as u64).unwrap();
        assert_eq!(memfile::segments(fd.as_fd(), 16 * PAGE).count(), 0);
        let m = Mapping::shared(fd.as_fd(), 0, 16 * PAGE, mem::RW).unwrap();
        for p in [2, 3, 9] {
            // SAFETY: inside the mapping.
            unsafe { m.ptr().wrapping_add(p * PAGE).write(1) };
        }
        assert_eq!(
            memfile::segments(fd.as_fd(), 16 * PAGE).collect::<Vec<_>>(),
            [(2 * PAGE, 2 * PAGE), (9 * PAGE, PAGE)]
        );
    }
}
