//! What the link is asked to carry: exactly what the policy promises, counted at both ends.

use crate::cases;
use crate::rig::{Bench, POLICIES, Rig, policy, store8};
use smc_engine::base::PAGE;
use smc_engine::core::options::Policy;

cases!(CASES, "paging",
    bytes_written: Quick, 60;
    threads_in_one_page: Quick, 60;
    contiguous_pages: Quick, 60;
    counters_agree: Quick, 60;
);

fn sent(r: &Rig) -> (u64, u64) {
    let s = r.home.link.stats();
    (s.writes.get(), s.write_bytes.get())
}

/// Scattered stores: the byte policy sends the bytes that changed and no other, the line policy their lines.
fn bytes_written(b: &Bench) {
    let mut rng = b.ctx.rng(1);
    for p in [Policy::Byte, Policy::Line] {
        let r = b.pages(64, policy(p));
        let mut marks = vec![false; 64 * PAGE];
        for _ in 0..20 {
            marks.fill(false);
            let before = sent(&r);
            for _ in 0..rng.usize(1..400) {
                let at = rng.usize(0..64 * PAGE);
                let old = r.load8(at);
                if !marks[at] {
                    r.store8(at, old.wrapping_add(rng.u8(1..255)));
                    marks[at] = true;
                }
            }
            r.release();
            let unit = if p == Policy::Byte { 1 } else { 64 };
            let want = marks.chunks(unit).filter(|c| c.contains(&true)).count() * unit;
            let got = sent(&r).1 - before.1;
            assert_eq!(got, want as u64, "{}: bytes sent", r.tag);
            // Nothing changed: nothing goes.
            let before = sent(&r);
            let same = r.load8(77);
            r.store8(77, same);
            r.release();
            assert_eq!(sent(&r), before, "{}: a store of an equal value", r.tag);
        }
    }
}

/// Four threads, four bytes each, one page: sixteen bytes go, each once.
fn threads_in_one_page(b: &Bench) {
    let r = b.pages(1, policy(Policy::Byte));
    for round in 1..50u8 {
        let (before, v) = (sent(&r), r.v);
        std::thread::scope(|s| {
            for t in 0..4 {
                s.spawn(move || (0..4).for_each(|i| store8(v + 1000 + t * 256 + i * 8, round)));
            }
        });
        r.release();
        let now = sent(&r);
        assert_eq!((now.0 - before.0, now.1 - before.1), (16, 16), "{}: round {round}", r.tag);
        (0..4).for_each(|t| assert_eq!(r.home.bytes(1000 + t * 256, 1), [round], "{}", r.tag));
    }
}

/// Pages side by side leave in one message under the page policy, and a run of bytes across pages in one piece.
fn contiguous_pages(b: &Bench) {
    for p in POLICIES {
        let r = b.pages(256, policy(p));
        (64..128).for_each(|i| r.store_bytes(i * PAGE, &[7; PAGE]));
        r.wait_resident(64..128);
        r.release();
        let want = (1, 64 * PAGE as u64);
        assert_eq!(sent(&r), want, "{}: 64 pages side by side", r.tag);
        (0..64).for_each(|i| r.store_bytes(i * 2 * PAGE, &[9; PAGE]));
        r.wait_resident((0..64).map(|i| i * 2));
        let before = sent(&r);
        r.release();
        assert_eq!(sent(&r), (before.0 + 64, before.1 + 64 * PAGE as u64), "{}: every second page", r.tag);
    }
}

/// The region's own counters say what the link's say, whatever was done.
fn counters_agree(b: &Bench) {
    b.each(128 * PAGE, |home, p| {
        let r = b.rig(home, policy(p));
        let mut rng = b.ctx.rng(2);
        for _ in 0..300 {
            let at = rng.usize(0..127 * PAGE);
            match rng.u32(0..10) {
                0..=5 => r.store8(at, rng.u8(..)),
                6 | 7 => drop(r.load8(at)),
                8 => r.release(),
                _ => r.acquire(),
            }
        }
        r.release();
        let (link, own) = (r.home.link.stats(), r.region.stats());
        assert_eq!(own.messages.get(), link.writes.get(), "{}: messages", r.tag);
        assert_eq!(own.bytes_written.get(), link.write_bytes.get(), "{}: bytes written", r.tag);
        // A merge of a dirty page fetches too.
        assert!(own.bytes_fetched.get() <= link.fetch_bytes.get(), "{}: bytes fetched", r.tag);
        assert_eq!(link.errors.get() + own.write_errors.get() + own.fetch_errors.get(), 0, "{}: errors", r.tag);
    });
}
