//! [bulk.4MiB]: the processor fills 4 MiB and makes them readable at the home.

use super::Plan;
use super::report::{Report, Samples, Target};
use super::rig::{Home, buffer, fill, huge_buffer, policy, put, time};
use smc_engine::base::Result;
use smc_engine::core::options::Policy;

const LEN: usize = 4 << 20;
/// Rounds whose pages are not hot yet; reported beside the rest.
const FIRST: usize = 10;

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    for model in [Some(plan.wire.as_str()), None] {
        let home = Home::new(LEN, model)?;
        let tag = if model.is_some() { "bulk.4MiB" } else { "bulk.4MiB.embedded" };
        one(
            plan,
            report,
            &home,
            tag,
            Policy::Page,
            if model.is_some() { Target::AtLeast(0.976) } else { Target::None },
        )?;
        one(plan, report, &home, &format!("{tag}.byte"), Policy::Byte, Target::None)?;
    }
    Ok(())
}

fn one(plan: &Plan, report: &mut Report, home: &Home, tag: &str, pol: Policy, target: Target) -> Result<()> {
    let rounds = if plan.quick { 40 } else { 110 };
    let rig = home.map(None, policy(pol))?;
    rig.touch_all();
    let key = home.open()?;
    let small = buffer(LEN)?;
    let huge = huge_buffer(LEN)?;
    let (mut ours, mut base, mut base_huge) = (Vec::new(), Vec::new(), Vec::new());
    let bw = |ns: f64| LEN as f64 / ns * 1e9;
    for round in 0..rounds {
        let byte = round as u8;
        base.push(bw(time(|| {
            fill(small.ptr(), byte, LEN);
            put(&*home.link, key, 0, small.ptr(), LEN)
        })));
        ours.push(bw(time(|| {
            fill(rig.v, byte.wrapping_add(1), LEN);
            rig.release()
        })));
        base_huge.push(bw(time(|| {
            fill(huge.ptr(), byte, LEN);
            put(&*home.link, key, 0, huge.ptr(), LEN)
        })));
    }
    let late = |v: &[f64]| Samples::new(v.iter().copied().skip(FIRST).collect());
    let early = Samples::new(ours.iter().copied().take(FIRST).collect());
    let note = "baseline: fill a registered 4 KiB-page buffer, then one put; interleaved, without the first ten rounds";
    report.add(tag, "B/s", &late(&ours), &late(&base), home.on(), target, note);
    report.add(
        &format!("{tag}.first"),
        "B/s",
        &early,
        &late(&base),
        home.on(),
        Target::None,
        "the first ten rounds: every page pays its write-protect fault",
    );
    report.add(
        &format!("{tag}.vs_huge"),
        "B/s",
        &late(&ours),
        &late(&base_huge),
        home.on(),
        Target::None,
        "against a huge-page buffer",
    );
    home.link.close(key);
    Ok(())
}
