//! The transport trait and its implementations.
//!
//! A [`Link`] connects this process to one peer over one path. It has two faces with different rules.
//!
//! **Fault face** ([`Link::fetch`], [`Link::put`]): may be called in a signal handler of the application's thread.
//! It uses a queue of its own, does not allocate, takes no lock that is ever held with signals unblocked, waits no
//! longer than its deadline and returns a bare [`Status`].
//!
//! **Work face** ([`Link::post`], [`Link::wait`], [`Link::fence`], [`Link::atomic`], [`Link::register`]): called by
//! libsmc's own threads and inside API calls only, never by a fault. Locks that the fault face also takes are held
//! with signals blocked.
//!
//! **Management** ([`Link::open`], [`Link::close`], [`Link::list`]): slow path, may allocate and block up to its deadline.
//!
//! Contract common to all:
//! * Memory is named by (key, offset). An operation outside the region or the granted access answers
//!   `OUT_OF_RANGE` or `PERMISSION` and moves nothing.
//! * An operation that answers `OK` has happened completely. One that answers anything else may have happened in part
//!   (a write) or not at all; repeating it is always allowed, except for an atomic, which says `INTERNAL` when it cannot
//!   tell whether it happened.
//! * A fetch returns the home's bytes as of some moment between its call and its return, or an error: never zeros,
//!   never the bytes of a home that was taken away.
//! * Writes may reach the home in any order until [`Link::fence`] has returned OK: then all writes whose `wait`
//!   has returned OK before are readable at the home.
//! * Sources of [`Link::post`] belong to the link until the matching [`Link::wait`] has returned.
//! * Nothing calls upwards: events (revoked, moved, peer dead) are read with [`Link::health`].

pub mod embedded;
pub mod failover;
pub mod faulty;
pub mod loopback;
pub mod mgmt;
pub mod verbs;

use crate::base::config::Config;
use crate::base::stats::LinkStats;
use crate::base::{Error, HomeOff, Status};
use crate::sys::clock::Deadline;
use crate::sys::mem::copy_streaming;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Connects to a peer: `None` is this host (exporters are found by region name), otherwise a host and the port of its
/// management path, which nobody is asked at yet. `NOT_FOUND` and others when this process has no usable key for that.
pub fn connect(peer: Option<(&str, u16)>, config: &Config) -> Result<Arc<dyn Link>, Error> {
    let link: Arc<dyn Link> = match peer {
        Some((host, port)) => Arc::new(verbs::VerbsLink::new(host, port, config)?),
        None => Arc::new(embedded::EmbeddedLink::connect_local_trusting(&config.trust)),
    };
    let model = &config.link_model;
    Ok(if model.is_empty() { link } else { Arc::new(faulty::Faulty::new(link, faulty::Plan::parse(model)?)) })
}

/// A region as this link knows it; meaningless on another link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegionKey(pub u32);

/// What a client may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// Fetch and atomic load.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// Kind of memory behind a region, as the exporter classified it (fact row A1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MemoryKind {
    /// Ordinary system memory.
    System = 1,
    /// Page-locked system memory.
    Pinned = 2,
    /// Accelerator memory.
    Device = 3,
}

/// What the exporter says about a region: pushed at open, and again when it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionInfo {
    /// Name, 1 to 255 bytes of `[A-Za-z0-9._-]`, not starting with a dot.
    pub name: String,
    /// Bytes; a multiple of the page size for regions that can be mapped.
    pub len: u64,
    /// Access granted to this client.
    pub access: Access,
    /// What lies behind it.
    pub kind: MemoryKind,
    /// Clients connected now (for `smc ls`).
    pub clients: u32,
    /// Process id of the exporter.
    pub pid: u32,
    /// Names the content: an export of the same name and length with another number is other memory.
    pub incarnation: u64,
}

/// An opened region.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Name of the region on this link.
    pub key: RegionKey,
    /// What the exporter said.
    pub info: RegionInfo,
}

/// One contiguous write.
#[derive(Clone, Copy, Debug)]
pub struct WriteOp {
    /// Where the bytes come from.
    pub src: *const u8,
    /// How many; at least 1.
    pub len: usize,
    /// Where they go.
    pub off: HomeOff,
}

/// Names a batch of posted writes until it was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the sources belong to the link until the ticket was waited for"]
pub struct Ticket(pub u64);

/// An operation performed at the home on an 8-byte word at an 8-byte aligned offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Read the word.
    Load,
    /// Replace it; answers the old value.
    Store(u64),
    /// Add, wrapping; answers the old value.
    FetchAdd(u64),
    /// Replace by `new` when equal to `expected`; answers the old value.
    CompareSwap {
        /// Value that must be there.
        expected: u64,
        /// Value to put there.
        new: u64,
    },
}

impl AtomicOp {
    /// Performs the operation on a word of this host's memory; answers the old value.
    pub fn perform(self, word: &AtomicU64) -> u64 {
        match self {
            AtomicOp::Load => word.load(SeqCst),
            AtomicOp::Store(v) => word.swap(v, SeqCst),
            AtomicOp::FetchAdd(n) => word.fetch_add(n, SeqCst),
            AtomicOp::CompareSwap { expected, new } => {
                word.compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|old| old)
            }
        }
    }
}

/// State of a link as seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// Operations are expected to work.
    Up,
    /// It does not work now, for this reason, and is expected to work again: a short drop, or a peer that is looked for.
    Retrying(Status),
    /// Operations answer this status at once.
    Down(Status),
}

/// Memory made known to the link's hardware; given back by [`Link::deregister`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration(pub u64);

/// One connection to one peer over one path. The module text is its contract.
pub trait Link: Send + Sync {
    /// Short name for tables: `embedded`, `faulty`.
    fn name(&self) -> &'static str;

    /// True when the times of this link come from a model and not from the machine.
    fn modelled(&self) -> bool {
        false
    }

    // ---- management ----

    /// Opens a region by name with at most the access asked for; `PERMISSION` when the exporter grants less.
    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error>;

    /// Closes it. Later operations with the key answer `NOT_FOUND`.
    fn close(&self, key: RegionKey);

    /// All names the peer offers.
    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error>;

    /// State of the link for this region now: reads atomics only, async-signal-safe.
    fn health(&self, key: RegionKey) -> Health;

    /// How often the region was attached to its home: 1 since the open, one more each time it was found again after its
    /// exporter had gone. Async-signal-safe.
    fn attachments(&self, _key: RegionKey) -> u64 {
        1
    }

    /// Writes that have not arrived yet never will: this path is left for another, and what it still holds is older than what
    /// goes over that one. Async-signal-safe.
    fn abandon(&self, _key: RegionKey) {}

    // ---- fault face ----

    /// Copies `len` bytes of the home at `off` to `dst`.
    ///
    /// # Safety
    /// `[dst, dst + len)` is valid for writes and nobody depends on its content during the call.
    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status;

    /// As [`Link::fetch`], into two places that then hold the same bytes. Links that copy with the processor read the
    /// home once; the others fetch and copy.
    ///
    /// # Safety
    /// As for [`Link::fetch`], for both destinations; they do not overlap.
    unsafe fn fetch_pair(
        &self,
        key: RegionKey,
        off: HomeOff,
        dst: [*mut u8; 2],
        len: usize,
        deadline: Deadline,
    ) -> Status {
        let [first, second] = dst;
        // SAFETY: the caller's promise is passed on.
        let s = unsafe { self.fetch(key, off, first, len, deadline) };
        if s.is_ok() {
            // SAFETY: the caller vouches for both, and the first was just filled.
            unsafe { copy_streaming(second, first, len) };
        }
        s
    }

    /// Copies `len` bytes at `src` to the home at `off`; they are readable there when this returns OK ("completed put").
    ///
    /// # Safety
    /// `[src, src + len)` is valid for reads during the call.
    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status;

    // ---- work face ----

    /// Starts the writes, in any order, pipelined. At least 64 batches of a region may be under way or not waited for; BUSY beyond.
    ///
    /// # Safety
    /// Every source stays valid and unchanged until [`Link::wait`] for the returned ticket has come back.
    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status>;

    /// Waits until the sources of a batch are free again and says whether all of it was delivered.
    fn wait(&self, key: RegionKey, ticket: Ticket, deadline: Deadline) -> Status;

    /// Returns OK when all delivered writes are readable at the home.
    fn fence(&self, key: RegionKey, deadline: Deadline) -> Status;

    /// Performs `op` at the home and answers the word's old value.
    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status>;

    /// True when bytes move faster from and to memory that was registered: anything else is copied by the link.
    fn wants_registration(&self) -> bool {
        false
    }

    /// Makes `[ptr, ptr + len)` usable as source and destination; links without hardware answer at once.
    ///
    /// # Safety
    /// The memory stays mapped until [`Link::deregister`].
    unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Registration, Status>;

    /// Takes a registration back.
    fn deregister(&self, r: Registration);

    /// What this link has done.
    fn stats(&self) -> &LinkStats;
}
