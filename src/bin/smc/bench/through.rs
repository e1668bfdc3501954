//! [store.write_through]: what one store costs when it is at the home as it returns.

use super::report::{Report, Samples, Target};
use super::rig::{Home, policy, put, time};
use super::{Plan, baseline};
use smc_engine::base::Result;
use smc_engine::base::addr::PAGE;
use smc_engine::base::config::Backend;
use smc_engine::core::options::{MapOptions, Policy, Through};

/// Stores one word per page in turn; nanoseconds of each.
fn stores(v: *mut u8, n: usize, pages: usize) -> Vec<f64> {
    (0..n).map(|i| time(|| store_word(v.wrapping_add(i % pages * PAGE), i as u64))).collect()
}

/// One `mov`: never inlined, so that both sides execute the same instruction.
#[inline(never)]
pub fn store_word(p: *mut u8, value: u64) {
    // SAFETY: suites pass aligned words of their own mappings; the instruction stores 8 bytes and nothing else.
    unsafe { std::arch::asm!("mov [{0}], {1}", in(reg) p, in(reg) value, options(nostack, preserves_flags)) };
}

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let (n, pages) = (if plan.quick { 5_000 } else { 30_000 }, 64);
    for model in [None, Some(plan.wire.as_str())] {
        let home = Home::new(pages * PAGE, model)?;
        let rig = home.map(Some(Backend::Sync), MapOptions { through: Through::Exact, ..policy(Policy::Byte) })?;
        rig.touch_all();
        let key = home.open()?;
        let word = 7u64;
        let mut bare = Vec::new();
        baseline::with_emulation_loop(pages * PAGE, |v| bare = stores(v, n, pages))?;
        let ours = Samples::new(stores(rig.v, n, pages));
        let puts = Samples::new(
            (0..n)
                .map(|i| time(|| put(&*home.link, key, (i % pages * PAGE) as u64, (&raw const word).cast(), 8)))
                .collect(),
        );
        let base = Samples::new(bare.iter().map(|b| b + puts.median()).collect());
        let name = if model.is_some() { "store.write_through.wire" } else { "store.write_through" };
        let note = "exact mode; baseline: the smallest handler that emulates one mov, plus one completed put";
        report.add(name, "ns", &ours, &base, home.on(), Target::AtMost(1.5), note);
        home.link.close(key);
    }
    Ok(())
}
