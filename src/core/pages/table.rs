//! The page table of a region: applies [`super::state::next`] atomically, lets threads wait for a held page, and keeps
//! each page's heat. Everything here is async-signal-safe after construction.
//!
//! One `AtomicU32` per 4 KiB page: bits 0..2 the state, bit 3 "somebody waits", bit 4 "brought since the evictor came by",
//! bit 5 "poisoned, without memory",
//! bits 8..15 heat (consecutive epochs in which the page was dirty), bits 24..31 the last dirty epoch of its chunk.

use super::bitmap::Bitmap;
use super::state::{Event, State, next};
use crate::base::Status;
use crate::sys::clock::Deadline;
use crate::sys::reserve::table;
use crate::sys::sync::{futex_wait, futex_wake};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const STATE: u32 = 7;
const WAITERS: u32 = 8;
const YOUNG: u32 = 16;
const EMPTY: u32 = 32;
const HEAT_SHIFT: u32 = 8;
const EPOCH_SHIFT: u32 = 24;
const BYTE: u32 = 0xff;

/// REMOTE to FETCHING for one page's word.
fn begin(w: &AtomicU32) -> bool {
    let mut old = w.load(SeqCst);
    while let Some(to) = next(State::from_bits(old & STATE), Event::BeginFetch) {
        match w.compare_exchange_weak(old, (old & !STATE) | to as u32, SeqCst, SeqCst) {
            Ok(_) => return true,
            Err(now) => old = now,
        }
    }
    false
}

/// Pages per chunk of the residency count: 2 MiB, the reach of one last-level page table.
pub const CHUNK: usize = 512;

/// States and bits of all pages of one region.
#[derive(Debug)]
pub struct PageTable {
    words: Box<[AtomicU32]>,
    /// Pages with stores that the home does not have: who takes the bit must push the page.
    pub dirty: Bitmap,
    /// Pages that may be written without a fault (synchronous tracking only); guarded by the harvest lock.
    pub written: Bitmap,
    /// Pages that stay writable across releases and are always sent or compared.
    pub hot: Bitmap,
    /// Pages on which the kernel's SIGBUS mark may lie although they are not POISONED.
    pub marked: Bitmap,
    chunks: Box<[Chunk]>,
    resident: AtomicU32,
}

/// What is counted per 2 MiB.
#[derive(Default, Debug)]
struct Chunk {
    /// Pages that are not REMOTE. One being fetched counts: its toucher may already have been let through.
    local: AtomicU32,
    /// Releases that covered the chunk, modulo 2^32.
    epoch: AtomicU32,
}

impl PageTable {
    /// `pages` pages, all REMOTE. Allocates; NO_RESOURCES when there is no memory.
    pub fn new(pages: usize) -> Result<PageTable, Status> {
        Ok(PageTable {
            words: table(pages)?,
            dirty: Bitmap::new(pages)?,
            written: Bitmap::new(pages)?,
            hot: Bitmap::new(pages)?,
            marked: Bitmap::new(pages)?,
            chunks: table(pages.div_ceil(CHUNK))?,
            resident: AtomicU32::new(0),
        })
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// True for a table without pages.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// State of a page; REMOTE outside the table.
    pub fn state(&self, p: usize) -> State {
        self.words.get(p).map_or(State::Remote, |w| State::from_bits(w.load(SeqCst) & STATE))
    }

    /// Applies `event`; answers the state found when the event is not allowed in it.
    pub fn apply(&self, p: usize, event: Event) -> Result<(), State> {
        let Some(w) = self.words.get(p) else { return Err(State::Remote) };
        let mut old = w.load(SeqCst);
        loop {
            let from = State::from_bits(old & STATE);
            let Some(to) = next(from, event) else { return Err(from) };
            // Leaving a held state wakes the waiters, and their bit goes with it.
            let keep = if from.is_held() { !(STATE | WAITERS) } else { !STATE };
            let mark = match event {
                Event::Fetched => YOUNG,
                Event::FetchRefused => EMPTY,
                _ => 0,
            };
            match w.compare_exchange_weak(old, (old & keep & !EMPTY) | to as u32 | mark, SeqCst, SeqCst) {
                Ok(_) => {
                    self.account(p, from, to);
                    self.account_empty(old & EMPTY != 0, mark == EMPTY);
                    if from.is_held() && old & WAITERS != 0 {
                        futex_wake(w, u32::MAX >> 1);
                    }
                    return Ok(());
                }
                Err(now) => old = now,
            }
        }
    }

    /// Waits until a page that was seen held is no longer in that state, or the deadline.
    pub fn wait(&self, p: usize, deadline: Deadline) {
        let Some(w) = self.words.get(p) else { return };
        for _ in 0..200 {
            if !State::from_bits(w.load(SeqCst) & STATE).is_held() {
                return;
            }
            std::hint::spin_loop();
        }
        let old = w.load(SeqCst);
        if !State::from_bits(old & STATE).is_held() {
            return;
        }
        let want = old | WAITERS;
        if old == want || w.compare_exchange(old, want, SeqCst, SeqCst).is_ok() {
            let _ = futex_wait(w, want, deadline.left_ns().min(50_000_000));
        }
    }

    /// Takes the page lock: RESIDENT becomes BUSY. Waits for a held page; answers the state of a page that is
    /// not resident, or `Err(BUSY)`/`Err(FETCHING)` when the deadline passed.
    pub fn lock(&self, p: usize, deadline: Deadline) -> Result<(), State> {
        loop {
            match self.apply(p, Event::Lock) {
                Err(s) if s.is_held() => {
                    self.wait(p, deadline);
                    if deadline.passed() {
                        return Err(s);
                    }
                }
                r => return r,
            }
        }
    }

    /// True the first time it is asked after the page was brought: who touched it gets to use it before it goes.
    pub fn take_young(&self, p: usize) -> bool {
        self.words.get(p).is_some_and(|w| w.fetch_and(!YOUNG, SeqCst) & YOUNG != 0)
    }

    /// Starts a new epoch in every chunk that `[start, end)` touches.
    pub fn new_epoch(&self, start: usize, end: usize) {
        let chunks = self.chunks.get(start / CHUNK..end.min(self.len()).div_ceil(CHUNK)).unwrap_or(&[]);
        chunks.iter().for_each(|c| _ = c.epoch.fetch_add(1, SeqCst));
    }

    /// Notes that the page was dirty in its chunk's current epoch; answers its heat, the number of consecutive
    /// epochs with that finding.
    pub fn heat_up(&self, p: usize) -> u32 {
        let now = self.chunks.get(p / CHUNK).map_or(0, |c| c.epoch.load(SeqCst)) & BYTE;
        let word = self.update(p, |w| {
            let consecutive = (w >> EPOCH_SHIFT).wrapping_sub(now.wrapping_sub(1)) & BYTE == 0;
            let heat = if consecutive { (((w >> HEAT_SHIFT) & BYTE) + 1).min(BYTE) } else { 1 };
            (w & !(BYTE << HEAT_SHIFT) & !(BYTE << EPOCH_SHIFT)) | (heat << HEAT_SHIFT) | (now << EPOCH_SHIFT)
        });
        (word >> HEAT_SHIFT) & BYTE
    }

    /// The page is no longer hot; `heat` is what it keeps, so that a sampled page is soon hot again.
    pub fn cool(&self, p: usize, heat: u32) {
        self.hot.take(p);
        self.update(p, |w| (w & !(BYTE << HEAT_SHIFT)) | ((heat & BYTE) << HEAT_SHIFT));
    }

    /// Epochs of the chunk that holds the page, and the first page of the next chunk.
    pub fn epoch_at(&self, p: usize) -> (u32, usize) {
        (self.chunks.get(p / CHUNK).map_or(0, |c| c.epoch.load(SeqCst)), (p / CHUNK + 1) * CHUNK)
    }

    /// Takes REMOTE pages to FETCHING from `start` on, as far as they are REMOTE and before `end`; answers the end of
    /// the run taken. The same as BeginFetch for each, with one count for all.
    pub fn begin_run(&self, start: usize, end: usize) -> usize {
        let words = self.words.get(start..end.min(self.len())).unwrap_or(&[]);
        let taken = words.iter().take_while(|w| begin(w)).count();
        self.count_in(start, start + taken);
        start + taken
    }

    fn count_in(&self, mut at: usize, end: usize) {
        self.resident.fetch_add((end - at) as u32, SeqCst);
        while at < end {
            let stop = end.min((at / CHUNK + 1) * CHUNK);
            if let Some(c) = self.chunks.get(at / CHUNK) {
                c.local.fetch_add((stop - at) as u32, SeqCst);
            }
            at = stop;
        }
    }

    fn update(&self, p: usize, f: impl Fn(u32) -> u32) -> u32 {
        let Some(w) = self.words.get(p) else { return 0 };
        let mut old = w.load(SeqCst);
        loop {
            let new = f(old);
            match w.compare_exchange_weak(old, new, SeqCst, SeqCst) {
                Ok(_) => return new,
                Err(now) => old = now,
            }
        }
    }

    /// A page counts from the moment its fetch begins: it is counted before anybody can store to it, so a harvest that
    /// skips empty chunks never skips a store.
    fn account(&self, p: usize, from: State, to: State) {
        if from == State::Remote {
            self.count_in(p, p + 1);
        } else if to == State::Remote {
            self.resident.fetch_sub(1, SeqCst);
            if let Some(c) = self.chunks.get(p / CHUNK) {
                c.local.fetch_sub(1, SeqCst);
            }
        }
    }

    /// A page that fails with SIGBUS by the kernel's mark has no memory while it does.
    fn account_empty(&self, was: bool, is: bool) {
        match (was, is) {
            (true, false) => _ = self.resident.fetch_add(1, SeqCst),
            (false, true) => _ = self.resident.fetch_sub(1, SeqCst),
            _ => {}
        }
    }

    /// Pages that occupy local memory now, or soon: those being fetched count.
    pub fn resident(&self) -> usize {
        self.resident.load(SeqCst) as usize
    }

    /// The next run of chunks with pages here or on their way in `[start, end)`, clipped to it, as pages.
    pub fn next_populated(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let end = end.min(self.len());
        if start >= end {
            return None;
        }
        let chunks = self.chunks.get(start / CHUNK..end.div_ceil(CHUNK))?;
        let used = |c: &Chunk| c.local.load(SeqCst) != 0;
        let first = chunks.iter().position(used)? + start / CHUNK;
        let rest = self.chunks.get(first..end.div_ceil(CHUNK))?;
        let last = first + rest.iter().position(|c| !used(c)).unwrap_or(rest.len());
        Some(((first * CHUNK).max(start), (last * CHUNK).min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_count_residents() {
        let t = PageTable::new(1500).expect("memory");
        assert_eq!(t.next_populated(0, 1500), None);
        assert_eq!(t.begin_run(700, 701), 701);
        assert_eq!(t.apply(700, Event::BeginFetch), Err(State::Fetching));
        assert_eq!((t.resident(), t.begin_run(700, 702)), (1, 700), "a run stops at the first page that is not remote");
        t.apply(700, Event::Fetched).unwrap();
        assert_eq!((t.resident(), t.next_populated(0, 1500)), (1, Some((512, 1024))));
        assert_eq!(t.next_populated(600, 705), Some((600, 705)));
        t.lock(700, Deadline::in_ms(10)).unwrap();
        assert_eq!(t.lock(700, Deadline::in_ms(5)), Err(State::Busy));
        t.apply(700, Event::Drop).unwrap();
        assert_eq!((t.resident(), t.state(700)), (0, State::Remote));
        assert_eq!(t.lock(700, Deadline::in_ms(5)), Err(State::Remote));
    }

    #[test]
    fn a_page_is_young_once() {
        let t = PageTable::new(1).expect("memory");
        t.begin_run(0, 1);
        t.apply(0, Event::Fetched).unwrap();
        assert_eq!((t.take_young(0), t.take_young(0), t.state(0)), (true, false, State::Resident));
    }

    #[test]
    fn waiters_are_woken() {
        let t = std::sync::Arc::new(PageTable::new(1).expect("memory"));
        t.apply(0, Event::BeginFetch).unwrap();
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let t = t.clone();
                std::thread::spawn(move || {
                    let d = Deadline::in_ms(5000);
                    while t.state(0).is_held() && !d.passed() {
                        t.wait(0, d);
                    }
                    d.passed()
                })
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(20));
        t.apply(0, Event::Fetched).unwrap();
        assert!(waiters.into_iter().all(|w| !w.join().unwrap()), "a waiter slept until its deadline");
    }

    #[test]
    fn heat_counts_consecutive_epochs_and_keeps_the_state() {
        let t = PageTable::new(2).expect("memory");
        let epoch = |dirty: bool| {
            t.new_epoch(0, 2);
            if dirty { t.heat_up(1) } else { 0 }
        };
        assert_eq!([epoch(true), epoch(true), epoch(true)], [1, 2, 3]);
        assert_eq!([epoch(false), epoch(true)], [0, 1], "a clean epoch starts anew");
        t.apply(1, Event::BeginFetch).unwrap();
        t.new_epoch(0, 2);
        assert_eq!((t.heat_up(1), t.state(1)), (2, State::Fetching));
        t.cool(1, 5);
        t.new_epoch(0, 2);
        assert_eq!(t.heat_up(1), 6);
    }
}
