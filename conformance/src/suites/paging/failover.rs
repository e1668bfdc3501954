//! Two paths to a region: what happens when one fails.

use crate::cases;
use crate::rig::{Bench, Home, POLICIES, Rig, Valve, policy};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::condition::Condition;
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::link::AtomicOp;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

cases!(CASES, "failover",
    reads_go_on: Quick, 60;
    unreleased_stores_follow: Quick, 60;
    it_stays_until_the_other_fails: Quick, 60;
    both_down_is_a_failure: Quick, 60;
    exporters_die_under_load: Normal, 60;
);

const PAGES: usize = 64;

/// A region over two exporters with the same content, and the valves of both paths. The second home is answered too.
fn pair(b: &Bench, embedded: bool, opts: MapOptions) -> (Rig, [Arc<Valve>; 2], Home) {
    let make = || match embedded {
        true => Home::embedded(PAGES * PAGE, 0).numbered().with_valve(),
        false => Home::loopback(PAGES * PAGE, 0).numbered().with_valve(),
    };
    let ((first, a), (second, z)) = (make(), make());
    let rig = b.rig(first.or_over(&second), opts);
    (rig, [a, z], second)
}

fn failovers(r: &Rig) -> u64 {
    r.region.link().stats().failovers.get()
}

fn eventually(tag: &str, what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(5), "{tag}: {what}: not within 5 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A load does not even wait; what was cached from the first path is fetched anew from the second.
fn reads_go_on(b: &Bench) {
    for embedded in [false, true] {
        for how in [Status::LINK_DOWN, Status::PEER_DEAD, Status::REVOKED] {
            let (r, [a, _], second) = pair(b, embedded, MapOptions { window: 1, ..policy(Policy::Byte) });
            r.loads(0, 1);
            second.set(8, 77);
            a.set(how);
            let start = Instant::now();
            r.loads(20 * PAGE, 21);
            assert!(start.elapsed() < Duration::from_secs(1), "{}: it waited", r.tag);
            assert_eq!((failovers(&r), r.region.condition().0), (1, Condition::Ok), "{}", r.tag);
            eventually(&r.tag, "clean pages are the second's", || r.load(8) == 77);
            assert_eq!(r.region.at_home(8, AtomicOp::Load), Ok(77), "{}", r.tag);
        }
    }
}

/// Stores that were not fenced on the first path reach the second; those that were are where they were.
fn unreleased_stores_follow(b: &Bench) {
    for p in POLICIES {
        for embedded in [false, true] {
            let (r, [a, _], second) = pair(b, embedded, policy(p));
            r.store(8, 1);
            r.release();
            r.store(PAGE + 8, 2);
            assert_eq!(r.region.flush(0, 0), Status::OK, "{}", r.tag);
            r.store(9 * PAGE + 8, 3);
            a.set(Status::LINK_DOWN);
            assert_eq!(r.region.release(0, 0), Status::OK, "{}", r.tag);
            assert_eq!((second.word(PAGE + 8), second.word(9 * PAGE + 8)), (2, 3), "{}", r.tag);
            assert_eq!((r.home.word(8), second.word(8)), (1, 0), "{}: nobody copies", r.tag);
            r.acquire();
            assert_eq!((r.load(PAGE + 8), r.load(9 * PAGE + 8)), (2, 3), "{}", r.tag);
            assert_eq!(failovers(&r), 1, "{}", r.tag);
            assert_eq!(r.region.lost(9), [], "{}", r.tag);
        }
    }
}

/// A first path that heals is not gone back to; when the second fails it is.
fn it_stays_until_the_other_fails(b: &Bench) {
    for embedded in [false, true] {
        let (r, [a, z], second) = pair(b, embedded, MapOptions { window: 1, ..policy(Policy::Byte) });
        a.set(Status::LINK_DOWN);
        r.loads(0, 1);
        a.set(Status::OK);
        second.set(16 * PAGE, 1004);
        r.loads(16 * PAGE, 1004);
        assert_eq!(failovers(&r), 1, "{}", r.tag);
        r.store(32 * PAGE + 8, 5);
        z.set(Status::LINK_DOWN);
        r.loads(48 * PAGE, 49);
        assert_eq!(failovers(&r), 2, "{}", r.tag);
        r.release();
        r.home_is(32 * PAGE + 8, 5);
    }
}

fn both_down_is_a_failure(b: &Bench) {
    for embedded in [false, true] {
        let opts = MapOptions { wait_ms: 100, window: 1, ..policy(Policy::Byte) };
        let (r, [a, z], second) = pair(b, embedded, opts);
        r.store(8, 5);
        [&a, &z].iter().for_each(|v| v.set(Status::LINK_DOWN));
        r.loads(20 * PAGE, u64::MAX);
        assert_eq!(r.region.condition(), (Condition::Degraded, Status::LINK_DOWN), "{}", r.tag);
        assert_eq!(r.region.release(0, 0), Status::LINK_DOWN, "{}", r.tag);
        assert_eq!(r.region.unreleased(9), [(8, 9)], "{}", r.tag);
        z.set(Status::OK);
        eventually(&r.tag, "it recovers", || r.region.condition().0 == Condition::Ok);
        eventually(&r.tag, "the store is sent", || second.word(8) == 5);
        assert_eq!(failovers(&r), 1, "{}", r.tag);
        r.loads(20 * PAGE, 21);
    }
}

/// Threads store and load while the first exporter ends, and then the second by revocation: nothing hangs, and what the last
/// release said is true. (A store that was released before the change is at the first home: nobody keeps these two equal.)
fn exporters_die_under_load(b: &Bench) {
    let (first, second) = (Home::restartable(PAGES * PAGE, 0), Home::embedded(PAGES * PAGE, 0));
    let r = b.rig(first.or_over(&second), MapOptions { age_ms: 2, wait_ms: 500, ..policy(Policy::Byte) });
    let stop = AtomicBool::new(false);
    let (r, stop) = (&r, &stop);
    let last = std::thread::scope(|s| {
        let threads: Vec<_> = (0..3usize)
            .map(|t| {
                s.spawn(move || {
                    let (mut n, mut sure) = (0u64, 0);
                    while !stop.load(SeqCst) {
                        n += 1;
                        r.store(t * PAGE + 8, n);
                        if r.region.release(0, 0).is_ok() {
                            sure = n;
                        }
                        let _ = r.region.acquire(0, 0);
                        assert!(r.load(t * PAGE + 8) <= n, "{}: a value from nowhere", r.tag);
                    }
                    sure
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        r.home.end();
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, SeqCst);
        threads.into_iter().map(|t| t.join().expect("a thread")).collect::<Vec<_>>()
    });
    assert_eq!(failovers(r), 1, "{}", r.tag);
    for (t, sure) in last.into_iter().enumerate() {
        assert!(second.word(t * PAGE + 8) >= sure && sure > 0, "{}: thread {t}: {sure} is not there", r.tag);
    }
    std::hint::black_box(r.load(20 * PAGE));
    second.revoke();
    r.store(20 * PAGE, 1);
    assert_eq!(r.region.release(0, 0), Status::REVOKED, "{}", r.tag);
    assert_eq!(r.region.unreleased(9), [(20 * PAGE as u64, 20 * PAGE as u64 + 1)], "{}", r.tag);
}
