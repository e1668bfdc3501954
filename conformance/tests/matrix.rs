//! The app matrix: programs people run, with and without the library, and with a region mapped beside them. Each prints and
//! ends the same in all three.
//!
//! A program is a script in `conformance/apps/matrix`: above the line `# run` what is prepared once without the library,
//! below it what is compared. `SMC_MATRIX=TEXT` runs those whose name contains TEXT. For each program the run with a region
//! says how often each hook left its trivial path; a hook that no program and no exerciser took off it is a failure.

mod matrix_support;
mod preload_support;

use dashmap::DashMap;
use matrix_support::{Case, Stage};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Hooks that never act yet, and why.
fn passes_through(hook: &str) -> Option<&'static str> {
    const HEAP: [&str; 14] = [
        "malloc",
        "calloc",
        "realloc",
        "free",
        "memalign",
        "posix_memalign",
        "aligned_alloc",
        "valloc",
        "pvalloc",
        "reallocarray",
        "malloc_usable_size",
        "cfree",
        "free_sized",
        "free_aligned_sized",
    ];
    HEAP.contains(&hook).then_some("the heap is passed through")
}

/// What the quick run keeps.
const QUICK: [&str; 4] = ["awk", "bash", "coreutils", "tar"];

fn run_all(stage: &Stage, cases: &[Case], took: &DashMap<String, u64>) -> Vec<String> {
    let next = Mutex::new(cases.iter());
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let Some(case) = next.lock().unwrap().next() else { return };
                    match stage.run(case) {
                        Ok(hooks) => hooks.into_iter().for_each(|(h, n)| *took.entry(h).or_default() += n),
                        Err(why) => failures.lock().unwrap().push(format!("{}: {why}", case.name)),
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

#[test]
fn programs_behave_the_same() {
    let Some(stage) = Stage::new() else { return };
    // The whole matrix takes two minutes.
    let quick = std::env::var("SMC_EFFORT").as_deref() == Ok("quick");
    let wanted = std::env::var("SMC_MATRIX").unwrap_or_default();
    let cases: Vec<Case> =
        Case::all().into_iter().filter(|c| c.name.contains(&wanted) && (!quick || QUICK.contains(&&*c.name))).collect();
    assert!(!cases.is_empty(), "no program's name contains {wanted:?}");
    let took = DashMap::new();
    let mut failures = run_all(&stage, &cases, &took);
    if wanted.is_empty() && !quick {
        let mut took: BTreeMap<_, _> = took.into_iter().collect();
        for (h, n) in stage.exercise() {
            *took.entry(h).or_default() += n;
        }
        println!("all programs and the exercisers: {}", matrix_support::listed(&took));
        for hook in stage.hooks() {
            if !took.contains_key(&hook) && passes_through(&hook).is_none() {
                failures.push(format!("hook {hook} never left its trivial path"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} programs:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// The comparison itself can fail: a program that tells whether something is preloaded is told apart.
#[test]
fn a_difference_is_seen() {
    let Some(stage) = Stage::new() else { return };
    let case = Case::of("different", "# run\necho ${LD_PRELOAD:+seen}\n");
    assert!(stage.run(&case).is_err_and(|why| why.contains("seen")));
}
