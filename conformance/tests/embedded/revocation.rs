//! Revocation takes the memory away: from the impolite too, and without loss for everybody else.

use crate::child::{Child, Client, StopOnDrop, eventually, export, export_with, soon, word};
use smc_engine::base::Status;
use smc_engine::core::export::ExportOptions;
use smc_engine::link::{Access, AtomicOp, Health, Link};
use smc_engine::sys::freeze::Freeze;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[test]
fn an_impolite_client_is_left_with_zeros() {
    let e = export("impolite", 8192);
    word(&e, 4096).store(77, SeqCst);
    let polite = Client::open(e.name(), Access::ReadWrite);
    let mut c = Child::start("impolite", &[e.name()]);
    c.expect("ready");
    eventually("its writes arrive while it may", || word(&e, 0).load(SeqCst) > 0);
    let id = e.clients().iter().find(|i| i.pid == c.pid()).unwrap().id;
    e.revoke(id, "test over", false).unwrap();
    word(&e, 0).store(1, SeqCst);
    assert_eq!(e.clients().len(), 1);
    assert_eq!(e.revoke(id, "again", false).unwrap_err().status, Status::NOT_FOUND);
    c.tell("look");
    c.expect("0");
    c.expect("0");
    c.expect("test over");
    // It has been writing all the time.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((word(&e, 0).load(SeqCst), word(&e, 4096).load(SeqCst)), (1, 77));
    assert_eq!((polite.word(0), polite.word(4096)), (Ok(1), Ok(77)));
    assert_eq!(polite.put(4096, &78u64.to_le_bytes()), Status::OK);
    assert_eq!(word(&e, 4096).load(SeqCst), 78);
    assert_eq!(polite.link.health(polite.key), Health::Up);
}

/// Threads of the exporter and a polite client count while clients come and are revoked.
#[test]
fn no_increment_is_lost_while_the_memory_moves() {
    let e = export("count", 1 << 20);
    // Words on the same page and on a page of their own, and one on a page nobody touched before.
    let places = [0usize, 8, 4096, 512 << 10];
    let stop = AtomicBool::new(false);
    let polite = Client::open(e.name(), Access::ReadWrite);
    std::thread::scope(|s| {
        let stopper = StopOnDrop(&stop);
        let counters: Vec<_> = places
            .iter()
            .map(|&at| {
                let (e, stop) = (&e, &stop);
                s.spawn(move || {
                    let mut n = 0u64;
                    while !stop.load(SeqCst) {
                        // A plain store, not an atomic operation: this thread is the word's only writer.
                        n += 1;
                        word(e, at).store(n, SeqCst);
                        assert_eq!(word(e, at).load(SeqCst), n, "a store was lost");
                    }
                    n
                })
            })
            .collect();
        let client = s.spawn(|| {
            let mut n = 0u64;
            while !stop.load(SeqCst) {
                assert_eq!(polite.atomic(16, AtomicOp::FetchAdd(1)), Ok(n));
                assert_eq!(polite.put(8192, &n.to_le_bytes()), Status::OK);
                assert_eq!(polite.word(8192), Ok(n), "stale or zero bytes");
                n += 1;
            }
            n
        });
        for round in 0..60 {
            let gone = Client::open(e.name(), Access::ReadWrite);
            let id = e.clients().iter().map(|c| c.id).max().unwrap();
            e.revoke(id, "out", false).unwrap_or_else(|e| panic!("round {round}: {e}"));
            assert_eq!(gone.word(0), Err(Status::REVOKED));
        }
        drop(stopper);
        for (c, at) in counters.into_iter().zip(places) {
            assert_eq!(c.join().unwrap(), word(&e, at).load(SeqCst), "word at {at}");
        }
        assert_eq!(client.join().unwrap(), word(&e, 16).load(SeqCst));
    });
    assert_eq!(e.clients().len(), 1);
}

/// Large enough that a copy of it is often interrupted by the move.
const LARGE: usize = 4 << 20;

/// A page filled with one value is never seen as anything else, zeros least of all.
#[test]
fn a_fetch_never_shows_the_hole() {
    let e = export("hole", LARGE);
    // SAFETY: inside the exported memory.
    unsafe { e.base().write_bytes(0xab, e.len()) };
    let polite = Client::open(e.name(), Access::ReadOnly);
    let full = &vec![0xab; LARGE];
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let stopper = StopOnDrop(&stop);
        let stays = s.spawn(|| {
            let mut buf = vec![0u8; LARGE];
            while !stop.load(SeqCst) {
                assert_eq!(polite.fetch(0, &mut buf), Status::OK);
                assert!(buf == *full, "a fetch that said OK showed other bytes");
            }
        });
        for _ in 0..40 {
            let c = Client::open(e.name(), Access::ReadOnly);
            let id = e.clients().iter().map(|c| c.id).max().unwrap();
            let reader = s.spawn(move || {
                let mut buf = vec![0u8; LARGE];
                loop {
                    match c.fetch(0, &mut buf) {
                        Status::OK => assert!(buf == *full, "the revoked saw other bytes"),
                        s => break s,
                    }
                }
            });
            e.revoke(id, "out", false).unwrap();
            assert_eq!(reader.join().unwrap(), Status::REVOKED);
        }
        drop(stopper);
        stays.join().unwrap();
    });
}

#[test]
fn a_read_only_export_can_be_revoked_too() {
    let e = export_with("rosrv", 8192, ExportOptions { access: Access::ReadOnly, ..Default::default() });
    word(&e, 0).store(5, SeqCst);
    let (a, b) = (Client::open(e.name(), Access::ReadOnly), Client::open(e.name(), Access::ReadOnly));
    let first = e.clients().iter().map(|c| c.id).min().unwrap();
    e.revoke(first, "out", false).unwrap();
    word(&e, 0).store(6, SeqCst);
    assert_eq!((a.word(0), b.word(0)), (Err(Status::REVOKED), Ok(6)));
    e.revoke_all("all out", false).unwrap();
    assert_eq!(b.word(0), Err(Status::REVOKED));
    assert_eq!(e.wait_clients_gone(soon()), Status::OK);
    // The export itself goes on.
    assert_eq!(Client::open(e.name(), Access::ReadOnly).word(0), Ok(6));
}

/// A client that is stopped in the middle of a write is waited for a second, then revoked as well.
#[test]
fn a_client_that_does_not_drain_is_revoked() {
    let e = export("stuck", 8192);
    let mut stuck = Child::start("stuck", &[e.name()]);
    stuck.expect("ready");
    let out = Client::open(e.name(), Access::ReadWrite);
    let id = e.clients().iter().find(|c| c.pid == std::process::id()).unwrap().id;
    let began = Instant::now();
    e.revoke(id, "out", false).unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(900) && took < Duration::from_secs(8), "{took:?}");
    assert_eq!(e.wait_clients_gone(soon()), Status::OK);
    assert_eq!(out.word(0), Err(Status::REVOKED));
    stuck.kill();
}

/// Where our own writers cannot be stopped the caller has to say that there are none.
#[test]
fn without_userfaultfd_the_caller_must_vouch() {
    if !Freeze::available() {
        eprintln!("skipped: no userfaultfd here");
        return;
    }
    let e = export("vouch", 8192);
    word(&e, 0).store(5, SeqCst);
    let (a, b) = (Client::open(e.name(), Access::ReadWrite), Client::open(e.name(), Access::ReadWrite));
    let id = e.clients().iter().map(|c| c.id).min().unwrap();
    // Somebody else watches the range: the kernel allows one userfaultfd per mapping.
    // SAFETY: this thread does not store into the range while it is frozen.
    let other = unsafe { Freeze::new(e.base() as usize, e.len(), false) }.unwrap();
    let refused = e.revoke(id, "out", false).unwrap_err();
    assert_eq!(refused.status, Status::BUSY, "{refused}");
    assert!(refused.remedy.contains("quiesced"), "{refused}");
    assert_eq!((a.word(0), b.word(0)), (Ok(5), Ok(5)), "a refused revocation changes nothing");
    assert_eq!(e.clients().len(), 2);
    e.revoke(id, "out", true).unwrap();
    other.thaw_replaced();
    word(&e, 0).store(6, SeqCst);
    assert_eq!((a.word(0), b.word(0)), (Err(Status::REVOKED), Ok(6)));
}

#[test]
fn handlers_may_fetch_while_the_memory_moves() {
    let e = export("handler", 8 << 20);
    word(&e, 4096).store(0x7777, SeqCst);
    let mut c = Child::start("handler", &[e.name()]);
    c.expect("ready");
    for round in 0..50 {
        let gone = Client::open(e.name(), Access::ReadOnly);
        let id = e.clients().iter().find(|i| i.pid == std::process::id()).unwrap().id;
        e.revoke(id, "out", false).unwrap_or_else(|e| panic!("round {round}: {e}"));
        drop(gone);
    }
    c.tell("stop");
    let n: u64 = c.hear().parse().unwrap();
    assert_eq!(word(&e, 0).load(SeqCst), n);
    assert_eq!(e.clients().len(), 1, "the polite client was taken for a stuck one");
    c.expect("0");
    c.expect("true");
}

/// A system call that writes into the memory sleeps through the move like a store (where the full userfaultfd is permitted).
#[test]
fn system_calls_into_moving_memory_just_work() {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: needs the full userfaultfd");
        return;
    }
    let e = export("syscall", LARGE);
    // SAFETY: inside the exported memory.
    unsafe { e.base().write_bytes(1, LARGE) };
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let stopper = StopOnDrop(&stop);
        let (at, stop) = (e.base() as usize + 4096, &stop);
        let writer = s.spawn(move || {
            let mut n = 0u64;
            let (from, to) = std::io::pipe().unwrap();
            while !stop.load(SeqCst) {
                n += 1;
                std::io::Write::write_all(&mut &to, &n.to_le_bytes()).unwrap();
                // SAFETY: eight bytes of the exported memory, which only this thread writes.
                let got = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&from), at as *mut libc::c_void, 8) };
                assert_eq!(got, 8, "{}", std::io::Error::last_os_error());
            }
            n
        });
        for _ in 0..30 {
            let gone = Client::open(e.name(), Access::ReadOnly);
            e.revoke_all("out", false).unwrap();
            drop(gone);
        }
        drop(stopper);
        assert_eq!(writer.join().unwrap(), word(&e, 4096).load(SeqCst));
    });
}
