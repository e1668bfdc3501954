//! Bytes, words, ranges, lists, closing.

use crate::child::{Child, Client, eventually, export, soon, unique, word};
use smc_engine::base::{HomeOff, Status};
use smc_engine::core::export::{ExportOptions, Exporter, Memory};
use smc_engine::link::embedded::{EmbeddedLink, list_local};
use smc_engine::link::{Access, AtomicOp, Health, Link, MemoryKind, RegionKey, WriteOp};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn bytes_travel_both_ways_between_processes() {
    let e = export("bytes", 4 << 20);
    for i in 0..3usize << 20 {
        // SAFETY: inside the exported memory.
        unsafe { e.base().wrapping_add(i).write_volatile((i % 251) as u8) };
    }
    word(&e, (4 << 20) - 8).store(37, SeqCst);
    let mut c = Child::start("transfer", &[e.name()]);
    c.expect("true");
    c.expect("37");
    assert_eq!(word(&e, (4 << 20) - 8).load(SeqCst), 42);
    for i in 0..3usize << 20 {
        // SAFETY: inside the exported memory.
        assert_eq!(unsafe { e.base().wrapping_add(i).read_volatile() }, ((i % 251) as u8).wrapping_add(1), "byte {i}");
    }
    assert_eq!(e.clients().iter().map(|c| c.pid).collect::<Vec<_>>(), [c.pid()]);
    c.tell("close");
    c.expect("closed");
    assert_eq!(e.wait_clients_gone(soon()), Status::OK);
}

#[test]
fn every_operation_and_its_limits() {
    let e = export("ops", 8192);
    let c = Client::open(e.name(), Access::ReadWrite);
    assert_eq!(c.link.health(c.key), Health::Up);
    let (a, b) = ([1u8; 100], 0x1122_3344_5566_7788u64.to_le_bytes());
    let ops = [
        WriteOp { src: a.as_ptr(), len: 100, off: HomeOff(8192 - 100) },
        WriteOp { src: b.as_ptr(), len: 8, off: HomeOff(16) },
    ];
    // SAFETY: both sources live until the wait below.
    let t = unsafe { c.link.post(c.key, &ops) }.unwrap();
    assert_eq!(c.link.wait(c.key, t, soon()), Status::OK);
    assert_eq!(c.link.fence(c.key, soon()), Status::OK);
    assert_eq!(word(&e, 16).load(SeqCst), 0x1122_3344_5566_7788);
    assert_eq!(word(&e, 8192 - 8).load(SeqCst), 0x0101_0101_0101_0101);
    assert_eq!(word(&e, 24).load(SeqCst), 0);

    assert_eq!(c.atomic(16, AtomicOp::Store(5)), Ok(0x1122_3344_5566_7788));
    assert_eq!(c.atomic(16, AtomicOp::FetchAdd(u64::MAX)), Ok(5));
    assert_eq!(c.atomic(16, AtomicOp::CompareSwap { expected: 5, new: 9 }), Ok(4));
    assert_eq!(c.atomic(16, AtomicOp::CompareSwap { expected: 4, new: 9 }), Ok(4));
    assert_eq!(c.atomic(16, AtomicOp::Load), Ok(9));
    assert_eq!(c.atomic(12, AtomicOp::Load), Err(Status::INVALID_ARGUMENT));

    let mut buf = [0u8; 100];
    assert_eq!(c.fetch(8192 - 99, &mut buf), Status::OUT_OF_RANGE);
    assert_eq!(c.put(8192, &[1]), Status::OUT_OF_RANGE);
    assert_eq!(c.put(u64::MAX, &[1]), Status::OUT_OF_RANGE);
    assert_eq!(c.atomic(8192, AtomicOp::Load), Err(Status::OUT_OF_RANGE));
    // SAFETY: the source lives; the range is refused.
    let r = unsafe { c.link.post(c.key, &[WriteOp { src: a.as_ptr(), len: 100, off: HomeOff(8100) }]) };
    assert_eq!(r, Err(Status::OUT_OF_RANGE));

    let s = c.link.stats();
    assert_eq!((s.writes.get(), s.write_bytes.get(), s.atomics.get(), s.fences.get()), (2, 108, 5, 1));
    c.link.close(c.key);
    assert_eq!(c.fetch(0, &mut buf), Status::NOT_FOUND);
    assert_eq!(c.link.health(c.key), Health::Down(Status::NOT_FOUND));
    assert_eq!(c.link.health(RegionKey(0)), Health::Down(Status::NOT_FOUND));
    eventually("the exporter sees the close", || e.clients().is_empty());
}

#[test]
fn atomics_of_four_processes_add_up() {
    let e = export("sum", 4096);
    let mut all: Vec<Child> = (0..4).map(|_| Child::start("adder", &[e.name(), "20000"])).collect();
    all.iter().for_each(|c| c.expect("ready"));
    all.iter_mut().for_each(|c| c.tell("go"));
    all.iter().for_each(|c| c.expect("done"));
    assert_eq!(word(&e, 64).load(SeqCst), 80_000);
}

#[test]
fn sixty_four_clients_of_one_region() {
    let e = export("many", 4096);
    let firsts = ["0", "16", "32", "48"];
    let mut all: Vec<Child> = firsts.iter().map(|f| Child::start("many", &[e.name(), f])).collect();
    all.iter().for_each(|c| c.expect("ready"));
    assert_eq!(e.clients().len(), 64);
    all.iter_mut().for_each(|c| c.tell("go"));
    all.iter().for_each(|c| c.expect("done"));
    for i in 0..64 {
        assert_eq!(word(&e, i * 8).load(SeqCst), i as u64 * 8 + 1);
    }
    drop(all);
    assert_eq!(e.wait_clients_gone(soon()), Status::OK);
}

#[test]
fn names_are_listed_whatever_their_length() {
    let long = unique("long") + &"x".repeat(200);
    let long = &long[..200];
    let exporter = Exporter::get().unwrap();
    let a = exporter.export(long, Memory::New(8192), ExportOptions::default()).unwrap();
    let more: Vec<_> = (0..20).map(|_| export("listed", 4096)).collect();
    let c = Client::open(long, Access::ReadOnly);
    let all = c.link.list(soon()).unwrap();
    let found = all.iter().find(|r| r.name == long).expect("the long name is listed");
    assert_eq!((found.len, found.access, found.kind, found.clients), (8192, Access::ReadWrite, MemoryKind::System, 1));
    assert_eq!(found.pid, std::process::id());
    for m in &more {
        assert_eq!(all.iter().filter(|r| r.name == m.name()).count(), 1, "{}", m.name());
        assert!(list_local().unwrap().iter().any(|n| n == m.name()));
    }
    let gone = a.name().to_owned();
    drop(a);
    assert!(!c.link.list(soon()).unwrap().iter().any(|r| r.name == gone));
}

#[test]
fn opening_what_is_not_there() {
    let link = EmbeddedLink::connect_local();
    assert_eq!(link.open(&unique("nobody"), Access::ReadOnly, soon()).unwrap_err().status, Status::NOT_FOUND);
    for bad in ["", ".a", "a/b", &"x".repeat(201)] {
        assert_eq!(link.open(bad, Access::ReadOnly, soon()).unwrap_err().status, Status::INVALID_ARGUMENT);
    }
}

#[test]
fn slots_are_used_again_and_old_keys_stay_dead() {
    let e = export("slots", 4096);
    let link = EmbeddedLink::connect_local();
    let first = link.open(e.name(), Access::ReadWrite, soon()).unwrap().key;
    link.close(first);
    for _ in 0..50 {
        let k = link.open(e.name(), Access::ReadWrite, soon()).unwrap().key;
        assert_ne!(k, first);
        assert_eq!(link.atomic(first, HomeOff(0), AtomicOp::Load, soon()), Err(Status::NOT_FOUND));
        assert!(link.atomic(k, HomeOff(0), AtomicOp::FetchAdd(1), soon()).is_ok());
        link.close(k);
    }
    assert_eq!(word(&e, 0).load(SeqCst), 50);
}

/// Not a test: prints what the operations cost. `cargo test --release --test embedded -- --ignored --nocapture speed`
#[test]
#[ignore = "prints figures"]
fn speed() {
    let e = export("speed", 8 << 20);
    let c = Client::open(e.name(), Access::ReadWrite);
    let mut buf = vec![1u8; 2 << 20];
    for len in [8, 64, 4096, 64 << 10, 2 << 20] {
        let rounds = (64 << 20) / len.max(1024);
        let per = |f: &mut dyn FnMut()| {
            f();
            let t = std::time::Instant::now();
            (0..rounds).for_each(|_| f());
            t.elapsed().as_nanos() as usize / rounds
        };
        let fetch = per(&mut || assert!(c.fetch(0, &mut buf[..len]).is_ok()));
        let put = per(&mut || assert!(c.put(0, &buf[..len]).is_ok()));
        let atomic = per(&mut || assert!(c.atomic(0, AtomicOp::FetchAdd(1)).is_ok()));
        println!("{len:8} bytes: fetch {fetch} ns, put {put} ns, fetch-add {atomic} ns");
    }
}
