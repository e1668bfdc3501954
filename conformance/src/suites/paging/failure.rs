//! Failure as a state: how a region goes down and comes back, and which stores are named as lost.

use crate::cases;
use crate::rig::{Bench, Home, POLICIES, Rig, Valve, policy};
use smc_engine::base::{PAGE, Status, config::Backend};
use smc_engine::core::condition::Condition;
use smc_engine::core::options::{MapOptions, OnError, Policy};
use smc_engine::link::AtomicOp;
use smc_engine::sys::process::can_read;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

cases!(CASES, "failure",
    goes_down_and_comes_back: Quick, 60;
    a_drop_that_is_ridden_out_is_no_failure: Quick, 60;
    unavailable_does_not_wait: Quick, 60;
    every_wait_has_a_limit: Normal, 60;
    stores_are_sent_again_by_themselves: Quick, 60;
    poison_heals_by_itself: Quick, 60;
    lost_stores_are_named: Quick, 60;
    revoked_stores_are_named: Quick, 60;
    flushed_stores_are_named: Quick, 60;
    sigbus_marks_go: Normal, 60;
    sigbus_needs_no_memory: Quick, 60;
);

const ERROR: u64 = u64::MAX;

fn valved(b: &Bench, home: Home, opts: MapOptions) -> (Rig, Arc<Valve>) {
    let (home, valve) = home.numbered().with_valve();
    (b.rig(home, opts), valve)
}

/// Homes on which failure is tried: one in this process, one behind the embedded link.
fn homes(pages: usize) -> [Home; 2] {
    [Home::loopback(pages * PAGE, 0), Home::embedded(pages * PAGE, 0)]
}

fn eventually(tag: &str, what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(5), "{tag}: {what}: not within 5 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// OK, DEGRADED, UNAVAILABLE at the limit, and OK again without an access of the program; each is told.
fn goes_down_and_comes_back(b: &Bench) {
    for home in homes(64) {
        let opts = MapOptions { on_error: OnError::Value, fail_limit: 3, ..policy(Policy::Byte) };
        let (r, valve) = valved(b, home, opts);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = seen.clone();
        r.region.on_status(Some(Box::new(move |region, _| {
            told.lock().expect("a list").push(region.condition());
        })));
        r.loads(0, 1);
        assert_eq!(r.region.condition(), (Condition::Ok, Status::OK), "{}", r.tag);
        valve.set(Status::LINK_DOWN);
        assert_eq!(r.region.condition().0, Condition::Ok, "{}: nothing has failed yet", r.tag);
        for (page, want) in [(17, Condition::Degraded), (33, Condition::Degraded), (49, Condition::Unavailable)] {
            r.loads(page * PAGE, ERROR);
            eventually(&r.tag, "the state follows", || r.region.condition() == (want, Status::LINK_DOWN));
            eventually(&r.tag, "the state is told", || {
                seen.lock().expect("a list").last() == Some(&(want, Status::LINK_DOWN))
            });
        }
        let fd = r.region.event_fd();
        assert_eq!(smc_engine::sys::event::readable([fd], Some(1000)).ok(), Some([true]), "{}: the descriptor", r.tag);
        valve.set(Status::OK);
        eventually(&r.tag, "it recovers by itself", || r.region.condition() == (Condition::Ok, Status::OK));
        eventually(&r.tag, "and says so", || seen.lock().expect("a list").last() == Some(&(Condition::Ok, Status::OK)));
        assert_eq!(r.region.failures(), 0, "{}", r.tag);
        r.region.on_status(None);
    }
}

fn a_drop_that_is_ridden_out_is_no_failure(b: &Bench) {
    for home in homes(8) {
        let (r, valve) = valved(b, home, MapOptions { fail_limit: 1, ..policy(Policy::Byte) });
        let told = Arc::new(AtomicBool::new(false));
        let heard = told.clone();
        r.region.on_status(Some(Box::new(move |_, _| heard.store(true, SeqCst))));
        valve.set(Status::LINK_DOWN);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                valve.set(Status::OK);
            });
            r.loads(3 * PAGE, 4);
        });
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!((r.region.condition().0, told.load(SeqCst)), (Condition::Ok, false), "{}: it was told", r.tag);
        r.region.on_status(None);
    }
}

/// Past the limit an access tries once: no wait, whatever the policy says.
fn unavailable_does_not_wait(b: &Bench) {
    for home in homes(64) {
        let (r, valve) = valved(b, home, MapOptions { wait_ms: 500, fail_limit: 1, ..policy(Policy::Byte) });
        valve.set(Status::LINK_DOWN);
        let start = Instant::now();
        r.loads(0, ERROR);
        let first = start.elapsed();
        assert!(first >= Duration::from_millis(400), "{}: waited only {first:?}", r.tag);
        r.loads(20 * PAGE, ERROR);
        r.loads(40 * PAGE, ERROR);
        let both = start.elapsed() - first;
        assert!(both < Duration::from_millis(400), "{}: waited {both:?} for an unavailable region", r.tag);
        valve.set(Status::OK);
        eventually(&r.tag, "it recovers", || r.region.condition().0 == Condition::Ok);
        r.loads(60 * PAGE, 61);
    }
}

/// With the link down for good every call comes back within its limit, and says so.
fn every_wait_has_a_limit(b: &Bench) {
    for p in POLICIES {
        let opts = MapOptions { wait_ms: 200, age_ms: 5, ..policy(p) };
        let (r, valve) = valved(b, Home::embedded(64 * PAGE, 0), opts);
        r.store(8, 5);
        valve.set(Status::LINK_DOWN);
        let timed = |what: &str, f: &dyn Fn() -> Status| {
            let start = Instant::now();
            let s = f();
            assert!(!s.is_ok(), "{}: {what} answered OK", r.tag);
            assert!(start.elapsed() < Duration::from_secs(2), "{}: {what} took {:?}", r.tag, start.elapsed());
        };
        timed("release", &|| r.region.release(0, 0));
        timed("barrier", &|| r.region.barrier());
        timed("flush", &|| {
            r.store(16, 1);
            r.region.flush(0, 0)
        });
        timed("load_u64", &|| r.region.at_home(0, AtomicOp::Load).err().unwrap_or(Status::OK));
        timed("fetch_add", &|| r.region.at_home(0, AtomicOp::FetchAdd(1)).err().unwrap_or(Status::OK));
        let mut byte = 0u8;
        // SAFETY: one byte of our own.
        timed("read", &|| unsafe { r.region.read(60 * PAGE as u64, (&raw const byte).cast_mut(), 1) });
        byte = 1;
        std::hint::black_box(byte);
        valve.set(Status::OK);
        eventually(&r.tag, "it recovers", || r.region.condition().0 == Condition::Ok);
        r.release();
        r.home_is(8, 5);
        r.home_is(16, 1);
    }
}

/// Ranges in the unit that the policy sends: under the line policy a store that was never tried is named by its bytes.
fn by_policy(p: Policy, ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let unit = if p == Policy::Line { 64 } else { 1 };
    ranges.into_iter().map(|(s, e)| (s / unit * unit, e.next_multiple_of(unit))).collect()
}

/// What a release could not deliver is named, and goes out when the home is back, without a call.
fn stores_are_sent_again_by_themselves(b: &Bench) {
    for p in POLICIES {
        for home in homes(16) {
            let (r, valve) = valved(b, home, policy(p));
            r.store8(3 * PAGE + 100, 7);
            r.store(5 * PAGE + 8, u64::from_le_bytes([1; 8]));
            valve.set(Status::LINK_DOWN);
            assert_eq!(r.region.release(0, 0), Status::LINK_DOWN, "{}", r.tag);
            r.store8(5 * PAGE + 16, 9);
            assert_eq!(r.region.release(0, 0), Status::LINK_DOWN, "{}", r.tag);
            let page = |p: u64| (p * PAGE as u64, (p + 1) * PAGE as u64);
            let want = match p {
                Policy::Byte => {
                    vec![(3 * PAGE as u64 + 100, 3 * PAGE as u64 + 101), (5 * PAGE as u64 + 8, 5 * PAGE as u64 + 17)]
                }
                Policy::Line => {
                    vec![(3 * PAGE as u64 + 64, 3 * PAGE as u64 + 128), (5 * PAGE as u64, 5 * PAGE as u64 + 64)]
                }
                Policy::Page => vec![page(3), page(5)],
            };
            assert_eq!(by_policy(p, r.region.unreleased(100)), want, "{}", r.tag);
            assert_eq!(r.region.lost(100), [], "{}: nothing is given up", r.tag);
            valve.set(Status::OK);
            eventually(&r.tag, "it is sent", || r.home.word(5 * PAGE + 8) == u64::from_le_bytes([1; 8]));
            eventually(&r.tag, "all of it", || {
                r.home.bytes(3 * PAGE + 100, 1) == [7] && r.home.bytes(5 * PAGE + 16, 1) == [9]
            });
            r.release();
            assert_eq!(r.region.unreleased(100), [], "{}", r.tag);
        }
    }
}

/// A page that shows the error value is fetched again once the home is back, without an acquire.
fn poison_heals_by_itself(b: &Bench) {
    for home in homes(64) {
        let (r, valve) = valved(b, home, MapOptions { on_error: OnError::Value, ..policy(Policy::Byte) });
        valve.set(Status::LINK_DOWN);
        (20..30).for_each(|p| r.loads(p * PAGE, ERROR));
        valve.set(Status::OK);
        eventually(&r.tag, "it heals", || (20..30).all(|p| r.load(p * PAGE) == p as u64 + 1));
    }
}

/// Stores to the error value are nowhere; which page they went to is named, also after the page has healed.
fn lost_stores_are_named(b: &Bench) {
    for p in POLICIES {
        for home in homes(64) {
            let (r, valve) = valved(b, home, MapOptions { on_error: OnError::Value, ..policy(p) });
            valve.set(Status::LINK_DOWN);
            r.loads(32 * PAGE, ERROR);
            r.store(32 * PAGE, 7);
            r.loads(40 * PAGE, ERROR);
            valve.set(Status::OK);
            eventually(&r.tag, "it recovers", || r.region.condition().0 == Condition::Ok);
            assert_eq!(r.region.release(0, 0), Status::POISONED, "{}: said once", r.tag);
            assert_eq!(r.region.lost(10), [(32 * PAGE as u64, 33 * PAGE as u64)], "{}", r.tag);
            r.release();
            r.acquire();
            r.loads(32 * PAGE, 33);
            assert_eq!(r.region.lost(10), [(32 * PAGE as u64, 33 * PAGE as u64)], "{}: it stays on record", r.tag);
        }
    }
}

/// Revoked with stores pending: they are named as lost, nothing is written any more, and nothing hangs.
fn revoked_stores_are_named(b: &Bench) {
    for p in POLICIES {
        let r = b.rig(Home::embedded(64 * PAGE, 0).numbered(), policy(p));
        r.store8(PAGE + 10, 1);
        r.store8(PAGE + 11, 2);
        r.store8(9 * PAGE, 200);
        let before = r.home.bytes(0, 64 * PAGE);
        r.home.revoke();
        let start = Instant::now();
        let at = |n: usize, len: u64| (n as u64, n as u64 + len);
        std::thread::scope(|s| {
            for t in 0..4 {
                let r = &r;
                s.spawn(move || {
                    for i in 0..20 {
                        std::hint::black_box(r.load((t * 14 + i % 14) * PAGE));
                        let _ = r.region.release(0, 0);
                    }
                });
            }
        });
        assert_eq!(r.region.release(0, 0), Status::REVOKED, "{}", r.tag);
        assert_eq!(r.region.condition(), (Condition::Unavailable, Status::REVOKED), "{}", r.tag);
        let want = match p {
            Policy::Byte => vec![at(PAGE + 10, 2), at(9 * PAGE, 1)],
            Policy::Line => vec![at(PAGE, 64), at(9 * PAGE, 64)],
            Policy::Page => vec![at(PAGE, PAGE as u64), at(9 * PAGE, PAGE as u64)],
        };
        assert_eq!(by_policy(p, r.region.lost(100)), want, "{}", r.tag);
        // A store that no release has looked for is lost as well.
        r.store8(9 * PAGE + 1, 3);
        let more = match p {
            Policy::Byte => at(9 * PAGE, 2),
            _ => want[1],
        };
        assert_eq!(by_policy(p, r.region.lost(100)), [want[0], more], "{}", r.tag);
        assert!(r.home.bytes(0, 64 * PAGE) == before, "{}: something was written", r.tag);
        assert!(start.elapsed() < Duration::from_secs(4), "{}: it took {:?}", r.tag, start.elapsed());
    }
}

/// The home goes between a flush and the fence that would say that it has arrived: nobody will know, so it is named.
fn flushed_stores_are_named(b: &Bench) {
    for p in POLICIES {
        for home in homes(8) {
            let (r, valve) = valved(b, home, policy(p));
            r.store8(2 * PAGE + 64, 9);
            assert_eq!(r.region.flush(0, 0), Status::OK, "{}", r.tag);
            assert_eq!(r.region.lost(10), [], "{}: the home is there", r.tag);
            valve.set(Status::PEER_DEAD);
            let at = 2 * PAGE as u64;
            let want = match p {
                Policy::Byte => (at + 64, at + 65),
                Policy::Line => (at + 64, at + 128),
                Policy::Page => (at, at + PAGE as u64),
            };
            assert_eq!(by_policy(p, r.region.lost(10)), [want], "{}", r.tag);
            // It was found out that the home is there after all.
            valve.set(Status::OK);
            r.release();
            assert_eq!((r.region.lost(10), r.region.unreleased(10)), (vec![], vec![]), "{}", r.tag);
        }
    }
}

/// An access that gave up on a page somebody held too long leaves no mark behind: once the page is free, it is what it
/// is, in every view.
fn sigbus_marks_go(b: &Bench) {
    if b.backend != Backend::Thread {
        return;
    }
    for home in homes(8) {
        let opts = MapOptions { on_error: OnError::WaitSigbus, wait_ms: 200, ..policy(Policy::Byte) };
        let (r, valve) = valved(b, home, opts);
        let w = r.region.map_view(0, false, 0, 8 * PAGE, true).expect("a second view");
        r.store(2 * PAGE + 8, 5);
        valve.slow_posts(700_000_000);
        std::thread::scope(|s| {
            s.spawn(|| r.region.release(0, 0));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!can_read((w + 2 * PAGE) as *const u8), "{}: the page was not held", r.tag);
        });
        eventually(&r.tag, "the mark goes", || can_read((w + 2 * PAGE) as *const u8));
        assert_eq!((crate::rig::load(w + 2 * PAGE), crate::rig::load(w + 2 * PAGE + 8)), (3, 5), "{}", r.tag);
        valve.slow_posts(0);
        // A page whose fetch takes too long, and is then abandoned: REMOTE with a mark.
        valve.slow_fetches(500_000_000);
        std::thread::scope(|s| {
            s.spawn(|| r.region.prefetch(5 * PAGE as u64, 1));
            std::thread::sleep(Duration::from_millis(50));
            valve.set(Status::LINK_DOWN);
            assert!(!can_read((w + 5 * PAGE) as *const u8), "{}: the page was not held", r.tag);
        });
        valve.slow_fetches(0);
        valve.set(Status::OK);
        eventually(&r.tag, "the mark of a remote page goes", || can_read((w + 5 * PAGE) as *const u8));
        assert_eq!(crate::rig::load(w + 5 * PAGE), 6, "{}", r.tag);
        assert_eq!(r.region.unmap_view(w, 8 * PAGE), Status::OK, "{}", r.tag);
    }
}

/// Pages that fail with SIGBUS are not counted as local memory.
fn sigbus_needs_no_memory(b: &Bench) {
    if b.backend != Backend::Thread {
        return;
    }
    let opts = MapOptions { on_error: OnError::Sigbus, resident_limit: 1 << 20, ..policy(Policy::Byte) };
    let (r, valve) = valved(b, Home::loopback(1024 * PAGE, 0), opts);
    valve.set(Status::LINK_DOWN);
    let before = r.region.local_bytes();
    for p in 0..1000 {
        assert!(!can_read((r.v + p * PAGE) as *const u8), "{}: page {p} was read", r.tag);
    }
    let more = r.region.local_bytes().saturating_sub(before);
    assert!(more <= 4 * PAGE as u64, "{}: 1000 failing pages take {more} bytes", r.tag);
    valve.set(Status::OK);
    // One page after the other.
    eventually(&r.tag, "it heals", || (0..1000).all(|p| can_read((r.v + p * PAGE) as *const u8)));
    (0..1000).for_each(|p| r.loads(p * PAGE, p as u64 + 1));
    r.acquire();
}
