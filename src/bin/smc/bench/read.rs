//! [read.sequential]: one thread sums every word of a region.

use super::Plan;
use super::baseline::{copy, sum};
use super::report::{Report, Samples, Target};
use super::rig::{Home, buffer, huge_buffer, policy, time};
use smc_engine::base::Result;
use smc_engine::base::config::Backend;
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::sys::mem::Mapping;

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let len: usize = if plan.quick { 256 << 20 } else { 1 << 30 };
    let rounds = if plan.quick { 2 } else { 5 };
    let home = Home::new(len, None)?;
    let buf = buffer(len)?;
    // The region's own memory has huge pages where the kernel gives them: what a buffer gains by them is said too.
    let huge = huge_buffer(len)?;
    let cases = [
        ("read.sequential", Policy::Page, Backend::Sigbus, 0, 0.60),
        ("read.sequential.byte", Policy::Byte, Backend::Sigbus, 0, 0.50),
        ("read.sequential.ahead", Policy::Page, Backend::Sigbus, 1024, 0.0),
        ("read.sequential.ahead.byte", Policy::Byte, Backend::Sigbus, 1024, 0.0),
        ("read.sequential.thread", Policy::Page, Backend::Thread, 0, 0.0),
        ("read.sequential.thread.byte", Policy::Byte, Backend::Thread, 0, 0.0),
    ];
    for (name, pol, backend, readahead, least) in cases {
        if smc_engine::core::selftest::try_backend(backend).outcome.is_err() {
            continue;
        }
        let rig = home.map(Some(backend), MapOptions { readahead, ..policy(pol) })?;
        let (mut ours, mut base, mut base_huge) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut sums = (0, 0);
            base.push(len as f64 / time(|| sums.0 = copied_sum(&home, &buf)) * 1e9);
            if least > 0.0 {
                base_huge.push(len as f64 / time(|| sums.0 = copied_sum(&home, &huge)) * 1e9);
            }
            let _ = rig.region.acquire(0, 0);
            ours.push(len as f64 / time(|| sums.1 = sum(rig.v, len)) * 1e9);
            assert_eq!(sums.0, sums.1, "the region does not show the home's bytes");
        }
        let target = if least > 0.0 { Target::AtLeast(least) } else { Target::None };
        let note = "baseline: memcpy of the home into a populated 4 KiB-page buffer, then the same sum";
        let ours = Samples::new(ours);
        report.add(name, "B/s", &ours, &Samples::new(base), home.on(), target, note);
        if least > 0.0 {
            let note = "the same against a huge-page buffer";
            report.add(
                &format!("{name}.vs_huge"),
                "B/s",
                &ours,
                &Samples::new(base_huge),
                home.on(),
                Target::None,
                note,
            );
        }
    }
    Ok(())
}

/// The baseline: all of the home into a buffer, then the sum.
fn copied_sum(home: &Home, to: &Mapping) -> u64 {
    copy(home.base(), to.ptr(), to.len());
    sum(to.ptr(), to.len())
}
