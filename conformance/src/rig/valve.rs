//! A link that the case turns off and on, slows down, or lets fail a number of times.

use smc_engine::base::stats::LinkStats;
use smc_engine::base::{Error, HomeOff, Status};
use smc_engine::link::{Access, AtomicOp, Health, Link, Opened, RegionInfo, RegionKey, Registration, Ticket, WriteOp};
use smc_engine::sys::clock::{Deadline, nap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::SeqCst};

/// The link. Everything that is not stopped goes to the inner one.
pub struct Valve {
    inner: Arc<dyn Link>,
    status: AtomicI32,
    failing_posts: AtomicU64,
    failing_fences: AtomicU64,
    post_delay_ns: AtomicU64,
    fence_delay_ns: AtomicU64,
    fetch_delay_ns: AtomicU64,
    /// The region that was opened last.
    opened: AtomicU32,
    /// Operations let through.
    pub passed: AtomicU64,
    /// Operations under way.
    inside: AtomicU64,
}

/// An operation under way, until dropped.
struct Inside<'a>(&'a Valve);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

impl Valve {
    /// Open.
    pub fn new(inner: Arc<dyn Link>) -> Valve {
        let zero = || AtomicU64::new(0);
        Valve {
            inner,
            status: AtomicI32::new(0),
            failing_posts: zero(),
            failing_fences: zero(),
            post_delay_ns: zero(),
            fence_delay_ns: zero(),
            fetch_delay_ns: zero(),
            opened: AtomicU32::new(0),
            passed: zero(),
            inside: zero(),
        }
    }

    /// From now on every operation answers `status`; `OK` opens the valve.
    pub fn set(&self, status: Status) {
        self.status.store(status.0, SeqCst);
    }

    /// The link is up for the region that was opened last.
    pub fn is_up(&self) -> bool {
        self.health(RegionKey(self.opened.load(SeqCst))) == Health::Up
    }

    /// The next `n` posts fail after their delay; half of each has happened.
    pub fn fail_posts(&self, n: u64) {
        self.failing_posts.store(n, SeqCst);
    }

    /// Posts still to fail.
    pub fn failing_posts(&self) -> u64 {
        self.failing_posts.load(SeqCst)
    }

    /// The next `n` fences fail before anything arrives.
    pub fn fail_fences(&self, n: u64) {
        self.failing_fences.store(n, SeqCst);
    }

    /// Every post takes this much longer.
    pub fn slow_posts(&self, ns: u64) {
        self.post_delay_ns.store(ns, SeqCst);
    }

    /// Every fence takes this much longer.
    pub fn slow_fences(&self, ns: u64) {
        self.fence_delay_ns.store(ns, SeqCst);
    }

    /// Every fetch takes this much longer, and meets the status that there is then.
    pub fn slow_fetches(&self, ns: u64) {
        self.fetch_delay_ns.store(ns, SeqCst);
    }

    /// Returns when no operation is under way that began before this call, with the valve shut: from then on nothing passes.
    pub fn drained(&self) {
        while self.inside.load(SeqCst) > 0 {
            nap(100_000);
        }
    }

    /// Lets an operation through, or answers why not.
    fn enter(&self) -> Result<Inside<'_>, Status> {
        // Counted before the look: either it finds the valve shut, or who waits for it to be over waits for this.
        self.inside.fetch_add(1, SeqCst);
        let inside = Inside(self);
        let s = Status(self.status.load(SeqCst));
        if s.is_ok() {
            self.passed.fetch_add(1, SeqCst);
        }
        s.ok().map(|()| inside)
    }
}

fn pause(ns: u64) {
    if ns > 0 {
        nap(ns);
    }
}

impl Link for Valve {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        let opened = self.inner.open(name, want, deadline)?;
        self.opened.store(opened.key.0, SeqCst);
        Ok(opened)
    }

    fn close(&self, key: RegionKey) {
        self.inner.close(key);
    }

    fn abandon(&self, key: RegionKey) {
        self.inner.abandon(key);
    }

    fn attachments(&self, key: RegionKey) -> u64 {
        self.inner.attachments(key)
    }

    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        self.inner.list(deadline)
    }

    fn health(&self, key: RegionKey) -> Health {
        match Status(self.status.load(SeqCst)) {
            Status::OK => self.inner.health(key),
            s if s.is_transient() => Health::Retrying(s),
            s => Health::Down(s),
        }
    }

    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status {
        pause(self.fetch_delay_ns.load(SeqCst));
        let _inside = match self.enter() {
            Ok(inside) => inside,
            Err(s) => return s,
        };
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.fetch(key, off, dst, len, deadline) }
    }

    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status {
        let _inside = match self.enter() {
            Ok(inside) => inside,
            Err(s) => return s,
        };
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.put(key, off, src, len, deadline) }
    }

    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        let _inside = self.enter()?;
        pause(self.post_delay_ns.load(SeqCst));
        let fails = self.failing_posts.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok();
        let part = if fails { ops.get(..ops.len() / 2).unwrap_or(&[]) } else { ops };
        if fails {
            if !part.is_empty() {
                // SAFETY: the caller's promise is passed on, for a part of the batch.
                let ticket = unsafe { self.inner.post(key, part) }?;
                let _ = self.inner.wait(key, ticket, Deadline::in_ms(1000));
            }
            return Err(Status::LINK_DOWN);
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.post(key, part) }
    }

    fn wait(&self, key: RegionKey, ticket: Ticket, deadline: Deadline) -> Status {
        self.inner.wait(key, ticket, deadline)
    }

    fn fence(&self, key: RegionKey, deadline: Deadline) -> Status {
        let _inside = match self.enter() {
            Ok(inside) => inside,
            Err(s) => return s,
        };
        pause(self.fence_delay_ns.load(SeqCst));
        if self.failing_fences.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Status::LINK_DOWN;
        }
        self.inner.fence(key, deadline)
    }

    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        let _inside = self.enter()?;
        self.inner.atomic(key, off, op, deadline)
    }

    fn wants_registration(&self) -> bool {
        self.inner.wants_registration()
    }

    unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Registration, Status> {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.register(ptr, len) }
    }

    fn deregister(&self, r: Registration) {
        self.inner.deregister(r);
    }

    fn stats(&self) -> &LinkStats {
        self.inner.stats()
    }
}
