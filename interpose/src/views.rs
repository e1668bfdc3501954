//! Views that mmap has made: which pieces of the address space belong to which region.
//!
//! A short list under a lock that is held with all signals blocked and never while the engine is called. The engine knows
//! its views too, by address; this list answers by range, and only for what the application made with mmap.

use crate::files::process_id;
use smc_engine::core::region::Region;
use smc_engine::sys::sync::{Lock, SignalsBlocked};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Most views at one time; a mapping in pieces counts once per piece.
const MOST: usize = 4096;

struct Entry {
    addr: AtomicUsize,
    /// 0: unused.
    len: AtomicUsize,
    off: AtomicUsize,
    /// From `Arc::into_raw`.
    region: AtomicPtr<Region>,
}

static LOCK: Lock = Lock::new();
static LIST: [Entry; MOST] = [const { Entry::unused() }; MOST];
/// Entries in use; the fast path of the mapping hooks.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// One past the last entry that was ever used.
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// The process that the list describes; a fork child has none of these views.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// A piece of a view.
pub struct Piece {
    /// First byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// Offset of the first byte in the region.
    pub off: u64,
    /// Its region.
    pub region: Arc<Region>,
}

impl Entry {
    const fn unused() -> Entry {
        Entry {
            addr: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            off: AtomicUsize::new(0),
            region: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn set(&self, addr: usize, len: usize, off: usize, region: *const Region) {
        self.addr.store(addr, Relaxed);
        self.len.store(len, Relaxed);
        self.off.store(off, Relaxed);
        self.region.store(region.cast_mut(), Relaxed);
        IN_USE.fetch_add(1, Relaxed);
    }

    fn clear(&self) -> *const Region {
        self.len.store(0, Relaxed);
        IN_USE.fetch_sub(1, Relaxed);
        self.region.swap(std::ptr::null_mut(), Relaxed)
    }

    /// Ends where the piece starts or starts where it ends, in the address space and in the region.
    fn continues(&self, p: &Piece) -> bool {
        let (addr, len, off) = (self.addr.load(Relaxed), self.len.load(Relaxed), self.off.load(Relaxed));
        let before = addr + len == p.addr && (off + len) as u64 == p.off;
        let behind = p.addr + p.len == addr && p.off + p.len as u64 == off as u64;
        (before || behind) && std::ptr::eq(self.region.load(Relaxed), Arc::as_ptr(&p.region))
    }

    /// The part of this entry inside `[start, end)`.
    fn part(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let (addr, len) = (self.addr.load(Relaxed), self.len.load(Relaxed));
        let (from, to) = (addr.max(start), addr.saturating_add(len).min(end));
        (len != 0 && from < to).then_some((from, to))
    }
}

/// True while there is any view; a fork child may still be told so.
#[inline(always)]
pub fn any() -> bool {
    IN_USE.load(Relaxed) != 0
}

fn mine() -> bool {
    any() && OWNER.load(Relaxed) == process_id()
}

/// Adds a view; `false` when the list is full.
pub fn add(addr: usize, len: usize, off: u64, region: &Arc<Region>) -> bool {
    let signals = SignalsBlocked::new();
    let _guard = LOCK.lock(&signals);
    let me = process_id();
    if OWNER.swap(me, Relaxed) != me {
        forget_parents();
    }
    let Some((i, free)) = LIST.iter().enumerate().find(|(_, e)| e.len.load(Relaxed) == 0) else { return false };
    free.set(addr, len, off as usize, Arc::into_raw(region.clone()));
    HIGH.fetch_max(i + 1, Relaxed);
    true
}

/// In a fork child: the entries describe the parent. Their regions are left alone for ever.
fn forget_parents() {
    for e in used() {
        e.len.store(0, Relaxed);
        e.region.store(std::ptr::null_mut(), Relaxed);
    }
    IN_USE.store(0, Relaxed);
}

fn used() -> impl Iterator<Item = &'static Entry> {
    LIST.iter().take(HIGH.load(Relaxed)).filter(|e| e.len.load(Relaxed) != 0)
}

/// The lowest piece of a view in `[start, start + len)`.
pub fn first(start: usize, len: usize) -> Option<Piece> {
    if !mine() {
        return None;
    }
    let signals = SignalsBlocked::new();
    let _guard = LOCK.lock(&signals);
    let (e, from, to) = lowest(start, start.saturating_add(len))?;
    let region = e.region.load(Relaxed).cast_const();
    // SAFETY: an entry in use holds one count of a live Arc, and it stays in use while the lock is held.
    unsafe { Arc::increment_strong_count(region) };
    // SAFETY: the count made above is handed to the new Arc.
    let region = unsafe { Arc::from_raw(region) };
    Some(Piece {
        addr: from,
        len: to - from,
        off: (e.off.load(Relaxed) + (from - e.addr.load(Relaxed))) as u64,
        region,
    })
}

/// The lowest piece of a view in the range, taken out of the list: what is left of its view before and behind it stays.
/// The caller unmaps it, or gives it back with [`put_back`].
pub fn take(start: usize, len: usize) -> Option<Piece> {
    if !mine() {
        return None;
    }
    let signals = SignalsBlocked::new();
    let guard = LOCK.lock(&signals);
    let (e, from, to) = lowest(start, start.saturating_add(len))?;
    let (addr, end) = (e.addr.load(Relaxed), e.addr.load(Relaxed) + e.len.load(Relaxed));
    let off = e.off.load(Relaxed);
    // SAFETY: clear hands out the count that the entry held, exactly once.
    let region = unsafe { Arc::from_raw(e.clear()) };
    for (from, to) in [(addr, from), (to, end)] {
        // The engine knows every part as a view of its own, and it has a quarter of this list's room.
        if from < to
            && let Some((i, free)) = LIST.iter().enumerate().find(|(_, e)| e.len.load(Relaxed) == 0)
        {
            free.set(from, to - from, off + (from - addr), Arc::into_raw(region.clone()));
            HIGH.fetch_max(i + 1, Relaxed);
        }
    }
    drop(guard);
    Some(Piece { addr: from, len: to - from, off: (off + (from - addr)) as u64, region })
}

/// Puts a piece from [`take`] back that could not be unmapped. It becomes one with what was left of its view, so that
/// failures do not fill the list.
pub fn put_back(p: Piece) {
    let signals = SignalsBlocked::new();
    let guard = LOCK.lock(&signals);
    let (mut addr, mut end, mut off) = (p.addr, p.addr + p.len, p.off as usize);
    // Let go of after the lock: the last one would close a region, which `p.region` keeps from happening.
    let mut merged = [None, None];
    for (e, kept) in used().filter(|e| e.continues(&p)).zip(&mut merged) {
        let (start, len) = (e.addr.load(Relaxed), e.len.load(Relaxed));
        if start < addr {
            (addr, off) = (start, e.off.load(Relaxed));
        }
        end = end.max(start + len);
        // SAFETY: clear hands out the count that the entry held, exactly once.
        *kept = Some(unsafe { Arc::from_raw(e.clear()) });
    }
    if let Some((i, free)) = LIST.iter().enumerate().find(|(_, e)| e.len.load(Relaxed) == 0) {
        free.set(addr, end - addr, off, Arc::into_raw(p.region.clone()));
        HIGH.fetch_max(i + 1, Relaxed);
    }
    drop(guard);
    drop(merged);
}

fn lowest(start: usize, end: usize) -> Option<(&'static Entry, usize, usize)> {
    used().filter_map(|e| e.part(start, end).map(|(from, to)| (e, from, to))).min_by_key(|(_, from, _)| *from)
}
