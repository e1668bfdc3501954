//! Where regions show in the application's address space.
//!
//! A *view* is one mapping of a region's memory file that the application uses. The table of views is what a fault
//! handler searches, so it is a fixed array of atomics: no lock, no allocation. Whoever works on a view *pins* it;
//! taking a view away waits for the pins, so that no drop ever hits memory the program mapped there later. Pins are
//! held with signals blocked only.

use super::region::Region;
use crate::base::addr::{PAGE, PageRange};
use crate::sys::clock::nap;
use crate::sys::sync::SignalsBlocked;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::SeqCst};

/// Most views in one process.
pub const MAX_VIEWS: usize = 1024;

struct Slot {
    pins: AtomicU32,
    /// 0 = free or going away.
    start: AtomicUsize,
    end: AtomicUsize,
    first_page: AtomicUsize,
    region: AtomicPtr<Region>,
    write: AtomicBool,
    /// Counted in [`REFUSING`].
    refusing: AtomicBool,
    taken: AtomicU32,
}

static SLOTS: [Slot; MAX_VIEWS] = [const {
    Slot {
        pins: AtomicU32::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        first_page: AtomicUsize::new(0),
        region: AtomicPtr::new(std::ptr::null_mut()),
        write: AtomicBool::new(false),
        refusing: AtomicBool::new(false),
        taken: AtomicU32::new(0),
    }
}; MAX_VIEWS];

/// One past the highest slot ever used: bounds the search.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// Counts insertions. Who searched past a free slot and then past one just emptied has missed a view that moved from
/// the second to the first: he sees the count change and searches again.
static INSERTED: AtomicUsize = AtomicUsize::new(0);

/// Views in which a system call may meet EFAULT; the fast path of the hooks.
static REFUSING: AtomicUsize = AtomicUsize::new(0);

/// A pinned view: its mapping and its region stay until this is dropped.
pub struct View {
    slot: &'static Slot,
    /// Address of the first byte.
    pub start: usize,
    /// Pages of the region it shows.
    pub pages: PageRange,
    /// The program may store to it.
    pub write: bool,
}

impl View {
    fn pin(slot: &'static Slot, wanted: impl Fn(usize, usize) -> bool) -> Option<View> {
        slot.pins.fetch_add(1, SeqCst);
        let (start, end) = (slot.start.load(SeqCst), slot.end.load(SeqCst));
        let first = slot.first_page.load(SeqCst);
        let pages = PageRange { start: first, end: first + end.saturating_sub(start) / PAGE };
        let view = View { slot, start, pages, write: slot.write.load(SeqCst) };
        // Dropping the view on refusal takes the pin back.
        (start != 0 && wanted(start, end)).then_some(view)
    }

    /// The region shown.
    pub fn region(&self) -> &Region {
        // SAFETY: a slot with a non-zero start holds a region that its view keeps alive; `remove` clears the start and
        // waits for this pin before the view's reference is given up.
        unsafe { &*self.slot.region.load(SeqCst) }
    }

    /// Address at which a page of the region shows.
    pub fn addr_of(&self, page: usize) -> usize {
        self.start + (page - self.pages.start) * PAGE
    }

    /// The page at an address inside the view.
    pub fn page_at(&self, addr: usize) -> usize {
        self.pages.start + (addr - self.start) / PAGE
    }

    /// The part of `range` this view shows, as (address, bytes).
    pub fn clip(&self, range: PageRange) -> Option<(usize, usize)> {
        let r = self.pages.intersect(range);
        (!r.is_empty()).then(|| (self.addr_of(r.start), r.len() * PAGE))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.slot.pins.fetch_sub(1, SeqCst);
    }
}

/// The view that holds `addr`. Async-signal-safe; the caller has signals blocked or is a handler.
pub fn lookup(addr: usize) -> Option<View> {
    loop {
        let inserted = INSERTED.load(SeqCst);
        let hit = |s: &&'static Slot| {
            let start = s.start.load(SeqCst);
            start != 0 && (start..s.end.load(SeqCst)).contains(&addr)
        };
        let slots = SLOTS.get(..HIGH.load(SeqCst))?;
        let pin = |s| View::pin(s, |start, end| (start..end).contains(&addr));
        if let Some(view) = slots.iter().filter(hit).find_map(pin) {
            return Some(view);
        }
        if INSERTED.load(SeqCst) == inserted {
            return None;
        }
    }
}

/// The lowest view that overlaps `[from, to)`. Async-signal-safe.
pub fn lowest(_signals: &SignalsBlocked, from: usize, to: usize) -> Option<View> {
    loop {
        let inserted = INSERTED.load(SeqCst);
        let inside = |start: usize, end: usize| start != 0 && start < to && from < end;
        let slots = SLOTS.get(..HIGH.load(SeqCst))?;
        let hits = slots.iter().filter(|s| inside(s.start.load(SeqCst), s.end.load(SeqCst)));
        let Some(slot) = hits.min_by_key(|s| s.start.load(SeqCst)) else {
            if INSERTED.load(SeqCst) == inserted {
                return None;
            }
            continue;
        };
        // It may have gone meanwhile: look again.
        if let Some(view) = View::pin(slot, inside) {
            return Some(view);
        }
    }
}

/// Views whose absent pages the kernel does not wait for.
pub fn fault_in_calls() -> bool {
    REFUSING.load(SeqCst) != 0
}

/// True when some view overlaps `[addr, addr + len)`; the cheap question of the address-space hooks.
pub fn any_in(addr: usize, len: usize) -> bool {
    let slots = SLOTS.get(..HIGH.load(SeqCst)).unwrap_or(&[]);
    slots.iter().any(|s| {
        let start = s.start.load(SeqCst);
        start != 0 && start < addr.saturating_add(len) && addr < s.end.load(SeqCst)
    })
}

/// Calls `f` with every view of `region`, pinned; perhaps more than once with the same one. The caller has signals
/// blocked.
pub fn each(region: *const Region, mut f: impl FnMut(&View)) {
    loop {
        let inserted = INSERTED.load(SeqCst);
        for slot in SLOTS.get(..HIGH.load(SeqCst)).unwrap_or(&[]) {
            if std::ptr::eq(slot.region.load(SeqCst), region)
                && let Some(view) = View::pin(slot, |_, _| true)
                && std::ptr::eq(view.slot.region.load(SeqCst), region)
            {
                f(&view);
            }
        }
        if INSERTED.load(SeqCst) == inserted {
            return;
        }
    }
}

/// Publishes a view; `None` when the table is full. The caller keeps `region` alive until [`remove`] has returned.
pub fn insert(start: usize, pages: PageRange, region: &Region, write: bool) -> Option<usize> {
    let free = |s: &Slot| s.taken.compare_exchange(0, 1, SeqCst, SeqCst).is_ok();
    let idx = SLOTS.iter().position(free)?;
    let slot = SLOTS.get(idx)?;
    slot.end.store(start + pages.len() * PAGE, SeqCst);
    slot.first_page.store(pages.start, SeqCst);
    slot.region.store(std::ptr::from_ref(region).cast_mut(), SeqCst);
    slot.write.store(write, SeqCst);
    let refusing = !region.kernel_waits();
    slot.refusing.store(refusing, SeqCst);
    REFUSING.fetch_add(usize::from(refusing), SeqCst);
    HIGH.fetch_max(idx + 1, SeqCst);
    slot.start.store(start, SeqCst);
    INSERTED.fetch_add(1, SeqCst);
    Some(idx)
}

/// Takes a view out of the table and waits until nobody works on it any more.
pub fn remove(idx: usize) {
    let Some(slot) = SLOTS.get(idx) else { return };
    slot.start.store(0, SeqCst);
    REFUSING.fetch_sub(usize::from(slot.refusing.swap(false, SeqCst)), SeqCst);
    while slot.pins.load(SeqCst) != 0 {
        nap(20_000);
    }
    slot.region.store(std::ptr::null_mut(), SeqCst);
    slot.taken.store(0, SeqCst);
}
