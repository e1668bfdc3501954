//! Moving bytes: release, acquire and what belongs to them.

use super::call::{Call, call};
use super::context;
use super::map;
use super::types::{SMC_RELEASE_DEVICE, smc_region, smc_status};
use crate::base::{Error, Result, Status};
use crate::core::region::Region;
use crate::link::MemoryKind;
use std::ffi::c_void;
use std::sync::Arc;

/// An operation of the engine on a range of a mapped region.
fn on_range(
    name: &'static str,
    region: *const smc_region,
    off: u64,
    len: u64,
    op: impl FnOnce(&Region) -> Status,
) -> smc_status {
    call(name, |c| {
        let m = map::find(c, region)?;
        c.done(op(&m.region), || subject(&m.region, off, len))
    })
}

fn subject(r: &Region, off: u64, len: u64) -> String {
    match len {
        0 => format!("\"{}\" from {off} to its end", r.name()),
        _ => format!("\"{}\", {len} bytes from {off}", r.name()),
    }
}

/// The region with a view at an address, and the offset there.
fn at_address(c: Call, address: *const c_void) -> Result<(Arc<Region>, u64)> {
    let found = context::engine(c)?.find(address.addr());
    found.ok_or_else(|| {
        Error::new(Status::OUT_OF_RANGE, format!("call {}", c.0), format!("{address:p} is not inside a mapped region"))
    })
}

fn release(c: Call, r: &Region, off: u64, len: u64, flags: u32) -> Result<()> {
    c.flags(flags, SMC_RELEASE_DEVICE)?;
    if flags & SMC_RELEASE_DEVICE != 0 && r.kind() == MemoryKind::Device {
        let attempt = format!("{} {} to the accelerator", c.0, subject(r, off, len));
        return Err(Error::new(Status::NOT_SUPPORTED, attempt, "this version cannot flush an accelerator's caches"));
    }
    c.done(r.release(off, len), || subject(r, off, len))
}

/// Publishes: all stores of this process in the range, made before the call by this thread or by threads synchronised
/// with it, are readable at the home when it returns OK.
///
/// `offset` and `length` are bytes of the region (not of the view); a length of 0 means to the end. Stores beyond the range
/// may be published too, never undone. On failure every byte that was not delivered is still dirty and goes out with the next
/// release. `flags`: 0, or SMC_RELEASE_DEVICE: also visible to kernels already running on the exporter's accelerator; for
/// system memory that is the same. POISONED, once for each store: everything else was delivered, but stores in the range went
/// to pages that showed the error value, and are nowhere.
///
/// Errors: INVALID_ARGUMENT, OUT_OF_RANGE, NOT_SUPPORTED, TIMED_OUT, LINK_DOWN, PEER_DEAD, REVOKED, PERMISSION, SYSTEM,
/// FORKED. Any thread; blocks up to `wait_ms`; not in a signal handler (a handler may touch region memory meanwhile).
#[unsafe(no_mangle)]
pub extern "C" fn smc_release(region: *mut smc_region, offset: u64, length: u64, flags: u32) -> smc_status {
    call("smc_release", |c| {
        let m = map::find(c, region)?;
        release(c, &m.region, offset, length, flags)
    })
}

/// smc_release() of `length` bytes at an address inside any mapped region, one made by mmap() of a /smc/ path too. OUT_OF_RANGE
/// when the address is in no region or the range leaves it. Here a length of 0 does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn smc_release_at(address: *const c_void, length: usize) -> smc_status {
    call("smc_release_at", |c| {
        let (r, off) = at_address(c, address)?;
        if length == 0 { Ok(()) } else { release(c, &r, off, length as u64, 0) }
    })
}

/// Subscribes: later loads in the range see the home as of this call or later. Own stores that were not released survive.
///
/// `offset`, `length`, errors and threads as for smc_release(). When it fails, pages of the range may still show what they
/// showed before.
#[unsafe(no_mangle)]
pub extern "C" fn smc_acquire(region: *mut smc_region, offset: u64, length: u64) -> smc_status {
    on_range("smc_acquire", region, offset, length, |r| r.acquire(offset, length))
}

/// smc_acquire() of `length` bytes at an address, as smc_release_at().
#[unsafe(no_mangle)]
pub extern "C" fn smc_acquire_at(address: *const c_void, length: usize) -> smc_status {
    call("smc_acquire_at", |c| {
        let (r, off) = at_address(c, address)?;
        if length == 0 {
            return Ok(());
        }
        c.done(r.acquire(off, length as u64), || subject(&r, off, length as u64))
    })
}

/// smc_release(), then smc_acquire(), of the whole region. Errors and threads as for these.
#[unsafe(no_mangle)]
pub extern "C" fn smc_barrier(region: *mut smc_region) -> smc_status {
    on_range("smc_barrier", region, 0, 0, Region::barrier)
}

/// Starts write-back of the range and returns: no promise, but the next release has less to do. Range, errors and threads as
/// for smc_release().
#[unsafe(no_mangle)]
pub extern "C" fn smc_flush(region: *mut smc_region, offset: u64, length: u64) -> smc_status {
    on_range("smc_flush", region, offset, length, |r| r.flush(offset, length))
}

/// Starts to bring the range in and returns. A hint: what does not fit the resident limit, or fails, comes when it is
/// touched. Range and threads as for smc_release(). Errors: INVALID_ARGUMENT, OUT_OF_RANGE, FORKED.
#[unsafe(no_mangle)]
pub extern "C" fn smc_prefetch(region: *mut smc_region, offset: u64, length: u64) -> smc_status {
    on_range("smc_prefetch", region, offset, length, |r| r.prefetch(offset, length))
}

/// Drops the clean pages of the range. DIRTY when it holds stores that were not released: they stay, all other pages of the
/// range are dropped. smc_acquire() is what programs want; this one is for those that must know. Range, other errors and
/// threads as for smc_release().
#[unsafe(no_mangle)]
pub extern "C" fn smc_invalidate(region: *mut smc_region, offset: u64, length: u64) -> smc_status {
    on_range("smc_invalidate", region, offset, length, |r| r.invalidate(offset, length))
}

/// Says that something the library cannot see (a device) has stored into the range of a view: the next release
/// examines it. Brings absent pages in first, so call it before the device writes as well. PERMISSION when the region was
/// mapped for loads only. Range, other errors and threads as for smc_release().
#[unsafe(no_mangle)]
pub extern "C" fn smc_mark_dirty(region: *mut smc_region, offset: u64, length: u64) -> smc_status {
    on_range("smc_mark_dirty", region, offset, length, |r| {
        if r.options().access == crate::link::Access::ReadOnly {
            Status::PERMISSION
        } else {
            r.mark_dirty(offset, length)
        }
    })
}
