//! Bad weather: what the wire does to messages, and a wire that is gone for a while. No byte is lost and none is wrong.

use super::{Far, Stopped, far, within};
use crate::rig::wire::Fault;
use crate::rig::{POLICIES, Rig, policy};
use crate::runner::{Case, Cost};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::condition::Condition;
use smc_engine::core::options::{MapOptions, Policy};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("verbs_fair_weather", |c| far(c, 1, fair)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_loss_delay_and_order", |c| far(c, 1, loss)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_three_seconds_without_a_wire", |c| far(c, 1, three_seconds)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_a_short_gap_is_not_noticed", |c| far(c, 1, short_gap)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_the_port_comes_and_goes", |c| far(c, 1, many_gaps)).verbs_only().cost(Cost::Quick).timeout(120),
];

const PAGES: usize = 32;

/// Random stores, releases and acquires against a model of the home; at the end both are equal, and a second reader agrees.
fn storm(f: &Far, r: &Rig, model: &mut [u8], rounds: u64, stream: u64) {
    let mut rng = f.ctx.rng(stream);
    for _ in 0..rounds {
        for _ in 0..rng.usize(1..40) {
            let len = [1, 8, 64, 300, PAGE, 3 * PAGE][rng.usize(..6)];
            let at = rng.usize(0..model.len() - len);
            let bytes: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
            r.store_bytes(at, &bytes);
            model[at..at + len].copy_from_slice(&bytes);
        }
        if rng.bool() {
            r.release();
        }
        r.acquire();
        let (at, len) = (rng.usize(..model.len() / 2), rng.usize(1..2 * PAGE));
        assert!(r.bytes(at, len) == model[at..at + len], "{}: a load at {at}", r.tag);
    }
    r.release();
    let home = r.home.bytes(0, model.len());
    let differ = model.iter().zip(&home).position(|(a, b)| a != b);
    assert_eq!(differ, None, "{}: the first byte of the home that differs", r.tag);
    assert_eq!(r.region.invalidate(0, 0), Status::OK, "{}", r.tag);
    assert!(r.bytes(0, model.len()) == model, "{}: what is read back", r.tag);
    assert_eq!((r.region.lost(9), r.region.unreleased(9)), (vec![], vec![]), "{}", r.tag);
}

pub(super) fn fair(f: &Far) -> Stopped {
    for p in POLICIES {
        let r = f.rig(f.home(PAGES), policy(p));
        storm(
            f,
            &r,
            &mut vec![0; PAGES * PAGE],
            f.ctx.scale(if f.wire.patience() > 1 { 3 } else { 10 }, 30, 300),
            p as u64,
        );
        assert_eq!(r.region.stats().fetch_errors.get() + r.region.stats().write_errors.get(), 0, "{}", r.tag);
        assert_eq!(r.region.condition(), (Condition::Ok, Status::OK), "{}", r.tag);
    }
    Ok(())
}

/// Every kind of weather that the device knows, one after the other, on one connection.
fn loss(f: &Far) -> Stopped {
    let r = f.rig(f.home(PAGES), MapOptions { wait_ms: 20_000, ..policy(Policy::Byte) });
    let mut model = vec![0; PAGES * PAGE];
    let mut tried = 0;
    for (i, list) in [
        &[Fault::Loss(1)][..],
        &[Fault::Delay(2000)],
        &[Fault::Loss(1), Fault::Delay(500)],
        &[Fault::Twice(10)],
        &[Fault::Reorder(25)],
        &[Fault::Corrupt(3)],
    ]
    .into_iter()
    .enumerate()
    {
        if let Err(why) = f.wire.faults(list) {
            println!("not tried: {list:?}: {why}");
            continue;
        }
        tried += 1;
        let start = Instant::now();
        storm(f, &r, &mut model, f.ctx.scale(2, 10, 100), i as u64);
        println!("{list:?}: {:?}, {} pages pushed", start.elapsed(), r.region.stats().pages_pushed.get());
    }
    f.wire.faults(&[])?;
    assert!(tried >= 4, "only {tried} kinds of weather were tried");
    storm(f, &r, &mut model, 3, 99);
    Ok(())
}

/// Two threads store and release for as long as `weather` runs; their last values are at the home afterwards.
fn stores_go_on(f: &Far, r: &Rig, weather: impl FnOnce() -> Stopped) -> Stopped {
    let (stop, last, began) = (&AtomicBool::new(false), &[AtomicU64::new(0), AtomicU64::new(0)], Instant::now());
    let end = std::thread::scope(|s| {
        for (t, last) in last.iter().enumerate() {
            s.spawn(move || {
                let mut n = 0;
                while !stop.load(SeqCst) {
                    n += 1;
                    (0..PAGES / 2).for_each(|i| r.store((2 * i + t) * PAGE + 8 * t, n));
                    last.store(n, SeqCst);
                    let s = r.region.release(0, 0);
                    assert!(s.is_ok() || s.is_transient(), "{}: release answered {s}", r.tag);
                    assert_eq!(r.load(t * PAGE + 8 * t), n, "{}: an own store", r.tag);
                }
            });
        }
        // Each is past its first release.
        within(f.seconds(20), &r.tag, "both threads go round", || last.iter().all(|l| l.load(SeqCst) > 1));
        std::thread::sleep(Duration::from_millis(200));
        println!("weather begins after {:?}", began.elapsed());
        let end = weather();
        println!("and is over after {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, SeqCst);
        end
    });
    println!("threads end after {:?}", began.elapsed());
    within(f.seconds(20), &r.tag, "a release goes through", || r.region.release(0, 0).is_ok());
    for (t, last) in last.iter().enumerate() {
        let n = last.load(SeqCst);
        assert!(n > 1, "{}: thread {t} stored {n} times", r.tag);
        (0..PAGES / 2).for_each(|i| r.home_is((2 * i + t) * PAGE + 8 * t, n));
    }
    assert_eq!((r.region.lost(9), r.region.unreleased(9)), (vec![], vec![]), "{}", r.tag);
    within(f.seconds(20), &r.tag, "the region is well", || r.region.condition() == (Condition::Ok, Status::OK));
    end
}

/// The ports are down for three seconds, less than what a wait may take: the program goes on, and no byte is lost.
pub(super) fn three_seconds(f: &Far) -> Stopped {
    let r = f.rig(f.home(PAGES), MapOptions { wait_ms: 20_000, age_ms: 5, ..policy(Policy::Byte) });
    stores_go_on(f, &r, || {
        f.wire.down()?;
        std::thread::sleep(Duration::from_secs(3));
        f.wire.up()
    })
}

/// A gap that the device rides out by repeating: nothing fails, and nothing is told.
fn short_gap(f: &Far) -> Stopped {
    let r = f.rig(f.home(PAGES), MapOptions { wait_ms: 20_000, ..policy(Policy::Byte) });
    stores_go_on(f, &r, || {
        f.wire.cut()?;
        std::thread::sleep(Duration::from_millis(150));
        f.wire.faults(&[])
    })?;
    assert_eq!((r.region.failures(), r.region.stats().pages_poisoned.get()), (0, 0), "{}", r.tag);
    Ok(())
}

/// Again and again, with loads of pages that are not here too.
fn many_gaps(f: &Far) -> Stopped {
    let r = f.rig(f.home(PAGES), MapOptions { wait_ms: 20_000, age_ms: 5, ..policy(Policy::Line) });
    stores_go_on(f, &r, || {
        for round in 0..f.ctx.scale(if f.wire.patience() > 1 { 2 } else { 3 }, 5, 50) {
            f.wire.down()?;
            std::thread::sleep(Duration::from_millis(300 * (round % 3)));
            f.wire.up()?;
            let s = r.region.acquire(0, 0);
            assert!(s.is_ok() || s.is_transient(), "{}: acquire answered {s}", r.tag);
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    })
}
