//! A link around any other: seeded faults, and a wire with a price.
//!
//! Everything it does follows from a [`Plan`]: the n-th operation meets the same fate in every run with the same seed
//! and the same order of operations. Faults stay inside the contract of [`super`]: a delivered write may be held back
//! until the fence (so control overtakes data), a failing one may have happened in part, a revoked or dead link never
//! answers OK again. Figures taken over a wire model are modelled and say so ([`Link::modelled`]).

mod held;
mod plan;
mod wire;

pub use plan::{Fate, Plan};
pub use wire::Wire;

use super::*;
use held::Held;
use std::sync::atomic::AtomicBool;

/// The wrapper.
pub struct Faulty {
    inner: Arc<dyn Link>,
    plan: Plan,
    wire: Option<wire::Line>,
    ops: AtomicU64,
    held: Held,
    revoked: AtomicBool,
    stats: LinkStats,
}

impl Faulty {
    /// Puts `plan` around `inner`.
    pub fn new(inner: Arc<dyn Link>, plan: Plan) -> Faulty {
        Faulty {
            wire: plan.wire.map(wire::Line::new),
            inner,
            plan,
            ops: AtomicU64::new(0),
            held: Held::new(),
            revoked: AtomicBool::new(false),
            stats: LinkStats::new(),
        }
    }

    /// Revokes this client's access from now on, whatever the plan says.
    pub fn revoke(&self) {
        self.revoked.store(true, SeqCst);
    }

    /// Operations begun so far.
    pub fn operations(&self) -> u64 {
        self.ops.load(SeqCst)
    }

    /// What happens to the next operation.
    fn fate(&self) -> Fate {
        let n = self.ops.fetch_add(1, SeqCst);
        let fate = if self.revoked.load(SeqCst) { Fate::Fail(Status::REVOKED) } else { self.plan.fate(n) };
        match fate {
            Fate::Delay(ns) => {
                wait_until(crate::sys::clock::now() + ns);
                Fate::Pass
            }
            Fate::Fail(s) => {
                self.stats.errors.hit();
                Fate::Fail(s)
            }
            f => f,
        }
    }

    /// Occupies the wire; answers when the far side's answer is back.
    fn charge(&self, messages: usize, bytes: usize) -> u64 {
        self.wire.as_ref().map_or(0, |w| w.occupy(messages, bytes))
    }

    /// A fetch of `len` bytes at the price of the wire; `bring` gets as many as the plan lets through.
    fn fetch_part(&self, len: usize, bring: impl FnOnce(usize) -> Status) -> Status {
        let back = self.charge(1, len);
        let part = match self.fate() {
            Fate::Fail(s) => return s,
            Fate::Partial => len / 2,
            _ => len,
        };
        let s = bring(part);
        wait_until(back);
        self.stats.fetches.hit();
        self.stats.fetch_bytes.add(part as u64);
        if part < len { Status::LINK_DOWN } else { s }
    }

    /// Lets everything that was held back arrive.
    fn settle(&self, key: RegionKey, deadline: Deadline) -> Status {
        self.held.release(|off, bytes| {
            // SAFETY: `bytes` is a live buffer of the held write.
            unsafe { self.inner.put(key, off, bytes.as_ptr(), bytes.len(), deadline) }
        })
    }

    fn post_held(&self, key: RegionKey, ops: &[WriteOp], life: u64) -> Result<(), Status> {
        for (i, op) in ops.iter().enumerate() {
            let chosen = self.plan.holds_back(self.ops.load(SeqCst), i);
            // SAFETY: the caller of `post` vouches for the source until `wait`.
            if !unsafe { self.held.keep(op, chosen, life) }? {
                // SAFETY: as above.
                unsafe { self.inner.put(key, op.off, op.src, op.len, Deadline(u64::MAX)) }.ok()?;
            }
        }
        Ok(())
    }

    /// Delivers a part of the batch, cut in the middle of a write, and fails.
    fn post_partly(&self, key: RegionKey, ops: &[WriteOp]) -> Status {
        let whole = ops.len() / 2;
        for (i, op) in ops.iter().enumerate().take(whole + 1) {
            let len = if i < whole { op.len } else { op.len / 2 };
            if len > 0 {
                // SAFETY: as in `post_held`; a shorter write of the same source.
                let _ = unsafe { self.inner.put(key, op.off, op.src, len, Deadline(u64::MAX)) };
            }
        }
        Status::LINK_DOWN
    }
}

/// Spins when the moment is near, sleeps when it is far.
fn wait_until(moment: u64) {
    const FAR: u64 = 150_000;
    loop {
        let left = moment.saturating_sub(crate::sys::clock::now());
        if left <= FAR {
            return crate::sys::clock::spin_until(moment);
        }
        crate::sys::clock::nap(left - FAR);
    }
}

impl Link for Faulty {
    fn name(&self) -> &'static str {
        if self.wire.is_some() { "wire" } else { "faulty" }
    }

    fn modelled(&self) -> bool {
        self.wire.is_some() || self.inner.modelled()
    }

    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        self.inner.open(name, want, deadline)
    }

    fn close(&self, key: RegionKey) {
        let _ = self.settle(key, Deadline::in_ms(1000));
        self.inner.close(key);
    }

    fn abandon(&self, key: RegionKey) {
        self.held.forget();
        self.inner.abandon(key);
    }

    fn attachments(&self, key: RegionKey) -> u64 {
        self.inner.attachments(key)
    }

    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        self.inner.list(deadline)
    }

    fn health(&self, key: RegionKey) -> Health {
        if self.revoked.load(SeqCst) {
            return Health::Down(Status::REVOKED);
        }
        match self.plan.verdict(self.ops.load(SeqCst)) {
            Some(s) if s.is_transient() => Health::Retrying(s),
            Some(s) => Health::Down(s),
            None => self.inner.health(key),
        }
    }

    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status {
        self.fetch_part(len, |part| {
            // SAFETY: the caller vouches for `len` bytes, and `part` is at most that.
            unsafe { self.inner.fetch(key, off, dst, part, deadline) }
        })
    }

    unsafe fn fetch_pair(
        &self,
        key: RegionKey,
        off: HomeOff,
        dst: [*mut u8; 2],
        len: usize,
        deadline: Deadline,
    ) -> Status {
        self.fetch_part(len, |part| {
            // SAFETY: the caller vouches for `len` bytes, and `part` is at most that.
            unsafe { self.inner.fetch_pair(key, off, dst, part, deadline) }
        })
    }

    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status {
        let back = self.charge(1, len);
        let part = match self.fate() {
            Fate::Fail(s) => return s,
            Fate::Partial => len / 2,
            _ => len,
        };
        // SAFETY: the caller vouches for `len` bytes, and `part` is at most that.
        let s = unsafe { self.inner.put(key, off, src, part, deadline) };
        wait_until(back);
        self.stats.writes.hit();
        self.stats.write_bytes.add(part as u64);
        if part < len { Status::LINK_DOWN } else { s }
    }

    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        let life = self.held.life();
        let bytes = ops.iter().map(|o| o.len).sum();
        let back = self.charge(ops.len(), bytes);
        self.stats.writes.add(ops.len() as u64);
        self.stats.write_bytes.add(bytes as u64);
        match self.fate() {
            Fate::Fail(s) => return Err(s),
            Fate::Partial => return Err(self.post_partly(key, ops)),
            _ if self.plan.reorder_ppm > 0 => self.post_held(key, ops, life)?,
            _ => {
                // SAFETY: the caller vouches for the sources until `wait` for our ticket, which comes later.
                let ticket = unsafe { self.inner.post(key, ops) }?;
                self.inner.wait(key, ticket, Deadline(u64::MAX)).ok()?;
            }
        }
        Ok(Ticket(back))
    }

    fn wait(&self, _key: RegionKey, ticket: Ticket, deadline: Deadline) -> Status {
        wait_until(ticket.0.min(deadline.0));
        if ticket.0 > deadline.0 { Status::TIMED_OUT } else { Status::OK }
    }

    fn fence(&self, key: RegionKey, deadline: Deadline) -> Status {
        // The READ that makes writes visible was posted right behind them; its answer comes with their acknowledgement.
        self.stats.fences.hit();
        if let Fate::Fail(s) = self.fate() {
            return s;
        }
        let settled = self.settle(key, deadline);
        if settled.is_ok() { self.inner.fence(key, deadline) } else { settled }
    }

    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        let back = self.charge(1, 8);
        if let Fate::Fail(s) = self.fate() {
            return Err(s);
        }
        let old = self.inner.atomic(key, off, op, deadline);
        wait_until(back);
        self.stats.atomics.hit();
        old
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
        &self.stats
    }
}
