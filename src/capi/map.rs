//! Mapping remote regions.

use super::attr;
use super::call::{Call, call};
use super::context::{self, Child};
use super::handle::Table;
use super::peer;
use super::types::{smc_map_attr, smc_peer, smc_region, smc_status};
use crate::base::{Error, PAGE, Result, Status};
use crate::core::losses::names;
use crate::core::options::{MapOptions, OnError, Policy, SecondPath, Through};
use crate::core::region::Region;
use crate::link::Access;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// What smc_map made: one view of a region.
pub(super) struct Mapped {
    /// The region; views with the same options share it.
    pub region: Arc<Region>,
    /// First byte of the view.
    pub addr: usize,
    /// Bytes of the view, whole pages.
    pub bytes: usize,
    /// Bytes of the view that exist at the home.
    pub len: u64,
    /// The status handler was set through this handle.
    pub handles_errors: AtomicBool,
    /// Thread that runs the program's status handler now; 0: none.
    pub handler_tid: Arc<AtomicU32>,
    _child: Child,
}

static REGIONS: Table<Mapped> = Table::new(3);

/// The mapping behind a handle.
pub(super) fn find(c: Call, region: *const smc_region) -> Result<Arc<Mapped>> {
    REGIONS.get(region).ok_or_else(|| c.bad("`region` is not a mapped region"))
}

pub(super) const ACCESSES: [(u32, Access); 2] = [(1, Access::ReadOnly), (2, Access::ReadWrite)];
const POLICIES: [(u32, Policy); 3] = [(1, Policy::Byte), (2, Policy::Line), (3, Policy::Page)];
const THROUGHS: [(u32, Through); 3] = [(1, Through::Off), (2, Through::Bounded), (3, Through::Exact)];
const ON_ERRORS: [(u32, OnError); 4] =
    [(1, OnError::WaitValue), (2, OnError::WaitSigbus), (3, OnError::Value), (4, OnError::Sigbus)];
/// Longest period in milliseconds: a day.
const DAY: u64 = 86_400_000;

/// Where the view goes.
struct Place {
    offset: u64,
    length: u64,
    hint: usize,
}

/// # Safety
/// `a.second` is NULL or NUL-terminated.
unsafe fn options(c: Call, a: &smc_map_attr, defaults: (u64, u64)) -> Result<(MapOptions, Place)> {
    let d = MapOptions::default();
    let or = |n: u64, other: u64| if n == 0 { other } else { n };
    let unit = c.within(a.page_unit, "attr.page_unit", PAGE as u64, 2 << 20)?;
    if unit != 0 && !unit.is_power_of_two() {
        return Err(c.bad(format_args!("`attr.page_unit` is {unit}, not a power of two")));
    }
    if !a.offset.is_multiple_of(PAGE as u64) {
        return Err(c.bad(format_args!("`attr.offset` is {}, not a multiple of {PAGE}", a.offset)));
    }
    let error_byte = match a.error_byte {
        0 => d.error_byte,
        n if n & !0xff == 0x100 => n as u8,
        n => return Err(c.bad(format_args!("`attr.error_byte` is {n:#x}, not 0 or 0x100 to 0x1ff"))),
    };
    // SAFETY: as the caller vouches.
    let second = match unsafe { c.optional_text(a.second, "attr.second") }? {
        None => None,
        Some(text) => {
            let parts = text.rsplit_once('/').and_then(|(p, n)| Some((peer::parse(p)?, n)));
            let (peer, name) =
                parts.ok_or_else(|| c.bad(format_args!("`attr.second` is \"{text}\", not PEER/NAME")))?;
            Some(SecondPath { peer, name: name.to_owned() })
        }
    };
    let opts = MapOptions {
        access: c.choice(a.access, "attr.access", &ACCESSES)?.unwrap_or(d.access),
        policy: c.choice(a.policy, "attr.policy", &POLICIES)?.unwrap_or(d.policy),
        through: c.choice(a.through, "attr.through", &THROUGHS)?.unwrap_or(d.through),
        on_error: c.choice(a.on_error, "attr.on_error", &ON_ERRORS)?.unwrap_or(d.on_error),
        page_unit: or(unit, PAGE as u64) as usize,
        window: c.within(a.window.into(), "attr.window", 1, 64)? as usize,
        readahead: c.within(a.readahead.into(), "attr.readahead", 1, 4096)? as usize,
        resident_limit: or(c.within(a.resident_limit, "attr.resident_limit", 1 << 16, u64::MAX)?, defaults.1),
        dirty_limit: a.dirty_limit,
        age_ms: c.within(a.age_ms, "attr.age_ms", 1, DAY)?,
        acquire_ms: c.within(a.acquire_ms, "attr.acquire_ms", 1, DAY)?,
        wait_ms: or(c.within(a.wait_ms, "attr.wait_ms", 1, 3_600_000)?, defaults.0),
        error_byte,
        second,
        fail_limit: c.within(a.fail_limit.into(), "attr.fail_limit", 1, 1_000_000)? as u32,
    };
    Ok((opts, Place { offset: a.offset, length: a.length, hint: a.address_hint.addr() }))
}

fn map(c: Call, peer: &peer::Peer, name: &str, opts: &MapOptions, at: &Place) -> Result<Mapped> {
    let engine = context::engine(c)?;
    let region = engine.open(&peer.name, name, opts)?;
    let rest = region.len().checked_sub(at.offset).filter(|n| *n > 0 && at.length <= *n);
    let rest = rest.ok_or_else(|| {
        let why = format!("the region has {} bytes; {} from {} on were asked for", region.len(), at.length, at.offset);
        Error::new(Status::OUT_OF_RANGE, format!("map region \"{name}\""), why)
    })?;
    let len = if at.length == 0 { rest } else { at.length };
    // What a second view shows must not be older than its smc_map: the pages may be here from the first.
    c.done(region.acquire(at.offset, len), || format!("\"{name}\""))?;
    let bytes = usize::try_from(len).unwrap_or(usize::MAX).next_multiple_of(PAGE);
    let addr = region.map_view(at.hint, false, at.offset, bytes, opts.access == Access::ReadWrite)?;
    let shown = rest.min(bytes as u64);
    Ok(Mapped {
        region,
        addr,
        bytes,
        len: shown,
        handles_errors: AtomicBool::new(false),
        handler_tid: Arc::default(),
        _child: Child::of(peer.child.context()),
    })
}

/// Maps a peer's region into this process. From here on its bytes are plain memory at smc_address().
///
/// `name` is the region's name at the exporter; `attr` NULL takes every default. The home's bytes arrive on touch.
/// A second call for the same name with the same attributes (but for offset, length, hint) gives a second view of the same
/// pages: a store through one is seen through the other at once. Other attributes give pages of their own. Opening acquires.
///
/// Errors: INVALID_ARGUMENT, NOT_FOUND (nobody exports that name), PERMISSION (the exporter grants less), OUT_OF_RANGE,
/// NO_RESOURCES (at most 1024 views in a process), NO_BACKEND, TIMED_OUT, LINK_DOWN, SYSTEM, FORKED. Any thread; may block
/// for `wait_ms`. The first region starts one or two threads. A fork child does not have the mapping. Do not munmap(),
/// mprotect() or mremap() it. The region is yours until smc_unmap().
///
/// # Safety
/// `name` is NUL-terminated; `attr` is NULL or holds `struct_size` readable bytes; `region` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_map(
    peer: *mut smc_peer,
    name: *const c_char,
    attr: *const smc_map_attr,
    region: *mut *mut smc_region,
) -> smc_status {
    call("smc_map", |c| {
        let peer = peer::find(c, peer)?;
        let out = c.out(region, "region")?;
        // SAFETY: the caller vouches for it.
        let name = unsafe { c.text(name, "name") }?;
        let given = if attr.is_null() {
            // SAFETY: all zeros is a value of it: integers and pointers.
            unsafe { std::mem::zeroed() }
        } else {
            // SAFETY: the caller vouches for it.
            unsafe { attr::read(c, attr, "attr") }?
        };
        let context = peer.child.context();
        // SAFETY: the caller vouches for the text.
        let (opts, place) = unsafe { options(c, &given, (context.wait_ms, context.resident_limit)) }?;
        let mapped = Arc::new(map(c, &peer, name, &opts, &place)?);
        let Some(handle) = REGIONS.insert(mapped.clone()) else {
            let _ = mapped.region.unmap_view(mapped.addr, mapped.bytes);
            return Err(Error::of(Status::NO_RESOURCES, format!("map region \"{name}\"")));
        };
        // SAFETY: the caller vouches for it.
        unsafe { out.set(handle) };
        Ok(())
    })
}

/// Ends a view: releases what is dirty in it, then unmaps it. The handle and every pointer into the view are dead
/// afterwards, whatever the result, except for INVALID_ARGUMENT, BUSY and FORKED, which do nothing.
///
/// OK: everything stored is at the home. LOST: stores could not be delivered and no other view holds them;
/// smc_last_error() names their offsets. Another status: they could not be delivered, and another view of the same pages keeps
/// them for a later release. To keep the data for a later try, call smc_release() first and unmap when it is OK. BUSY:
/// called from the region's own error handler. INVALID_ARGUMENT: not mapped (or unmapped already). FORKED: a fork child. May
/// block for `wait_ms`. No other thread may be using the view.
#[unsafe(no_mangle)]
pub extern "C" fn smc_unmap(region: *mut smc_region) -> smc_status {
    call("smc_unmap", |c| {
        super::state::not_in_handler(c, &*find(c, region)?)?;
        let m = REGIONS.remove(region).ok_or_else(|| c.bad("`region` is not a mapped region"))?;
        super::state::forget_handler(&m);
        let status = m.region.unmap_view(m.addr, m.bytes);
        if status.is_ok() {
            return Ok(());
        }
        let attempt = format!("unmap region \"{}\" without loss", m.region.name());
        if status != Status::POISONED && m.region.first_view().is_some() {
            return Err(Error::of(status, attempt));
        }
        let (why, ranges) = if status == Status::POISONED {
            ("stores went to pages that could not be fetched", m.region.lost(17))
        } else {
            (status.text(), m.region.give_up_unreleased(17))
        };
        Err(Error::new(Status::LOST, attempt, format!("{why}; stores were lost at {}", names(&ranges, 16))))
    })
}

/// First byte of a view; NULL when `region` is not mapped (or this is a fork child). Constant until smc_unmap().
#[unsafe(no_mangle)]
pub extern "C" fn smc_address(region: *mut smc_region) -> *mut c_void {
    let mut at = std::ptr::null_mut();
    let _ = call("smc_address", |c| {
        at = std::ptr::with_exposed_provenance_mut(find(c, region)?.addr);
        Ok(())
    });
    at
}

/// Bytes of a view that exist at the home; 0 when `region` is not mapped (or this is a fork child). The rest of the last page
/// can be touched, but goes nowhere.
#[unsafe(no_mangle)]
pub extern "C" fn smc_length(region: *mut smc_region) -> u64 {
    let mut len = 0;
    let _ = call("smc_length", |c| {
        len = find(c, region)?.len;
        Ok(())
    });
    len
}
