//! Life and death of an export; memory of the caller.

use crate::child::{Child, Client, StopOnDrop, eventually, export, soon, unique, word};
use smc_engine::base::Status;
use smc_engine::core::export::{ExportOptions, Exporter, Memory};
use smc_engine::link::{Access, AtomicOp, Health, Link, MemoryKind};
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::mem::{Mapping, RW};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

#[test]
fn a_dead_exporter_is_noticed() {
    for how in ["plain", "fork"] {
        let name = unique("dies");
        let mut c = Child::start("exporter", &[&name, how]);
        c.expect("ready");
        let me = Client::open(&name, Access::ReadWrite);
        assert_eq!(me.word(0), Ok(42));
        c.kill();
        eventually("the death is seen", || me.link.health(me.key) == Health::Retrying(Status::PEER_DEAD));
        assert_eq!(me.word(0), Err(Status::PEER_DEAD));
        assert_eq!(me.put(0, &[1]), Status::PEER_DEAD);
        assert_eq!(me.atomic(0, AtomicOp::FetchAdd(1)), Err(Status::PEER_DEAD));
        assert_eq!(me.link.fence(me.key, soon()), Status::PEER_DEAD);
        // The name is free at once.
        drop(Exporter::get().unwrap().export(&name, Memory::New(4096), ExportOptions::default()).unwrap());
    }
}

#[test]
fn a_name_can_be_taken_once() {
    let name = unique("taken");
    let c = Child::start("exporter", &[&name]);
    c.expect("ready");
    let again = || Exporter::get().unwrap().export(&name, Memory::New(4096), ExportOptions::default());
    assert_eq!(again().unwrap_err().status, Status::EXISTS);
    drop(c);
    let e = again().unwrap();
    assert_eq!(again().unwrap_err().status, Status::EXISTS);
    Child::start("exporter", &[&name]).expect("EXISTS");
    drop(e);
    drop(again().unwrap());
}

#[test]
fn closing_every_descriptor_does_not_blind_the_exporter() {
    let name = unique("blind");
    let c = Child::start("exporter", &[&name, "close-range"]);
    c.expect("ready");
    assert_eq!(Client::open(&name, Access::ReadWrite).word(0), Ok(42));
}

#[test]
fn nothing_runs_before_the_first_use() {
    Child::start("idle", &[&unique("idle")]).expect("ok");
}

#[test]
fn a_fork_child_is_told_so() {
    let e = export("fork", 4096);
    word(&e, 0).store(7, SeqCst);
    let c = Child::start("fork-client", &[e.name()]);
    c.expect("0");
    c.expect("7");
}

#[test]
fn ending_an_export_shuts_its_clients_out() {
    let e = export("ends", 4096);
    let c = Client::open(e.name(), Access::ReadWrite);
    word(&e, 0).store(5, SeqCst);
    assert_eq!(c.word(0), Ok(5));
    drop(e);
    assert_eq!(c.word(0), Err(Status::PEER_DEAD));
    assert_eq!(c.put(0, &[1]), Status::PEER_DEAD);
    assert_eq!(c.link.health(c.key), Health::Retrying(Status::PEER_DEAD));
}

fn maps_line(addr: usize) -> String {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |l: &&str| {
        let (a, b) = l.split(' ').next().unwrap().split_once('-').unwrap();
        (usize::from_str_radix(a, 16).unwrap()..usize::from_str_radix(b, 16).unwrap()).contains(&addr)
    };
    text.lines().find(holds).unwrap_or_default().to_owned()
}

/// Exports `len` bytes at `p` in place while a thread counts in the last word; nothing may be lost on either move.
fn in_place(p: *mut u8, len: usize) {
    let words = len / 8;
    for i in 0..words - 1 {
        // SAFETY: inside the caller's memory.
        unsafe { p.cast::<u64>().wrapping_add(i).write_volatile(i as u64 * 3) };
    }
    let last = p as usize + len - 8;
    let stop = AtomicBool::new(false);
    let counted = std::thread::scope(|s| {
        let stopper = StopOnDrop(&stop);
        let counter = s.spawn(|| {
            // SAFETY: an aligned word of the caller's memory.
            let w = unsafe { &*(last as *const AtomicU64) };
            let mut n = 0;
            while !stop.load(SeqCst) {
                w.fetch_add(1, SeqCst);
                n += 1;
            }
            n
        });
        for _ in 0..5 {
            // SAFETY: plain memory of this test, and only atomics touch it from other threads.
            let m = unsafe { Memory::at(p, len) };
            let e = Exporter::get().unwrap().export(&unique("place"), m, ExportOptions::default()).unwrap();
            assert_eq!((e.base(), e.len(), e.kind()), (p, len, MemoryKind::System));
            assert!(maps_line(p as usize).contains("rw-s"), "{}", maps_line(p as usize));
            let c = Client::open(e.name(), Access::ReadWrite);
            for i in [0, 1, words / 2, words - 2] {
                assert_eq!(c.word(i as u64 * 8), Ok(i as u64 * 3));
            }
            drop(e);
            assert!(maps_line(p as usize).contains("rw-p"), "private again: {}", maps_line(p as usize));
        }
        drop(stopper);
        counter.join().unwrap()
    });
    for i in 0..words - 1 {
        // SAFETY: inside the caller's memory.
        assert_eq!(unsafe { p.cast::<u64>().wrapping_add(i).read_volatile() }, i as u64 * 3);
    }
    // SAFETY: as above.
    assert_eq!(unsafe { (last as *const u64).read_volatile() }, counted, "lost increments");
}

#[test]
fn mapped_memory_is_exported_in_place() {
    let m = Mapping::anonymous(2 << 20, RW).unwrap();
    in_place(m.ptr(), m.len());
}

#[test]
fn malloc_memory_is_exported_in_place() {
    for len in [3 << 12, 5 << 20] {
        // SAFETY: plain allocation.
        let p = unsafe { libc::aligned_alloc(4096, len) }.cast::<u8>();
        // SAFETY: the block is `len` bytes.
        unsafe { p.write_bytes(0, len) };
        in_place(p, len);
        // SAFETY: allocated above, private again.
        unsafe { libc::free(p.cast()) };
    }
}

#[test]
fn locked_memory_is_known_as_pinned() {
    let m = Mapping::anonymous(64 << 10, RW).unwrap();
    // SAFETY: locks our own mapping.
    if unsafe { libc::mlock(m.ptr().cast(), m.len()) } != 0 {
        eprintln!("skipped: cannot lock memory");
        return;
    }
    // SAFETY: plain memory of this test.
    let mem = unsafe { Memory::at(m.ptr(), m.len()) };
    let e = Exporter::get().unwrap().export(&unique("pinned"), mem, ExportOptions::default()).unwrap();
    assert_eq!(e.kind(), MemoryKind::Pinned);
    e.revoke_all("nobody", false).unwrap();
}

#[test]
fn memory_that_cannot_be_exported_says_why() {
    let exporter = Exporter::get().unwrap();
    let at = |p: *mut u8, len| {
        // SAFETY: refused before anything is touched.
        let m = unsafe { Memory::at(p, len) };
        exporter.export(&unique("odd"), m, ExportOptions::default()).unwrap_err()
    };
    let e = export("odd", 8192);
    let shared = at(e.base(), 4096);
    assert_eq!(shared.status, Status::NOT_SUPPORTED);
    assert!(shared.to_string().contains("private anonymous"), "{shared}");
    assert_eq!(at(4096 as *mut u8, 4096).status, Status::INVALID_ARGUMENT);
    assert_eq!(at((e.base() as usize + 8) as *mut u8, 4096).status, Status::INVALID_ARGUMENT);
    assert_eq!(
        exporter.export("a/b", Memory::New(1), ExportOptions::default()).unwrap_err().status,
        Status::INVALID_ARGUMENT
    );
    assert_eq!(
        exporter.export("a", Memory::New(0), ExportOptions::default()).unwrap_err().status,
        Status::INVALID_ARGUMENT
    );
    // A failed export leaves the name free.
    let name = unique("free");
    // SAFETY: refused before anything is touched.
    let bad = unsafe { Memory::at(e.base(), 4096) };
    assert!(exporter.export(&name, bad, ExportOptions::default()).is_err());
    assert!(exporter.export(&name, Memory::New(1), ExportOptions::default()).is_ok());
}

/// A stopped exporter is silent, not dead: bytes still move, and its return is noticed.
#[test]
fn a_stopped_exporter_is_ridden_out() {
    let name = unique("stopped");
    let c = Child::start("exporter", &[&name]);
    c.expect("ready");
    let me = Client::open(&name, Access::ReadWrite);
    let signal = |s| {
        // SAFETY: signals our own child.
        assert_eq!(unsafe { libc::kill(c.pid() as i32, s) }, 0);
    };
    signal(libc::SIGSTOP);
    let end = Deadline::in_ms(14_000);
    while me.link.health(me.key) != Health::Retrying(Status::TIMED_OUT) {
        assert!(!end.passed(), "the silence was not noticed");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(me.word(0), Ok(42));
    signal(libc::SIGCONT);
    eventually("it is back", || me.link.health(me.key) == Health::Up);
}
