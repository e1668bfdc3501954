//! Exact write-through: the home has the bytes when the store instruction has returned, and nothing need be released.

use crate::cases;
use crate::rig::node::{Ask, Node};
use crate::rig::{Bench, Home, Rig, load, policy, store};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, OnError, Policy, Through};
use smc_engine::link::AtomicOp;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

cases!(CASES, "paging",
    exact_stores: Quick, 60;
    exact_copies: Quick, 60;
    exact_atomics: Quick, 60;
    exact_two_processes: Quick, 60, children 1;
    exact_revoked: Quick, 60;
    exact_dead_peer: Quick, 60, children 1;
);

fn exact() -> MapOptions {
    MapOptions { through: Through::Exact, ..policy(Policy::Byte) }
}

/// Stores of every width, aligned and not, across lines and pages, on every kind of home that is looked at directly.
fn exact_stores(b: &Bench) {
    for make in [Home::loopback, Home::embedded, Home::wired] {
        let r = b.rig(make(8 * PAGE, b.ctx.seed).numbered(), exact());
        let mut rng = b.ctx.rng(21);
        for n in 1..=b.ctx.scale(200, 1000, 20_000) {
            let (at, value) = (rng.usize(0..8 * PAGE - 8), rng.u64(..));
            let len = 1 << (n % 4);
            store_some(r.v + at, value, len);
            assert_eq!(r.home.bytes(at, len), value.to_le_bytes()[..len], "{}: {len} bytes at {at}", r.tag);
        }
        // Another's store to the same page is not undone by ours.
        r.home.poke(3 * PAGE + 100, &[0x77]);
        r.store8(3 * PAGE + 101, 0x78);
        assert_eq!(r.home.bytes(3 * PAGE + 100, 2), [0x77, 0x78], "{}", r.tag);
        r.acquire();
        assert_eq!(r.bytes(3 * PAGE + 100, 2), [0x77, 0x78], "{}", r.tag);
        assert!(r.region.stats().stores_emulated.get() > 0, "{}", r.tag);
        assert_eq!(r.unmap(), Status::OK, "{}", r.tag);
    }
}

/// One store of 1, 2, 4 or 8 bytes.
fn store_some(at: usize, value: u64, len: usize) {
    let p = at as *mut u8;
    match len {
        // SAFETY: callers pass an address with eight bytes of a view behind it; nobody holds a reference into it.
        1 => unsafe { p.write_volatile(value as u8) },
        // SAFETY: as above.
        2 => unsafe { p.cast::<u16>().write_unaligned(value as u16) },
        // SAFETY: as above.
        4 => unsafe { p.cast::<u32>().write_unaligned(value as u32) },
        // SAFETY: as above.
        _ => unsafe { p.cast::<u64>().write_unaligned(value) },
    }
}

/// memcpy, memmove over itself and memset, of every small length and some large ones.
fn exact_copies(b: &Bench) {
    for make in [Home::loopback, Home::embedded] {
        let r = b.rig(make(8 * PAGE, b.ctx.seed), exact());
        let src: Vec<u8> = (0..5 * PAGE as u32).map(|i| (i * 7 + 1) as u8).collect();
        for n in (1..140).chain([255, 256, 1000, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5]) {
            let at = PAGE - n % 97;
            r.store_bytes(at, &src[..n]);
            assert!(r.home.bytes(at, n) == src[..n], "{}: memcpy of {n}", r.tag);
            let p = (r.v + at) as *mut u8;
            // SAFETY: both pieces lie inside the view; they overlap, which memmove allows.
            unsafe { std::ptr::copy(p, p.wrapping_add(3), n) };
            assert!(r.home.bytes(at + 3, n) == src[..n], "{}: memmove of {n}", r.tag);
            // SAFETY: inside the view.
            unsafe { std::ptr::write_bytes(p, n as u8, n) };
            assert!(r.home.bytes(at, n) == vec![n as u8; n], "{}: memset of {n}", r.tag);
        }
    }
}

/// Locked instructions of four threads on shared words: every one counts, here and at the home, also while operations
/// at the home go on beside them.
fn exact_atomics(b: &Bench) {
    let per = b.ctx.scale(300, 2000, 50_000);
    for make in [Home::loopback, Home::embedded] {
        let r = b.rig(make(2 * PAGE, b.ctx.seed), exact());
        let v = r.v;
        std::thread::scope(|s| {
            for t in 0..4u64 {
                s.spawn(move || {
                    // SAFETY: aligned words inside the view, used by locked instructions only.
                    let sum = unsafe { AtomicU64::from_ptr(v as *mut u64) };
                    // SAFETY: as above.
                    let bits = unsafe { AtomicU32::from_ptr((v + 64) as *mut u32) };
                    // SAFETY: as above.
                    let cas = unsafe { AtomicU64::from_ptr((v + PAGE) as *mut u64) };
                    for i in 0..per {
                        sum.fetch_add(1, SeqCst);
                        bits.fetch_xor(1 << (t * 8 + i % 8), SeqCst);
                        let _ = cas.fetch_update(SeqCst, SeqCst, |x| Some(x + 2));
                    }
                });
            }
        });
        r.home_is(0, 4 * per);
        r.loads(0, 4 * per);
        r.home_is(PAGE, 8 * per);
        let bits = (0..4).flat_map(|t| (0..per).map(move |i| 1u32 << (t * 8 + i % 8))).fold(0, |a, b| a ^ b);
        assert_eq!(r.home.bytes(64, 4), bits.to_le_bytes(), "{}", r.tag);
        assert_eq!(r.region.at_home(8, AtomicOp::FetchAdd(5)), Ok(0), "{}", r.tag);
        r.store(16, 1);
        r.home_is(8, 5);
    }
}

/// Two processes, both exact: what one stores is at the home at once, and the other's next acquire shows it.
fn exact_two_processes(b: &Bench) {
    let len = 16 * PAGE;
    let (child, home) = (&b.children[0], Home::embedded(len, 0));
    let own = Node::new(b.backend, &home, exact());
    child.map_exact(&home.region, len);
    for round in 1..=b.ctx.scale(20, 100, 2000) {
        let at = (round as usize * 3 % 16) * PAGE + 8 * (round as usize % 100);
        child.ask(Ask::Store(at, round));
        assert_eq!(home.word(at), round, "round {round}: the child's store");
        own.ask(Ask::Acquire);
        assert_eq!(own.ask(Ask::Load(at)), round, "round {round}: this process's load");
        own.ask(Ask::Store(at, round + 1_000_000));
        assert_eq!(child.ask(Ask::Home(at)), round + 1_000_000, "round {round}: this process's store");
        child.ask(Ask::Acquire);
        assert_eq!(child.ask(Ask::Load(at)), round + 1_000_000, "round {round}: the child's load");
    }
    // Bytes of one page from both, in turns: all there, with no release by anyone.
    own.ask(Ask::Bytes(0, 512, 0));
    child.ask(Ask::Bytes(0, 512, 1));
    let wrong = home.bytes(0, 512).iter().enumerate().position(|(i, x)| *x != (i % 2) as u8 + 1);
    assert_eq!(wrong, None, "a byte of two writers");
}

/// What both ways of losing a home have in common: the store is kept here, said to be undelivered, and not waited for.
fn kept_and_reported(r: &Rig, want: Status) {
    let start = Instant::now();
    store(r.v + 8, 6);
    assert!(start.elapsed() < Duration::from_secs(8), "{}: the store waited {:?}", r.tag, start.elapsed());
    assert_eq!(load(r.v + 8), 6, "{}: the store is kept", r.tag);
    assert_eq!(r.region.status(), want, "{}: the region's status", r.tag);
    assert_eq!(r.region.release(0, 0), want, "{}: release", r.tag);
    assert_eq!(load(r.v + 8), 6, "{}: kept after the release too", r.tag);
    assert!(r.region.stats().write_errors.get() > 0, "{}: counted", r.tag);
}

fn exact_revoked(b: &Bench) {
    let r = b.rig(Home::embedded(4 * PAGE, 0).numbered(), MapOptions { on_error: OnError::Value, ..exact() });
    r.store(8, 5);
    r.home_is(8, 5);
    r.home.revoke();
    kept_and_reported(&r, Status::REVOKED);
    r.home_is(8, 5);
    assert_eq!(r.unmap(), Status::REVOKED, "{}: what was lost is said", r.tag);
}

fn exact_dead_peer(b: &Bench) {
    let child = &b.children[0];
    let r = b.rig(child.export(4 * PAGE), MapOptions { wait_ms: 1000, on_error: OnError::Value, ..exact() });
    r.store(8, 5);
    assert_eq!(r.region.at_home(8, AtomicOp::Load), Ok(5), "{}", r.tag);
    child.kill();
    // The end of the peer is noticed by its closed connection.
    let start = Instant::now();
    while r.region.at_home(8, AtomicOp::Load).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(5), "{}: the peer's end is not noticed", r.tag);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Over a network nobody can tell a peer that died from one that cannot be reached.
    let over_verbs = crate::runner::Over::now() == crate::runner::Over::Verbs;
    kept_and_reported(&r, if over_verbs { Status::LINK_DOWN } else { Status::PEER_DEAD });
}
