//! The same-host link: the home is mapped into this process and operations are memory copies.
//!
//! The mapping is never shown to the application: it is reached through the operations only, as a home behind a network
//! would be. No exporter thread takes part in an operation. Opening, moving and revocation go over one socket per region
//! to the exporter, served by one thread of ours ("smc-link") that starts with the first open.
//!
//! An exporter that goes away (its process ends, or it ends the export) leaves the region *down* with PEER_DEAD, and the name
//! is looked for in the background, ever less often. When an export of the same name, length and *incarnation* comes, the
//! region is attached to it and works again ([`Link::attachments`] counts); one with another incarnation is other memory, and
//! the region answers STALE from then on. A revocation is final.
//!
//! Authentication: the kernel tells each side who the other is (SO_PEERCRED) before a byte is read. We accept an exporter
//! that runs as our own user, as root, or as a user named in [`EmbeddedLink::connect_local_trusting`].
//!
//! Limits: [`slots::SLOTS`] regions open at a time per link.

pub mod control;
pub mod copy;
mod manager;
pub mod names;
mod ops;
mod search;
mod session;
mod slots;

pub use names::list_local;
pub use slots::SLOTS;

use super::{Access, AtomicOp, Health, Link, Opened, RegionInfo, RegionKey, Registration, Ticket, WriteOp};
use crate::base::stats::LinkStats;
use crate::base::{Error, HomeOff, Status};
use crate::sys::clock::{Deadline, now};
use manager::Manager;
use ops::Kind;
use slots::Table;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// An exporter silent for longer than this is [`Health::Retrying`].
const SILENT_NS: u64 = 10_000_000_000;
/// Longest wait of [`Link::post`] for a home that is moving.
const POST_WAIT_MS: u64 = 5000;

/// The link to all exporters on this host. The module text is its manual.
#[derive(Debug)]
pub struct EmbeddedLink {
    table: Arc<Table>,
    manager: Manager,
    tickets: AtomicU64,
    stats: LinkStats,
}

impl EmbeddedLink {
    /// A link that starts nothing until the first open.
    pub fn connect_local() -> EmbeddedLink {
        EmbeddedLink::connect_local_trusting(&[])
    }

    /// As [`EmbeddedLink::connect_local`], and accepts exporters that run as one of `uids`.
    pub fn connect_local_trusting(uids: &[u32]) -> EmbeddedLink {
        let table = Arc::new(Table::new());
        let manager = Manager::new(table.clone(), uids);
        EmbeddedLink { table, manager, tickets: AtomicU64::new(0), stats: LinkStats::new() }
    }

    /// Counts an outcome.
    fn count<R>(&self, r: Result<R, Status>, ok: impl FnOnce(&LinkStats)) -> Result<R, Status> {
        match r {
            Ok(_) => ok(&self.stats),
            Err(_) => self.stats.errors.hit(),
        }
        r
    }
}

fn status(r: Result<(), Status>) -> Status {
    r.err().unwrap_or(Status::OK)
}

impl Link for EmbeddedLink {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        if self.table.in_child() {
            return Err(Error::of(Status::FORKED, format!("open region \"{name}\"")));
        }
        self.manager.open(name, want, deadline)
    }

    fn close(&self, key: RegionKey) {
        if let Ok(slot) = self.table.enter(key) {
            // From here on operations find no such key; the manager unmaps once those under way are out.
            let first = slot.key.compare_exchange(key.0, 0, SeqCst, SeqCst).is_ok();
            drop(slot);
            if first {
                self.manager.close(key);
            }
        }
    }

    fn attachments(&self, key: RegionKey) -> u64 {
        self.table.enter(key).map_or(0, |slot| slot.attachments.load(SeqCst))
    }

    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        if self.table.in_child() {
            return Err(Error::of(Status::FORKED, "list exported regions"));
        }
        self.manager.list(deadline)
    }

    fn health(&self, key: RegionKey) -> Health {
        let slot = match self.table.enter(key) {
            Ok(s) => s,
            Err(e) => return Health::Down(e),
        };
        let gate = slot.control().map_or(0, |c| c.gate.load(SeqCst));
        match slot.status() {
            Status::OK if gate == control::GATE_REVOKED => Health::Down(Status::REVOKED),
            Status::OK if gate == control::GATE_ENDED => Health::Retrying(Status::PEER_DEAD),
            // The name is looked for as long as the region is open.
            Status::PEER_DEAD => Health::Retrying(Status::PEER_DEAD),
            Status::OK if now().saturating_sub(slot.beat_at.load(SeqCst)) > SILENT_NS => {
                Health::Retrying(Status::TIMED_OUT)
            }
            Status::OK => Health::Up,
            s => Health::Down(s),
        }
    }

    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status {
        let r = ops::run(&self.table, key, (off.0, len as u64), Kind::Read, deadline, |home| {
            // SAFETY: the home's range is mapped and pinned; the caller vouches for the destination.
            unsafe { copy::copy(dst, home, len) }
        });
        status(self.count(r, |s| {
            s.fetches.hit();
            s.fetch_bytes.add(len as u64);
        }))
    }

    unsafe fn fetch_pair(
        &self,
        key: RegionKey,
        off: HomeOff,
        dst: [*mut u8; 2],
        len: usize,
        deadline: Deadline,
    ) -> Status {
        let r = ops::run(&self.table, key, (off.0, len as u64), Kind::Read, deadline, |home| {
            // SAFETY: the home's range is mapped and pinned; the caller vouches for the destinations.
            unsafe { copy::copy_pair(dst, home, len) }
        });
        status(self.count(r, |s| {
            s.fetches.hit();
            s.fetch_bytes.add(len as u64);
        }))
    }

    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status {
        let r = ops::run(&self.table, key, (off.0, len as u64), Kind::Write, deadline, |home| {
            // SAFETY: the home's range is mapped writable and pinned; the caller vouches for the source.
            unsafe { copy::copy(home, src, len) }
        });
        status(self.count(r, |s| {
            s.writes.hit();
            s.write_bytes.add(len as u64);
        }))
    }

    /// The copies are made here; a home that is moving is waited for up to 5 seconds.
    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        let (mut low, mut high, mut bytes) = (u64::MAX, 0u64, 0u64);
        for op in ops {
            let end = op.off.0.checked_add(op.len as u64).ok_or(Status::OUT_OF_RANGE)?;
            (low, high, bytes) = (low.min(op.off.0), high.max(end), bytes + op.len as u64);
        }
        if ops.is_empty() {
            (low, high) = (0, 0);
        }
        let r = ops::run(&self.table, key, (low, high - low), Kind::Write, Deadline::in_ms(POST_WAIT_MS), |home| {
            for op in ops {
                let to = home.wrapping_add((op.off.0 - low) as usize);
                // SAFETY: every range lies in [low, high), which is mapped writable and pinned; the caller vouches for
                // the sources.
                unsafe { copy::copy(to, op.src, op.len) };
            }
        });
        self.count(r, |s| {
            s.writes.add(ops.len() as u64);
            s.write_bytes.add(bytes);
        })?;
        Ok(Ticket(self.tickets.fetch_add(1, SeqCst)))
    }

    /// Answers at once: a posted batch has been delivered when [`Link::post`] returned its ticket.
    fn wait(&self, _key: RegionKey, ticket: Ticket, _deadline: Deadline) -> Status {
        if ticket.0 < self.tickets.load(SeqCst) { Status::OK } else { Status::INVALID_ARGUMENT }
    }

    fn fence(&self, key: RegionKey, _deadline: Deadline) -> Status {
        std::sync::atomic::fence(SeqCst);
        let r = self.table.enter(key).and_then(|slot| ops::reachable(&slot));
        status(self.count(r, |s| s.fences.hit()))
    }

    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        self.count(ops::atomic(&self.table, key, off.0, op, deadline), |s| s.atomics.hit())
    }

    unsafe fn register(&self, _ptr: *mut u8, _len: usize) -> Result<Registration, Status> {
        Ok(Registration(0))
    }

    fn deregister(&self, _r: Registration) {}

    fn stats(&self) -> &LinkStats {
        &self.stats
    }
}
