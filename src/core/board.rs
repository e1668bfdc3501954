//! The board: what this process's regions do, posted where `smc stat` can read it without our help.
//!
//! A memory file named `libsmc-stats`, made with the first region, found as `/proc/PID/fd/N -> /memfd:libsmc-stats`. The
//! region's own thread refreshes its slot at most every 200 ms, by plain stores into the mapping. A region that was
//! closed keeps its last figures until its slot is needed again.
//!
//! Layout: 64-bit words, native order: a header of `HEADER` words, then `SLOTS` slots of `WORDS` words. The first
//! word of a slot is odd while it is being written. A reader reads twice and believes a slot that was the same twice.
//! Behind the slots is a section about the process: its hooks ([`PostedCoverage`]), refreshed by whichever region is due.

use super::board_hooks;
pub use super::board_hooks::{PostedCoverage, PostedHook};
use super::engine::Engine;
use super::options::{Policy, Through};
use super::region::Region;
use crate::base::PAGE;
use crate::base::config::Backend;
use crate::base::stats::RegionStats;
use crate::link::Access;
use crate::sys::identity::file_id;
use crate::sys::kept::KeptFd;
use crate::sys::mem::{self, Mapping};
use crate::sys::thread::ForkMark;
use crate::sys::{clock, process};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};

/// Name of the memory file.
pub const FILE: &str = "libsmc-stats";
/// First word of the header.
const MAGIC: u64 = u64::from_le_bytes(*b"SMCBOARD");
/// Second word: of the layout and of the counters' table.
const VERSION: u64 = 3;
/// Regions that fit.
const SLOTS: usize = 64;
/// Words before the first slot: magic, version, owner's pid, number of counters, regions that found no slot.
const HEADER: usize = 16;
const OWNER: usize = 2;
const COUNT: usize = 3;
const UNLISTED: usize = 4;
/// Words of a slot: fixed facts, counters, name.
const WORDS: usize = FACTS + COUNTERS + NAME;
const FACTS: usize = 16;
const COUNTERS: usize = 32;
const NAME: usize = 26;
/// Bytes of the file.
const LEN: usize = ((PROCESS + board_hooks::WORDS) * 8).next_multiple_of(PAGE);
/// First word of the section about the process.
const PROCESS: usize = HEADER + SLOTS * WORDS;
/// Shortest time between two refreshes of a slot, in nanoseconds.
const PAUSE_NS: u64 = 200_000_000;

/// Places of the facts in a slot.
mod at {
    pub const SEQ: usize = 0;
    pub const STATE: usize = 1;
    pub const OPENED: usize = 2;
    pub const UPDATED: usize = 3;
    pub const LEN: usize = 4;
    pub const RESIDENT: usize = 5;
    pub const LOCAL: usize = 6;
    pub const LIMIT: usize = 7;
    pub const STATUS: usize = 8;
    pub const BACKEND: usize = 9;
    pub const POLICY: usize = 10;
    pub const THROUGH: usize = 11;
    pub const ACCESS: usize = 12;
    pub const UNIT: usize = 13;
}

const FREE: u64 = 0;
const OPEN: u64 = 1;
const CLOSED: u64 = 2;

struct Board {
    map: Mapping,
    fd: KeptFd,
    id: (u64, u64),
    /// The mapping is not there in a fork child.
    owner: ForkMark,
    /// When the section about the process is due.
    next: AtomicU64,
}

static BOARD: OnceLock<Option<Board>> = OnceLock::new();

impl Board {
    fn get() -> Option<&'static Board> {
        BOARD.get_or_init(Board::make).as_ref().filter(|b| !b.owner.in_child())
    }

    /// `None` where the memory cannot be had: then there is no board, and nothing else suffers.
    fn make() -> Option<Board> {
        let fd = mem::memfd(c"libsmc-stats", LEN as u64).ok()?;
        let map = Mapping::shared(fd.as_fd(), 0, LEN, mem::RW).ok()?;
        map.advise(0, LEN, mem::DONTFORK).ok()?;
        mem::seal(fd.as_fd(), mem::SEAL_SHRINK | mem::SEAL_GROW).ok()?;
        let id = file_id(fd.as_raw_fd()).ok()?;
        let board = Board { map, fd: KeptFd::new(fd), id, owner: ForkMark::new(), next: AtomicU64::new(0) };
        board.word(OWNER).store(u64::from(process::pid()), SeqCst);
        board.word(COUNT).store(counters() as u64, SeqCst);
        board.word(1).store(VERSION, SeqCst);
        board.word(0).store(MAGIC, SeqCst);
        Some(board)
    }

    /// A word; one outside the file is the last one.
    fn word(&self, i: usize) -> &AtomicU64 {
        let p = self.map.ptr().wrapping_add(i.min(LEN / 8 - 1) * 8).cast::<u64>();
        // SAFETY: inside the mapping, which lives as long as self, and aligned; in this process every access is atomic.
        unsafe { AtomicU64::from_ptr(p) }
    }

    fn slot(&self, slot: usize, i: usize) -> &AtomicU64 {
        self.word(HEADER + slot * WORDS + i)
    }

    /// Posts what the hooks have done, unless that was done less than 200 ms ago.
    fn refresh(&self, now: u64) {
        let due = |t: u64| (t <= now).then_some(now + PAUSE_NS);
        if self.next.fetch_update(SeqCst, SeqCst, due).is_err() {
            return;
        }
        let reason = Engine::running().map(|e| e.choice().reason()).unwrap_or_default();
        seal(self.word(PROCESS), || {
            board_hooks::post(&reason, &|i, n| self.word(PROCESS + i).store(n, Relaxed));
        });
    }

    /// A free slot, else that of the region closed longest ago.
    fn claim(&self) -> Option<usize> {
        let take = |s: usize, from| self.slot(s, at::STATE).compare_exchange(from, OPEN, SeqCst, SeqCst).is_ok();
        if let Some(s) = (0..SLOTS).find(|s| take(*s, FREE)) {
            return Some(s);
        }
        let closed = (0..SLOTS).filter(|s| self.slot(*s, at::STATE).load(SeqCst) == CLOSED);
        let oldest = closed.min_by_key(|s| self.slot(*s, at::UPDATED).load(SeqCst));
        oldest.filter(|s| take(*s, CLOSED))
    }
}

fn counters() -> usize {
    let mut n = 0;
    RegionStats::new().each(|_, _, _| n += 1);
    n
}

/// A region's place on the board, held by its keeper.
pub(super) struct Post {
    board: &'static Board,
    slot: usize,
    next: u64,
}

impl Post {
    /// Takes a place and posts the first figures. `None` for the self-test's own region, and when there is no place.
    pub fn claim(region: &Region) -> Option<Post> {
        if region.name() == super::selftest::REGION && region.link().name() == "loopback" {
            return None;
        }
        let board = Board::get()?;
        let Some(slot) = board.claim() else {
            board.word(UNLISTED).fetch_add(1, SeqCst);
            return None;
        };
        let mut post = Post { board, slot, next: 0 };
        post.write(|w| {
            w(at::UPDATED, 0);
            w(at::OPENED, clock::now());
            for (i, piece) in region.name().as_bytes().chunks(8).chain([&[][..]]).take(NAME).enumerate() {
                let mut word = [0; 8];
                word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
                w(FACTS + COUNTERS + i, u64::from_ne_bytes(word));
            }
        });
        post.refresh(region);
        Some(post)
    }

    /// The board's descriptor, if the program has not closed it: then the number may be another file's by now.
    pub fn fd(&self) -> i32 {
        let fd = self.board.fd.as_raw_fd();
        if file_id(fd) == Ok(self.board.id) { fd } else { -1 }
    }

    /// Posts new figures unless the last ones are younger than 200 ms.
    pub fn refresh(&mut self, region: &Region) {
        let now = clock::now();
        if now < self.next {
            return;
        }
        self.next = now + PAUSE_NS;
        self.board.refresh(now);
        self.figures(region, OPEN);
    }

    /// The region ends: posts its last figures.
    pub fn close(self, region: &Region) {
        self.figures(region, CLOSED);
    }

    fn figures(&self, region: &Region, state: u64) {
        let o = region.options();
        self.write(|w| {
            w(at::UPDATED, clock::now());
            w(at::LEN, region.len());
            w(at::RESIDENT, (region.pages.resident() * PAGE) as u64);
            w(at::LOCAL, region.local_bytes());
            w(at::LIMIT, region.local_limit().unwrap_or(u64::MAX));
            w(at::STATUS, region.status().0 as u64);
            w(at::BACKEND, region.backend() as u64);
            w(at::POLICY, o.policy as u64);
            w(at::THROUGH, o.through as u64);
            w(at::ACCESS, o.access as u64);
            w(at::UNIT, o.page_unit as u64);
            let mut i = FACTS;
            region.stats().each(|_, _, n| {
                if i < FACTS + COUNTERS {
                    w(i, n);
                }
                i += 1;
            });
        });
        // Last: from here on another region may take the slot.
        self.board.slot(self.slot, at::STATE).store(state, SeqCst);
    }

    fn write(&self, fill: impl FnOnce(&dyn Fn(usize, u64))) {
        let seq = self.board.slot(self.slot, at::SEQ);
        seal(seq, || fill(&|i, n| self.board.slot(self.slot, i).store(n, Relaxed)));
    }
}

/// Runs `fill` with `seq` odd.
fn seal(seq: &AtomicU64, fill: impl FnOnce()) {
    seq.store(seq.load(Relaxed) | 1, SeqCst);
    fence(SeqCst);
    fill();
    fence(SeqCst);
    seq.store((seq.load(Relaxed) | 1).wrapping_add(1), SeqCst);
}

/// One region, as a reader finds it on a board.
#[derive(Clone, Debug)]
pub struct Posted {
    /// Name at the exporter.
    pub name: String,
    /// True while it is open.
    pub open: bool,
    /// When it was opened, in nanoseconds of CLOCK_MONOTONIC.
    pub opened: u64,
    /// When these figures were posted, same clock.
    pub updated: u64,
    /// Bytes at the home.
    pub len: u64,
    /// Bytes of pages that are here.
    pub resident: u64,
    /// Bytes of local memory it occupies, twin included.
    pub local: u64,
    /// Bytes of local memory it may occupy; `None` when it is pinned whole.
    pub limit: Option<u64>,
    /// State of the region.
    pub status: crate::base::Status,
    /// Fault back end; `None` for one this version does not know.
    pub backend: Option<Backend>,
    /// Write-back policy; `None` for one this version does not know.
    pub policy: Option<Policy>,
    /// Write-through mode; `None` for one this version does not know.
    pub through: Option<Through>,
    /// Access it was opened with.
    pub access: Access,
    /// Fetch and eviction unit in bytes.
    pub page_unit: u64,
    /// Every counter: name, meaning, value.
    pub counters: Vec<(&'static str, &'static str, u64)>,
}

/// A whole board.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Process that made it, as it knows itself: a fork child that inherited the descriptor is not it.
    pub owner: u32,
    /// Regions that found no slot.
    pub unlisted: u64,
    /// The regions, in the order of their slots.
    pub regions: Vec<Posted>,
    /// Its hooks.
    pub coverage: PostedCoverage,
}

/// Why a file is not a board this version can read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotReadable {
    /// Too short or no such magic.
    #[error("it is not a libsmc board")]
    NotABoard,
    /// Another version's layout.
    #[error("libsmc of another version wrote it (board version {0}, this tool reads {VERSION})")]
    Version(u64),
    /// It changed under every attempt.
    #[error("it changes faster than it can be read")]
    Unstable,
}

/// Reads a board. `read` gets the whole file, from its start, and is called several times.
pub fn read(mut read: impl FnMut() -> std::io::Result<Vec<u8>>) -> std::io::Result<Result<Reading, NotReadable>> {
    for _ in 0..50 {
        let (first, second) = (words(&read()?), words(&read()?));
        match parse(&first, &second) {
            Err(NotReadable::Unstable) => clock::nap(1_000_000),
            r => return Ok(r),
        }
    }
    Ok(Err(NotReadable::Unstable))
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|w| u64::from_ne_bytes(*w)).collect()
}

fn parse(first: &[u64], second: &[u64]) -> Result<Reading, NotReadable> {
    let word = |i: usize| first.get(i).copied().unwrap_or(0);
    if word(0) != MAGIC || first.len() < HEADER {
        return Err(NotReadable::NotABoard);
    }
    if word(1) != VERSION || word(COUNT) != counters() as u64 {
        return Err(NotReadable::Version(word(1)));
    }
    let section = |words: &[u64]| words.get(PROCESS..PROCESS + board_hooks::WORDS).map(<[u64]>::to_vec);
    let (Some(a), Some(b)) = (section(first), section(second)) else { return Err(NotReadable::NotABoard) };
    let coverage = board_hooks::parse(&a).filter(|_| a == b).ok_or(NotReadable::Unstable)?;
    let mut regions = Vec::new();
    let slots = first.get(HEADER..).unwrap_or_default().chunks(WORDS);
    for (a, b) in slots.zip(second.get(HEADER..).unwrap_or_default().chunks(WORDS)).take(SLOTS) {
        let field = |i: usize| a.get(i).copied().unwrap_or(0);
        // Never written, or claimed a moment ago.
        if field(at::STATE) == FREE || field(at::UPDATED) == 0 {
            continue;
        }
        if a != b || field(at::SEQ) % 2 == 1 {
            return Err(NotReadable::Unstable);
        }
        regions.push(posted(&field));
    }
    Ok(Reading { owner: word(OWNER) as u32, unlisted: word(UNLISTED), regions, coverage })
}

fn posted(field: &dyn Fn(usize) -> u64) -> Posted {
    let name: Vec<u8> =
        (0..NAME).flat_map(|i| field(FACTS + COUNTERS + i).to_ne_bytes()).take_while(|b| *b != 0).collect();
    let mut counters = Vec::new();
    RegionStats::new().each(|name, meaning, _| counters.push((name, meaning, field(FACTS + counters.len()))));
    Posted {
        name: String::from_utf8_lossy(&name).into_owned(),
        open: field(at::STATE) == OPEN,
        opened: field(at::OPENED),
        updated: field(at::UPDATED),
        len: field(at::LEN),
        resident: field(at::RESIDENT),
        local: field(at::LOCAL),
        limit: Some(field(at::LIMIT)).filter(|n| *n != u64::MAX),
        status: crate::base::Status(field(at::STATUS) as i32),
        backend: Backend::ALL.into_iter().find(|b| *b as u64 == field(at::BACKEND)),
        policy: [Policy::Byte, Policy::Line, Policy::Page].into_iter().find(|p| *p as u64 == field(at::POLICY)),
        through: [Through::Off, Through::Bounded, Through::Exact].into_iter().find(|t| *t as u64 == field(at::THROUGH)),
        access: if field(at::ACCESS) == Access::ReadOnly as u64 { Access::ReadOnly } else { Access::ReadWrite },
        page_unit: field(at::UNIT),
        counters,
    }
}
