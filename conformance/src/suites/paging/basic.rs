//! Load, store, release, acquire and their relatives, on every kind of home and with every policy.

use crate::cases;
use crate::rig::{Bench, policy};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::link::AtomicOp;

cases!(CASES, "paging",
    load_store_release: Quick, 60;
    own_stores_survive: Quick, 60;
    partial_last_page: Quick, 60;
    page_units: Normal, 120;
    read_windows: Quick, 60;
    untouched_pages: Quick, 60;
    invalidate: Quick, 60;
    invalidate_what_was_released: Quick, 60;
    prefetched_then_stale: Quick, 60;
    barrier_and_flush: Quick, 60;
    mark_dirty: Quick, 60;
    descriptor_io: Quick, 60;
    home_words: Quick, 60;
    hot_pages: Normal, 120;
);

fn load_store_release(b: &Bench) {
    b.each(150 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), policy(p));
        (0..150).for_each(|i| r.loads(i * PAGE, i as u64 + 1));
        (0..150).step_by(3).for_each(|i| r.store(i * PAGE + 8, 1000 + i as u64));
        r.home_is(8, 0);
        r.release();
        (0..150).for_each(|i| r.home_is(i * PAGE + 8, if i % 3 == 0 { 1000 + i as u64 } else { 0 }));
        // A range: one page goes, its neighbours stay.
        (0..3).for_each(|i| r.store(i * PAGE + 16, 7));
        assert_eq!(r.region.release(PAGE as u64, 1), Status::OK, "{}", r.tag);
        assert_eq!([0, 1, 2].map(|i| r.home.word(i * PAGE + 16)), [0, 7, 0], "{}", r.tag);
        assert_eq!(r.unmap(), Status::OK, "{}", r.tag);
        assert_eq!([0, 1, 2].map(|i| r.home.word(i * PAGE + 16)), [7, 7, 7], "{}: unmapping releases", r.tag);
    });
}

/// A reader is stale until it acquires; what it stored itself survives; other bytes of the same page are the home's.
fn own_stores_survive(b: &Bench) {
    b.each(4 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), policy(p));
        (0..4).for_each(|i| r.loads(i * PAGE, i as u64 + 1));
        r.home.set(PAGE, 77);
        r.loads(PAGE, 2);
        r.store(2 * PAGE, 99);
        r.store8(2 * PAGE + 133, 5);
        r.home.poke(2 * PAGE + 132, &[6]);
        r.home.poke(2 * PAGE + 512, &[9]);
        r.acquire();
        r.loads(PAGE, 77);
        r.loads(2 * PAGE, 99);
        r.home_is(2 * PAGE, 3);
        match p {
            Policy::Byte => assert_eq!(r.bytes(2 * PAGE + 132, 2), [6, 5], "{}: bytes merge", r.tag),
            // The line belongs to one writer: it stays as this one has it.
            Policy::Line => assert_eq!(r.bytes(2 * PAGE + 132, 2), [0, 5], "{}: lines merge", r.tag),
            Policy::Page => assert_eq!(r.load8(2 * PAGE + 133), 5, "{}", r.tag),
        }
        if p != Policy::Page {
            assert_eq!(r.load8(2 * PAGE + 512), 9, "{}: the rest of the page is the home's", r.tag);
        }
        r.release();
        r.home_is(2 * PAGE, 99);
        let got = r.home.bytes(2 * PAGE + 132, 2);
        match p {
            Policy::Byte => assert_eq!(got, [6, 5], "{}: both writers' bytes", r.tag),
            Policy::Line => assert_eq!(got, [0, 5], "{}: the line as its writer has it", r.tag),
            Policy::Page => assert_eq!(got[1], 5, "{}", r.tag),
        }
    });
}

/// A home that does not end on a page: its bytes are right and nothing behind them is touched.
fn partial_last_page(b: &Bench) {
    let len = 2 * PAGE + 104;
    for p in crate::rig::POLICIES {
        for make in [crate::rig::Home::loopback, crate::rig::Home::reordering] {
            let home = make(len, b.ctx.seed);
            home.set(2 * PAGE + 96, 5);
            let r = b.rig(home, policy(p));
            r.loads(2 * PAGE + 96, 5);
            r.store(2 * PAGE + 96, 6);
            r.store(2 * PAGE + 104, 1);
            r.release();
            r.home_is(2 * PAGE + 96, 6);
            r.home.set(2 * PAGE + 96, 7);
            r.acquire();
            r.loads(2 * PAGE + 96, 7);
            assert_eq!(r.home.link.stats().errors.get(), 0, "{}", r.tag);
            let end = len as u64;
            assert_eq!(r.region.at_home(end, AtomicOp::Load), Err(Status::OUT_OF_RANGE), "{}", r.tag);
            assert_eq!(r.region.release(0, end * 2), Status::OUT_OF_RANGE, "{}", r.tag);
        }
    }
}

/// Fetch units: one fault brings exactly the unit, and what it brings is right and writable.
fn page_units(b: &Bench) {
    for unit in [4 << 10, 16 << 10, 64 << 10, 2 << 20] {
        b.each(3 * (2 << 20), |home, p| {
            let len = home.len;
            let opts = MapOptions { page_unit: unit, window: 1, ..policy(p) };
            let r = b.rig(home.numbered(), opts);
            let at = (2 << 20) + 5 * PAGE;
            r.loads(at, (at / PAGE) as u64 + 1);
            let first = at / PAGE - at % unit / PAGE;
            r.wait_resident([first, at / PAGE, first + unit / PAGE - 1]);
            let brought = (0..len / PAGE).filter(|i| r.region.is_resident(*i)).count();
            let least = if b.backend == smc_engine::base::config::Backend::Mprotect { 16 } else { 1 };
            assert_eq!(brought, (unit / PAGE).max(least), "{}: unit {unit}", r.tag);
            (0..len / PAGE).step_by(7).for_each(|i| r.store(i * PAGE + 24, i as u64 * 3));
            (0..len / PAGE).for_each(|i| r.loads(i * PAGE, i as u64 + 1));
            r.release();
            (0..len / PAGE).for_each(|i| r.home_is(i * PAGE + 24, if i % 7 == 0 { i as u64 * 3 } else { 0 }));
            r.acquire();
            r.loads(7 * PAGE + 24, 21);
        });
    }
}

/// Sequential loads are fetched in windows: the number of messages is what the window says.
fn read_windows(b: &Bench) {
    // A 64 KiB unit (mprotect) hides small windows.
    let unit = if b.backend == smc_engine::base::config::Backend::Mprotect { 16 } else { 1 };
    for (window, most) in [(1, 512), (16, 33), (64, 12)] {
        let r = b.pages(512, MapOptions { window, ..MapOptions::default() });
        (0..512).for_each(|i| r.loads(i * PAGE, 0));
        let fetches = r.home.link.stats().fetches.get();
        let least = (512 / window.max(unit)) as u64;
        assert!((least..=most).contains(&fetches), "{}: window {window}: {fetches} messages", r.tag);
        assert_eq!(r.home.link.stats().fetch_bytes.get(), 512 * PAGE as u64, "{}: each page once", r.tag);
    }
}

/// Stores to pages never read before, and across a border: the home has exactly these bytes.
fn untouched_pages(b: &Bench) {
    b.each(64 * PAGE, |home, p| {
        let r = b.rig(home, policy(p));
        let mut model = vec![0u8; 64 * PAGE];
        let mut put = |at: usize, bytes: &[u8]| {
            r.store_bytes(at, bytes);
            model[at..at + bytes.len()].copy_from_slice(bytes);
        };
        [0, 1, 63].into_iter().for_each(|i| put(i * PAGE + 9, &[i as u8 + 1]));
        assert_eq!(r.load8(5 * PAGE), 0);
        put(5 * PAGE + 1, &[55]);
        put(8 * PAGE - 100, &[7; 200]);
        assert_eq!(r.region.barrier(), Status::OK, "{}", r.tag);
        let got = r.home.bytes(0, 64 * PAGE);
        let wrong = got.iter().zip(&model).position(|(g, m)| g != m);
        assert_eq!(wrong, None, "{}: the home differs at this byte", r.tag);
        if p == Policy::Byte && r.home.name == "loopback" {
            assert_eq!(r.home.link.stats().write_bytes.get(), 204, "{}: exactly the bytes written", r.tag);
        }
    });
}

fn invalidate(b: &Bench) {
    b.each(4 * PAGE, |home, p| {
        let r = b.rig(home, policy(p));
        (0..4).for_each(|i| r.loads(i * PAGE, 0));
        r.store(PAGE, 5);
        r.home.set(0, 8);
        assert_eq!(r.region.invalidate(PAGE as u64, 1), Status::DIRTY, "{}", r.tag);
        r.loads(PAGE, 5);
        assert_eq!(r.region.invalidate(0, PAGE as u64), Status::OK, "{}", r.tag);
        r.loads(0, 8);
        r.release();
        r.home_is(PAGE, 5);
        r.home.set(PAGE, 6);
        assert_eq!(r.region.invalidate(0, 0), Status::OK, "{}: clean after a release", r.tag);
        r.loads(PAGE, 6);
    });
}

/// What was released is clean, however often and in whatever company it was written before.
fn invalidate_what_was_released(b: &Bench) {
    for pages in [1, 3, 16] {
        b.each(16 * PAGE, |home, p| {
            let r = b.rig(home, policy(p));
            for round in 1..40 {
                (0..pages).for_each(|i| r.store(i * PAGE + 8, round));
                r.release();
                // Under the page policy nobody else writes the page.
                let theirs = if p == Policy::Page { 0 } else { round };
                (0..pages).for_each(|i| r.home.set(i * PAGE + 16, theirs));
                assert_eq!(r.region.invalidate(0, 0), Status::OK, "{}: {pages} pages, round {round}", r.tag);
                (0..pages).for_each(|i| r.loads(i * PAGE + 8, round));
                (0..pages).for_each(|i| r.loads(i * PAGE + 16, theirs));
            }
        });
    }
}

/// A page brought by prefetch or by a read window, first looked at after an acquire, shows the new value.
fn prefetched_then_stale(b: &Bench) {
    b.each(96 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), policy(p));
        assert_eq!(r.region.prefetch(0, 8 * PAGE as u64), Status::OK);
        r.wait_resident([7]);
        assert_eq!(r.load(3 * PAGE), 4, "{}", r.tag);
        // By window: pages 32 and 33 in sequence bring the next ones.
        (32..34).for_each(|i| r.loads(i * PAGE, i as u64 + 1));
        r.wait_resident([35]);
        for changed in [5, 7, 35, 36, 47, 48] {
            r.home.set(changed * PAGE, 1000 + changed as u64);
        }
        assert_eq!(r.region.barrier(), Status::OK, "{}", r.tag);
        for changed in [5, 7, 35, 36, 47, 48] {
            r.loads(changed * PAGE, 1000 + changed as u64);
        }
        // Prefetched again, changed again.
        r.acquire();
        assert_eq!(r.region.prefetch(0, 8 * PAGE as u64), Status::OK);
        r.wait_resident([7]);
        r.home.set(5 * PAGE, 2000);
        r.acquire();
        r.loads(5 * PAGE, 2000);
    });
}

fn barrier_and_flush(b: &Bench) {
    b.each(4 * PAGE, |home, p| {
        let r = b.rig(home, policy(p));
        r.store(0, 1);
        r.loads(PAGE, 0);
        r.home.set(PAGE, 4);
        assert_eq!(r.region.barrier(), Status::OK, "{}", r.tag);
        r.home_is(0, 1);
        r.loads(PAGE, 4);
        r.store(8, 2);
        assert_eq!(r.region.flush(0, PAGE as u64), Status::OK, "{}", r.tag);
        // Flushed and dropped: the store must not vanish from sight, wherever the link holds it.
        r.acquire();
        r.loads(8, 2);
        r.store(16, 3);
        assert_eq!(r.region.flush(0, 0), Status::OK, "{}", r.tag);
        r.release();
        r.home_is(16, 3);
    });
}

/// What tracking cannot see is sent when it is marked.
fn mark_dirty(b: &Bench) {
    b.each(4 * PAGE, |home, p| {
        let r = b.rig(home.numbered(), policy(p));
        r.loads(PAGE, 2);
        r.release();
        assert_eq!(r.region.mark_dirty(PAGE as u64, 8), Status::OK, "{}", r.tag);
        let before = r.region.stats().pages_pushed.get();
        r.release();
        assert_eq!(r.region.stats().pages_pushed.get(), before + 1, "{}: marked pages are looked at", r.tag);
        assert_eq!(r.region.invalidate(0, 0), Status::OK, "{}", r.tag);
        assert_eq!(r.region.mark_dirty(0, 5 * PAGE as u64), Status::OUT_OF_RANGE, "{}", r.tag);
    });
}

/// Reads and writes by descriptor go through the same pages as loads and stores.
fn descriptor_io(b: &Bench) {
    b.each(8 * PAGE, |home, p| {
        let r = b.rig(home, policy(p));
        let mut rng = b.ctx.rng(3);
        let mut model = vec![0u8; 8 * PAGE];
        for round in 0..200u32 {
            let at = rng.usize(0..7 * PAGE);
            let bytes: Vec<u8> = (0..rng.usize(1..PAGE)).map(|_| rng.u8(..)).collect();
            if rng.bool() {
                r.pwrite(at, &bytes)
            } else {
                r.store_bytes(at, &bytes)
            }
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            let from = rng.usize(0..7 * PAGE);
            let got = if rng.bool() { r.pread(from, PAGE) } else { r.bytes(from, PAGE) };
            assert!(got == model[from..from + PAGE], "{}: round {round} at {from}", r.tag);
            match rng.u32(0..12) {
                0 => r.release(),
                1 => r.acquire(),
                _ => {}
            }
        }
        r.release();
        assert!(r.home.bytes(0, 8 * PAGE) == model, "{}: the home differs", r.tag);
        // SAFETY: the length is 0, so nothing is read.
        let s = unsafe { r.region.write(8 * PAGE as u64 + 1, [0u8].as_ptr(), 0) };
        assert_eq!(s, Status::OUT_OF_RANGE, "{}", r.tag);
    });
}

/// Operations at the home against write-back: no write-back undoes one, whoever changed the word last.
fn home_words(b: &Bench) {
    b.each(2 * PAGE, |home, p| {
        let r = b.rig(home, policy(p));
        r.store(16, 1);
        assert_eq!(r.region.at_home(8, AtomicOp::FetchAdd(5)), Ok(0), "{}", r.tag);
        r.loads(8, 5);
        r.home.set(8, 50);
        r.release();
        r.home_is(8, 50);
        r.home_is(16, 1);
        let swap = AtomicOp::CompareSwap { expected: 50, new: 51 };
        assert_eq!(r.region.at_home(8, swap), Ok(50), "{}", r.tag);
        assert_eq!(r.region.at_home(8, swap), Ok(51), "{}", r.tag);
        assert_eq!(r.region.at_home(PAGE as u64, AtomicOp::Store(9)), Ok(0), "{}", r.tag);
        assert_eq!(r.region.at_home(PAGE as u64, AtomicOp::Load), Ok(9), "{}", r.tag);
        r.loads(PAGE, 9);
        assert_eq!(r.region.at_home(4, AtomicOp::Load), Err(Status::INVALID_ARGUMENT), "{}", r.tag);
        (0..200).for_each(|i| {
            r.store(24, i);
            assert_eq!(r.region.at_home(PAGE as u64 + 8, AtomicOp::FetchAdd(1)), Ok(i), "{}", r.tag);
            r.store(PAGE + 64, i);
            r.release();
        });
        r.home_is(PAGE + 8, 200);
        r.home_is(24, 199);
    });
}

/// Pages that are dirty for many rounds turn hot, and stay right when the pattern changes.
fn hot_pages(b: &Bench) {
    b.each(64 * PAGE, |home, p| {
        let r = b.rig(home, policy(p));
        let mut want = vec![0u64; 64];
        for round in 0..150u64 {
            for (i, w) in want.iter_mut().enumerate() {
                // All, then every fifth page pauses, then one half only, then all again.
                let writes = match round {
                    0..=39 => true,
                    40..=79 => i % 5 != 0,
                    80..=119 => i < 32,
                    _ => round % 3 == 0,
                };
                if writes {
                    *w = round * 100 + i as u64;
                    r.store(i * PAGE + 64, *w);
                }
            }
            if round % 11 == 10 {
                r.home.set(round as usize % 64 * PAGE + 2048, round);
                r.acquire();
                if p != Policy::Page {
                    r.loads(round as usize % 64 * PAGE + 2048, round);
                }
            }
            r.release();
            want.iter().enumerate().for_each(|(i, w)| r.home_is(i * PAGE + 64, *w));
        }
        assert!(r.region.stats().pages_hot.get() > 0, "{}: nothing turned hot: the case tests nothing", r.tag);
    });
}
