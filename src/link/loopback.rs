//! A home inside this process: what the start-up self-test and the suites run on. Every operation is a memory copy;
//! the home is looked at directly with [`Loopback::home`].

use super::*;
use crate::base::stats::LinkStats;
use crate::sys::mem::{self, Mapping};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// One region of zeroed private memory behind the link contract.
pub struct Loopback {
    home: Mapping,
    len: u64,
    stats: LinkStats,
}

impl Loopback {
    /// A home of `len` bytes.
    pub fn new(len: usize) -> Result<Loopback, Error> {
        let size = crate::base::addr::round_up_page(len).unwrap_or(len);
        let home = Mapping::anonymous(size, mem::RW)
            .map_err(|e| Error::new(Status::NO_RESOURCES, "make a loopback home", e.to_string()))?;
        Ok(Loopback { home, len: len as u64, stats: LinkStats::new() })
    }

    /// First byte of the home.
    pub fn home(&self) -> *mut u8 {
        self.home.ptr()
    }

    /// Copy of the home's bytes `[off, off + len)`.
    pub fn bytes(&self, off: usize, len: usize) -> Vec<u8> {
        assert!(off + len <= self.home.len(), "outside the home");
        let mut out = vec![0u8; len];
        // SAFETY: the range was checked; `out` is as long as the copy.
        unsafe { std::ptr::copy_nonoverlapping(self.home.ptr().wrapping_add(off), out.as_mut_ptr(), len) };
        out
    }

    /// Replaces bytes of the home, as another node would.
    pub fn poke(&self, off: usize, bytes: &[u8]) {
        assert!(off + bytes.len() <= self.home.len(), "outside the home");
        // SAFETY: the range was checked.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.home.ptr().wrapping_add(off), bytes.len()) };
    }

    fn at(&self, off: HomeOff, len: usize) -> Result<*mut u8, Status> {
        let inside = off.0.checked_add(len as u64).is_some_and(|end| end <= self.len);
        if inside { Ok(self.home.ptr().wrapping_add(off.0 as usize)) } else { Err(Status::OUT_OF_RANGE) }
    }
}

impl Link for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn open(&self, name: &str, want: Access, _deadline: Deadline) -> Result<Opened, Error> {
        let info = RegionInfo {
            name: name.into(),
            len: self.len,
            access: want,
            kind: MemoryKind::System,
            clients: 1,
            pid: crate::sys::process::pid(),
            incarnation: 1,
        };
        Ok(Opened { key: RegionKey(0), info })
    }

    fn close(&self, _key: RegionKey) {}

    fn list(&self, _deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        Ok(Vec::new())
    }

    fn health(&self, _key: RegionKey) -> Health {
        Health::Up
    }

    unsafe fn fetch(&self, _key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, _deadline: Deadline) -> Status {
        let src = match self.at(off, len) {
            Ok(p) => p,
            Err(s) => return s,
        };
        // SAFETY: src was checked; the caller vouches for dst.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
        self.stats.fetches.hit();
        self.stats.fetch_bytes.add(len as u64);
        Status::OK
    }

    unsafe fn put(&self, _key: RegionKey, off: HomeOff, src: *const u8, len: usize, _deadline: Deadline) -> Status {
        let dst = match self.at(off, len) {
            Ok(p) => p,
            Err(s) => return s,
        };
        // SAFETY: dst was checked; the caller vouches for src.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
        self.stats.writes.hit();
        self.stats.write_bytes.add(len as u64);
        Status::OK
    }

    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        for op in ops {
            // SAFETY: the caller vouches for every source.
            unsafe { self.put(key, op.off, op.src, op.len, Deadline(u64::MAX)) }.ok()?;
        }
        Ok(Ticket(0))
    }

    fn wait(&self, _key: RegionKey, _ticket: Ticket, _deadline: Deadline) -> Status {
        Status::OK
    }

    fn fence(&self, _key: RegionKey, _deadline: Deadline) -> Status {
        self.stats.fences.hit();
        std::sync::atomic::fence(SeqCst);
        Status::OK
    }

    fn atomic(&self, _key: RegionKey, off: HomeOff, op: AtomicOp, _deadline: Deadline) -> Result<u64, Status> {
        if !off.0.is_multiple_of(8) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let p = self.at(off, 8)?;
        self.stats.atomics.hit();
        // SAFETY: p is inside the home, 8-byte aligned, and only used atomically here.
        Ok(op.perform(unsafe { AtomicU64::from_ptr(p.cast()) }))
    }

    unsafe fn register(&self, _ptr: *mut u8, _len: usize) -> Result<Registration, Status> {
        Ok(Registration(0))
    }

    fn deregister(&self, _r: Registration) {}

    fn stats(&self) -> &LinkStats {
        &self.stats
    }
}
