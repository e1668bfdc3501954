//! One region: its memory, its views, its life.
//!
//! Memory of a region: the memory file; A, our own mapping of it, which nobody protects or hides; T, the twin with the
//! last synchronised bytes (policies byte and line); and the views of the application. Only A and T are ever
//! dereferenced here. Other threads write A at any moment through a view, so it is only touched by raw copies.
//!
//! Locks, in the order in which they may be taken: `push` (API calls, signals open) > `exact` > page locks, ascending (signals
//! blocked) > `harvest` (signals blocked). The fault path takes page locks and `harvest` only.

use super::condition::Record;
use super::detector::Detector;
use super::keeper::Keeper;
use super::losses::Losses;
use super::mapping::ViewSlot;
use super::options::{MapOptions, OnError, Policy, Through};
use super::pages::diff::{self, Differ};
use super::pages::{PageTable, State};
use super::regcache::{RegCache, Way};
use super::tracker::{Delivery, Tracker, Tracking};
use super::unsent::{Unfenced, Unsent};
use super::views::{self, View};
use super::writeback::Outbox;
use crate::base::addr::{PAGE, PageRange, round_up_page};
use crate::base::config::Backend;
use crate::base::stats::RegionStats;
use crate::base::{Error, HomeOff, Result, Status};
use crate::link::{Link, MemoryKind, Opened, RegionKey};
use crate::sys::clock::Deadline;
use crate::sys::kept::KeptFd;
use crate::sys::mem::{self, Mapping};
use crate::sys::process;
use crate::sys::reserve;
use crate::sys::sync::{Lock, SignalsBlocked};
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is needed to make a region.
pub struct Parts {
    /// Path to the peer.
    pub link: Arc<dyn Link>,
    /// What the peer opened.
    pub opened: Opened,
    /// Attributes, complete.
    pub opts: MapOptions,
    /// Back end to use.
    pub backend: Backend,
}

/// A remote region in this process. Dropping the last reference releases what is dirty, stops the region's threads and
/// gives everything back.
pub struct Region {
    name: String,
    pub(super) opts: MapOptions,
    pub(super) link: Arc<dyn Link>,
    pub(super) key: RegionKey,
    len: u64,
    kind: MemoryKind,
    pub(super) file: KeptFd,
    a: Mapping,
    t: Option<Mapping>,
    /// How its bytes meet the link's hardware.
    pub(super) way: Way,
    pub(super) pages: PageTable,
    pub(super) tracker: Tracker,
    pub(super) harvest: Lock,
    /// Serialises emulated stores (exact write-through).
    pub(super) exact: Lock,
    /// Serialises API calls that push or drop; holds their reusable buffers.
    push: Mutex<Outbox>,
    pub(super) unsent: Unsent,
    pub(super) unfenced: Unfenced,
    pub(super) differ: Differ,
    pub(super) detector: Detector,
    /// Pages that may be resident; `usize::MAX` for a pinned region.
    pub(super) budget: usize,
    pub(super) stats: RegionStats,
    pub(super) keeper: Keeper,
    /// Words operated on at the home: page-wise write-back leaves them out.
    pub(super) home_words: Mutex<BTreeSet<u64>>,
    pub(super) has_home_words: AtomicBool,
    pub(super) record: Record,
    pub(super) losses: Losses,
    traced: bool,
    pub(super) view_slots: Mutex<Vec<ViewSlot>>,
}

pub(super) fn system(attempt: &str) -> impl Fn(crate::sys::Errno) -> Error + '_ {
    move |e| Error::new(Status::SYSTEM, attempt, e.to_string())
}

impl Region {
    /// Makes the local side of an opened region and starts its threads.
    pub fn new(parts: Parts) -> Result<Arc<Region>> {
        let Parts { link, opened, opts, backend } = parts;
        let name = opened.info.name;
        let attempt = format!("map region \"{name}\"");
        reserve::at_hand().map_err(|s| Error::of(s, &attempt))?;
        let size = usize::try_from(opened.info.len).ok().and_then(round_up_page).filter(|n| *n > 0);
        let size =
            size.ok_or_else(|| Error::new(Status::INVALID_ARGUMENT, &attempt, "its length is 0 or too large"))?;
        let tracker = Tracker::new(backend, opts.through == Through::Exact)
            .map_err(|why| Error::new(Status::NO_BACKEND, &attempt, why).remedy("run `smc doctor`"))?;
        // Where a store marks more than its page, the twin tells which pages the program really wrote: sending the others
        // whole would undo what their own writers did.
        let twin = opts.policy != Policy::Page
            || opts.through == Through::Exact
            || tracker.granule() > 1
            || tracker.protects_late();
        let budget = budget_pages(size, opts.resident_limit, twin, opts.page_unit.max(tracker.granule() * PAGE) / PAGE);
        let pinned = budget == usize::MAX;
        let file = mem::memfd(c"smc-region", size as u64).map_err(system(&attempt))?;
        let a =
            private_alias(Mapping::shared_aligned(file.as_fd(), size, mem::NONE), pinned).map_err(system(&attempt))?;
        let t = match twin {
            true => Some(private_alias(Mapping::anonymous(size, mem::NONE), pinned).map_err(system(&attempt))?),
            false => None,
        };
        // The size is fixed from here on: nobody can truncate pages away under a view.
        let _ = mem::seal(file.as_fd(), mem::SEAL_SHRINK | mem::SEAL_GROW);
        let stats = RegionStats::new();
        let touched = t.as_ref().unwrap_or(&a);
        // SAFETY: A and T live as long as the region, which lets go of them in `drop`, before they are unmapped.
        let way = unsafe { Way::choose(&link, pinned.then_some(touched), &name, &stats) };
        let region = Arc::new(Region {
            pages: PageTable::new(size / PAGE).map_err(|s| Error::of(s, &attempt))?,
            detector: Detector::new(opts.window),
            keeper: Keeper::new(),
            differ: diff::best(),
            home_words: Mutex::default(),
            has_home_words: AtomicBool::new(false),
            record: Record::default(),
            losses: Losses::default(),
            traced: process::is_traced(),
            view_slots: Mutex::default(),
            push: Mutex::default(),
            unsent: Unsent::default(),
            unfenced: Unfenced::new(link.attachments(opened.key)),
            harvest: Lock::new(),
            exact: Lock::new(),
            stats,
            key: opened.key,
            len: opened.info.len,
            kind: opened.info.kind,
            name,
            opts,
            link,
            file: KeptFd::new(file),
            a,
            t,
            way,
            tracker,
            budget,
        });
        super::handler::install(region.tracker.delivery).map_err(system("install the fault handler"))?;
        if region.is_exact() {
            super::exact::prepare().map_err(system("install the trap handler"))?;
        }
        region.keeper.start(&region)?;
        Ok(region)
    }

    /// Name at the exporter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes at the home.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// What lies behind it at the home.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// True for a region without bytes (never made).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Options it was opened with.
    pub fn options(&self) -> &MapOptions {
        &self.opts
    }

    /// Back end in use.
    pub fn backend(&self) -> Backend {
        self.tracker.backend
    }

    /// The registrations of its link, where that has any.
    pub fn regcache(&self) -> Option<&Arc<RegCache>> {
        self.way.cache()
    }

    /// The link it uses.
    pub fn link(&self) -> &dyn Link {
        &*self.link
    }

    /// Its name on that link.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// Counters.
    pub fn stats(&self) -> &RegionStats {
        &self.stats
    }

    /// Bytes of local memory it occupies now: blocks of the memory file plus resident pages of the twin.
    pub fn local_bytes(&self) -> u64 {
        let twin = if self.t.is_some() { self.pages.resident() * PAGE } else { 0 };
        mem::file_blocks(self.file.as_fd()).unwrap_or(0) + twin as u64
    }

    /// Bytes of local memory it may occupy; `None` when it is pinned whole.
    pub fn local_limit(&self) -> Option<u64> {
        let per_page = if self.t.is_some() { 2 * PAGE } else { PAGE };
        (self.budget != usize::MAX).then(|| (self.budget * per_page) as u64)
    }

    /// Own memory that must not be locked into RAM, because pages of it are given back.
    pub fn unlockable(&self) -> impl Iterator<Item = (usize, usize)> {
        let own = [Some(&self.a), self.t.as_ref()];
        own.into_iter().flatten().filter(|_| self.budget != usize::MAX).map(|m| (m.addr(), m.len()))
    }

    /// Whole region, in pages.
    pub(super) fn all(&self) -> PageRange {
        PageRange { start: 0, end: self.pages.len() }
    }

    /// Pages of a byte range, or OUT_OF_RANGE. A length of 0 means "to the end".
    pub(super) fn range(&self, off: u64, len: u64) -> std::result::Result<PageRange, Status> {
        let end = if len == 0 { self.len } else { off.checked_add(len).ok_or(Status::OUT_OF_RANGE)? };
        if off > end || end > (self.pages.len() * PAGE) as u64 {
            return Err(Status::OUT_OF_RANGE);
        }
        Ok(PageRange::covering(off, end - off))
    }

    /// Bytes of a page that exist at the home: the last page may be partial.
    pub(super) fn valid_bytes(&self, page: usize) -> usize {
        self.len.saturating_sub((page * PAGE) as u64).min(PAGE as u64) as usize
    }

    /// Bytes of a run of pages that exist at the home.
    pub(super) fn valid_run(&self, r: PageRange) -> usize {
        self.len.min((r.end * PAGE) as u64).saturating_sub((r.start * PAGE) as u64) as usize
    }

    /// Address of a page in A.
    pub(super) fn a_page(&self, page: usize) -> *mut u8 {
        self.a.ptr().wrapping_add(page * PAGE)
    }

    /// Address of a page in T, where there is a twin.
    pub(super) fn t_page(&self, page: usize) -> Option<*mut u8> {
        self.t.as_ref().map(|t| t.ptr().wrapping_add(page * PAGE))
    }

    /// Gives the local memory of hidden pages back that this thread holds. A pinned region keeps it: devices know it.
    pub(super) fn give_back(&self, r: PageRange) {
        if self.budget == usize::MAX || r.is_empty() || !self.file.is_intact() {
            return;
        }
        let (from, len) = (r.start * PAGE, r.len() * PAGE);
        let _ = mem::punch_hole(self.file.as_fd(), from as u64, len as u64);
        if let Some(t) = &self.t {
            let _ = t.advise(from, len, mem::DONTNEED);
        }
    }

    /// Offset of a page.
    pub(super) fn off(&self, page: usize) -> HomeOff {
        HomeOff((page * PAGE) as u64)
    }

    /// The moment at which a wait that starts now gives up.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::in_ms(self.opts.wait_ms)
    }

    /// The buffers of API calls; also what serialises them. Never taken by the fault path or by own threads.
    pub(super) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.push.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with every view, pinned.
    pub(super) fn each_view(&self, _signals: &SignalsBlocked, f: impl FnMut(&View)) {
        views::each(self, f);
    }

    /// Pages a paged region keeps free for the next fault: the longest run one fault may bring.
    pub(super) fn room(&self) -> usize {
        (self.budget / 8).min(super::detector::MAX_WINDOW).max(self.unit())
    }

    /// Pages fetched and evicted together.
    pub(super) fn unit(&self) -> usize {
        (self.opts.page_unit / PAGE).max(self.tracker.granule())
    }

    /// True when a failing load raises SIGBUS.
    pub(super) fn errors_are_sigbus(&self) -> bool {
        matches!(self.opts.on_error, OnError::Sigbus | OnError::WaitSigbus)
    }

    /// True when a failing load does not wait for the deadline.
    pub(super) fn errors_at_once(&self) -> bool {
        matches!(self.opts.on_error, OnError::Sigbus | OnError::Value)
    }

    /// Descriptor that becomes readable when the status changes; owned by the region.
    pub fn event_fd(&self) -> i32 {
        self.keeper.event_fd()
    }

    /// True when the page's bytes are here (for tests and the tool).
    pub fn is_resident(&self, page: usize) -> bool {
        matches!(self.pages.state(page), State::Resident | State::Busy)
    }

    /// True when stores fault to us one by one.
    pub(super) fn tracks_by_fault(&self) -> bool {
        self.tracker.tracking == Tracking::Fault
    }

    /// True when the kernel may be left to wait for an absent page: not under a tracer that looks at the buffers of system
    /// calls (`strace -f`). It would wait for the page, and the thread that serves faults for the tracer.
    pub(super) fn kernel_waits(&self) -> bool {
        self.has_fault_thread() && !self.traced
    }

    /// True when an own thread serves this region's faults.
    pub(super) fn has_fault_thread(&self) -> bool {
        self.tracker.delivery == Delivery::Thread
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // No view is left (each holds a reference); what was written without a view may still be dirty.
        let released = self.release_pages(self.all());
        self.keeper.stop();
        if !released.is_ok() {
            self.say_lost(released);
        }
        self.way = Way::Plain;
        self.link.close(self.key);
    }
}

/// How many pages may be resident: all of them when they fit the limit, else at least eight units.
fn budget_pages(size: usize, limit: u64, twin: bool, unit: usize) -> usize {
    let per_page = if twin { 2 * PAGE } else { PAGE } as u64;
    let pages = usize::try_from(limit / per_page).unwrap_or(usize::MAX);
    if size / PAGE <= pages { usize::MAX } else { pages.max(8 * unit).max(32) }
}

/// Memory of our own beside V: never inherited, never dumped; all there from the start when the region is pinned.
fn private_alias(
    m: std::result::Result<Mapping, crate::sys::Errno>,
    pinned: bool,
) -> std::result::Result<Mapping, crate::sys::Errno> {
    let m = m?;
    let _ = m.advise(0, m.len(), mem::DONTFORK);
    let _ = m.advise(0, m.len(), mem::DONTDUMP);
    if pinned {
        m.protect(0, m.len(), mem::RW)?;
        m.collapse();
        // A kernel before 5.14 does not know it; then pages are allocated on first fetch.
        let _ = m.advise(0, m.len(), mem::POPULATE_WRITE);
    } else {
        m.unlocked(mem::RW)?;
        // A huge page is memory that eviction cannot give back by the page.
        let _ = m.advise(0, m.len(), mem::NOHUGEPAGE);
    }
    Ok(m)
}
