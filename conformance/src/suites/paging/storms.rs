//! Much at once: many threads page in, memory is a little too small, neighbours come and go.

use crate::cases;
use crate::rig::{Bench, Home, Rig, load, load8, policy, store};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, Policy};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

cases!(CASES, "paging",
    page_in_storm: Normal, 120;
    cyclic_walk_for_long: Normal, 60;
    neighbours_come_and_go: Normal, 120;
    unmapping_beside_eviction: Normal, 120;
);

fn stream(b: &Bench, pages: usize, threads: usize) -> f64 {
    let r = b.pages(pages, policy(Policy::Page));
    let (start, v, share) = (Instant::now(), r.v, pages / threads);
    std::thread::scope(|s| {
        for t in 0..threads {
            s.spawn(move || {
                let sum: u64 = (t * share..(t + 1) * share).map(|i| u64::from(load8(v + i * PAGE))).sum();
                assert_eq!(sum, 0);
            });
        }
    });
    (pages * PAGE) as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Streams a region in by 1, 8 and 64 threads; says the rates. Many threads must not be ten times slower than one.
fn page_in_storm(b: &Bench) {
    let pages = b.ctx.scale(1024, 8192, 262_144) as usize;
    // What else the host does can slow one try down; a collapse is there every time.
    let collapse = (0..3).all(|_| {
        let [one, some, many] = [1, 8, 64].map(|threads| stream(b, pages, threads));
        println!("{}: MB/s with 1, 8, 64 threads: {one:.0}, {some:.0}, {many:.0}", b.backend.name());
        many * 10.0 < one
    });
    assert!(!collapse, "{}: 64 threads are more than ten times slower than one", b.backend.name());
}

/// Number of lines of a list of the kernel about this process, or of entries of a directory.
fn held() -> [usize; 2] {
    let maps = std::fs::read_to_string("/proc/self/maps").map_or(0, |t| t.lines().count());
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    [maps, files]
}

/// Memory of this process in bytes, pages that are mapped twice counted once.
fn own_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("read smaps_rollup");
    let kib = text.lines().find_map(|l| l.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.expect("a Pss line") * 1024
}

/// What the region costs beside its pages: tables, stacks, the allocator's slack.
const OVERHEAD: u64 = 2 << 20;

/// Walks for a while in a circle over a tenth more than fits: the limit holds whenever looked at, nothing piles up.
fn cyclic_walk_for_long(b: &Bench) {
    const LIMIT: u64 = 8 << 20;
    let pages = (LIMIT as usize / PAGE) * 11 / 10;
    let time = Duration::from_secs(b.ctx.scale(1, 5, 60));
    let home = Home::loopback(pages * PAGE, 0);
    (0..pages).for_each(|i| home.set(i * PAGE, 0));
    let before = own_memory();
    let r = b.rig(home, MapOptions { resident_limit: LIMIT, ..policy(Policy::Page) });
    let (stop, most, whole) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let limit = r.region.local_limit().expect("a paged region");
    let (mut laps, mut early, start) = (0u64, None, Instant::now());
    std::thread::scope(|s| {
        let (region, stop, most, whole) = (&r.region, &stop, &most, &whole);
        s.spawn(move || {
            while !stop.load(SeqCst) {
                most.fetch_max(region.local_bytes(), SeqCst);
                whole.fetch_max(own_memory().saturating_sub(before), SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        while start.elapsed() < time {
            laps += 1;
            for i in 0..pages {
                assert_eq!(load(r.v + i * PAGE), laps - 1, "{}: page {i}, lap {laps}", r.tag);
                store(r.v + i * PAGE, laps);
            }
            if early.is_none() && start.elapsed() > time / 4 {
                early = Some(held());
            }
        }
        stop.store(true, SeqCst);
    });
    let (most, late) = (most.load(SeqCst), held());
    let rate = (laps as usize * pages * PAGE) as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("{}: {laps} laps, {rate:.0} MB/s, at most {most} of {limit} bytes; maps, files {late:?}", r.tag);
    let whole = whole.load(SeqCst);
    assert!(whole <= limit + limit / 10 + OVERHEAD, "{}: the process grew by {whole}, limit {limit}", r.tag);
    assert!(most > 0 && most <= limit + limit / 10, "{}: {most} bytes of {limit}", r.tag);
    if let Some(early) = early {
        let grown = (0..2).any(|i| late[i] > early[i] * 5 / 4 + 32);
        assert!(!grown, "{}: mappings and files grow: {early:?}, then {late:?}", r.tag);
    }
    r.release();
    (0..pages).for_each(|i| r.home_is(i * PAGE, laps));
}

const TOUCHERS: usize = 32;
const NEAR: usize = 96;

/// One thread's rounds over every page: own words are counted, the pages' first words never change.
fn touch(r: &Rig, t: usize, rounds: usize) -> Duration {
    let mut slowest = Duration::ZERO;
    for round in 0..rounds {
        for page in 0..NEAR {
            let (at, start) = (r.v + page * PAGE, Instant::now());
            assert_eq!(load(at), page as u64 + 1, "{}: page {page}", r.tag);
            let own = at + 64 + t * 8;
            assert_eq!(load(own), round as u64, "{}: page {page}, thread {t}: a store is lost", r.tag);
            store(own, round as u64 + 1);
            slowest = slowest.max(start.elapsed());
        }
    }
    slowest
}

/// 32 threads touch the same pages while others acquire, drop and evict these and their neighbours.
fn neighbours_come_and_go(b: &Bench) {
    let rounds = b.ctx.scale(3, 12, 400) as usize;
    // All fits: only the acquires drop pages. Half fits: eviction does as well.
    for limit in [1 << 30, NEAR as u64 * PAGE as u64] {
        let home = Home::loopback(NEAR * PAGE, b.ctx.seed).numbered();
        let r = b.rig(home, MapOptions { resident_limit: limit, window: 1, wait_ms: 20_000, ..policy(Policy::Byte) });
        let stop = AtomicBool::new(false);
        let slowest = std::thread::scope(|s| {
            for k in 0..2usize {
                let (r, stop) = (&r, &stop);
                s.spawn(move || {
                    let mut n = k;
                    while !stop.load(SeqCst) {
                        n += 1;
                        let at = (n * 7 % NEAR * PAGE) as u64;
                        let got = match n % 3 {
                            0 => r.region.acquire(at, PAGE as u64),
                            1 => r.region.invalidate(at, PAGE as u64),
                            _ => r.region.release(at, PAGE as u64),
                        };
                        assert!(got.is_ok() || got == Status::DIRTY, "{}: {got}", r.tag);
                    }
                });
            }
            let r = &r;
            let all: Vec<_> = (0..TOUCHERS).map(|t| s.spawn(move || touch(r, t, rounds))).collect();
            let slowest = all.into_iter().map(|t| t.join().expect("a toucher")).max();
            stop.store(true, SeqCst);
            slowest.unwrap_or_default()
        });
        r.release();
        for page in 0..NEAR {
            r.home_is(page * PAGE, page as u64 + 1);
            (0..TOUCHERS).for_each(|t| r.home_is(page * PAGE + 64 + t * 8, rounds as u64));
        }
        println!("{} limit {limit}: slowest touch {slowest:?}", r.tag);
        // A lost wake-up is for ever, or until the region's wait of 20 s; a busy host makes others slow.
        assert!(slowest < Duration::from_secs(15), "{}: a touch took {slowest:?}", r.tag);
    }
}

/// Pages of a window that is mapped, written and unmapped beside the evictor.
const WINDOW: usize = 8;

/// One writer's windows: every page of its part is written once, and every window is unmapped while others are written
/// back. Answers the slowest unmapping.
fn write_in_windows(
    r: &Rig,
    turn: &Mutex<()>,
    t: usize,
    part: usize,
    value: u64,
    unmapped: impl Fn(Status),
) -> Duration {
    let mut slowest = Duration::ZERO;
    for first in (t * part..(t + 1) * part).step_by(WINDOW) {
        let view = r.region.map_view(0, false, (first * PAGE) as u64, WINDOW * PAGE, true).expect("a window");
        (0..WINDOW).for_each(|i| store(view + i * PAGE + 8, value + (first + i) as u64));
        // One at a time: releases of one region wait for each other, and that is not what is measured.
        let _turn = turn.lock().expect("nobody panics in it");
        let start = Instant::now();
        unmapped(r.region.unmap_view(view, WINDOW * PAGE));
        slowest = slowest.max(start.elapsed());
    }
    slowest
}

/// The smallest local memory there is, four writers, windows that come and go: unmapping never waits for long, not with a
/// home that takes 100 ms for a write, not with one that is dead; and nothing is lost but what is named.
fn unmapping_beside_eviction(b: &Bench) {
    const WRITERS: usize = 4;
    let part = b.ctx.scale(2, 4, 32) as usize * WINDOW;
    let pages = WRITERS * part;
    for limit in [1, 2, 10].map(|n| n * PAGE as u64) {
        let (home, valve) = Home::loopback(pages * PAGE, b.ctx.seed).with_valve();
        let r = b.rig(home, MapOptions { resident_limit: limit, window: 1, wait_ms: 1500, ..policy(Policy::Byte) });
        let turn = Mutex::new(());
        let all = |value: u64, unmapped: &(dyn Fn(Status) + Sync)| {
            std::thread::scope(|s| {
                let (r, turn) = (&r, &turn);
                let writers =
                    (0..WRITERS).map(|t| s.spawn(move || write_in_windows(r, turn, t, part, value, unmapped)));
                let writers: Vec<_> = writers.collect();
                writers.into_iter().map(|w| w.join().expect("a writer")).max().unwrap_or_default()
            })
        };
        let well = |s: Status| assert_eq!(s, Status::OK, "{}: unmapping", r.tag);
        let fast = all(1000, &well);
        valve.slow_posts(100_000_000);
        let slow = all(2000, &well);
        valve.slow_posts(0);
        (0..pages).for_each(|p| r.home_is(p * PAGE + 8, 2000 + p as u64));
        valve.set(Status::PEER_DEAD);
        let dead = all(3000, &|s| assert!(!s.is_ok(), "{}: unmapping says OK with a dead home", r.tag));
        // What was stored before is still at the home, and what was not delivered is named.
        (0..pages).for_each(|p| r.home_is(p * PAGE + 8, 2000 + p as u64));
        let named = r.region.lost(usize::MAX);
        for at in (0..pages).map(|p| (p * PAGE + 8) as u64) {
            assert!(named.iter().any(|(s, e)| (*s..*e).contains(&at)), "{}: the store at {at} is not named", r.tag);
        }
        println!("{} limit {limit}: unmapping took at most {fast:?}, {slow:?} and {dead:?}", r.tag);
        for (what, took) in [("a good", fast), ("a slow", slow), ("a dead", dead)] {
            assert!(took < Duration::from_secs(2), "{}: unmapping took {took:?} with {what} home", r.tag);
        }
    }
}
