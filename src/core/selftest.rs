//! Start-up self-test: which fault back end works here, decided by trying the whole path on a two-page region.

use super::options::MapOptions;
use super::region::{Parts, Region};
use crate::base::config::Backend;
use crate::base::{PAGE, Status};
use crate::link::loopback::Loopback;
use crate::link::{Access, Link};
use crate::sys::clock::Deadline;
use crate::sys::process;
use std::sync::Arc;

/// Name of the self-test's region.
pub(super) const REGION: &str = "selftest";

/// What trying one back end showed.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Which.
    pub backend: Backend,
    /// Works, or why not in words.
    pub outcome: Result<(), String>,
}

/// Tries one back end: touch, store, release, change at the home, acquire, touch; under `thread` also a system call on
/// an absent page. Makes and removes a region of two pages; takes about a millisecond.
pub fn try_backend(backend: Backend) -> Trial {
    Trial { backend, outcome: attempt(backend) }
}

/// Tries the back ends in order of preference and stops at the first that works.
pub fn choose() -> (Option<Backend>, Vec<Trial>) {
    let mut trials = Vec::new();
    for backend in Backend::ALL {
        let t = try_backend(backend);
        let works = t.outcome.is_ok();
        trials.push(t);
        if works {
            return (Some(backend), trials);
        }
    }
    (None, trials)
}

fn attempt(backend: Backend) -> Result<(), String> {
    let link = Arc::new(Loopback::new(2 * PAGE).map_err(|e| e.to_string())?);
    link.poke(0, b"home bytes");
    let opened = link.open(REGION, Access::ReadWrite, Deadline::in_ms(1000)).map_err(|e| e.to_string())?;
    let opts = MapOptions { wait_ms: 1000, resident_limit: 1 << 20, ..MapOptions::default() };
    let region = Region::new(Parts { link: link.clone(), opened, opts, backend }).map_err(|e| e.why)?;
    let v = region.map_view(0, false, 0, 2 * PAGE, true).map_err(|e| e.why)?;
    let result = exercise(&link, &region, v as *mut u8, backend);
    let unmapped = region.unmap_view(v, 2 * PAGE);
    result.and_then(|()| expect(unmapped.is_ok(), "the view could not be unmapped"))
}

fn expect(ok: bool, what: &str) -> Result<(), String> {
    if ok { Ok(()) } else { Err(format!("self-test: {what}")) }
}

fn exercise(link: &Loopback, region: &Region, v: *mut u8, backend: Backend) -> Result<(), String> {
    // SAFETY: v is a mapped view of two pages; the engine serves its faults or this self-test is what finds out.
    let load = |at: usize| unsafe { v.wrapping_add(at).read_volatile() };
    // SAFETY: as above.
    let store = |at: usize, b: u8| unsafe { v.wrapping_add(at).write_volatile(b) };
    expect(load(0) == b'h', "a touched page does not show the home's bytes")?;
    store(1, b'O');
    store(PAGE, 7);
    expect(region.release(0, 0) == Status::OK, "release failed")?;
    expect(link.bytes(0, 4) == b"hOme", "a store to a clean page did not reach the home")?;
    expect(link.bytes(PAGE, 1) == [7], "a store to an absent page did not reach the home")?;
    let sent = link.stats().write_bytes.get();
    expect(sent == 2, "write-back sent other bytes than those stored")?;
    link.poke(0, b"H");
    expect(region.acquire(0, 0) == Status::OK, "acquire failed")?;
    // A tracer might look at the buffer, and hold the thread that would bring it.
    if backend == Backend::Thread && !process::is_traced() {
        expect(process::can_read(v), "a system call on an absent page fails")?;
    }
    expect(load(0) == b'H' && load(1) == b'O', "an acquired page does not show the home's bytes")
}
