//! Connections that come and go, operations and their limits.

use super::{Far, Stopped, far};
use crate::runner::{Case, Cost};
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::link::{Access, AtomicOp, WriteOp};
use smc_engine::sys::clock::Deadline;
use std::time::{Duration, Instant};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("verbs_operations_and_their_counts", |c| far(c, 1, counts)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_connect_and_close", |c| far(c, 1, cycles)).verbs_only().cost(Cost::Quick).timeout(120),
    Case::new("verbs_read_only_and_out_of_range", |c| far(c, 1, limits)).verbs_only().cost(Cost::Quick),
];

pub(super) fn soon() -> Deadline {
    Deadline::in_ms(20_000)
}

/// Each operation of the link does what it says and is counted once, with its bytes.
pub(super) fn counts(f: &Far) -> Stopped {
    let home = f.home(16);
    let link = home.link.clone();
    let key = link.open(&home.region, Access::ReadWrite, soon()).expect("open").key;
    let (data, mut back) = ([7u8; 3 * PAGE], [0u8; 3 * PAGE]);
    for (at, len) in [(0, 1), (8, 8), (100, 300), (PAGE, PAGE), (2 * PAGE + 5, 3 * PAGE)] {
        let before = (link.stats().writes.get(), link.stats().write_bytes.get(), link.stats().fetch_bytes.get());
        // SAFETY: the array is valid for `len`.
        let s = unsafe { link.put(key, HomeOff(at as u64), data.as_ptr(), len, soon()) };
        assert_eq!((s, home.bytes(at, len)), (Status::OK, data[..len].to_vec()), "put {at}+{len}");
        // SAFETY: the array is valid for `len`.
        let s = unsafe { link.fetch(key, HomeOff(at as u64), back.as_mut_ptr(), len, soon()) };
        assert!(s.is_ok() && back[..len] == data[..len], "fetch {at}+{len}: {s}");
        let now = (link.stats().writes.get(), link.stats().write_bytes.get(), link.stats().fetch_bytes.get());
        let len = len as u64;
        assert_eq!((now.0 - before.0, now.1 - before.1, now.2 - before.2), (1, len, len), "{at}+{len}");
    }
    let at = HomeOff(10 * PAGE as u64);
    let atomic = |op| link.atomic(key, at, op, soon()).expect("an atomic");
    let before = link.stats().atomics.get();
    assert_eq!([AtomicOp::Store(5), AtomicOp::FetchAdd(3), AtomicOp::Load].map(atomic), [0, 5, 8]);
    assert_eq!(atomic(AtomicOp::CompareSwap { expected: 8, new: 1 }), 8);
    assert_eq!(atomic(AtomicOp::CompareSwap { expected: 8, new: 2 }), 1);
    assert_eq!((home.word(10 * PAGE), link.stats().atomics.get() - before), (1, 5));
    let before = (link.stats().requests.get(), link.stats().doorbells.get());
    let ops: Vec<WriteOp> = (0..20).map(|i| WriteOp { src: data.as_ptr(), len: 8, off: HomeOff(i * 64) }).collect();
    // SAFETY: the array outlives the wait.
    let ticket = unsafe { link.post(key, &ops) }.expect("a ticket");
    assert_eq!((link.wait(key, ticket, soon()), link.fence(key, soon())), (Status::OK, Status::OK));
    let now = (link.stats().requests.get(), link.stats().doorbells.get());
    // The beat of the region's thread may come in between.
    let (requests, doorbells) = (now.0 - before.0, now.1 - before.1);
    assert!(
        (21..=22).contains(&requests) && (2..=3).contains(&doorbells),
        "{requests} requests, {doorbells} doorbells"
    );
    assert_eq!(link.stats().errors.get(), 0);
    link.close(key);
    Ok(())
}

/// Threads, descriptors, mappings and resident MiB of a process.
fn held(pid: u32) -> [usize; 4] {
    let entries = |d: &str| std::fs::read_dir(format!("/proc/{pid}/{d}")).map_or(0, Iterator::count);
    let text = |f: &str| std::fs::read_to_string(format!("/proc/{pid}/{f}")).unwrap_or_default();
    let pages = text("statm").split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0usize);
    [entries("task"), entries("fd"), text("maps").lines().count(), (pages * PAGE) >> 20]
}

/// What the case and its exporter have, and what programs have of the devices once nothing is being given back any more.
fn all_held(f: &Far) -> ([[usize; 4]; 2], Option<String>) {
    let processes = || [std::process::id(), f.exporters[0].pid()].map(held);
    let (end, mut now) = (Instant::now() + f.seconds(2), (processes(), f.wire.objects()));
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let next = (processes(), f.wire.objects());
        if next == now || Instant::now() > end {
            return next;
        }
        now = next;
    }
}

/// Time that a run which is not long gives to connections where each takes a tenth of a second.
const A_WHILE: Duration = Duration::from_secs(10);

/// Twelve hundred connections, one after the other: each works, and none leaves anything behind at either end. (On an emulated
/// machine as many as fit, unless the run is a long one.)
pub(super) fn cycles(f: &Far) -> Stopped {
    let home = f.home(4);
    let port = f.exporters[0].port();
    home.set(8, 77);
    let one = || {
        let link = f.link(port);
        let key = link.open(&home.region, Access::ReadOnly, soon()).expect("open").key;
        let mut word = [0u8; 8];
        // SAFETY: the array is valid for its length.
        let s = unsafe { link.fetch(key, HomeOff(8), word.as_mut_ptr(), 8, soon()) };
        assert_eq!((s, u64::from_le_bytes(word)), (Status::OK, 77));
        link.close(key);
    };
    (0..5).for_each(|_| one());
    let before = all_held(f);
    let (least, most) = if f.wire.patience() > 1 { (30, 1200) } else { (1200, 1200) };
    let (least, most) = (f.ctx.scale(least, least, 1200), f.ctx.scale(most, most, 5000));
    let (start, mut rounds) = (Instant::now(), 0);
    while rounds < least || rounds < most && start.elapsed() < A_WHILE {
        one();
        rounds += 1;
    }
    println!("{rounds} connections, {:?} each", start.elapsed() / rounds as u32);
    let after = all_held(f);
    let grown = before.0.iter().flatten().zip(after.0.iter().flatten()).any(|(b, a)| *a > b + 8);
    assert!(!grown, "threads, descriptors, mappings, MiB: {:?}, after {rounds} connections {:?}", before.0, after.0);
    assert_eq!(before.1, after.1, "what the devices have, before and after {rounds} connections");
    Ok(())
}

/// What the exporter did not grant and what is not there: refused, and nothing is moved.
pub(super) fn limits(f: &Far) -> Stopped {
    let home = f.home(4);
    let link = home.link.clone();
    let end = 4 * PAGE as u64;
    let key = link.open(&home.region, Access::ReadOnly, soon()).expect("open").key;
    let mut bytes = [1u8; 64];
    // SAFETY: the array is valid for its length.
    let put = unsafe { link.put(key, HomeOff(0), bytes.as_ptr(), 64, soon()) };
    assert_eq!((put, home.bytes(0, 64)), (Status::PERMISSION, vec![0; 64]));
    assert_eq!(link.atomic(key, HomeOff(0), AtomicOp::FetchAdd(1), soon()), Err(Status::PERMISSION));
    for at in [end - 63, end, u64::MAX - 3] {
        // SAFETY: the array is valid for its length.
        let s = unsafe { link.fetch(key, HomeOff(at), bytes.as_mut_ptr(), 64, soon()) };
        assert_eq!(s, Status::OUT_OF_RANGE, "at {at}");
    }
    // SAFETY: the array is valid for its length.
    let s = unsafe { link.fetch(key, HomeOff(end - 64), bytes.as_mut_ptr(), 64, soon()) };
    assert_eq!((s, bytes), (Status::OK, [0; 64]));
    link.close(key);
    // SAFETY: the array is valid for its length.
    let s = unsafe { link.fetch(key, HomeOff(0), bytes.as_mut_ptr(), 64, soon()) };
    assert_eq!(s, Status::NOT_FOUND);
    assert_eq!(
        link.open("no-such-region", Access::ReadOnly, soon()).map(|_| ()).map_err(|e| e.status),
        Err(Status::NOT_FOUND)
    );
    Ok(())
}
