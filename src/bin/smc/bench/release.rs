//! [release.clean], [release.sparse]: a barrier over a resident region. [release.amplification]: bytes sent per byte dirtied.

use super::Plan;
use super::baseline::Bare;
use super::report::{Report, Samples, Target};
use super::rig::{Home, Rig, Rng, fill, policy, time};
use smc_engine::base::Result;
use smc_engine::base::addr::PAGE;
use smc_engine::core::options::Policy;

/// Dirties `n` pages spread over `len` bytes.
fn dirty(v: *mut u8, len: usize, n: usize, value: u8) {
    (0..n).for_each(|i| fill(v.wrapping_add(i * (len / n) + 64), value, 8));
}

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let len: usize = if plan.quick { 256 << 20 } else { 1 << 30 };
    let rounds = if plan.quick { 20 } else { 60 };
    let home = Home::new(len, None)?;
    let bare = Bare::new(len, 0)?;
    bare.show_all()?;
    for pol in [Policy::Byte, Policy::Page] {
        let rig = home.map(None, policy(pol))?;
        rig.touch_all();
        rig.release();
        let suffix = if pol == Policy::Byte { "" } else { ".page" };
        for (name, pages) in [("release.clean", 0), ("release.sparse", 64)] {
            let (mut ours, mut base) = (Vec::new(), Vec::new());
            for round in 0..rounds {
                // Another set of pages each round: pages dirty round after round would turn hot and need no scan.
                let shift = (round % 5) * PAGE * 3;
                dirty(rig.v.wrapping_add(shift), len - (1 << 20), pages, round as u8);
                ours.push(time(|| rig.release()));
                dirty(bare.v().wrapping_add(shift), len - (1 << 20), pages, round as u8);
                let mut found = 0;
                base.push(time(|| found = bare.scan().unwrap_or(usize::MAX)));
                assert_eq!(found, pages, "the baseline finds what was dirtied");
            }
            let note = "baseline: one get-and-reprotect PAGEMAP_SCAN over as large a mapping in the same state";
            report.add(
                &format!("{name}{suffix}"),
                "ns",
                &Samples::new(ours),
                &Samples::new(base),
                home.on(),
                Target::AtMost(2.0),
                note,
            );
        }
    }
    drop(bare);
    amplification(plan, report)
}

fn amplification(plan: &Plan, report: &mut Report) -> Result<()> {
    let pages = 1024;
    let home = Home::new(pages * PAGE, None)?;
    let rig = home.map(None, policy(Policy::Byte))?;
    rig.touch_all();
    let before = home.link.stats().write_bytes.get();
    let mut rng = Rng(7);
    let (rounds, mut dirtied) = (if plan.quick { 20 } else { 100 }, 0u64);
    for round in 1..=rounds {
        for p in rng.order(pages).into_iter().take(100) {
            let n = 1 + rng.below(64);
            fill(rig.v.wrapping_add(p * PAGE + rng.below(PAGE - 64)), round as u8, n);
            dirtied += n as u64;
        }
        rig.release();
    }
    let sent = (home.link.stats().write_bytes.get() - before) as f64;
    let n = rounds * 100;
    let note = "byte policy: bytes on the link against bytes that the program changed";
    report.put(
        "release.amplification",
        "bytes",
        sent,
        dirtied as f64,
        (n, sent, sent),
        home.on(),
        Target::AtMost(1.1),
        note,
    );
    four_threads(&home, &rig, report);
    Ok(())
}

/// Four threads write four bytes each in every page: each byte goes out once.
fn four_threads(home: &Home, rig: &Rig, report: &mut Report) {
    rig.release();
    let before = home.link.stats().write_bytes.get();
    let v = rig.v as usize;
    std::thread::scope(|s| {
        for t in 0..4 {
            s.spawn(move || (0..1024).for_each(|p| fill((v + p * PAGE + 2048 + t * 4) as *mut u8, 0xA0 + t as u8, 4)));
        }
    });
    rig.release();
    let sent = (home.link.stats().write_bytes.get() - before) as f64;
    let note = "four threads, four bytes each in each of 1024 pages";
    report.put(
        "release.amplification.threads",
        "bytes",
        sent,
        16384.0,
        (1024, sent, sent),
        home.on(),
        Target::AtMost(1.0),
        note,
    );
}
