//! The simulation against a subject that is right, and against ones that are wrong on purpose.

use crate::runner::{Case, Cost, Ctx, Verdict};
use crate::sim::reference::{Flaw, Reference};
use crate::sim::run::{Failure, Size, run};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("selfcheck_sim_reference_passes", reference).timeout(120).cost(Cost::Quick),
    Case::new("selfcheck_sim_flaws_are_caught", flaws).timeout(120).cost(Cost::Quick),
];

/// A few pages with many runs, or many pages.
fn size(seed: u64) -> Size {
    if seed.is_multiple_of(8) { Size { home: 128 << 10, ops: 400 } } else { Size { home: (16 << 10) + 8, ops: 300 } }
}

fn reference(ctx: &mut Ctx) -> Verdict {
    for i in 0..ctx.scale(30, 500, 10_000) {
        let seed = ctx.seed.wrapping_add(i);
        if let Err(f) = run(&mut Reference(Flaw::None), seed, size(seed)) {
            return Verdict::Fail(format!("the model is wrong about a right subject: {f}"));
        }
    }
    Verdict::Pass
}

/// Seeds within which every flaw must have shown.
const SEEDS: u64 = 40;

fn first_failure(flaw: Flaw, seed: u64) -> Option<Box<Failure>> {
    (0..SEEDS).find_map(|i| run(&mut Reference(flaw), seed.wrapping_add(i), size(seed.wrapping_add(i))).err())
}

/// Every flaw shows, shrinks to a few operations, and repeats from the seed that the failure names.
fn flaws(ctx: &mut Ctx) -> Verdict {
    for flaw in Flaw::ALL {
        let Some(f) = first_failure(*flaw, ctx.seed) else {
            return Verdict::Fail(format!("{flaw:?} was not caught in {SEEDS} seeds from {}", ctx.seed));
        };
        println!("{flaw:?}: {f}");
        if f.ops.len() > 12 {
            return Verdict::Fail(format!("{flaw:?} shrank only to {} operations: {f}", f.ops.len()));
        }
        match run(&mut Reference(*flaw), f.seed, size(f.seed)) {
            Err(again) if again.what == f.what && again.ops == f.ops => {}
            other => return Verdict::Fail(format!("{flaw:?} did not repeat from seed {}: {other:?}", f.seed)),
        }
    }
    Verdict::Pass
}
