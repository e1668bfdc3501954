//! Views: several of one region, parts taken away, read-only ones, fork children.

use crate::cases;
use crate::rig::{Bench, Home, POLICIES, load, policy, store};
use crate::runner::process::signal_name;
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::link::Access;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

cases!(CASES, "paging",
    twin_views: Quick, 60;
    partial_unmap: Quick, 60;
    unmap_beside_a_toucher: Normal, 60;
    fixed_place: Quick, 60;
    read_only_view_loads: Quick, 60;
    read_only_view_store: Quick, 30, dies SIGSEGV;
    read_only_region: Quick, 60;
    fork_child_dies: Quick, 60;
);

/// Two views show one memory: stores through either are seen by the other at once, and reach the home.
fn twin_views(b: &Bench) {
    b.each(16 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), policy(p));
        let w = r.region.map_view(0, false, 4 * PAGE as u64, 8 * PAGE, true).expect("a second view");
        for round in 0..60u64 {
            for page in 4..12 {
                let (one, two) = (r.v + page * PAGE, w + (page - 4) * PAGE);
                let (from, to) = if (round + page as u64).is_multiple_of(2) { (one, two) } else { (two, one) };
                store(from + 8, round * 1000 + page as u64);
                assert_eq!(load(to + 8), round * 1000 + page as u64, "{}: round {round}", r.tag);
                if round % 3 == 0 {
                    store(to + 16, round);
                }
            }
            match round % 4 {
                0 => r.acquire(),
                1 => r.pwrite(5 * PAGE + 24, &[round as u8]),
                _ => r.release(),
            }
        }
        r.release();
        (4..12).for_each(|page| r.home_is(page * PAGE + 8, 59_000 + page as u64));
        (4..12).for_each(|page| r.home_is(page * PAGE + 16, 57));
        r.home.set(6 * PAGE, 5);
        r.acquire();
        assert_eq!(load(w + 2 * PAGE), 5, "{}: an acquire covers every view", r.tag);
        assert_eq!(r.region.unmap_view(w, 8 * PAGE), Status::OK, "{}", r.tag);
        r.loads(6 * PAGE, 5);
    });
}

/// A hole in the middle: what goes is released, what stays works on, at its place.
fn partial_unmap(b: &Bench) {
    b.each(16 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), policy(p));
        (0..16).for_each(|i| r.store(i * PAGE + 8, i as u64 + 100));
        assert_eq!(r.region.unmap_view(r.v + 6 * PAGE, 4 * PAGE), Status::OK, "{}", r.tag);
        (6..10).for_each(|i| r.home_is(i * PAGE + 8, i as u64 + 100));
        (0..6).chain(10..16).for_each(|i| r.loads(i * PAGE + 8, i as u64 + 100));
        r.store(16, 1);
        r.store(15 * PAGE + 16, 2);
        r.release();
        r.home_is(16, 1);
        r.home_is(15 * PAGE + 16, 2);
        r.home.set(12 * PAGE, 9);
        r.acquire();
        r.loads(12 * PAGE, 9);
        // The hole is the program's: memory mapped there is not touched by the region.
        let hole = r.region.map_view(r.v + 6 * PAGE, true, 0, 4 * PAGE, true).expect("a view in the hole");
        assert_eq!(load(hole + 16), 1, "{}", r.tag);
        assert_eq!(r.region.unmap_view(r.v, 16 * PAGE), Status::OK, "{}", r.tag);
    });
}

/// A thread that touches the part that stays never notices that another part goes.
fn unmap_beside_a_toucher(b: &Bench) {
    let rounds = b.ctx.scale(50, 150, 2000);
    for round in 0..rounds {
        let r = b.pages(64, policy(Policy::Byte));
        let stop = AtomicBool::new(false);
        let (region, v, tag) = (&r.region, r.v, &r.tag);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut n = 0u64;
                while !stop.load(SeqCst) {
                    (0..8).for_each(|i| store(v + i * PAGE, n));
                    n += 1;
                    assert_eq!(region.acquire(0, 0), Status::OK);
                }
            });
            s.spawn(|| {
                for page in (8..64).rev() {
                    let at = v + page * PAGE;
                    assert_eq!(region.unmap_view(at, PAGE), Status::OK, "{tag}: round {round}");
                }
                stop.store(true, SeqCst);
            });
        });
    }
}

fn fixed_place(b: &Bench) {
    let r = b.pages(4, policy(Policy::Byte));
    let place = smc_engine::sys::mem::Mapping::anonymous(8 * PAGE, smc_engine::sys::mem::RW).expect("a place");
    let at = place.addr() + 2 * PAGE;
    assert_eq!(r.region.map_view(at, true, PAGE as u64, 2 * PAGE, true).ok(), Some(at), "{}", r.tag);
    r.store(PAGE, 3);
    assert_eq!(load(at), 3, "{}", r.tag);
    assert_eq!(r.region.unmap_view(at, 2 * PAGE), Status::OK);
    for (off, len) in [(1, PAGE), (0, 5 * PAGE), (4 * PAGE, PAGE), (0, 0)] {
        assert!(r.region.map_view(0, false, off as u64, len, true).is_err(), "{}: {off}+{len}", r.tag);
    }
}

/// A read-only view beside a writable one shows its stores, and makes nothing dirty by being read.
fn read_only_view_loads(b: &Bench) {
    b.each(8 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), policy(p));
        let w = r.region.map_view(0, false, 0, 8 * PAGE, false).expect("a read-only view");
        (0..8).for_each(|i| assert_eq!(load(w + i * PAGE), i as u64 + 1, "{}", r.tag));
        r.store(8, 4);
        assert_eq!(load(w + 8), 4, "{}", r.tag);
        r.release();
        r.home_is(8, 4);
        r.home.set(PAGE, 5);
        r.acquire();
        assert_eq!(load(w + PAGE), 5, "{}", r.tag);
        assert_eq!(r.region.unmap_view(w, 8 * PAGE), Status::OK);
    });
}

fn read_only_view_store(b: &Bench) {
    let r = b.pages(1, policy(Policy::Byte));
    let w = r.region.map_view(0, false, 0, PAGE, false).expect("a read-only view");
    assert_eq!(load(w), 0);
    store(w, 1);
    r.release();
    panic!("{}: the store went through; the home has {}", r.tag, r.home.word(0));
}

/// A client that may only read: two views, two threads, every policy; nothing is ever sent.
fn read_only_region(b: &Bench) {
    for p in POLICIES {
        let opts = MapOptions { access: Access::ReadOnly, ..policy(p) };
        let r = b.rig(Home::loopback(32 * PAGE, 0).numbered(), opts);
        let w = r.region.map_view(0, false, 0, 32 * PAGE, false).expect("a second view");
        let v = r.v;
        std::thread::scope(|s| {
            for at in [v, w, v, w] {
                s.spawn(move || (0..32).for_each(|i| assert_eq!(load(at + i * PAGE), i as u64 + 1)));
            }
        });
        r.release();
        assert_eq!(r.region.barrier(), Status::OK, "{}", r.tag);
        (0..32).for_each(|i| assert_eq!(load(w + i * PAGE), i as u64 + 1, "{}", r.tag));
        r.release();
        assert_eq!(r.home.link.stats().writes.get(), 0, "{}: a reader sent something", r.tag);
        assert!(r.region.map_view(0, false, 0, PAGE, true).is_err(), "{}", r.tag);
        // SAFETY: one valid byte.
        let s = unsafe { r.region.write(0, [1u8].as_ptr(), 1) };
        assert_eq!(s, Status::PERMISSION, "{}", r.tag);
        assert_eq!(r.region.unmap_view(w, 32 * PAGE), Status::OK);
    }
}

/// A fork child has no views: its touch ends it by SIGSEGV, at once, and the parent goes on.
fn fork_child_dies(b: &Bench) {
    let r = b.pages(4, policy(Policy::Byte));
    r.store(0, 1);
    for at in [r.v, r.v + 3 * PAGE] {
        for write in [false, true] {
            // SAFETY: the child touches one address and ends; it takes no lock.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                if write {
                    store(at, 9);
                } else {
                    load(at);
                }
                // SAFETY: ends the child without running what the parent registered.
                unsafe { libc::_exit(0) };
            }
            let status = wait_child(pid, 5);
            let ended = status.map(|s| libc::WIFSIGNALED(s).then(|| signal_name(libc::WTERMSIG(s))));
            assert_eq!(ended, Some(Some("SIGSEGV".into())), "{}: write {write} (None: it hung)", r.tag);
        }
    }
    r.loads(0, 1);
    r.store(PAGE, 2);
    r.release();
    r.home_is(0, 1);
    r.home_is(PAGE, 2);
    r.home.set(0, 3);
    r.acquire();
    r.loads(0, 3);
}

/// Waits for a child for so many seconds; kills one that hangs.
fn wait_child(pid: i32, seconds: u64) -> Option<i32> {
    let (start, mut status) = (std::time::Instant::now(), 0);
    loop {
        // SAFETY: our own child; status is a valid out pointer.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            return Some(status);
        }
        if start.elapsed().as_secs() >= seconds {
            // SAFETY: our own child, not reaped.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
