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

impl ViewSlot {
    fn end(&self) -> usize {
        self.start + self.pages.len() * PAGE
    }
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
        let start = place(self.file.as_raw_fd(), hint, fixed, off, bytes).map_err(system(&attempt))?;
        // SAFETY: the mapping was made a line above and nobody knows it yet.
        let view = unsafe { Mapping::adopt(start as *mut u8, bytes) };
        let _ = view.advise(0, bytes, mem::DONTFORK);
        let _ = view.advise(0, bytes, mem::DONTDUMP);
        view.unlocked(prot).map_err(system(&attempt))?;
        // SAFETY: as above, it is a fresh mapping of the memory file.
        unsafe { self.tracker.arm(start, bytes) }.map_err(system(&attempt))?;
        let mut slots = self.view_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = views::insert(start, range, self, write).ok_or_else(|| {
            Error::new(Status::NO_RESOURCES, &attempt, format!("more than {} views", views::MAX_VIEWS))
        })?;
        slots.push(ViewSlot { slot, start, pages: range, write, _keep: self.clone() });
        Ok(view.forget().0 as usize)
    }

    /// Takes the views that lie wholly or partly inside `[addr, addr + len)` away there; the rest of a partly covered
    /// view stays. What is dirty in them is released first, and the answer says whether that worked. NO_RESOURCES means
    /// that the table of views has no room for the parts, and nothing else: nothing has changed then.
    pub fn unmap_view(self: &Arc<Self>, addr: usize, len: usize) -> Status {
        self.take_views(addr, len, |at, bytes| {
            // SAFETY: the view was ours, is out of the table, and nobody works on it: the pins are gone.
            let _ = unsafe { mem::munmap(at, bytes) };
        })
    }

    /// As [`Region::unmap_view`], and leaves the range reserved without access: for a caller that replaces it at once and
    /// must not find somebody else's mapping there.
    pub fn vacate_view(self: &Arc<Self>, addr: usize, len: usize) -> Status {
        self.take_views(addr, len, |at, bytes| {
            let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE | mem::MAP_FIXED;
            // SAFETY: as in `unmap_view`; the range is still our mapping.
            let _ = unsafe { mem::mmap(at, bytes, mem::NONE, flags, -1, 0) };
        })
    }

    fn take_views(self: &Arc<Self>, addr: usize, len: usize, clear: impl Fn(usize, usize)) -> Status {
        // All of them at once: where one was taken away another thread may map a view the next moment.
        let cut = match self.cut_views(addr, addr.saturating_add(len)) {
            Ok(cut) => cut,
            Err(s) => return s,
        };
        let mut worst = Status::OK;
        for v in cut {
            worst = worst.and(self.release_pages(v.pages));
            views::remove(v.slot);
            clear(v.start, v.pages.len() * PAGE);
        }
        // The caller must be able to tell a view that stayed from one that went with a failure of its release.
        if worst == Status::NO_RESOURCES { Status::SYSTEM } else { worst }
    }

    /// Splits the views that `[addr, end)` touches: what lies outside stays in the list, what lies inside is answered. Every
    /// part is published before its whole goes, so that a fault finds one or the other at every moment.
    fn cut_views(self: &Arc<Self>, addr: usize, end: usize) -> std::result::Result<Vec<ViewSlot>, Status> {
        let mut slots = self.view_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let touched = |v: &ViewSlot| v.start < end && addr < v.end();
        let mut inside = Vec::new();
        while let Some(i) = slots.iter().position(touched) {
            let whole = slots.swap_remove(i);
            if addr <= whole.start && whole.end() <= end {
                inside.push(whole);
                continue;
            }
            let (from, to) = (addr.max(whole.start), end.min(whole.end()));
            let bounds = [(whole.start, from), (from, to), (to, whole.end())];
            let parts: Vec<_> = bounds
                .into_iter()
                .filter(|(s, e)| s < e)
                .map(|(s, e)| (s == from, self.part_of(&whole, s, e)))
                .collect();
            if parts.iter().any(|(_, p)| p.is_none()) {
                parts.into_iter().filter_map(|(_, p)| p).for_each(|p| views::remove(p.slot));
                slots.push(whole);
                slots.append(&mut inside);
                return Err(Status::NO_RESOURCES);
            }
            views::remove(whole.slot);
            for (is_inside, part) in parts.into_iter().filter_map(|(k, p)| p.map(|p| (k, p))) {
                if is_inside { inside.push(part) } else { slots.push(part) }
            }
        }
        Ok(inside)
    }

    fn part_of(self: &Arc<Self>, whole: &ViewSlot, start: usize, end: usize) -> Option<ViewSlot> {
        let page = |a: usize| whole.pages.start + (a - whole.start) / PAGE;
        let pages = PageRange { start: page(start), end: page(end) };
        let slot = views::insert(start, pages, self, whole.write)?;
        Some(ViewSlot { slot, start, pages, write: whole.write, _keep: self.clone() })
    }

    /// First view's address and length, if there is one.
    pub fn first_view(&self) -> Option<(usize, usize)> {
        let slots = self.view_slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.first().map(|v| (v.start, v.pages.len() * PAGE))
    }
}

/// Maps the memory file for a view, without access: at the hint, anywhere, or on a 2 MiB boundary when it is large and the place is free
/// to choose (one last-level page table per 2 MiB keeps scans and shootdowns few).
fn place(fd: i32, hint: usize, fixed: bool, off: u64, len: usize) -> std::result::Result<usize, crate::sys::Errno> {
    const HUGE: usize = 2 << 20;
    if hint == 0 && !fixed && len >= HUGE {
        let hole = Mapping::anonymous(len + HUGE, mem::NONE)?;
        let start = hole.addr().next_multiple_of(HUGE);
        // SAFETY: replaces a part of the hole reserved a line above.
        let at = unsafe { mem::mmap(start, len, mem::NONE, mem::MAP_SHARED | mem::MAP_FIXED, fd, off) }?;
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
    unsafe { mem::mmap(hint, len, mem::NONE, flags, fd, off) }
}
