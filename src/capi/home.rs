//! Operations performed at the home, on 8-byte words.

use super::call::{Call, call};
use super::map;
use super::types::{smc_region, smc_status};
use crate::base::{Error, Status};
use crate::core::home::Cmp;
use crate::core::region::Region;
use crate::link::AtomicOp;

/// Runs `op` on the word and hands its old value to `then`.
fn at_home(
    name: &'static str,
    region: *const smc_region,
    off: u64,
    op: AtomicOp,
    then: impl FnOnce(u64),
) -> smc_status {
    call(name, |c| {
        let m = map::find(c, region)?;
        m.region.at_home(off, op).map(then).map_err(|s| failed(c, &m.region, off, s))
    })
}

fn failed(c: Call, r: &Region, off: u64, s: Status) -> Error {
    Error::of(s, format!("{} at {off} of \"{}\"", c.0, r.name()))
}

/// Writes a result that may be NULL.
///
/// # Safety
/// `p` is NULL or writable.
unsafe fn maybe<T>(p: *mut T, value: T) {
    if !p.is_null() {
        // SAFETY: as the caller vouches.
        unsafe { p.write_unaligned(value) };
    }
}

/// Reads the 8-byte word at `offset` (a multiple of 8) at the home, past every local copy, into `*value`.
///
/// Words that processes share as flags, counters or locks are used by the operations of this group, at every node: then each
/// sees the others at once, and a later write-back never undoes them. The exporter itself uses its own atomic instructions.
/// Do not store to such a word through the view: the two would race.
///
/// Errors: INVALID_ARGUMENT, OUT_OF_RANGE, PERMISSION, TIMED_OUT, LINK_DOWN, PEER_DEAD, REVOKED, INTERNAL (the
/// library cannot tell whether it happened), FORKED. Any thread; blocks up to `wait_ms`.
///
/// # Safety
/// `value` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_load_u64(region: *mut smc_region, offset: u64, value: *mut u64) -> smc_status {
    call("smc_load_u64", |c| {
        let m = map::find(c, region)?;
        let out = c.out(value, "value")?;
        let v = m.region.at_home(offset, AtomicOp::Load).map_err(|s| failed(c, &m.region, offset, s))?;
        // SAFETY: the caller vouches for it.
        unsafe { out.set(v) };
        Ok(())
    })
}

/// Replaces the word at the home. Not ordered after ordinary stores: release what it announces first. As smc_load_u64().
#[unsafe(no_mangle)]
pub extern "C" fn smc_store_u64(region: *mut smc_region, offset: u64, value: u64) -> smc_status {
    at_home("smc_store_u64", region, offset, AtomicOp::Store(value), |_| ())
}

/// Adds `value` to the word at the home, wrapping, and answers the old value in `*old` (may be NULL). As smc_load_u64().
///
/// # Safety
/// `old` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_fetch_add(region: *mut smc_region, offset: u64, value: u64, old: *mut u64) -> smc_status {
    at_home("smc_fetch_add", region, offset, AtomicOp::FetchAdd(value), |was| {
        // SAFETY: the caller vouches for it.
        unsafe { maybe(old, was) };
    })
}

/// Replaces the word at the home by `desired` if it is `expected`. `*swapped` says whether it was (may be NULL), `*old` what
/// was there (may be NULL). OK in both cases. As smc_load_u64().
///
/// # Safety
/// `swapped` and `old` are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_compare_swap(
    region: *mut smc_region,
    offset: u64,
    expected: u64,
    desired: u64,
    swapped: *mut bool,
    old: *mut u64,
) -> smc_status {
    at_home("smc_compare_swap", region, offset, AtomicOp::CompareSwap { expected, new: desired }, |was| {
        // SAFETY: the caller vouches for it.
        unsafe { maybe(swapped, was == expected) };
        // SAFETY: the caller vouches for it.
        unsafe { maybe(old, was) };
    })
}

/// Reads the word at the home until it compares with `value` as `cmp` (enum smc_cmp) says, and answers it in `*seen` (may be
/// NULL). TIMED_OUT after `timeout_ms` milliseconds; 0 looks once. Looks hard at first, then at least every 200 us. What the
/// other side released before it set the word is seen after smc_acquire(). Errors and threads as for smc_load_u64().
///
/// # Safety
/// `seen` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_wait_until(
    region: *mut smc_region,
    offset: u64,
    cmp: u32,
    value: u64,
    timeout_ms: u64,
    seen: *mut u64,
) -> smc_status {
    call("smc_wait_until", |c| {
        let m = map::find(c, region)?;
        let how =
            Cmp::from_u32(cmp).ok_or_else(|| c.bad(format_args!("`cmp` is {cmp}, which is none of its values")))?;
        let found = m.region.wait_until(offset, how, value, timeout_ms);
        let v = found.map_err(|s| failed(c, &m.region, offset, s))?;
        // SAFETY: the caller vouches for it.
        unsafe { maybe(seen, v) };
        Ok(())
    })
}
