//! The region's own threads: one that keeps it within its limits, and, under the thread back end, one that serves its
//! faults. They start with the region and end before it; all signals are blocked in them; they keep a descriptor table
//! of their own, so that a program that closes every descriptor cannot blind them.
//!
//! The keeper never takes the lock of API calls: a signal handler of the application may wait for the keeper while its
//! own thread is inside such a call.

use super::board::Post;
use super::condition::{Condition, Watch};
use super::harvest::Heat;
use super::options::Through;
use super::pushes::Pushes;
use super::region::Region;
use super::writeback::Outbox;
use crate::base::addr::PAGE;
use crate::base::config::LogLevel;
use crate::base::{Error, Result, Status};
use crate::sys::clock::{self, nap};
use crate::sys::errno::Errno;
use crate::sys::event::EventFd;
use crate::sys::process::{private_descriptors, say_aside};
use crate::sys::sync::{SignalsBlocked, futex_wait, futex_wake};
use crate::sys::thread;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

/// Called on an own thread when a region's status changes: (region, status).
pub type StatusHandler = Box<dyn Fn(&Region, Status) + Send>;

/// Bound of bounded write-through: a store is on its way to the home at the latest this much later.
pub const THROUGH_BOUND_MS: u64 = 1;
/// Longest run one prefetch request brings before it looks at the limits again.
const PREFETCH_STEP: usize = 64;

/// Shared between a region and its keeper thread.
pub struct Keeper {
    wake: AtomicU32,
    stop: AtomicBool,
    pub(super) pushes: Pushes,
    /// Batches delivered, and how many of them are known to be readable at the home.
    delivered: AtomicU64,
    fenced: AtomicU64,
    /// Batches that failed, by whomever.
    failed: AtomicU64,
    announced: AtomicBool,
    event: Mutex<Option<std::sync::Arc<EventFd>>>,
    stop_event: Mutex<Option<std::sync::Arc<EventFd>>>,
    handler: Mutex<Option<StatusHandler>>,
    threads: Mutex<Vec<thread::Started>>,
    wanted: Mutex<Vec<(usize, usize)>>,
    /// Page from which to read ahead, plus one; 0 = nothing asked. The last asker wins: a hint may get lost.
    ahead: AtomicUsize,
}

/// The region as its own threads see it: joined before the region goes.
struct Owner(*const Region);

// SAFETY: `Keeper::stop`, called by the region's drop, joins every thread that holds an Owner.
unsafe impl Send for Owner {}

impl Owner {
    fn region(&self) -> &Region {
        // SAFETY: see the Send impl: the region outlives its threads.
        unsafe { &*self.0 }
    }
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keeper {
    pub(super) fn new() -> Keeper {
        Keeper {
            wake: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            pushes: Pushes::default(),
            delivered: AtomicU64::new(0),
            fenced: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            announced: AtomicBool::new(false),
            event: Mutex::default(),
            stop_event: Mutex::default(),
            handler: Mutex::default(),
            threads: Mutex::default(),
            wanted: Mutex::default(),
            ahead: AtomicUsize::new(0),
        }
    }

    /// Starts the region's threads.
    pub(super) fn start(&self, region: &std::sync::Arc<Region>) -> Result<()> {
        let attempt = "start the region's threads";
        let fail = |e: &dyn std::fmt::Display| Error::new(Status::NO_RESOURCES, attempt, e.to_string());
        *lock(&self.event) = Some(std::sync::Arc::new(EventFd::new().map_err(|e| fail(&e))?));
        *lock(&self.stop_event) = Some(std::sync::Arc::new(EventFd::new().map_err(|e| fail(&e))?));
        let owner = Owner(std::sync::Arc::as_ptr(region));
        self.spawn("smc-keeper", move || keep(owner.region())).map_err(|e| fail(&e))?;
        if region.has_fault_thread() {
            let owner = Owner(std::sync::Arc::as_ptr(region));
            self.spawn("smc-fault", move || super::handler::serve_faults(owner.region())).map_err(|e| {
                self.stop();
                fail(&e)
            })?;
        }
        Ok(())
    }

    fn spawn(&self, name: &str, f: impl FnOnce() + Send + 'static) -> std::result::Result<(), Errno> {
        let t = thread::start(name, f)?;
        lock(&self.threads).push(t);
        Ok(())
    }

    /// Ends the threads; returns when they have ended.
    pub(super) fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.kick();
        if let Some(e) = &*lock(&self.stop_event) {
            e.set();
        }
        for t in lock(&self.threads).drain(..) {
            t.join();
        }
    }

    /// Lets the keeper look at the limits now. Async-signal-safe.
    pub(super) fn kick(&self) {
        self.wake.fetch_add(1, SeqCst);
        futex_wake(&self.wake, 1);
    }

    /// Asks for the pages from `page` on. Async-signal-safe.
    pub(super) fn read_ahead(&self, page: usize) {
        self.ahead.store(page + 1, SeqCst);
        self.kick();
    }

    pub(super) fn set_announced(&self) {
        self.announced.store(true, SeqCst);
    }

    /// A batch was delivered; said before its pages are unlocked. Answers its number.
    pub(super) fn note_delivered(&self) -> u64 {
        self.delivered.fetch_add(1, SeqCst) + 1
    }

    /// Batches delivered so far.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered.load(SeqCst)
    }

    /// The first so many batches are readable at the home.
    pub(super) fn note_fenced(&self, batches: u64) {
        self.fenced.fetch_max(batches, SeqCst);
    }

    /// True when something was delivered that is not known to be readable at the home.
    pub(super) fn is_unfenced(&self) -> bool {
        self.fenced.load(SeqCst) < self.delivered.load(SeqCst)
    }

    /// A batch failed; said after its pages are dirty again.
    pub(super) fn note_failed(&self) {
        self.failed.fetch_add(1, SeqCst);
    }

    /// Batches that have failed so far.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(SeqCst)
    }

    pub(super) fn event_fd(&self) -> i32 {
        lock(&self.event).as_ref().map_or(-1, |e| e.raw_fd())
    }

    /// The event that ends the fault thread.
    pub(super) fn stop_fd(&self) -> i32 {
        lock(&self.stop_event).as_ref().map_or(-1, |e| e.raw_fd())
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(SeqCst)
    }
}

impl Region {
    /// Starts bringing the pages of `[off, off + len)` in and returns; a length of 0 means to the end. A hint: what
    /// does not fit the resident limit, or fails, is brought when it is touched.
    pub fn prefetch(&self, off: u64, len: u64) -> Status {
        match self.range(off, len) {
            Ok(r) => {
                // A handler of the program may wait for the keeper, which takes this lock too.
                let _signals = SignalsBlocked::new();
                lock(&self.keeper.wanted).push((r.start, r.end));
                self.keeper.kick();
                Status::OK
            }
            Err(s) => s,
        }
    }

    /// Sets the function called, on an own thread, when the status changes; `None` takes it away. It may call any
    /// function of the region but must not end it.
    pub fn on_status(&self, f: Option<StatusHandler>) {
        let _signals = SignalsBlocked::new();
        *lock(&self.keeper.handler) = f;
    }

    fn push_all(&self, out: &mut Outbox) {
        let Some(_push) = self.keeper.pushes.begin() else { return };
        if self.harvest(self.all(), Heat::Ignore).is_ok() {
            let (sent, _) = self.push(self.all(), out, self.deadline());
            if sent > 0 {
                let _ = self.fence(self.deadline());
            }
        }
    }
}

/// What the keeper remembers between its rounds.
#[derive(Default)]
struct Round {
    out: Outbox,
    hand: usize,
    last_push: u64,
    last_acquire: u64,
    watch: Watch,
}

fn keep(region: &Region) {
    let [uffd, pagemap] = region.tracker.raw_fds();
    let mut post = Post::claim(region);
    let board = post.as_ref().map_or(-1, Post::fd);
    let events = [region.keeper.event_fd(), region.keeper.stop_fd()];
    let _ = private_descriptors(&[uffd, pagemap, events[0], events[1], region.file.as_raw_fd(), board]);
    let tick_ns = tick_ms(region).saturating_mul(1_000_000);
    let mut round = Round { last_push: clock::now(), last_acquire: clock::now(), ..Round::default() };
    while !region.keeper.stopping() {
        let seen = region.keeper.wake.load(SeqCst);
        make_room(region, &mut round);
        write_back(region, &mut round);
        refresh(region, &mut round);
        bring_wanted(region);
        look_after(region, &mut round);
        if let Some(p) = &mut post {
            p.refresh(region);
        }
        if region.keeper.wake.load(SeqCst) == seen {
            let _ = futex_wait(&region.keeper.wake, seen, nap_ns(region, &round, tick_ns));
        }
    }
    if let Some(p) = post {
        p.close(region);
    }
    // Here it is open even when the program has closed everything.
    if let Some(e) = &*lock(&region.keeper.stop_event) {
        e.set();
    }
}

/// How long the keeper sleeps when nobody wakes it.
fn nap_ns(region: &Region, round: &Round, tick_ns: u64) -> u64 {
    let markers = if region.has_markers() { 2_000_000 } else { u64::MAX };
    tick_ns.min(round.watch.limit(clock::now())).min(markers)
}

/// How often the keeper must look without being asked.
fn tick_ms(region: &Region) -> u64 {
    let o = &region.opts;
    let mut t = 1000;
    if o.through == Through::Bounded {
        t = THROUGH_BOUND_MS;
    }
    if o.age_ms > 0 {
        t = t.min((o.age_ms / 4).max(1));
    }
    if o.dirty_limit > 0 {
        t = t.min(10);
    }
    if o.acquire_ms > 0 {
        t = t.min(o.acquire_ms.max(1));
    }
    t
}

fn make_room(region: &Region, round: &mut Round) {
    if region.budget == usize::MAX {
        return;
    }
    let room = region.room();
    let mut target = region.budget - room;
    while region.pages.resident() > target && !region.keeper.stopping() {
        // Once at work, make more room than was asked for: evicting in bulk is cheap, waking up is not.
        target = region.budget - 2 * room;
        let want = (region.pages.resident() - target).clamp(1, 256);
        let (hand, gone) = match region.keeper.pushes.begin() {
            Some(_push) => region.evict(round.hand, want, &mut round.out),
            None => (round.hand, 0),
        };
        round.hand = hand;
        if gone == 0 {
            // Everything is held, being written or being named; the next kick comes soon.
            nap(200_000);
            return;
        }
    }
}

fn write_back(region: &Region, round: &mut Round) {
    if region.condition().0 != Condition::Ok {
        // Sent again when the home is back: until then every try would fail.
        return;
    }
    let o = &region.opts;
    let due_age = o.age_ms > 0 && clock::now() >= round.last_push + o.age_ms.saturating_mul(500_000);
    let mut due = o.through == Through::Bounded || due_age;
    if !due && o.dirty_limit > 0 {
        let _ = region.harvest(region.all(), Heat::Ignore);
        due = (region.pages.dirty.count(0, region.pages.len()) * PAGE) as u64 >= o.dirty_limit;
    }
    if due {
        region.push_all(&mut round.out);
        round.last_push = clock::now();
    }
}

fn refresh(region: &Region, round: &mut Round) {
    let every = region.opts.acquire_ms.saturating_mul(1_000_000);
    if every > 0 && clock::now() >= round.last_acquire + every {
        let _ = region.acquire_pages(region.all());
        round.last_acquire = clock::now();
    }
}

fn bring_wanted(region: &Region) {
    while let Some((start, end)) = { lock(&region.keeper.wanted).pop() } {
        bring(region, start, end, || false);
    }
    loop {
        let asked = region.keeper.ahead.swap(0, SeqCst);
        let Some(start) = asked.checked_sub(1) else { return };
        let end = (start + region.opts.readahead).min(region.pages.len());
        bring(region, start, end, || region.keeper.ahead.load(SeqCst) != 0);
    }
}

/// Brings pages step by step, as far as the limit allows and until somebody has a better wish.
fn bring(region: &Region, start: usize, end: usize, better: impl Fn() -> bool) {
    let mut at = start;
    while at < end && !region.keeper.stopping() && !better() {
        let full = region.budget != usize::MAX && region.pages.resident() + PREFETCH_STEP > region.budget;
        if full || region.prefetch_step(at, end.min(at + PREFETCH_STEP)).is_err() {
            return;
        }
        at += PREFETCH_STEP;
    }
}

/// Asks a home that failed again, does what a recovery asks for, and tells the program what has changed.
fn look_after(region: &Region, round: &mut Round) {
    region.clear_markers();
    let (watch, out) = (&mut round.watch, &mut round.out);
    watch.look(region, clock::now(), || region.push_all(out));
    let announced = region.keeper.announced.swap(false, SeqCst);
    if !watch.is_news(region, announced) {
        return;
    }
    if super::engine::Engine::speaks(LogLevel::Error)
        && let Some(line) = watch.line(region, clock::now())
    {
        say_aside(&line);
    }
    if let Some(e) = &*lock(&region.keeper.event) {
        e.set();
    }
    if let Some(f) = &*lock(&region.keeper.handler) {
        f(region, region.status());
    }
}
