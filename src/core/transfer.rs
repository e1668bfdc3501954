//! Reads and writes through a descriptor: the same pages as loads and stores.
//!
//! The caller's buffer may itself lie in a view, or be no memory at all. It is touched only while no page is locked and
//! no signal blocked: bytes pass through a page on the stack.

use super::pages::Event;
use super::region::Region;
use crate::base::addr::PAGE;
use crate::base::{HomeOff, Status};
use crate::link::Access;
use crate::sys::clock::Deadline;
use crate::sys::sync::SignalsBlocked;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    OutOfRegion,
    IntoRegion,
}

impl Region {
    /// Copies region bytes to `dst` through the same pages (pread). Resident stores of this process are seen. On failure
    /// the bytes before the failing page have been copied.
    ///
    /// # Safety
    /// `dst` is valid for `len` writes.
    pub unsafe fn read(&self, off: u64, dst: *mut u8, len: usize) -> Status {
        let mut bounce = [0u8; PAGE];
        self.each_piece(off, len, |at, done, n, deadline| {
            let piece = bounce.get_mut(..n).unwrap_or_default();
            let s = self.move_piece(at, piece, Way::OutOfRegion, deadline);
            if s.is_ok() {
                // SAFETY: done + n <= len by each_piece, and the caller vouches for dst.
                unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), dst.wrapping_add(done), n) };
            }
            s
        })
    }

    /// Copies `src` into the region through the same pages (pwrite); at the home by the next release, or when the call
    /// returns under write-through. On failure the bytes before the failing page have been stored.
    ///
    /// # Safety
    /// `src` is valid for `len` reads.
    pub unsafe fn write(&self, off: u64, src: *const u8, len: usize) -> Status {
        if self.opts.access == Access::ReadOnly {
            return Status::PERMISSION;
        }
        let mut bounce = [0u8; PAGE];
        let written = self.each_piece(off, len, |at, done, n, deadline| {
            let piece = bounce.get_mut(..n).unwrap_or_default();
            // SAFETY: done + n <= len by each_piece, and the caller vouches for src.
            unsafe { std::ptr::copy_nonoverlapping(src.wrapping_add(done), piece.as_mut_ptr(), n) };
            self.move_piece(at, piece, Way::IntoRegion, deadline)
        });
        if written.is_ok() { super::exact::finish_write(self, off, len as u64) } else { written }
    }

    /// Calls `f(offset, bytes done, bytes, deadline)` for each part of `[off, off + len)` inside one page, until one
    /// fails. Each has its own deadline.
    fn each_piece(&self, off: u64, len: usize, mut f: impl FnMut(HomeOff, usize, usize, Deadline) -> Status) -> Status {
        if off.checked_add(len as u64).is_none_or(|end| end > self.len()) {
            return Status::OUT_OF_RANGE;
        }
        let mut done = 0;
        while done < len {
            let at = HomeOff(off).plus(done);
            let n = (PAGE - (at.0 % PAGE as u64) as usize).min(len - done);
            let s = f(at, done, n, self.deadline());
            if !s.is_ok() {
                return s;
            }
            done += n;
        }
        Status::OK
    }

    /// Copies between `buf` and the region's bytes at `at`, inside one page, which is brought and locked for it.
    fn move_piece(&self, at: HomeOff, buf: &mut [u8], way: Way, deadline: Deadline) -> Status {
        let page = at.page().0;
        loop {
            if let Err(s) = self.ensure(page, deadline) {
                return s;
            }
            let _signals = SignalsBlocked::new();
            if self.pages.lock(page, deadline).is_err() {
                if deadline.passed() {
                    return Status::TIMED_OUT;
                }
                continue;
            }
            let here = self.a_page(page).wrapping_add((at.0 % PAGE as u64) as usize);
            match way {
                // SAFETY: the piece lies inside one page of A, which is locked; `buf` is our own.
                Way::OutOfRegion => unsafe { std::ptr::copy_nonoverlapping(here, buf.as_mut_ptr(), buf.len()) },
                Way::IntoRegion => {
                    // SAFETY: as above, the other way.
                    unsafe { std::ptr::copy_nonoverlapping(buf.as_ptr(), here, buf.len()) };
                    self.pages.dirty.set(page);
                }
            }
            let _ = self.pages.apply(page, Event::Unlock);
            return Status::OK;
        }
    }
}
