//! A link whose hardware wants to know memory: it says what was registered, and counts what it had to copy by itself.

use smc_engine::base::stats::LinkStats;
use smc_engine::base::{Error, HomeOff, Status};
use smc_engine::link::{Access, AtomicOp, Health, Link, Opened, RegionInfo, RegionKey, Registration, Ticket, WriteOp};
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::process::can_read;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// Ranges a card can know at a time.
const RANGES: usize = 64;

/// The link. Bytes are moved by the inner one.
pub struct Card {
    inner: Arc<dyn Link>,
    /// Bytes that may be registered.
    limit: u64,
    known: Mutex<BTreeMap<u64, (usize, usize)>>,
    /// The same for the fault face, which must not wait for a lock: start and end, both 0 when free.
    ranges: [[AtomicU64; 2]; RANGES],
    /// Registrations made.
    pub registered: AtomicU64,
    /// Registrations refused.
    pub refused: AtomicU64,
    /// Operations on memory that was not registered.
    pub bounced: AtomicU64,
}

impl Card {
    /// A card that takes registrations of `limit` bytes in all.
    pub fn new(inner: Arc<dyn Link>, limit: u64) -> Card {
        let zero = || AtomicU64::new(0);
        let ranges = [const { [const { AtomicU64::new(0) }; 2] }; RANGES];
        let known = Mutex::default();
        Card { inner, limit, known, ranges, registered: zero(), refused: zero(), bounced: zero() }
    }

    /// What is registered now, in bytes.
    pub fn held(&self) -> u64 {
        self.known.lock().expect("the card").values().map(|(_, len)| *len as u64).sum()
    }

    fn look(&self, at: usize, len: usize) {
        let inside = |r: &[AtomicU64; 2]| {
            let [start, end] = r.each_ref().map(|n| n.load(SeqCst) as usize);
            start <= at && at + len <= end
        };
        if !self.ranges.iter().any(inside) {
            self.bounced.fetch_add(1, SeqCst);
        }
    }
}

impl Link for Card {
    fn name(&self) -> &'static str {
        "card"
    }

    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        self.inner.open(name, want, deadline)
    }

    fn close(&self, key: RegionKey) {
        self.inner.close(key);
    }

    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        self.inner.list(deadline)
    }

    fn health(&self, key: RegionKey) -> Health {
        self.inner.health(key)
    }

    fn attachments(&self, key: RegionKey) -> u64 {
        self.inner.attachments(key)
    }

    fn abandon(&self, key: RegionKey) {
        self.inner.abandon(key);
    }

    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status {
        self.look(dst as usize, len);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.fetch(key, off, dst, len, deadline) }
    }

    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status {
        self.look(src as usize, len);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.put(key, off, src, len, deadline) }
    }

    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        ops.iter().for_each(|o| self.look(o.src as usize, o.len));
        // SAFETY: the caller's promise is passed on.
        unsafe { self.inner.post(key, ops) }
    }

    fn wait(&self, key: RegionKey, ticket: Ticket, deadline: Deadline) -> Status {
        self.inner.wait(key, ticket, deadline)
    }

    fn fence(&self, key: RegionKey, deadline: Deadline) -> Status {
        self.inner.fence(key, deadline)
    }

    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        self.inner.atomic(key, off, op, deadline)
    }

    fn wants_registration(&self) -> bool {
        true
    }

    unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Registration, Status> {
        let mut known = self.known.lock().expect("the card");
        let held: u64 = known.values().map(|(_, len)| *len as u64).sum();
        let free = self.ranges.iter().position(|r| r.iter().all(|n| n.load(SeqCst) == 0));
        let Some(slot) = free.filter(|_| held + len as u64 <= self.limit) else {
            self.refused.fetch_add(1, SeqCst);
            return Err(Status::NO_RESOURCES);
        };
        self.ranges[slot][1].store((ptr as usize + len) as u64, SeqCst);
        self.ranges[slot][0].store(ptr as u64, SeqCst);
        self.registered.fetch_add(1, SeqCst);
        assert!(known.insert(slot as u64, (ptr as usize, len)).is_none(), "a slot that was not free");
        Ok(Registration(slot as u64))
    }

    fn deregister(&self, r: Registration) {
        let (at, len) = self.known.lock().expect("the card").remove(&r.0).expect("it was registered, once");
        for byte in [at, at + len - 1] {
            assert!(can_read(byte as *const u8), "memory was unmapped before its registration was taken back");
        }
        self.ranges[r.0 as usize].iter().for_each(|n| n.store(0, SeqCst));
    }

    fn stats(&self) -> &LinkStats {
        self.inner.stats()
    }
}
