//! The litmus harness against a reference that is right, and against ones that are wrong on purpose.

use crate::litmus::harness::Budget;
use crate::litmus::reference::{Flaw, Reference};
use crate::litmus::{Failure, Litmus, Placement, catalogue, harness};
use crate::runner::{Case, Cost, Ctx, Verdict};
use std::time::Duration;

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("selfcheck_litmus_reference_passes", reference).timeout(120).cost(Cost::Quick),
    Case::new("selfcheck_litmus_flaws_are_caught", flaws).timeout(120).cost(Cost::Quick),
    Case::new("selfcheck_litmus_blindness_is_noticed", blindness).timeout(60).cost(Cost::Quick),
];

fn budget(ctx: &Ctx) -> Budget {
    Budget::new(ctx.scale(2_000, 20_000, 500_000), Duration::from_millis(ctx.scale(300, 1_000, 10_000)))
}

/// A flaw shows at once or, after all chances, not at all: more time would be waste.
const SHORT: Budget = Budget::new(2_000, Duration::from_millis(300));

fn run(ctx: &Ctx, flaw: Flaw, test: &Litmus, placement: Placement, budget: Budget) -> harness::Report {
    harness::run(&mut Reference { flaw, seed: ctx.seed }, test, placement, budget, ctx.seed)
}

/// Every test passes, in every placement that changes anything: relaxed outcomes seen, forbidden ones not.
fn reference(ctx: &mut Ctx) -> Verdict {
    let mut wrong = Vec::new();
    for test in catalogue::ALL {
        for placement in [Placement::Pages, Placement::Line] {
            let report = run(ctx, Flaw::None, test, placement, budget(ctx));
            wrong.extend(harness::conclude(test, placement, ctx.seed, &report).err());
        }
    }
    if wrong.is_empty() { Verdict::Pass } else { Verdict::Fail(wrong.join("\n")) }
}

/// Flaw, and a test that must see it: by a forbidden outcome, or by one that the fences should bring and do not.
const CAUGHT_BY: &[(Flaw, &Litmus)] = &[
    (Flaw::ReleaseForgets, &catalogue::SB),
    (Flaw::ReleaseForgets, &catalogue::NEIGHBOURS),
    (Flaw::ReleaseEarly, &catalogue::MP),
    (Flaw::AcquireKeeps, &catalogue::SB),
    (Flaw::AcquireKeeps, &catalogue::MP_ATOMIC),
    (Flaw::ThroughStays, &catalogue::MP_THROUGH),
    (Flaw::WholeLine, &catalogue::NEIGHBOURS),
    (Flaw::WholeLine, &catalogue::COUNTER),
    (Flaw::AddInPieces, &catalogue::COUNTER),
    (Flaw::SwapInPieces, &catalogue::ONE_WINNER),
];

fn flaws(ctx: &mut Ctx) -> Verdict {
    let caught = |flaw, test| {
        let report = run(ctx, flaw, test, Placement::Line, SHORT);
        println!("{flaw:?} by {}: {:?}\n{}", test.name, report.failures, report.fenced);
        report.failures.iter().any(|f| match f {
            Failure::Forbidden(_) => true,
            Failure::Blind(text) => text.contains("the fenced program"),
            Failure::Broken(_) => false,
        })
    };
    let missed: Vec<_> =
        CAUGHT_BY.iter().filter(|(f, t)| !caught(*f, t)).map(|(f, t)| format!("{f:?} by {}", t.name)).collect();
    if missed.is_empty() { Verdict::Pass } else { Verdict::Fail(format!("not caught: {}", missed.join(", "))) }
}

/// Over a memory that never relaxes anything the controls must not claim to have tested something.
fn blindness(ctx: &mut Ctx) -> Verdict {
    for test in [&catalogue::MP, &catalogue::IRIW] {
        let report = run(ctx, Flaw::Strong, test, Placement::Pages, SHORT);
        if !report.failures.iter().any(|f| matches!(f, Failure::Blind(t) if t.contains("the control"))) {
            return Verdict::Fail(format!("{} was not called blind: {:?}", test.name, report.failures));
        }
    }
    Verdict::Pass
}
