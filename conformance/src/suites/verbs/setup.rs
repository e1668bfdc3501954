//! Connections that come and go, and devices that refuse.

use super::{Far, Stopped, far};
use crate::rig::policy;
use crate::runner::{Case, Cost};
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::core::options::Policy;
use smc_engine::link::{Access, AtomicOp, WriteOp};
use smc_engine::sys::clock::Deadline;

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("verbs_operations_and_their_counts", |c| far(c, 1, counts)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_connect_and_close", |c| far(c, 1, cycles)).verbs_only().cost(Cost::Quick).timeout(120),
    Case::new("verbs_registrations_are_refused", |c| far(c, 1, refused)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_little_memory_may_be_locked", |c| far(c, 1, small_limit)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_read_only_and_out_of_range", |c| far(c, 1, limits)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_a_forked_child_reads_its_data", |c| far(c, 1, forked)).verbs_only().cost(Cost::Quick),
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

/// Threads, descriptors and mappings of this process.
fn held() -> [usize; 3] {
    let entries = |d: &str| std::fs::read_dir(d).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    [entries("/proc/self/task"), entries("/proc/self/fd"), maps.lines().count()]
}

/// Twelve hundred connections, one after the other: each works, and none leaves anything behind. (Fewer in a quick run on an emulated
/// machine.)
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
    let before = held();
    let rounds = f.ctx.scale(if f.wire.patience() > 1 { 30 } else { 1200 }, 1200, 5000);
    (0..rounds).for_each(|_| one());
    let after = held();
    let grown = before.iter().zip(after).any(|(b, a)| a > b + 8);
    assert!(!grown, "threads, descriptors, mappings: {before:?}, after {rounds} connections {after:?}");
    Ok(())
}

/// A device that registers nothing (RLIMIT_MEMLOCK, as a rule): an error that names the cause, and no crash; later it works.
fn refused(f: &Far) -> Stopped {
    let home = f.home(4);
    f.wire.refuse_registrations(libc::ENOMEM)?;
    let link = f.link(f.exporters[0].port());
    let error = link.open(&home.region, Access::ReadWrite, Deadline::in_ms(3000)).expect_err("an open without memory");
    println!("{error}");
    assert!(error.to_string().to_lowercase().contains("memlock"), "the limit is not named: {error}");
    f.wire.refuse_registrations(0)?;
    let r = f.rig(home, policy(Policy::Byte));
    r.store(8, 5);
    r.release();
    r.home_is(8, 5);
    Ok(())
}

/// Little memory may be locked, and no privilege helps: with too little the error names the limit, with the usual 8 MiB all works.
fn small_limit(f: &Far) -> Stopped {
    if f.wire.devices()[0].starts_with("soft") {
        return Err("the soft HCA locks no memory".into());
    }
    give_up_ipc_lock()?;
    let home = f.home(64);
    let limit = |bytes| {
        let l = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a valid limit, lower than the hard one.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const l) }, 0);
    };
    limit(16 << 10);
    match f.link(f.exporters[0].port()).open(&home.region, Access::ReadWrite, soon()) {
        Ok(_) => println!("16 KiB are enough"),
        Err(e) => assert!(e.to_string().contains("MEMLOCK"), "the limit is not named: {e}"),
    }
    limit(8 << 20);
    let r = f.rig(home, policy(Policy::Byte));
    (0..64).for_each(|p| r.store(p * PAGE, 7));
    r.release();
    (0..64).for_each(|p| r.home_is(p * PAGE, 7));
    Ok(())
}

/// The limit holds for root too from now on.
fn give_up_ipc_lock() -> Stopped {
    const VERSION_3: u32 = 0x2008_0522;
    const IPC_LOCK: u32 = 14;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable, for the lower and the upper 32.
    let mut sets = [0u32; 6];
    // SAFETY: header and sets are what version 3 takes.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    sets[..3].iter_mut().for_each(|s| *s &= !(1 << IPC_LOCK));
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    if got == 0 && set == 0 { Ok(()) } else { Err(format!("capset: {}", std::io::Error::last_os_error())) }
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

/// Memory that the library registered is its own: a fork child finds the program's data, next to any of it, as it was.
fn forked(f: &Far) -> Stopped {
    let r = f.rig(f.home(16), policy(Policy::Byte));
    let data: Vec<Box<[u64; 500]>> = (0..200).map(|i| Box::new([i; 500])).collect();
    (0..16).for_each(|p| r.store(p * PAGE, 7));
    r.release();
    // SAFETY: the child calls nothing that could need a lock of the other threads.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let right = data.iter().enumerate().all(|(i, d)| d.iter().all(|w| *w == i as u64));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: our own child; status is a valid out pointer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0, "the child ended with {status:#x}");
    (0..16).for_each(|p| r.store(p * PAGE + 8, 8));
    r.release();
    (0..16).for_each(|p| r.home_is(p * PAGE + 8, 8));
    Ok(())
}
