//! Many threads, two processes, signals: nothing is lost and nobody hangs.

use crate::cases;
use crate::rig::node::{Ask, Node};
use crate::rig::{Bench, Home, POLICIES, load, policy, store};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, Policy};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

cases!(CASES, "paging",
    many_threads_one_page: Normal, 60;
    threads_lose_no_byte: Normal, 120;
    hot_page_beside_a_reader: Normal, 60;
    map_unmap_beside_faults: Normal, 60;
    alarms_inside_release: Normal, 30;
    two_writers_alternate: Quick, 60;
    two_processes_alternate: Quick, 60, children 1;
);

/// All threads touch the same absent page at once, again and again: every one returns with the right bytes.
fn many_threads_one_page(b: &Bench) {
    const THREADS: usize = 32;
    let pages = b.ctx.scale(50, 1000, 10_000) as usize;
    let r = b.rig(Home::loopback(pages * PAGE, 0).numbered(), MapOptions { window: 1, ..policy(Policy::Byte) });
    let (gate, slowest, v) = (std::sync::Barrier::new(THREADS), AtomicU64::new(0), r.v);
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (gate, slowest) = (&gate, &slowest);
            s.spawn(move || {
                for page in 0..pages {
                    gate.wait();
                    let start = Instant::now();
                    assert_eq!(load(v + page * PAGE), page as u64 + 1);
                    store(v + page * PAGE + 64 + t * 8, 1 + t as u64);
                    slowest.fetch_max(start.elapsed().as_micros() as u64, SeqCst);
                }
            });
        }
    });
    r.release();
    for page in 0..pages {
        (0..THREADS).for_each(|t| r.home_is(page * PAGE + 64 + t * 8, 1 + t as u64));
    }
    assert_eq!(r.home.link.stats().fetch_bytes.get(), (pages * PAGE) as u64, "{}: each page once", r.tag);
    println!("{}: slowest {} us", r.tag, slowest.load(SeqCst));
    let before = cpu_time();
    std::thread::sleep(Duration::from_millis(300));
    let spent = cpu_time() - before;
    assert!(spent < Duration::from_millis(60), "{}: the idle library used {spent:?} of 300 ms", r.tag);
    assert!(slowest.load(SeqCst) < 2_000_000, "{}: a thread waited for two seconds", r.tag);
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: t is a valid out pointer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Eight threads count, each in words of its own on shared pages, while others release, acquire and evict.
fn threads_lose_no_byte(b: &Bench) {
    let per = b.ctx.scale(1_000, 4_000, 200_000) as usize;
    for limit in [600 << 10, 1 << 30] {
        for make in [Home::loopback, Home::reordering] {
            let home = make(256 * PAGE, b.ctx.seed);
            for p in [Policy::Byte, Policy::Page] {
                let r = b.rig(home.twin(), MapOptions { resident_limit: limit, ..policy(p) });
                let (v, region) = (r.v, &r.region);
                let before: u64 = total(&r);
                std::thread::scope(|s| {
                    for t in 0..8usize {
                        s.spawn(move || {
                            for i in 0..per / 4 {
                                let at = v + ((i * 7919 + t * 131) % 256) * PAGE + 512 + t * 8;
                                store(at, load(at) + 1);
                                if i % 500 == 499 {
                                    let s = if t % 2 == 0 { region.release(0, 0) } else { region.acquire(0, 0) };
                                    assert_eq!(s, Status::OK);
                                }
                            }
                        });
                    }
                });
                r.release();
                assert_eq!(total(&r) - before, (per / 4 * 8) as u64, "{} limit {limit}: increments", r.tag);
            }
        }
    }
}

fn total(r: &crate::rig::Rig) -> u64 {
    (0..256).flat_map(|p| (0..8).map(move |t| (p, t))).map(|(p, t)| r.home.word(p * PAGE + 512 + t * 8)).sum()
}

/// Hot pages are not protected between releases: another thread that works on them must not hide their stores.
fn hot_page_beside_a_reader(b: &Bench) {
    for p in POLICIES {
        let r = b.pages(16, policy(p));
        for n in 0..20 {
            (0..16).for_each(|i| r.store(i * PAGE, n));
            r.release();
        }
        let (stop, region) = (AtomicBool::new(false), &r.region);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let mut bytes = [0u8; 16];
                    let mut page = 0u64;
                    while !stop.load(SeqCst) {
                        page = (page + 1) % 16;
                        // SAFETY: 16 valid bytes.
                        let s = unsafe { region.read(page * PAGE as u64 + 2048, bytes.as_mut_ptr(), 16) };
                        assert_eq!(s, Status::OK);
                    }
                });
            }
            for n in 100..100 + b.ctx.scale(300, 2000, 20_000) {
                (0..16).for_each(|i| r.store(i * PAGE, n));
                r.release();
                (0..16).for_each(|i| assert_eq!(r.home.word(i * PAGE), n, "{}: page {i} round {n}", r.tag));
            }
            stop.store(true, SeqCst);
        });
    }
}

/// Some map, write, unmap and trim the heap while others fault and call the barrier: nobody stands still.
fn map_unmap_beside_faults(b: &Bench) {
    let time = Duration::from_millis(b.ctx.scale(500, 2500, 60_000));
    let r = b.pages(512, MapOptions { resident_limit: 1 << 20, ..policy(Policy::Byte) });
    let (start, region, v) = (Instant::now(), &r.region, r.v);
    let beats: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let running = || start.elapsed() < time;
    let beat = |t: usize| beats[t].store(start.elapsed().as_millis() as u64 + 1, SeqCst);
    std::thread::scope(|s| {
        for t in 0..4usize {
            let (beat, running) = (&beat, &running);
            s.spawn(move || {
                let mut n = 0u64;
                while running() {
                    n += 1;
                    let page = (n as usize * 37 + t * 64) % 480;
                    let w = region.map_view(0, false, (page * PAGE) as u64, 16 * PAGE, true).expect("a view");
                    (0..16).for_each(|i| store(w + i * PAGE + 256 + t * 8, n));
                    drop(std::hint::black_box(vec![0u8; 300_000]));
                    // SAFETY: no preconditions.
                    unsafe { libc::malloc_trim(0) };
                    assert_eq!(region.unmap_view(w, 16 * PAGE), Status::OK);
                    beat(t);
                }
            });
            s.spawn(move || {
                let mut n = 0usize;
                while running() {
                    n += 1;
                    std::hint::black_box(load(v + (n * 101 + t * 7) % 512 * PAGE));
                    if n.is_multiple_of(64) {
                        assert_eq!(region.barrier(), Status::OK);
                    }
                    beat(4 + t);
                }
            });
        }
        while running() {
            std::thread::sleep(Duration::from_millis(50));
            let now = start.elapsed().as_millis() as u64;
            for (t, x) in beats.iter().enumerate() {
                assert!(now.saturating_sub(x.load(SeqCst)) < 3000, "{}: thread {t} stands still", r.tag);
            }
        }
    });
}

static ALARM_VIEW: AtomicUsize = AtomicUsize::new(0);
static ALARM_PAGES: AtomicUsize = AtomicUsize::new(0);
static ALARMS: AtomicUsize = AtomicUsize::new(0);

/// Touches absent pages, as a profiler or timer of the program might.
extern "C" fn on_alarm(_: i32) {
    let n = ALARMS.fetch_add(1, SeqCst);
    let (v, pages) = (ALARM_VIEW.load(SeqCst), ALARM_PAGES.load(SeqCst).max(1));
    for i in 0..4 {
        let at = v + (n * 4 + i) % pages * PAGE + 128;
        store(at, load(at) + 1);
    }
}

fn every_millisecond(on: bool) {
    let us = if on { 1000 } else { 0 };
    let time = libc::timeval { tv_sec: 0, tv_usec: us };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: timer is valid; the old one is not asked for.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
}

/// A thousand times a second a handler touches absent pages of the region whose release it interrupted.
fn alarms_inside_release(b: &Bench) {
    let handler = on_alarm as extern "C" fn(i32);
    // SAFETY: the handler touches atomics and mapped memory only.
    unsafe { libc::signal(libc::SIGALRM, handler as libc::sighandler_t) };
    for p in [Policy::Byte, Policy::Page] {
        let r = b.pages(512, MapOptions { resident_limit: 1 << 20, ..policy(p) });
        ALARM_VIEW.store(r.v, SeqCst);
        ALARM_PAGES.store(512, SeqCst);
        ALARMS.store(0, SeqCst);
        every_millisecond(true);
        let (start, mut n) = (Instant::now(), 0u64);
        while start.elapsed() < Duration::from_millis(b.ctx.scale(300, 1500, 30_000)) {
            n += 1;
            (0..64).for_each(|i| r.store(((n as usize * 64 + i) % 512) * PAGE, n));
            match n % 8 {
                0 => r.acquire(),
                1 => assert_eq!(r.region.barrier(), Status::OK, "{}", r.tag),
                2 => drop(r.pread(n as usize % 500 * PAGE, 64)),
                3 => drop(r.region.prefetch(0, 0)),
                4 => assert!(r.region.at_home(n % 512 * PAGE as u64 + 8, smc_engine::link::AtomicOp::Load).is_ok()),
                5 => {
                    let op = smc_engine::link::AtomicOp::FetchAdd(1);
                    assert!(r.region.at_home(n % 512 * PAGE as u64 + 8, op).is_ok());
                }
                _ => r.release(),
            }
        }
        every_millisecond(false);
        let alarms = ALARMS.load(SeqCst);
        r.release();
        let counted: u64 = (0..512).map(|i| r.home.word(i * PAGE + 128)).sum();
        assert_eq!(counted, alarms as u64 * 4, "{}: stores of the handler", r.tag);
        println!("{}: {n} rounds, {alarms} alarms", r.tag);
        assert!(alarms > 50, "{}: hardly any alarm came: the case tests nothing", r.tag);
    }
}

const BOTH: usize = 100 * PAGE;

fn all_bytes_are_there(home: &Home, tag: &str) {
    let wrong = home.bytes(0, home.len).iter().enumerate().position(|(i, x)| *x != (i % 2) as u8 + 1);
    assert_eq!(wrong, None, "{tag}: this byte is lost");
}

/// Two nodes store alternate bytes of the same pages: both survive, whichever releases first.
fn two_writers_alternate(b: &Bench) {
    for make in [Home::loopback, Home::embedded] {
        alternate(b, make(BOTH, 0));
    }
    // Every second byte is a message, and these models look at each.
    for make in [Home::reordering, Home::wired] {
        alternate(b, make(4 * PAGE, b.ctx.seed));
    }
}

fn alternate(b: &Bench, home: Home) {
    let len = home.len;
    for first in [0, 1] {
        home.poke(0, &vec![0; len]);
        let nodes = [0, 1].map(|_| Node::new(b.backend, &home, policy(Policy::Byte)));
        (0..2).for_each(|n| _ = nodes[n].ask(Ask::Bytes(0, len, n as u8)));
        for n in [first, 1 - first] {
            assert_eq!(nodes[n].ask(Ask::Barrier), 0);
        }
        all_bytes_are_there(&home, home.name);
        // The one that released first sees the other's after its next acquire.
        assert_eq!(nodes[first].ask(Ask::Acquire), 0);
        assert_eq!(nodes[first].ask(Ask::Load(0)), 0x0201_0201_0201_0201);
    }
}

fn two_processes_alternate(b: &Bench) {
    let child = &b.children[0];
    let home = Home::embedded(BOTH, 0);
    let own = Node::new(b.backend, &home, policy(Policy::Byte));
    child.map(&home.region, BOTH, Policy::Byte);
    for round in 0..4 {
        home.poke(0, &vec![0; BOTH]);
        own.ask(Ask::Barrier);
        child.ask(Ask::Barrier);
        own.ask(Ask::Bytes(0, BOTH, 0));
        child.ask(Ask::Bytes(0, BOTH, 1));
        let (one, two) = if round % 2 == 0 { (true, false) } else { (false, true) };
        for mine in [one, two] {
            assert_eq!(if mine { own.ask(Ask::Barrier) } else { child.ask(Ask::Barrier) }, 0, "round {round}");
        }
        all_bytes_are_there(&home, "two processes");
        // The same byte from both: one of the two values.
        own.ask(Ask::Store(8, 11));
        child.ask(Ask::Store(8, 12));
        own.ask(Ask::Release);
        child.ask(Ask::Release);
        assert!([11, 12].contains(&home.word(8)), "a value of nobody: {}", home.word(8));
        assert_eq!(child.ask(Ask::Add(16, 5)), 0x0201_0201_0201_0201);
        assert_eq!(own.ask(Ask::Home(16)), 0x0201_0201_0201_0206);
    }
}
