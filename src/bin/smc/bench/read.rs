//! [read.sequential]: one thread sums every word of a region.

use super::Plan;
use super::baseline::{copy, sum};
use super::report::{Report, Samples, Target};
use super::rig::{Home, buffer, policy, time};
use smc_engine::base::Result;
use smc_engine::base::config::Backend;
use smc_engine::core::options::{MapOptions, Policy};

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let len: usize = if plan.quick { 256 << 20 } else { 1 << 30 };
    let rounds = if plan.quick { 2 } else { 5 };
    let home = Home::new(len, None)?;
    let buf = buffer(len)?;
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
        let (mut ours, mut base) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let mut sums = (0, 0);
            let ns = time(|| {
                copy(home.export.base(), buf.ptr(), len);
                sums.0 = sum(buf.ptr(), len);
            });
            base.push(len as f64 / ns * 1e9);
            let _ = rig.region.acquire(0, 0);
            ours.push(len as f64 / time(|| sums.1 = sum(rig.v, len)) * 1e9);
            assert_eq!(sums.0, sums.1, "the region does not show the home's bytes");
        }
        let target = if least > 0.0 { Target::AtLeast(least) } else { Target::None };
        let note = "baseline: memcpy of the home into a populated 4 KiB-page buffer, then the same sum";
        report.add(name, "B/s", &Samples::new(ours), &Samples::new(base), home.on(), target, note);
    }
    Ok(())
}
