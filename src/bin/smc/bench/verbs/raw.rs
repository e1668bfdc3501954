//! The verbs baseline: one queue pair, memory registered once, one request at a time or a queue of them. Nothing of libsmc
//! but the calls of libibverbs.

use crate::bench::rig::fill;
use smc_engine::base::config::DeviceWish;
use smc_engine::base::{Error, Result, Status};
use smc_engine::link::mgmt::message::Endpoint;
use smc_engine::link::verbs::{
    Batch, Choice, Completions, Depth, Domain, Place, QueuePair, Registered, Request, Rights, Table, Verb, choose,
};
use smc_engine::sys::Errno;
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::mem::{self, Mapping};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// Requests under way at most.
pub const DEPTH: u32 = 64;

/// Registered memory.
pub struct Memory {
    // Goes first: memory is unmapped after it.
    pub registered: Registered,
    mapping: Mapping,
}

impl Memory {
    /// Address of a byte.
    pub fn at(&self, off: usize) -> *mut u8 {
        self.mapping.ptr().wrapping_add(off)
    }

    /// A word that the other side may change.
    pub fn word(&self, off: usize) -> &AtomicU64 {
        assert!(off.is_multiple_of(8) && off + 8 <= self.mapping.len(), "outside the memory");
        // SAFETY: inside the mapping, which lives as long as self, and aligned; on this side every access is atomic.
        unsafe { AtomicU64::from_ptr(self.at(off).cast()) }
    }

    /// What the word is now.
    pub fn load(&self, off: usize) -> u64 {
        self.word(off).load(Acquire)
    }

    /// Changes the word.
    pub fn store(&self, off: usize, value: u64) {
        self.word(off).store(value, Release);
    }
}

/// Memory of the other side.
#[derive(Clone, Copy, Debug)]
pub struct Far {
    pub addr: u64,
    pub rkey: u32,
}

/// A queue pair and what it needs.
pub struct Lane {
    pair: QueuePair,
    cq: Arc<Completions>,
    domain: Arc<Domain>,
    /// The device, and why it was chosen.
    pub choice: Choice,
    /// Requests that have not ended.
    under_way: Cell<usize>,
}

impl Lane {
    /// Opens the device that the product would choose and makes a queue pair on it.
    pub fn new(wish: &DeviceWish) -> Result<Lane> {
        let choice = choose(wish, None, Table::Program)?;
        let domain = Domain::new(&choice.device)?;
        let cq = Completions::new(&choice.device, DEPTH)?;
        let port = choice.ports.first().ok_or_else(|| Error::of(Status::NOT_FOUND, "choose a port"))?;
        let pair = QueuePair::new(&domain, &cq, port, Depth { requests: DEPTH, inline: 0 }, true)?;
        Ok(Lane { pair, cq, domain, choice, under_way: Cell::new(0) })
    }

    /// As the other side must know it.
    pub fn endpoint(&self) -> Endpoint {
        self.pair.endpoint()
    }

    /// Connects to the other side's.
    pub fn connect(&self, other: &Endpoint) -> Result<()> {
        self.pair.connect(other)
    }

    /// `len` bytes of populated memory on small or huge pages, registered for the other side's requests as well.
    pub fn memory(&self, len: usize, huge: bool) -> Result<Memory> {
        let mapping = self.unregistered(len, huge)?;
        // SAFETY: the memory lives as long as the registration, and nobody minds what is done to it.
        let registered = unsafe { self.domain.register(mapping.ptr(), len, Rights::Write) }?;
        Ok(Memory { registered, mapping })
    }

    /// The same, not registered. A memory file, as regions and exports are: to hardware memory is memory, but a device made of
    /// software reaches a file's pages with less work than private ones.
    pub fn unregistered(&self, len: usize, huge: bool) -> Result<Mapping> {
        let bad = |e: Errno| Error::new(Status::NO_RESOURCES, "make a bench buffer", e.to_string());
        let file = mem::memfd(c"bench", len as u64).map_err(bad)?;
        let m = Mapping::shared_aligned(file.as_fd(), len, mem::RW).map_err(bad)?;
        if huge {
            m.collapse();
        } else {
            let _ = m.advise(0, len, mem::NOHUGEPAGE);
        }
        fill(m.ptr(), 1, len);
        Ok(m)
    }

    /// Registers memory for own requests.
    pub fn register(&self, m: &Mapping) -> Result<Registered> {
        // SAFETY: callers drop the registration before the memory.
        unsafe { self.domain.register(m.ptr(), m.len(), Rights::Local) }
    }

    /// Posts one request: `len` bytes at `ptr`, which `lkey` covers, and at `far`. It ends with [`Lane::wait`].
    pub fn post(&self, verb: Verb, (ptr, lkey): (*mut u8, u32), far: Far, len: usize) -> Result<()> {
        let local = Place { ptr, len: len as u32, lkey };
        let mut batch = Batch::<1>::new();
        batch.push(&Request { id: 0, verb, local, addr: far.addr, rkey: far.rkey, signalled: true });
        // SAFETY: suites pass registered memory of their own and wait before they let go of it.
        let posted = unsafe { batch.post(&self.pair) };
        posted.map_err(|(e, _)| Error::new(Status::LINK_DOWN, "post a request", e.to_string()))?;
        self.under_way.set(self.under_way.get() + 1);
        Ok(())
    }

    /// Waits until at most `most` requests are under way.
    pub fn wait(&self, most: usize) -> Result<()> {
        let (deadline, mut failed) = (Deadline::in_ms(20_000), None);
        while self.under_way.get() > most {
            let n = self.cq.poll(|c| {
                if c.outcome.status() != Status::OK {
                    failed.get_or_insert(c.outcome);
                }
            });
            let n = n.map_err(|e| Error::new(Status::LINK_DOWN, "poll for completions", e.to_string()))?;
            self.under_way.set(self.under_way.get().saturating_sub(n));
            if let Some(o) = failed {
                return Err(Error::new(Status::LINK_DOWN, "run the verbs baseline", o.text()));
            }
            if n == 0 && deadline.passed() {
                return Err(Error::of(Status::TIMED_OUT, "wait for a request of the verbs baseline"));
            }
        }
        Ok(())
    }

    /// One completed request.
    pub fn run(&self, verb: Verb, from: (&Memory, usize), far: Far, len: usize) -> Result<()> {
        let (memory, off) = from;
        self.post(verb, (memory.at(off), memory.registered.lkey), far, len)?;
        self.wait(0)
    }

    /// Looks at the empty queue of completions: what a device of software does its work in.
    pub fn poll(&self) {
        let _ = self.cq.poll(|_| {});
    }
}
