//! Views of a region: mapping them for the application and taking them away.

use super::region::{Region, system};
use super::views;
use crate::base::addr::{PAGE, PageRange, round_up_page};
use crate::base::{Error, Result, Status};
use crate::link::Access;
use crate::sys::mem::{self, Mapping};
use std::os::fd::AsRawFd;
use std::sync::{Arc, PoisonError};

/// One view and its place in the table of views.
pub(super) struct ViewSlot {
    slot: usize,
    start: usize,
    pages: PageRange,
    write: bool,
    /// Keeps the region alive while the view exists.
    _keep: Arc<Region>,
}

impl Region {
    /// Maps `[off, off + len)` (page aligned) as a view for the application and answers its address.
    ///
    /// `hint` as in mmap; `fixed` replaces what is there. `write` false gives a read-only view.
    pub fn map_view(self: &Arc<Self>, hint: usize, fixed: bool, off: u64, len: usize, write: bool) -> Result<usize> {
        let attempt = format!("map region \"{}\"", self.name());
        let bytes = round_up_page(len).filter(|_| len > 0 && off.is_multiple_of(PAGE as u64));
        let range = bytes.and_then(|b| self.range(off, b as u64).ok());
        let (Some(bytes), Some(range)) = (bytes, range) else {
            return Err(Error::new(
                Status::OUT_OF_RANGE,
                attempt,
                "offset and length must lie inside the region, offset on a page",
            ));
        };
        if write && self.opts.access == Access::ReadOnly {
            return Err(Error::new(Status::PERMISSION, attempt, "the region was opened read-only"));
        }
        let prot = self.tracker.initial_prot(write);
        let start = place(self.file.as_raw_fd(), hint, fixed, off, bytes, prot).map_err(system(&attempt))?;
        // SAFETY: the mapping was made a line above and nobody knows it yet.
        let view = unsafe { Mapping::adopt(start as *mut u8, bytes) };
        let _ = view.advise(0, bytes, mem::DONTFORK);
        let _ = view.advise(0, bytes, mem::DONTDUMP);
        // SAFETY: as above, it is a fresh mapping of the memory file.
        unsafe { self.tracker.arm(start, bytes) }.map_err(system(&attempt))?;
        let mut slots = self.view_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = views::insert(start, range, Arc::as_ptr(self), write).ok_or_else(|| {
            Error::new(Status::NO_RESOURCES, &attempt, format!("more than {} views", views::MAX_VIEWS))
        })?;
        slots.push(ViewSlot { slot, start, pages: range, write, _keep: self.clone() });
        Ok(view.forget().0 as usize)
    }

    /// Takes the views that lie wholly or partly inside `[addr, addr + len)` away there; the rest of a partly covered
    /// view stays. What is dirty in them is released first, and the answer says whether that worked.
    pub fn unmap_view(self: &Arc<Self>, addr: usize, len: usize) -> Status {
        let end = addr.saturating_add(len);
        let mut worst = Status::OK;
        // All of them at once: where one was taken away another thread may map a view the next moment.
        for v in self.take_slots(addr, end) {
            let v_end = v.start + v.pages.len() * PAGE;
            let (cut, cut_end) = (addr.max(v.start), end.min(v_end));
            let page = |a: usize| v.pages.start + (a - v.start) / PAGE;
            let released = self.release_pages(PageRange { start: page(cut), end: page(cut_end) });
            worst = if released.is_ok() { worst } else { released };
            // What stays is published before the old view goes: a fault finds one or the other at every moment.
            for (s, e) in [(v.start, cut), (cut_end, v_end)] {
                if s < e {
                    self.put_slot(s, PageRange { start: page(s), end: page(s) + (e - s) / PAGE }, v.write);
                }
            }
            views::remove(v.slot);
            // SAFETY: the view was ours, is out of the table, and nobody works on it: the pins are gone.
            let _ = unsafe { mem::munmap(cut, cut_end - cut) };
        }
        worst
    }

    fn take_slots(&self, addr: usize, end: usize) -> Vec<ViewSlot> {
        let mut slots = self.view_slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.extract_if(.., |v| v.start < end && addr < v.start + v.pages.len() * PAGE).collect()
    }

    fn put_slot(self: &Arc<Self>, start: usize, pages: PageRange, write: bool) {
        let mut slots = self.view_slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = views::insert(start, pages, Arc::as_ptr(self), write) {
            slots.push(ViewSlot { slot, start, pages, write, _keep: self.clone() });
        }
    }

    /// First view's address and length, if there is one.
    pub fn first_view(&self) -> Option<(usize, usize)> {
        let slots = self.view_slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.first().map(|v| (v.start, v.pages.len() * PAGE))
    }
}

/// Maps the memory file for a view: at the hint, anywhere, or on a 2 MiB boundary when it is large and the place is free
/// to choose (one last-level page table per 2 MiB keeps scans and shootdowns few).
fn place(
    fd: i32,
    hint: usize,
    fixed: bool,
    off: u64,
    len: usize,
    prot: i32,
) -> std::result::Result<usize, crate::sys::Errno> {
    const HUGE: usize = 2 << 20;
    if hint == 0 && !fixed && len >= HUGE {
        let hole = Mapping::anonymous(len + HUGE, mem::NONE)?;
        let start = hole.addr().next_multiple_of(HUGE);
        // SAFETY: replaces a part of the hole reserved a line above.
        let at = unsafe { mem::mmap(start, len, prot, mem::MAP_SHARED | mem::MAP_FIXED, fd, off) }?;
        let (base, total) = hole.forget();
        for (s, e) in [(base as usize, at), (at + len, base as usize + total)] {
            if s < e {
                // SAFETY: what is left of the hole on both sides.
                let _ = unsafe { mem::munmap(s, e - s) };
            }
        }
        return Ok(at);
    }
    let flags = mem::MAP_SHARED | if fixed { mem::MAP_FIXED } else { 0 };
    // SAFETY: a fixed place is the program's own wish, as in mmap(2).
    unsafe { mem::mmap(hint, len, prot, flags, fd, off) }
}
