//! Reads and writes through a descriptor: the same pages as loads and stores.

use super::pages::Event;
use super::region::Region;
use crate::base::addr::PAGE;
use crate::base::{HomeOff, Status};
use crate::sys::sync::SignalsBlocked;

impl Region {
    /// Copies region bytes to `dst` through the same pages (pread). Resident stores of this process are seen.
    ///
    /// # Safety
    /// `dst` is valid for `len` writes.
    pub unsafe fn read(&self, off: u64, dst: *mut u8, len: usize) -> Status {
        self.each_piece(off, len, |page, at, done, n| {
            // SAFETY: page + at .. + n lies inside A; done + n <= len by each_piece; the caller vouches for dst.
            unsafe { std::ptr::copy_nonoverlapping(self.a_page(page).wrapping_add(at), dst.wrapping_add(done), n) };
            false
        })
    }

    /// Copies `src` into the region through the same pages (pwrite); at the home by the next release.
    ///
    /// # Safety
    /// `src` is valid for `len` reads.
    pub unsafe fn write(&self, off: u64, src: *const u8, len: usize) -> Status {
        if self.opts.access == crate::link::Access::ReadOnly {
            return Status::PERMISSION;
        }
        self.each_piece(off, len, |page, at, done, n| {
            // SAFETY: as in `read`, in the other direction.
            unsafe { std::ptr::copy_nonoverlapping(src.wrapping_add(done), self.a_page(page).wrapping_add(at), n) };
            true
        })
    }

    /// Calls `f(page, offset in page, bytes done, bytes)` for each piece of `[off, off + len)`, the page locked and resident.
    /// `f` says whether it wrote.
    fn each_piece(&self, off: u64, len: usize, f: impl Fn(usize, usize, usize, usize) -> bool) -> Status {
        if off.checked_add(len as u64).is_none_or(|end| end > self.len()) {
            return Status::OUT_OF_RANGE;
        }
        let deadline = self.deadline();
        let mut done = 0;
        while done < len {
            let at = HomeOff(off).plus(done);
            let (page, within) = (at.page().0, (at.0 % PAGE as u64) as usize);
            let n = (PAGE - within).min(len - done);
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
            if f(page, within, done, n) {
                self.pages.dirty.set(page);
            }
            let _ = self.pages.apply(page, Event::Unlock);
            done += n;
        }
        Status::OK
    }
}
