//! Back ends: how a touch of an absent page is delivered, how a page is shown, hidden and protected, and how dirty
//! pages are found. The engine above works with pages and never asks which back end it has, with three exceptions that
//! are properties and not names: [`Delivery`], [`Tracking`] and [`Tracker::granule`].

use super::pages::Bitmap;
use super::views::View;
use crate::base::addr::PageRange;
use crate::base::config::Backend;
use crate::sys::Errno;
use crate::sys::mem;
use crate::sys::pagemap::{Pagemap, Run};
use crate::sys::process::under_valgrind;
use crate::sys::uffd::{self, Uffd};

/// Who learns of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// An own thread reads it; the toucher sleeps.
    Thread,
    /// SIGBUS in the toucher.
    Sigbus,
    /// SIGSEGV in the toucher.
    Sigsegv,
}

/// How the first store to a clean page is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracking {
    /// By the kernel, without a fault to us; found by PAGEMAP_SCAN.
    Async,
    /// By a fault to us, which marks the page in `written` before it lets the store through.
    Fault,
}

/// The back end of one region.
#[derive(Debug)]
pub struct Tracker {
    /// Which one, for people.
    pub backend: Backend,
    /// Who learns of a fault.
    pub delivery: Delivery,
    /// How stores are noticed.
    pub tracking: Tracking,
    uffd: Option<Uffd>,
    pagemap: Option<Pagemap>,
    /// A page is protected a moment after it is shown; see [`Tracker::protects_late`].
    late: bool,
}

/// Pages whose protection changes together under mprotect: 64 KiB keeps the number of VMAs within the kernel's limit.
const MPROTECT_GRANULE: usize = 16;

const ASYNC: u64 =
    uffd::FEATURE_MINOR_SHMEM | uffd::FEATURE_WP_SHMEM | uffd::FEATURE_WP_UNPOPULATED | uffd::FEATURE_WP_ASYNC;
const SYNC: u64 = uffd::FEATURE_MINOR_SHMEM | uffd::FEATURE_WP_SHMEM | uffd::FEATURE_WP_UNPOPULATED;

impl Tracker {
    /// Sets up `backend`. `each_store` asks that every store faults in the storing thread (exact write-through);
    /// the thread back end cannot do that and becomes `sync`. Answers why in words when the host refuses.
    pub fn new(backend: Backend, each_store: bool) -> Result<Tracker, String> {
        let backend = if each_store && backend != Backend::Mprotect { Backend::Sync } else { backend };
        let (delivery, tracking, features) = match backend {
            Backend::Thread => (Delivery::Thread, Tracking::Async, ASYNC | uffd::FEATURE_POISON),
            Backend::Sigbus => (Delivery::Sigbus, Tracking::Async, ASYNC | uffd::FEATURE_SIGBUS),
            Backend::Sync => (Delivery::Sigbus, Tracking::Fault, SYNC | uffd::FEATURE_SIGBUS),
            Backend::Mprotect => (Delivery::Sigsegv, Tracking::Fault, 0),
        };
        if under_valgrind() {
            return Err("valgrind takes the touch of an absent page for an error, and runs one thread at a time".into());
        }
        let uffd = match backend {
            Backend::Mprotect => None,
            // Before Linux 6.4.
            Backend::Sync => Some(
                Uffd::open(features)
                    .or_else(|why| Uffd::open(features & !uffd::FEATURE_WP_UNPOPULATED).map_err(|_| why))?,
            ),
            _ => Some(Uffd::open(features)?),
        };
        let late = uffd.as_ref().is_some_and(|u| !u.has(uffd::FEATURE_WP_UNPOPULATED));
        if late && each_store {
            // A store in that moment would not be seen by itself.
            return Tracker::new(Backend::Mprotect, each_store);
        }
        if backend == Backend::Thread && !uffd.as_ref().is_some_and(Uffd::is_full) {
            return Err("only user-mode faults are permitted here: system calls on region pages would fail".into());
        }
        let pagemap = match tracking {
            Tracking::Async => Some(Pagemap::open().map_err(|e| format!("/proc/self/pagemap: {e}"))?),
            Tracking::Fault => None,
        };
        Ok(Tracker { backend, delivery, tracking, uffd, pagemap, late })
    }

    /// Protection a new view is mapped with.
    pub fn initial_prot(&self, write: bool) -> i32 {
        match (&self.uffd, write) {
            (None, _) => mem::NONE,
            (_, true) => mem::RW,
            (_, false) => mem::READ,
        }
    }

    /// Pages whose protection changes together.
    pub fn granule(&self) -> usize {
        if self.uffd.is_some() { 1 } else { MPROTECT_GRANULE }
    }

    /// The kernel cannot show a page write-protected (Linux 5.19 to 6.3): [`Tracker::admit`] shows it and protects it then.
    /// The caller finds out what was stored in between, with the harvest lock held all the while.
    pub fn protects_late(&self) -> bool {
        self.late
    }

    /// The userfaultfd, for the thread that reads it.
    pub fn uffd(&self) -> Option<&Uffd> {
        self.uffd.as_ref()
    }

    /// Descriptors the back end needs in a private descriptor table.
    pub fn raw_fds(&self) -> [i32; 2] {
        use std::os::fd::AsRawFd;
        let u = self.uffd.as_ref().map_or(-1, |u| u.fd().as_raw_fd());
        [u, self.pagemap.as_ref().map_or(-1, Pagemap::raw_fd)]
    }

    /// Starts watching a fresh view: every page faults, and none counts as written. The write-protect markers on pages
    /// that were never touched are what keeps them out of the first harvest.
    ///
    /// # Safety
    /// `[start, start + len)` is a mapping of the region's memory file that nobody uses yet.
    pub unsafe fn arm(&self, start: usize, len: usize) -> Result<(), Errno> {
        let Some(u) = &self.uffd else { return Ok(()) };
        // SAFETY: the caller promises a fresh mapping of the memory file.
        unsafe { u.register(start, len) }?;
        // Where a page is protected after it is shown, a mark from before would be lost anyway.
        if self.late { Ok(()) } else { u.write_protect(start, len, true) }
    }

    /// Shows pages of a view. `clean` pages fault or are noted at the first store; for the others the caller has said
    /// so to the books first (under fault tracking: set `written` under the harvest lock). Async-signal-safe.
    pub fn admit(&self, view: &View, range: PageRange, clean: bool) -> Result<(), Errno> {
        let Some((addr, len)) = view.clip(range) else { return Ok(()) };
        match &self.uffd {
            Some(u) if clean && self.late => u.admit(addr, len, false).and_then(|()| u.write_protect(addr, len, true)),
            Some(u) => u.admit(addr, len, clean),
            None => protect(addr, len, if clean || !view.write { mem::READ } else { mem::RW }),
        }
    }

    /// Lets stores to shown pages through. Async-signal-safe.
    pub fn unprotect(&self, view: &View, range: PageRange) -> Result<(), Errno> {
        let Some((addr, len)) = view.clip(range) else { return Ok(()) };
        match &self.uffd {
            Some(u) => u.write_protect(addr, len, false),
            None => protect(addr, len, if view.write { mem::RW } else { mem::READ }),
        }
    }

    /// Makes the next store to shown pages fault again (fault tracking). Async-signal-safe.
    pub fn protect(&self, view: &View, range: PageRange) -> Result<(), Errno> {
        let Some((addr, len)) = view.clip(range) else { return Ok(()) };
        match &self.uffd {
            Some(u) => u.write_protect(addr, len, true),
            None => protect(addr, len, mem::READ),
        }
    }

    /// Hides pages: the next touch faults. A page that was dirty still shows as written to [`Tracker::scan`]
    /// afterwards (the kernel keeps the mark), so hiding comes first and collecting second. Async-signal-safe.
    pub fn hide(&self, view: &View, range: PageRange) -> Result<(), Errno> {
        let Some((addr, len)) = view.clip(range) else { return Ok(()) };
        match &self.uffd {
            Some(_) => drop_pages(addr, len),
            None => protect(addr, len, mem::NONE),
        }
    }

    /// Makes touches of hidden pages fail with SIGBUS; false where the back end has no such means.
    pub fn poison(&self, view: &View, range: PageRange) -> bool {
        let (Some(u), Some((addr, len))) = (&self.uffd, view.clip(range)) else { return false };
        // A page's write-protect marker would be in the way (EEXIST); the scan after the next hiding sets it again.
        u.has(uffd::FEATURE_POISON) && u.write_protect(addr, len, false).is_ok() && u.poison(addr, len).is_ok()
    }

    /// Asynchronous tracking: finds written pages of a view and protects them again, setting their bit in `dirty`;
    /// answers how many bits were new. The caller holds the harvest lock. Async-signal-safe.
    pub fn scan(&self, view: &View, range: PageRange, dirty: &Bitmap) -> Result<usize, Errno> {
        let (Some(pm), Some((addr, len))) = (&self.pagemap, view.clip(range)) else { return Ok(0) };
        let (mut at, end, mut found) = (addr, addr + len, 0);
        let mut runs = [Run::default(); 64];
        while at < end {
            let (n, stop) = pm.scan(at, end, true, &mut runs)?;
            for r in runs.iter().take(n) {
                let last = view.page_at(r.end as usize - 1) + 1;
                found += dirty.set_range(view.page_at(r.start as usize), last);
            }
            if n < runs.len() || stop <= at {
                break;
            }
            at = stop;
        }
        Ok(found)
    }
}

/// Drops the pages of a pinned view. The program may have locked them into memory (mlockall), which an older kernel
/// takes for a reason to refuse: the answer says so, and nothing is given up then.
fn drop_pages(addr: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the view is pinned, so the range is still our mapping; its bytes stay in the memory file.
    match unsafe { mem::advise(addr, len, mem::DONTNEED_LOCKED) } {
        // SAFETY: as above, for kernels that do not know the other.
        Err(_) => unsafe { mem::advise(addr, len, mem::DONTNEED) },
        ok => ok,
    }
}

fn protect(addr: usize, len: usize, prot: i32) -> Result<(), Errno> {
    // SAFETY: callers clip the range to a pinned view, which is our mapping.
    unsafe { mem::protect(addr, len, prot) }
}
