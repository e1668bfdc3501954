//! Page units 4K, 16K, 64K and 2M on both loads (fact row A8): small pages for small random access, large ones for bulk.

use super::Plan;
use super::report::{Report, Samples, Target};
use super::rig::{Home, Rng, load, policy, time};
use smc_engine::base::Result;
use smc_engine::core::options::{MapOptions, Policy};

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let len: usize = if plan.quick { 32 << 20 } else { 128 << 20 };
    let home = Home::new(len, Some(&plan.wire))?;
    let rounds = if plan.quick { 2 } else { 5 };
    let (mut base_bulk, mut base_random) = (None, None);
    for (unit, name) in [(4 << 10, "4K"), (16 << 10, "16K"), (64 << 10, "64K"), (2 << 20, "2M")] {
        let (mut bulk, mut random) = (Vec::new(), Vec::new());
        for i in 0..rounds {
            let rig = home.map(None, MapOptions { page_unit: unit, window: 1, ..policy(Policy::Page) })?;
            bulk.push(len as f64 / time(|| rig.touch_all()) * 1e9);
            let _ = rig.region.acquire(0, 0);
            let mut rng = Rng(i + 3);
            let spots: Vec<usize> = (0..512).map(|_| rng.below(len / 64) * 64).collect();
            random.push(time(|| spots.iter().for_each(|s| _ = load(rig.v.wrapping_add(*s)))) / spots.len() as f64);
        }
        let (bulk, random) = (Samples::new(bulk), Samples::new(random));
        let b0 = *base_bulk.get_or_insert(bulk.median());
        let r0 = *base_random.get_or_insert(random.median());
        let stat = |s: &Samples| (s.len(), s.median(), s.at(0.99));
        report.put(
            &format!("units.bulk.{name}"),
            "B/s",
            bulk.median(),
            b0,
            stat(&bulk),
            home.on(),
            Target::None,
            "sequential touch, read window off; baseline: 4K",
        );
        report.put(
            &format!("units.random64.{name}"),
            "ns",
            random.median(),
            r0,
            stat(&random),
            home.on(),
            Target::None,
            "one random 64 B load in a cold region; baseline: 4K",
        );
    }
    Ok(())
}
