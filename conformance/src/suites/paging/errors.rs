//! A home that cannot be reached: what loads see, what becomes of stores, and how it heals.

use crate::cases;
use crate::rig::{Bench, Home, POLICIES, Rig, Valve, load, policy, store};
use smc_engine::base::{PAGE, Status, config::Backend};
use smc_engine::core::options::{MapOptions, OnError, Policy};
use smc_engine::link::AtomicOp;
use smc_engine::link::faulty::Plan;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

cases!(CASES, "paging",
    error_value: Quick, 60;
    error_value_after_waiting: Quick, 60;
    short_drop_is_ridden_out: Quick, 60;
    sigbus_at_once: Quick, 30, dies SIGBUS;
    sigbus_after_waiting: Quick, 30, dies SIGBUS;
    poison_heals_while_touched: Normal, 60;
    paged_region_without_link: Normal, 60;
    failed_writes_are_kept: Quick, 60;
    failed_line_spares_home_words: Quick, 60;
    release_after_failed_background: Normal, 60;
    unfenced_stores_stay_in_sight: Normal, 60;
    failed_fence_keeps_stores_in_sight: Quick, 60;
    no_mappings_left: Quick, 30, dies SIGBUS;
    revoked: Quick, 60;
    revoked_by_the_exporter: Quick, 60;
    status_is_announced: Quick, 60;
    unmap_in_a_callback: Quick, 30;
);

const ERROR: u64 = u64::MAX;

fn valved(b: &Bench, pages: usize, opts: MapOptions) -> (Rig, Arc<Valve>) {
    let (home, valve) = Home::loopback(pages * PAGE, 0).numbered().with_valve();
    (b.rig(home, opts), valve)
}

/// The error value at once; a page that shows it is never written back, and is fetched again after an acquire.
fn error_value(b: &Bench) {
    for p in POLICIES {
        let (r, valve) = valved(b, 64, MapOptions { on_error: OnError::Value, ..policy(p) });
        r.loads(0, 1);
        r.store(8, 5);
        valve.set(Status::LINK_DOWN);
        let start = Instant::now();
        r.loads(32 * PAGE, ERROR);
        assert!(start.elapsed() < Duration::from_secs(2), "{}: it waited", r.tag);
        r.loads(0, 1);
        r.store(32 * PAGE, 7);
        r.store8(32 * PAGE + 100, 7);
        assert_eq!(r.region.release(0, 0), Status::LINK_DOWN, "{}", r.tag);
        assert_eq!(r.region.status(), Status::LINK_DOWN, "{}", r.tag);
        valve.set(Status::OK);
        // Stores to the error value went nowhere: said once.
        assert_eq!(r.region.release(0, 0), Status::POISONED, "{}", r.tag);
        r.release();
        r.home_is(8, 5);
        r.home_is(32 * PAGE, 33);
        assert_eq!(r.home.bytes(32 * PAGE + 100, 1), [0], "{}: a poisoned page was written back", r.tag);
        r.acquire();
        r.loads(32 * PAGE, 33);
        r.store(32 * PAGE, 34);
        r.release();
        r.home_is(32 * PAGE, 34);
        assert_eq!(r.region.status(), Status::OK, "{}", r.tag);
    }
}

fn error_value_after_waiting(b: &Bench) {
    let opts = MapOptions { wait_ms: 300, error_byte: 0xEE, ..policy(Policy::Byte) };
    let (r, valve) = valved(b, 64, opts);
    valve.set(Status::LINK_DOWN);
    let start = Instant::now();
    r.loads(PAGE, 0xEEEE_EEEE_EEEE_EEEE);
    let took = start.elapsed();
    assert!((250..3000).contains(&took.as_millis()), "{}: waited {took:?}, asked for 300 ms", r.tag);
    let mut byte = 0u8;
    // SAFETY: one valid byte.
    let s = unsafe { r.region.read(PAGE as u64, &raw mut byte, 1) };
    assert_eq!(s, Status::POISONED, "{}: a descriptor says so instead", r.tag);
}

/// A link that comes back within the deadline is not noticed by a load.
fn short_drop_is_ridden_out(b: &Bench) {
    let (r, valve) = valved(b, 64, policy(Policy::Byte));
    for page in [3, 40] {
        valve.set(Status::LINK_DOWN);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                valve.set(Status::OK);
            });
            r.loads(page * PAGE, page as u64 + 1);
        });
    }
    assert_eq!(r.region.stats().pages_poisoned.get(), 0, "{}", r.tag);
}

fn sigbus_at_once(b: &Bench) {
    let (r, valve) = valved(b, 1, MapOptions { on_error: OnError::Sigbus, ..policy(Policy::Byte) });
    valve.set(Status::LINK_DOWN);
    let seen = r.load(0);
    panic!("{}: a load saw {seen:#x} instead of SIGBUS", r.tag);
}

fn sigbus_after_waiting(b: &Bench) {
    let (r, valve) = valved(b, 1, MapOptions { on_error: OnError::WaitSigbus, wait_ms: 200, ..policy(Policy::Byte) });
    valve.set(Status::LINK_DOWN);
    let seen = r.load(0);
    panic!("{}: a load saw {seen:#x} instead of SIGBUS", r.tag);
}

/// Threads look at a page all the while it is poisoned and healed: after the acquire it shows the home, for good.
fn poison_heals_while_touched(b: &Bench) {
    let (r, valve) = valved(b, 4, MapOptions { on_error: OnError::Value, ..policy(Policy::Byte) });
    let (stop, v) = (AtomicBool::new(false), r.v);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(SeqCst) {
                    std::hint::black_box(load(v + PAGE));
                }
            });
        }
        for round in 0..b.ctx.scale(100, 400, 5000) {
            valve.set(Status::LINK_DOWN);
            let _ = r.region.invalidate(0, 0);
            std::hint::black_box(r.load(PAGE));
            valve.set(Status::OK);
            r.acquire();
            // A toucher that failed a moment ago may still poison it; nobody fails any more once it was seen well.
            let start = Instant::now();
            while r.load(PAGE) != 2 {
                r.acquire();
                assert!(start.elapsed().as_secs() < 3, "{}: round {round}: the page does not heal", r.tag);
            }
            r.home.set(PAGE + 8, round);
            r.acquire();
            r.loads(PAGE + 8, round);
        }
        stop.store(true, SeqCst);
    });
}

/// More failing pages than fit into local memory: each shows the error value, none ends the program, and all heal.
fn paged_region_without_link(b: &Bench) {
    let opts = MapOptions { on_error: OnError::Value, wait_ms: 1000, resident_limit: 1 << 20, ..policy(Policy::Byte) };
    let (r, valve) = valved(b, 1024, opts);
    (0..1024).for_each(|i| r.loads(i * PAGE, i as u64 + 1));
    r.acquire();
    valve.set(Status::LINK_DOWN);
    (0..600).for_each(|i| r.loads(i * PAGE, ERROR));
    let limit = r.region.local_limit().expect("paged");
    assert!(r.region.local_bytes() <= limit + limit / 10, "{}: {} of {limit}", r.tag, r.region.local_bytes());
    valve.set(Status::OK);
    r.acquire();
    (0..1024).for_each(|i| r.loads(i * PAGE, i as u64 + 1));
}

/// Bytes whose delivery failed are sent by a later release, together with newer ones, each with its last value.
fn failed_writes_are_kept(b: &Bench) {
    for p in POLICIES {
        let (r, valve) = valved(b, 16, policy(p));
        let mut rng = b.ctx.rng(4);
        let mut model = r.home.bytes(0, 16 * PAGE);
        for round in 0..60u64 {
            for _ in 0..40 {
                let (at, x) = (rng.usize(0..16 * PAGE), rng.u8(..));
                r.store8(at, x);
                model[at] = x;
            }
            match round % 4 {
                0 => valve.set(Status::LINK_DOWN),
                1 => valve.fail_posts(1),
                _ => {}
            }
            let s = r.region.release(0, 0);
            // The keeper, sending again what the round before has left, may meet the failing post instead.
            let kept = round % 4 == 1 && s.is_ok() && r.home.bytes(0, 16 * PAGE) == model;
            assert!(s.is_ok() == (round % 4 > 1) || kept, "{}: round {round}: {s}", r.tag);
            valve.set(Status::OK);
            if round % 4 > 1 {
                assert!(r.home.bytes(0, 16 * PAGE) == model, "{}: round {round}: a store is lost", r.tag);
            } else {
                // Without a twin it is not known what a hot page holds: it may have been written back instead.
                let s = r.region.invalidate(0, 0);
                // Or the keeper has sent everything again already.
                let sent = s == Status::OK && r.home.bytes(0, 16 * PAGE) == model;
                let allowed = s == Status::DIRTY || (p == Policy::Page && s == Status::OK) || sent;
                assert!(allowed, "{}: round {round}: {s}", r.tag);
                assert!(r.bytes(0, 16 * PAGE) == model, "{}: round {round}: own stores changed", r.tag);
            }
        }
    }
}

/// A line that could not be sent and holds a word of the home: sent again later, it leaves the word alone.
fn failed_line_spares_home_words(b: &Bench) {
    for p in POLICIES {
        let (r, valve) = valved(b, 1, policy(p));
        r.store(64, 5);
        valve.set(Status::LINK_DOWN);
        assert_eq!(r.region.release(0, 0), Status::LINK_DOWN, "{}", r.tag);
        valve.set(Status::OK);
        assert_eq!(r.region.at_home(72, AtomicOp::FetchAdd(1)), Ok(0), "{}", r.tag);
        r.home.set(72, 50);
        r.release();
        r.home_is(64, 5);
        r.home_is(72, 50);
    }
}

/// A release that comes while a background write-back fails still keeps its promise.
fn release_after_failed_background(b: &Bench) {
    for p in POLICIES {
        for round in 1..=b.ctx.scale(5, 15, 100) {
            let (r, valve) = valved(b, 2, MapOptions { age_ms: 2, ..policy(p) });
            r.loads(8, 0);
            valve.slow_posts(20_000_000);
            valve.fail_posts(1);
            r.store(8, round);
            // The background write-back has taken the store, and is going to fail.
            std::thread::sleep(Duration::from_millis(8));
            let s = r.region.release(0, 0);
            if s.is_ok() {
                assert_eq!(r.home.word(8), round, "{}: release said OK, the store is not at the home", r.tag);
            }
            valve.slow_posts(0);
        }
    }
}

/// Stores on their way to the home, not readable there yet: an acquire must not make them vanish from sight.
fn unfenced_stores_stay_in_sight(b: &Bench) {
    for p in POLICIES {
        let plan = Plan { seed: b.ctx.seed, reorder_ppm: 1_000_000, ..Plan::default() };
        let (home, valve) = Home::loopback(2 * PAGE, 0).behind("reordering", plan).with_valve();
        valve.slow_fences(3_000_000);
        let r = b.rig(home, MapOptions { age_ms: 2, ..policy(p) });
        for n in 1..=b.ctx.scale(50, 200, 2000) {
            r.store(8, n);
            std::thread::sleep(Duration::from_micros(n % 7 * 400));
            r.acquire();
            r.loads(8, n);
        }
    }
}

/// An acquire whose fence fails merges nothing: what was sent may not be at the home yet, and its old bytes would take
/// the place of own stores that the twin already counts as sent.
fn failed_fence_keeps_stores_in_sight(b: &Bench) {
    for p in POLICIES {
        let plan = Plan { seed: b.ctx.seed, reorder_ppm: 1_000_000, ..Plan::default() };
        let (home, valve) = Home::loopback(2 * PAGE, 0).behind("reordering", plan).with_valve();
        let r = b.rig(home, policy(p));
        r.store(8, 5);
        assert_eq!(r.region.flush(0, 0), Status::OK, "{}", r.tag);
        r.store(16, 6);
        valve.fail_fences(1);
        assert_eq!(r.region.acquire(0, 0), Status::LINK_DOWN, "{}", r.tag);
        r.loads(8, 5);
        r.loads(16, 6);
        r.release();
        r.acquire();
        r.loads(8, 5);
        r.home_is(8, 5);
        r.home_is(16, 6);
    }
}

/// The process has as many mappings as it may have. Where showing a page takes one more (mprotect) the access fails with
/// SIGBUS, at once; elsewhere it works, and the case ends itself the same way.
fn no_mappings_left(b: &Bench) {
    let (r, _valve) = valved(b, 64, policy(Policy::Byte));
    // A device's driver may map something for the first operation.
    r.loads(0, 1);
    let most: usize =
        std::fs::read_to_string("/proc/sys/vm/max_map_count").map_or(0, |t| t.trim().parse().unwrap_or(0));
    assert!(most > 0 && most < 1 << 20, "vm.max_map_count is {most}: this case would take too long");
    // SAFETY: fresh address space of our own, never touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), most * 2 * PAGE, libc::PROT_NONE, RESERVE, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // Every other page gets a protection of its own, until the kernel refuses.
    let split = |i: usize| {
        // SAFETY: inside the range mapped above.
        let r = unsafe { libc::mprotect(at.wrapping_byte_add(2 * i * PAGE), PAGE, libc::PROT_READ) };
        r == 0
    };
    assert!(!(0..most).all(split), "the kernel has no limit");
    let seen = r.load(32 * PAGE);
    assert_ne!(b.backend, Backend::Mprotect, "{}: a load saw {seen:#x} without a mapping", r.tag);
    assert_eq!(seen, 33, "{}", r.tag);
    // SAFETY: nothing of this process is needed any more.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    // SAFETY: ends this case as the other back end does.
    unsafe { libc::raise(libc::SIGBUS) };
}

const RESERVE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

fn revoked(b: &Bench) {
    let (r, valve) = valved(b, 64, policy(Policy::Byte));
    r.loads(0, 1);
    r.store(8, 1);
    valve.set(Status::REVOKED);
    let start = Instant::now();
    r.loads(40 * PAGE, ERROR);
    assert!(start.elapsed() < Duration::from_secs(2), "{}: it waited for what does not come back", r.tag);
    assert_eq!(r.region.release(0, 0), Status::REVOKED, "{}", r.tag);
    assert_eq!(r.region.status(), Status::REVOKED, "{}", r.tag);
    assert!(r.region.unavailable(), "{}", r.tag);
    assert_eq!(r.region.at_home(0, AtomicOp::Load), Err(Status::REVOKED), "{}", r.tag);
    r.loads(8, 1);
    r.home_is(8, 0);
    assert_eq!(r.unmap(), Status::REVOKED, "{}: what was lost is said", r.tag);
}

/// The exporter takes its memory back: what is here stays readable, nothing new arrives, nothing is written any more.
fn revoked_by_the_exporter(b: &Bench) {
    for p in POLICIES {
        let r = b.rig(Home::embedded(64 * PAGE, 0).numbered(), policy(p));
        r.loads(0, 1);
        r.store(8, 5);
        r.home.revoke();
        let start = Instant::now();
        r.loads(40 * PAGE, ERROR);
        assert!(start.elapsed() < Duration::from_secs(2), "{}: it waited for what does not come back", r.tag);
        assert_eq!(r.region.release(0, 0), Status::REVOKED, "{}", r.tag);
        r.loads(8, 5);
        r.home_is(8, 0);
        assert_eq!(r.region.status(), Status::REVOKED, "{}", r.tag);
    }
}

fn status_is_announced(b: &Bench) {
    let (r, valve) = valved(b, 64, MapOptions { on_error: OnError::Value, ..policy(Policy::Byte) });
    let seen = Arc::new(AtomicBool::new(false));
    let told = seen.clone();
    r.region.on_status(Some(Box::new(move |_, s| told.store(s == Status::LINK_DOWN, SeqCst))));
    valve.set(Status::LINK_DOWN);
    r.loads(9 * PAGE, ERROR);
    let start = Instant::now();
    while !seen.load(SeqCst) {
        assert!(start.elapsed().as_secs() < 3, "{}: the callback was not called", r.tag);
        std::thread::yield_now();
    }
    let ready = smc_engine::sys::event::readable([r.region.event_fd()], Some(1000));
    assert_eq!(ready.ok(), Some([true]), "{}: the event descriptor", r.tag);
    r.region.on_status(None);
    store(r.v, 1);
}

/// The status callback may call the region, even take a view away.
fn unmap_in_a_callback(b: &Bench) {
    let (r, valve) = valved(b, 64, MapOptions { on_error: OnError::Value, wait_ms: 500, ..policy(Policy::Byte) });
    let w = r.region.map_view(0, false, 0, 4 * PAGE, true).expect("a second view");
    store(w, 7);
    let (done, told, region) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)), r.region.clone());
    let (say, once) = (done.clone(), told);
    r.region.on_status(Some(Box::new(move |_, _| {
        if !once.swap(true, SeqCst) {
            let _ = region.unmap_view(w, 4 * PAGE);
            say.store(true, SeqCst);
        }
    })));
    valve.set(Status::LINK_DOWN);
    r.loads(40 * PAGE, ERROR);
    let start = Instant::now();
    while !done.load(SeqCst) {
        assert!(start.elapsed().as_secs() < 10, "{}: the callback does not return", r.tag);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!smc_engine::core::views::any_in(w, 4 * PAGE), "{}: the view is still there", r.tag);
    // The callback holds the region; without this it would keep itself alive.
    r.region.on_status(None);
    valve.set(Status::OK);
    r.release();
    r.home_is(0, 7);
}
