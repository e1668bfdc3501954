//! The A/B table: staged copy, one put per store, SMC mapping.

use super::Plan;
use super::baseline::copy;
use super::report::{Report, Samples, Target};
use super::rig::{Home, Rng, buffer, fill, policy, put, store64, time};
use smc_engine::base::Result;
use smc_engine::core::options::Policy;

const LEN: usize = 4 << 20;

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    for (model, tag) in [(Some(plan.wire.as_str()), "wire"), (None, "embedded")] {
        let home = Home::new(LEN, model)?;
        bulk(plan, report, &home, tag)?;
        random(report, &home, tag)?;
    }
    Ok(())
}

fn bulk(plan: &Plan, report: &mut Report, home: &Home, tag: &str) -> Result<()> {
    let rig = home.map(None, policy(Policy::Page))?;
    rig.touch_all();
    let (key, data, stage) = (home.open()?, buffer(LEN)?, buffer(LEN)?);
    let (mut staged, mut plain, mut smc) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..if plan.quick { 30 } else { 60 } {
        let byte = round as u8;
        staged.push(
            LEN as f64
                / time(|| {
                    fill(data.ptr(), byte, LEN);
                    copy(data.ptr(), stage.ptr(), LEN);
                    put(&*home.link, key, 0, stage.ptr(), LEN);
                })
                * 1e9,
        );
        plain.push(
            LEN as f64
                / time(|| {
                    fill(data.ptr(), byte, LEN);
                    put(&*home.link, key, 0, data.ptr(), LEN)
                })
                * 1e9,
        );
        smc.push(
            LEN as f64
                / time(|| {
                    fill(rig.v, byte, LEN);
                    rig.release()
                })
                * 1e9,
        );
    }
    let plain = Samples::new(plain);
    let note = "fill 4 MiB and make it readable at the home; baseline: plain put of the filled buffer";
    report.add(
        &format!("ab.bulk4MiB.{tag}.staged"),
        "B/s",
        &Samples::new(staged),
        &plain,
        home.on(),
        Target::None,
        note,
    );
    report.add(&format!("ab.bulk4MiB.{tag}.put"), "B/s", &plain, &plain, home.on(), Target::None, "");
    report.add(
        &format!("ab.bulk4MiB.{tag}.smc"),
        "B/s",
        &Samples::new(smc),
        &plain,
        home.on(),
        Target::None,
        "page policy, one release",
    );
    home.link.close(key);
    Ok(())
}

fn random(report: &mut Report, home: &Home, tag: &str) -> Result<()> {
    const STORES: usize = 65_536;
    // A put per store takes a round trip each: a sample of them tells the rate.
    const PUTS: usize = 4096;
    let rig = home.map(None, policy(Policy::Page))?;
    rig.touch_all();
    let (key, data, stage) = (home.open()?, buffer(LEN)?, buffer(4096)?);
    let mut rng = Rng(11);
    let spots: Vec<usize> = (0..STORES).map(|_| rng.below(LEN / 64) * 64).collect();
    let bw = |stores: usize, ns: f64| (stores * 64) as f64 / ns * 1e9;
    let put_all = |staged: bool, value: u64| {
        let ns = time(|| {
            for s in spots.iter().take(PUTS) {
                let at = data.ptr().wrapping_add(*s);
                store64(at, value);
                if staged {
                    copy(at, stage.ptr(), 64);
                }
                put(&*home.link, key, *s as u64, if staged { stage.ptr() } else { at }, 64);
            }
        });
        bw(PUTS, ns)
    };
    let (mut staged, mut plain, mut smc) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..5u64 {
        staged.push(put_all(true, round));
        plain.push(put_all(false, round));
        let ns = time(|| {
            spots.iter().for_each(|s| store64(rig.v.wrapping_add(*s), round));
            rig.release();
        });
        smc.push(bw(STORES, ns));
        // Each round starts clean, as the first one does.
        let _ = rig.region.barrier();
        rig.touch_all();
    }
    let plain = Samples::new(plain);
    let note = "64 B stores uniform over 4 MiB; baseline: one completed put per store";
    let figures =
        [("staged", Samples::new(staged), note), ("smc", Samples::new(smc), "page policy, one release at the end")];
    report.add(&format!("ab.random64.{tag}.put"), "B/s", &plain, &plain, home.on(), Target::None, "");
    for (path, samples, note) in &figures {
        report.add(&format!("ab.random64.{tag}.{path}"), "B/s", samples, &plain, home.on(), Target::None, note);
    }
    home.link.close(key);
    Ok(())
}
