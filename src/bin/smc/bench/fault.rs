//! [fault.first_touch]: what a touch of an absent page costs.

use super::report::{Report, Samples, Target};
use super::rig::{Home, Rng, load, policy, time};
use super::{Plan, baseline};
use smc_engine::base::Result;
use smc_engine::base::addr::PAGE;
use smc_engine::base::config::Backend;
use smc_engine::core::options::{MapOptions, Policy};

/// Touches pages in the given order, one by one; nanoseconds of each.
fn touches(v: *mut u8, order: &[usize]) -> Vec<f64> {
    order.iter().map(|p| time(|| _ = load(v.wrapping_add(p * PAGE)))).collect()
}

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let pages = if plan.quick { 4096 } else { 16384 };
    let rounds = if plan.quick { 3 } else { 7 };
    let home = Home::new(pages * PAGE, None)?;
    let base = home.base().cast_const();
    let mut rng = Rng(42);
    let cases: [(&str, Backend, Policy, Target); 4] = [
        ("fault.first_touch", Backend::Sigbus, Policy::Page, Target::AtMost(1.5)),
        ("fault.first_touch.byte", Backend::Sigbus, Policy::Byte, Target::None),
        ("fault.first_touch.thread", Backend::Thread, Policy::Page, Target::None),
        ("fault.first_touch.mprotect", Backend::Mprotect, Policy::Page, Target::None),
    ];
    for (name, backend, pol, target) in cases {
        if smc_engine::core::selftest::try_backend(backend).outcome.is_err() {
            continue;
        }
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let order = rng.order(pages);
            let rig = home.map(Some(backend), MapOptions { window: 1, ..policy(pol) })?;
            ours.extend(touches(rig.v, &order));
            drop(rig);
            let take = |v: *mut u8| bare.extend(touches(v, &order));
            match backend {
                Backend::Thread => baseline::with_thread_loop(pages * PAGE, base, take)?,
                _ => baseline::with_sigbus_loop(pages * PAGE, base, take)?,
            }
        }
        let note = match backend {
            Backend::Thread => "baseline: a bare thread that reads the userfaultfd and does the same copy",
            _ => "baseline: the smallest SIGBUS handler that does the same 4 KiB copy; random order, window 1",
        };
        report.add(name, "ns", &Samples::new(ours), &Samples::new(bare), home.on(), target, note);
    }
    Ok(())
}
