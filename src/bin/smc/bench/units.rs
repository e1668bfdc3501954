//! Page units 4K, 16K, 64K and 2M on both loads (fact row A8): small pages for small random access, large ones for bulk.

use super::Plan;
use super::report::{Report, Samples, Target};
use super::rig::{Home, Rng, load, policy, time};
use smc_engine::base::Result;
use smc_engine::base::config::Backend;
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::core::selftest;

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let len: usize = if plan.quick { 64 << 20 } else { 256 << 20 };
    let home = Home::new(len, Some(&plan.wire))?;
    let rounds = if plan.quick { 2 } else { 5 };
    let backend = Some(Backend::Sigbus).filter(|b| selftest::try_backend(*b).outcome.is_ok());
    let (mut base_bulk, mut base_random) = (None, None);
    for (unit, name) in [(4 << 10, "4K"), (16 << 10, "16K"), (64 << 10, "64K"), (2 << 20, "2M")] {
        let opts = MapOptions { page_unit: unit, window: 1, ..policy(Policy::Page) };
        let rig = home.map(backend, opts)?;
        let (mut bulk, mut random) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            let _ = rig.region.acquire(0, 0);
            bulk.push(len as f64 / time(|| rig.touch_all()) * 1e9);
            let _ = rig.region.acquire(0, 0);
            // One spot in each 2 MiB, in random order: no load finds its page already here, whatever the unit.
            let mut rng = Rng(round + 3);
            let block = 2 << 20;
            let spots: Vec<usize> =
                rng.order(len / block).into_iter().map(|b| b * block + rng.below(block / 64) * 64).collect();
            random.extend(spots.iter().map(|s| time(|| _ = load(rig.v.wrapping_add(*s)))));
        }
        let (bulk, random) = (Samples::new(bulk), Samples::new(random));
        let b0 = *base_bulk.get_or_insert(bulk.median());
        let r0 = *base_random.get_or_insert(random.median());
        let stat = |s: &Samples| (s.len(), s.median(), s.at(0.99));
        let note = "every page touched in order, read window off; baseline: 4K";
        report.put(&format!("units.bulk.{name}"), "B/s", bulk.median(), b0, stat(&bulk), home.on(), Target::None, note);
        let note = "one random load in a cold region; baseline: 4K";
        let (on, stats) = (home.on(), stat(&random));
        report.put(&format!("units.random64.{name}"), "ns", random.median(), r0, stats, on, Target::None, note);
    }
    Ok(())
}
