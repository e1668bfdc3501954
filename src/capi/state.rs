//! How a region is doing.

use super::attr;
use super::call::{Call, call, outcome, with_text};
use super::context;
use super::map::{self, Mapped};
use super::types::{smc_error_fn, smc_region, smc_stat_fn, smc_stats, smc_status};
use crate::base::{Error, Result, Status};
use crate::core::region::Region;
use crate::sys::process::tid;
use std::ffi::c_void;
use std::sync::atomic::Ordering::SeqCst;

/// The program's handler and what it gets.
struct Handler {
    f: unsafe extern "C" fn(*mut smc_region, smc_status, *mut c_void),
    region: usize,
    user: *mut c_void,
}

// SAFETY: the program says in smc_set_error_handler that its function may run with `user` on another thread.
unsafe impl Send for Handler {}

impl Handler {
    fn run(&self, s: Status) {
        // SAFETY: the program's own function; it is taken away before the region goes.
        unsafe { (self.f)(std::ptr::without_provenance_mut(self.region), s.into(), self.user) }
    }
}

/// A handler that ended its own region would wait for itself.
pub(super) fn not_in_handler(c: Call, m: &Mapped) -> Result<()> {
    let inside = m.handler_tid.load(SeqCst);
    if inside == 0 || inside != tid() {
        return Ok(());
    }
    Err(Error::new(Status::BUSY, format!("call {}", c.0), "this is the region's own error handler"))
}

/// Takes the handler away that was set through this mapping. When it returns the handler is not running.
pub(super) fn forget_handler(m: &Mapped) {
    if m.handles_errors.swap(false, SeqCst) {
        m.region.on_status(None);
    }
}

/// OK, or why accesses to the region fail now: LINK_DOWN, PEER_DEAD and the like while it may come back, REVOKED or STALE
/// for good. INVALID_ARGUMENT when `region` is not mapped, FORKED in a fork child. Any thread; never blocks.
#[unsafe(no_mangle)]
pub extern "C" fn smc_region_status(region: *mut smc_region) -> smc_status {
    let mut status = Status::OK;
    let asked = call("smc_region_status", |c| {
        status = map::find(c, region)?.region.status();
        Ok(())
    });
    if asked == smc_status::Ok { status.into() } else { asked }
}

/// Sets the function called when the region's status changes; NULL takes it away.
///
/// It runs on a thread of the library with all signals blocked, one call at a time, with a descriptor table of that
/// thread's own: hand the news to your own threads rather than working there. It may use the region, but smc_unmap() and
/// smc_set_error_handler() of it answer BUSY. When NULL was set, or the region unmapped, it is not running any more.
/// There is one function for all views of the same pages: the last one set. Errors: INVALID_ARGUMENT, BUSY, FORKED.
///
/// # Safety
/// `handler` may be called on another thread with `user` until it is taken away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_set_error_handler(
    region: *mut smc_region,
    handler: smc_error_fn,
    user: *mut c_void,
) -> smc_status {
    call("smc_set_error_handler", |c| {
        let m = map::find(c, region)?;
        not_in_handler(c, &m)?;
        let Some(f) = handler else {
            m.handles_errors.store(false, SeqCst);
            m.region.on_status(None);
            return Ok(());
        };
        let h = Handler { f, region: region.addr(), user };
        let inside = m.handler_tid.clone();
        m.handles_errors.store(true, SeqCst);
        m.region.on_status(Some(Box::new(move |_: &Region, s: Status| {
            inside.store(tid(), SeqCst);
            h.run(s);
            inside.store(0, SeqCst);
        })));
        Ok(())
    })
}

/// A descriptor for poll() or select() that becomes readable when the region's status changes; read 8 bytes from it to rearm
/// it. -1 when `region` is not mapped or this is a fork child. The region's own: do not close it, do not use it after
/// smc_unmap(). The same for all views of the same pages. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn smc_event_fd(region: *mut smc_region) -> i32 {
    let mut fd = -1;
    let _ = call("smc_event_fd", |c| {
        fd = map::find(c, region)?.region.event_fd();
        Ok(())
    });
    fd
}

fn counters(r: &Region) -> smc_stats {
    let s = r.stats();
    smc_stats {
        struct_size: size_of::<smc_stats>(),
        faults: s.faults.get(),
        spurious_faults: s.spurious_faults.get(),
        pages_fetched: s.pages_fetched.get(),
        pages_prefetched: s.pages_prefetched.get(),
        fetch_errors: s.fetch_errors.get(),
        pages_poisoned: s.pages_poisoned.get(),
        pages_dropped: s.pages_dropped.get(),
        pages_evicted: s.pages_evicted.get(),
        pages_dirtied: s.pages_dirtied.get(),
        pages_pushed: s.pages_pushed.get(),
        messages: s.messages.get(),
        bytes_written: s.bytes_written.get(),
        bytes_fetched: s.bytes_fetched.get(),
        pages_unchanged: s.pages_unchanged.get(),
        releases: s.releases.get(),
        acquires: s.acquires.get(),
        home_ops: s.home_ops.get(),
        write_errors: s.write_errors.get(),
        local_bytes: r.local_bytes(),
        local_limit: r.local_limit().unwrap_or(0),
    }
}

/// Reads the region's counters. Set `stats->struct_size` to sizeof(smc_stats) first; it stays. Counters are read one by one
/// while others count. Errors: INVALID_ARGUMENT, FORKED. Any thread.
///
/// # Safety
/// `stats` holds `struct_size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_region_stats(region: *mut smc_region, stats: *mut smc_stats) -> smc_status {
    call("smc_region_stats", |c| {
        let m = map::find(c, region)?;
        // SAFETY: the caller vouches for it.
        unsafe { attr::write(c, stats, "stats", counters(&m.region)) }
    })
}

/// Calls `each` for every counter of the region and, with names that begin with "link_", of its link (which other regions may
/// share): name, meaning, value. More counters than smc_stats has, and those of later versions. Errors: INVALID_ARGUMENT,
/// FORKED.
///
/// # Safety
/// `each` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_stats_each(region: *mut smc_region, each: smc_stat_fn, user: *mut c_void) -> smc_status {
    outcome(context::alive(Call("smc_stats_each")).and_then(|()| {
        let c = Call("smc_stats_each");
        let m = map::find(c, region)?;
        let f = each.ok_or_else(|| c.bad("`each` is NULL"))?;
        let mut stop = false;
        let mut tell = |name: &str, meaning: &str, value: u64| {
            // SAFETY: the caller vouches for the function; the strings live during the call.
            let call = |n, t| unsafe { f(n, t, value, user) };
            stop = stop || with_text(name, |n| with_text(meaning, |t| call(n, t))) != 0;
        };
        m.region.stats().each(&mut tell);
        m.region.link().stats().each(|n, t, v| tell(&format!("link_{n}"), t, v));
        Ok(())
    }))
}
