//! Runs the chosen cases, a few at a time, and hands each outcome on as it comes.

use super::Case;
use super::process::{Outcome, Plan, run};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Runs `cases` in `jobs` processes at a time. `each` is called on this thread, in the order of completion.
/// Returns all outcomes in the order of `cases`.
pub fn run_all(plan: &Plan, cases: &[Case], jobs: usize, mut each: impl FnMut(&Outcome)) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    let mut outcomes: Vec<Option<Outcome>> = cases.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, cases.len().max(1)) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(i) else { break };
                    if send.send((i, run(plan, case))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        for (i, outcome) in receive {
            each(&outcome);
            outcomes[i] = Some(outcome);
        }
    });
    outcomes.into_iter().flatten().collect()
}
