//! 1, 2, 4 and 8 threads touching absent pages and storing to them.

use super::Plan;
use super::report::{Report, Samples, Target};
use super::rig::{Home, fill, policy, time};
use smc_engine::base::Result;
use smc_engine::base::addr::PAGE;
use smc_engine::base::config::Backend;
use smc_engine::core::options::Policy;

/// Runs the suite.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let pages = if plan.quick { 8192 } else { 32768 };
    let home = Home::new(pages * PAGE, None)?;
    for backend in [Backend::Sigbus, Backend::Thread] {
        let mut one = None;
        for threads in [1usize, 2, 4, 8] {
            let mut rates = Vec::new();
            for round in 0..if plan.quick { 2 } else { 5 } {
                let rig = home.map(Some(backend), policy(Policy::Byte))?;
                let v = rig.v as usize;
                let ns = time(|| {
                    std::thread::scope(|s| {
                        for t in 0..threads {
                            let mine = (0..pages).skip(t * pages / threads).take(pages / threads);
                            s.spawn(move || mine.for_each(|p| fill((v + p * PAGE + 8 * t) as *mut u8, round + 1, 8)));
                        }
                    });
                    rig.release();
                });
                rates.push(pages as f64 / ns * 1e9);
            }
            let s = Samples::new(rates);
            let base = *one.get_or_insert(s.median());
            let target = if threads == 8 { Target::AtLeast(1.0) } else { Target::None };
            let name = format!("threads.touch_store.{}.{threads}", backend.name());
            report.put(
                &name,
                "1/s",
                s.median(),
                base,
                (s.len(), s.median(), s.at(0.99)),
                home.on(),
                target,
                "pages touched, stored to and released per second; baseline: one thread",
            );
        }
    }
    Ok(())
}
