//! Failure as a state: how bad it is, and which stores it has cost.

use super::call::call;
use super::map;
use super::types::{smc_region, smc_status};

/// How a region is doing; see smc_region_condition().
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum smc_condition {
    /// Accesses work.
    Ok = 1,
    /// An access or call has failed, and none has worked since. It may recover by itself.
    Degraded = 2,
    /// `fail_limit` of them have failed in a row, and none waits any more; or it will not come back.
    Unavailable = 3,
}

/// Which ranges smc_ranges() tells of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum smc_which {
    /// Stores that were found and could not be delivered yet: kept, and sent again.
    Unreleased = 1,
    /// Stores that were given up since the region was mapped: they are nowhere.
    Lost = 2,
}

/// A range of bytes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct smc_range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// How the region is doing: enum smc_condition in `*condition`, and in `*failures` (may be NULL) how many accesses and calls
/// have failed since the last one that worked.
///
/// SMC_CONDITION_DEGRADED: the home could not be reached within the wait. SMC_CONDITION_UNAVAILABLE: so many failures in a row
/// (`fail_limit` of smc_map_attr; and for one `wait_ms` at least, where accesses wait) that no access waits any more, or the
/// region will not come back (REVOKED, STALE): go over to your other path. The library asks the home again in the background: a
/// region that can come back does so by itself.
/// Errors: INVALID_ARGUMENT, FORKED. Any thread; never blocks.
///
/// # Safety
/// `condition` is writable; `failures` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_region_condition(
    region: *mut smc_region,
    condition: *mut u32,
    failures: *mut u32,
) -> smc_status {
    call("smc_region_condition", |c| {
        let m = map::find(c, region)?;
        let out = c.out(condition, "condition")?;
        // SAFETY: the caller vouches for it.
        unsafe { out.set(m.region.condition().0 as u32) };
        if !failures.is_null() {
            let n = c.out(failures, "failures")?;
            // SAFETY: the caller vouches for it.
            unsafe { n.set(m.region.failures()) };
        }
        Ok(())
    })
}

/// Names stores that have not reached the home: up to `most` ranges of bytes of the region, in order, in `ranges`, and in
/// `*count` how many they are. `which`: enum smc_which.
///
/// SMC_WHICH_UNRELEASED: found by a release, flush or background write-back that failed; they are kept, and sent again. The
/// exact bytes, except with SMC_POLICY_PAGE: whole pages. SMC_WHICH_LOST: given up since the region was mapped: stores to
/// pages that showed the error value (whole pages), and, when the region will not come back, all that is unreleased.
/// `ranges` may be NULL when `most` is 0. `*count` = `most` may mean that there are more. Errors: INVALID_ARGUMENT, FORKED.
/// Any thread.
///
/// # Safety
/// `ranges` is writable for `most` entries; `count` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_ranges(
    region: *mut smc_region,
    which: u32,
    ranges: *mut smc_range,
    most: usize,
    count: *mut usize,
) -> smc_status {
    call("smc_ranges", |c| {
        let m = map::find(c, region)?;
        let out = c.out(count, "count")?;
        if ranges.is_null() && most > 0 || !ranges.is_aligned() {
            return Err(c.bad("`ranges` is NULL or not aligned"));
        }
        let found = match which {
            1 => m.region.unreleased(most),
            2 => m.region.lost(most),
            n => return Err(c.bad(format_args!("`which` is {n}, which is none of its values"))),
        };
        for (i, (start, end)) in found.iter().enumerate() {
            let range = smc_range { offset: *start, length: end - start };
            // SAFETY: at most `most` entries, for which the caller vouches.
            unsafe { ranges.wrapping_add(i).write(range) };
        }
        // SAFETY: the caller vouches for it.
        unsafe { out.set(found.len()) };
        Ok(())
    })
}
