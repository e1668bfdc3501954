//! [store.random64]: many small stores and one release, against one completed put per store.

use super::Plan;
use super::report::{Report, Samples, Target};
use super::rig::{Home, Rng, buffer, policy, put, store64, time};
use smc_engine::base::Result;
use smc_engine::core::options::Policy;

/// What one pass took.
pub struct Pass {
    /// Stores and release.
    pub total_ns: f64,
    /// Each store by itself.
    pub each_ns: Vec<f64>,
    /// Messages of the release.
    pub messages: u64,
}

/// Stores 64 B at each offset, then releases.
pub fn pass(home: &Home, pol: Policy, offsets: &[usize], value: u64) -> Result<Pass> {
    let rig = home.map(None, policy(pol))?;
    rig.touch_all();
    rig.release();
    let before = rig.region.stats().messages.get();
    let mut total_ns = time(|| {
        offsets.iter().for_each(|o| store64(rig.v.wrapping_add(*o), value));
        rig.release();
    });
    // The same again with a clock around each store, for its latency as the program sees it.
    let messages = rig.region.stats().messages.get() - before;
    let each_ns = offsets.iter().map(|o| time(|| store64(rig.v.wrapping_add(*o), value + 1))).collect();
    rig.release();
    total_ns = total_ns.max(1.0);
    Ok(Pass { total_ns, each_ns, messages })
}

/// Nanoseconds of a completed put for each offset (a sample of them: each takes a round trip).
fn puts(home: &Home, offsets: &[usize]) -> Result<Samples> {
    let (key, src) = (home.open()?, buffer(4096)?);
    let ns = offsets.iter().take(4096).map(|o| time(|| put(&*home.link, key, *o as u64, src.ptr(), 64))).collect();
    home.link.close(key);
    Ok(Samples::new(ns))
}

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let stores = if plan.quick { 16_384 } else { 65_536 };
    dense(plan, report, stores, Some(&plan.wire), "store.random64", [17.0, 5.0])?;
    dense(plan, report, stores, None, "store.random64.embedded", [0.0, 0.0])?;
    sparse(plan, report, stores)
}

fn dense(
    plan: &Plan,
    report: &mut Report,
    stores: usize,
    model: Option<&str>,
    name: &str,
    least: [f64; 2],
) -> Result<()> {
    let len = if plan.quick { 1 << 20 } else { 4 << 20 };
    let home = Home::new(len, model)?;
    let mut rng = Rng(1);
    let offsets: Vec<usize> = (0..stores).map(|_| rng.below(len / 64) * 64).collect();
    let base = puts(&home, &offsets)?;
    let base_bw = 64.0 / base.median() * 1e9;
    for (pol, suffix, least) in [(Policy::Page, "", least[0]), (Policy::Byte, ".byte", least[1])] {
        let passes: Vec<Pass> = (0..if plan.quick { 3 } else { 7 })
            .map(|i| pass(&home, pol, &offsets, 1000 + i * 10))
            .collect::<Result<_>>()?;
        let bw = Samples::new(passes.iter().map(|p| (stores * 64) as f64 / p.total_ns * 1e9).collect());
        let target = if least > 0.0 { Target::AtLeast(least) } else { Target::None };
        let note = "baseline: one completed put per store; stores uniform over 4 MiB, resident and clean, one release";
        report.put(
            &format!("{name}{suffix}"),
            "B/s",
            bw.median(),
            base_bw,
            (bw.len(), bw.median(), bw.at(0.99)),
            home.on(),
            target,
            note,
        );
        let each = Samples::new(passes.iter().flat_map(|p| p.each_ns.iter().copied()).collect());
        let target = if least > 0.0 { Target::AtMost(0.2) } else { Target::None };
        report.add(
            &format!("{name}.latency{suffix}"),
            "ns",
            &each,
            &base,
            home.on(),
            target,
            "one store as the program sees it, clock included",
        );
        let messages = Samples::new(passes.iter().map(|p| p.messages as f64).collect());
        if least > 0.0 {
            let bound = if pol == Policy::Page { Target::AtMost(1.0) } else { Target::None };
            report.put(
                &format!("release.messages{suffix}"),
                "messages",
                messages.median(),
                64.0,
                (messages.len(), messages.median(), messages.at(0.99)),
                home.on(),
                bound,
                "messages of that release; baseline: 64",
            );
        }
    }
    Ok(())
}

/// The load SMC does not fit: hardly two stores ever meet in a page.
fn sparse(plan: &Plan, report: &mut Report, stores: usize) -> Result<()> {
    let len: usize = if plan.quick { 128 << 20 } else { 1 << 30 };
    let home = Home::new(len, Some(&plan.wire))?;
    let mut rng = Rng(2);
    let offsets: Vec<usize> = (0..stores).map(|_| rng.below(len / 64) * 64).collect();
    let base = puts(&home, &offsets)?;
    for (pol, suffix) in [(Policy::Page, ""), (Policy::Byte, ".byte")] {
        let p = pass(&home, pol, &offsets, 5)?;
        let bw = (stores * 64) as f64 / p.total_ns * 1e9;
        let note = "SMC does not fit here: nearly every store dirties a page of its own; reported without a target";
        report.put(
            &format!("store.sparse64{suffix}"),
            "B/s",
            bw,
            64.0 / base.median() * 1e9,
            (1, bw, bw),
            home.on(),
            Target::None,
            note,
        );
    }
    Ok(())
}
