//! Limits: local memory, dirty bytes, age, staleness. And what must not happen when they are off.

use crate::cases;
use crate::rig::{Bench, Home, POLICIES, Rig, policy};
use smc_engine::base::PAGE;
use smc_engine::core::options::{MapOptions, Policy, Through};
use smc_engine::link::faulty::Plan;
use std::time::{Duration, Instant};

cases!(CASES, "paging",
    larger_than_memory: Normal, 120;
    cyclic_walk: Normal, 120;
    endurance: Normal, 240;
    dirty_limit: Quick, 60;
    dirty_age: Quick, 60;
    nothing_by_itself: Normal, 60;
    bounded_write_through: Quick, 60;
    stale_reader_progresses: Quick, 60;
    a_slow_home_is_not_a_dead_one: Quick, 60;
    a_hundred_batches_in_one_release: Quick, 60;
);

fn within_limit(r: &Rig) {
    let limit = r.region.local_limit().expect("a paged region");
    let used = r.region.local_bytes();
    assert!(used <= limit + limit / 10, "{}: {used} bytes of {limit}", r.tag);
}

/// A region of eight times the limit: no loss, and the limit holds at every moment looked at.
fn larger_than_memory(b: &Bench) {
    b.each(1024 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), MapOptions { resident_limit: 1 << 20, ..policy(p) });
        for i in 0..1024 {
            r.store(i * PAGE + 8, i as u64 * 3);
            within_limit(&r);
        }
        for i in (0..1024).rev() {
            r.loads(i * PAGE + 8, i as u64 * 3);
            r.loads(i * PAGE, i as u64 + 1);
            within_limit(&r);
        }
        r.release();
        (0..1024).for_each(|i| r.home_is(i * PAGE + 8, i as u64 * 3));
        assert!(r.region.stats().pages_evicted.get() >= 1024, "{}: nothing was evicted", r.tag);
    });
}

/// Walks in a circle over a tenth more than fits, the worst case of any eviction by age.
fn cyclic_walk(b: &Bench) {
    for p in [Policy::Byte, Policy::Page] {
        let r = b.rig(Home::loopback(1024 * PAGE, 0), MapOptions { resident_limit: 4 << 20, ..policy(p) });
        let per_page = if p == Policy::Page { PAGE } else { 2 * PAGE };
        let pages = (4 << 20) / per_page * 11 / 10;
        let r = if pages > 1024 {
            b.rig(Home::loopback(pages * PAGE, 0), MapOptions { resident_limit: 4 << 20, ..policy(p) })
        } else {
            r
        };
        for lap in 1..=b.ctx.scale(2, 8, 100) {
            for i in 0..pages {
                r.loads(i * PAGE, lap - 1);
                r.store(i * PAGE, lap);
                if i % 64 == 0 {
                    within_limit(&r);
                }
            }
        }
        r.release();
        (0..pages).for_each(|i| r.home_is(i * PAGE, b.ctx.scale(2, 8, 100)));
    }
}

/// Random stores and loads for a while at a tenth of the region resident; memory is flat at the end.
fn endurance(b: &Bench) {
    let r = b.rig(
        Home::loopback(4096 * PAGE, 0),
        MapOptions {
            // A tenth of 16 MiB, page and twin.
            resident_limit: 2 * 4096 * PAGE as u64 / 10,
            ..policy(Policy::Byte)
        },
    );
    let (mut rng, mut want) = (b.ctx.rng(9), vec![0u64; 4096]);
    let (start, time) = (Instant::now(), Duration::from_secs(b.ctx.scale(1, 5, 60)));
    let mut n = 0u64;
    while start.elapsed() < time {
        let i = rng.usize(0..4096);
        if rng.bool() {
            n += 1;
            want[i] = n;
            r.store(i * PAGE + 32, n);
        } else {
            r.loads(i * PAGE + 32, want[i]);
        }
        match rng.u32(0..4000) {
            0 => r.release(),
            1 => r.acquire(),
            2..=40 => within_limit(&r),
            _ => {}
        }
    }
    r.release();
    want.iter().enumerate().for_each(|(i, w)| r.home_is(i * PAGE + 32, *w));
    within_limit(&r);
}

/// Waits for `done`; answers how long that took.
fn until(what: &str, done: impl Fn() -> bool) -> Duration {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(5), "{what} did not happen within 5 s");
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

fn dirty_limit(b: &Bench) {
    for p in POLICIES {
        let r = b.pages(256, MapOptions { dirty_limit: 64 * PAGE as u64, ..policy(p) });
        (0..16).for_each(|i| r.store(i * 16 * PAGE, 7));
        std::thread::sleep(Duration::from_millis(100));
        if b.backend != smc_engine::base::config::Backend::Mprotect {
            r.home_is(0, 0);
        }
        (0..256).for_each(|i| r.store(i * PAGE + 8, 8));
        until("write-back by dirty bytes", || r.home.word(128 * PAGE + 8) == 8);
    }
}

fn dirty_age(b: &Bench) {
    for p in POLICIES {
        let r = b.pages(4, MapOptions { age_ms: 50, ..policy(p) });
        r.store(8, 7);
        let took = until("write-back by age", || r.home.word(8) == 7);
        println!("{}: 50 ms old after {took:?}", r.tag);
    }
}

/// With every limit off nothing reaches the home without a release.
fn nothing_by_itself(b: &Bench) {
    let rigs: Vec<Rig> = POLICIES.into_iter().map(|p| b.pages(64, policy(p))).collect();
    rigs.iter().for_each(|r| (0..64).for_each(|i| r.store(i * PAGE, 7)));
    std::thread::sleep(Duration::from_millis(1100));
    for r in &rigs {
        assert_eq!(r.home.link.stats().writes.get(), 0, "{}: somebody sent something", r.tag);
        assert!(r.home.bytes(0, 64 * PAGE).iter().all(|x| *x == 0), "{}", r.tag);
        r.release();
        r.home_is(0, 7);
    }
}

fn bounded_write_through(b: &Bench) {
    let r = b.pages(16, MapOptions { through: Through::Bounded, ..policy(Policy::Byte) });
    let mut slowest = Duration::ZERO;
    for n in 1..200u64 {
        let at = (n as usize % 16) * PAGE + 8 * (n as usize % 100);
        r.store(at, n);
        slowest = slowest.max(until("a bounded write-through", || r.home.word(at) == n));
    }
    // The stated bound is about the keeper's tick; a busy host adds its own.
    println!("{}: slowest {slowest:?}", r.tag);
}

/// A program that only loads sees the home change, by `acquire_ms`, and not without it.
fn stale_reader_progresses(b: &Bench) {
    let r = b.pages(4, MapOptions { acquire_ms: 20, ..policy(Policy::Byte) });
    let still = b.pages(4, policy(Policy::Byte));
    for n in 1..10 {
        r.loads(PAGE, n - 1);
        r.home.set(PAGE, n);
        until("an automatic acquire", || r.load(PAGE) == n);
    }
    still.loads(PAGE, 0);
    still.home.set(PAGE, 1);
    std::thread::sleep(Duration::from_millis(300));
    still.loads(PAGE, 0);
}

/// The longest wait is for the next thing to happen: a release, an acquire and a read that take five times as long, and
/// go on all the time, come to their end.
fn a_slow_home_is_not_a_dead_one(b: &Bench) {
    let plan = Plan::parse("wire,latency_ns=1000,gap_ns=1000000").expect("a plan");
    let home = Home::loopback(1024 * PAGE, 0).behind("slow", plan);
    let r = b.rig(home, MapOptions { wait_ms: 400, window: 16, ..policy(Policy::Byte) });
    for i in 0..1024 {
        r.store(i * PAGE + 64, i as u64 + 1);
    }
    let start = Instant::now();
    r.release();
    assert!(start.elapsed() > Duration::from_millis(900), "{}: the home was not slow", r.tag);
    (0..1024).for_each(|i| r.home_is(i * PAGE + 64, i as u64 + 1));
    (0..1024).for_each(|i| r.store(i * PAGE, 7));
    r.acquire();
    let start = Instant::now();
    assert_eq!(r.pread(0, 1024 * PAGE)[1023 * PAGE], 7, "{}", r.tag);
    assert!(start.elapsed() < Duration::from_secs(50), "{}", r.tag);
    r.release();
}

/// Every fourth byte: more runs than a hundred batches hold, in one release.
fn a_hundred_batches_in_one_release(b: &Bench) {
    let pages = 410;
    let r = b.pages(pages, policy(Policy::Byte));
    let bytes: Vec<u8> = (0..pages * PAGE).map(|i| if i % 4 == 0 { 1 + (i / 4 % 250) as u8 } else { 0 }).collect();
    r.store_bytes(0, &bytes);
    r.release();
    assert!(r.home.bytes(0, pages * PAGE) == bytes, "{}: not all bytes are at the home", r.tag);
    assert!(r.region.stats().messages.get() >= 100 * 4096, "{}: {} messages", r.tag, r.region.stats().messages.get());
}
