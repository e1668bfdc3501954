//! Cases that go wrong on purpose: the runner must report each of them, or it is blind.

use super::{Case, Cost, Ctx, Verdict};
use std::process::Command;

/// What `--planted` runs instead of the suites. The name says what the report must be.
pub const CASES: &[Case] = &[
    Case::new("planted_pass", |_| Verdict::Pass).cost(Cost::Quick),
    Case::new("planted_fail", |_| Verdict::Fail("planted: 2 is not 3".into())).cost(Cost::Quick),
    Case::new("planted_skip", |_| Verdict::Skip("planted: no such hardware".into())).cost(Cost::Quick),
    Case::new("planted_need", |_| Verdict::Pass).needs(&[super::Need::Cpus(1_000_000)]).cost(Cost::Quick),
    Case::new("planted_hang", hang).timeout(1).cost(Cost::Quick),
    Case::new("planted_crash", |_| crash(libc::SIGSEGV)).cost(Cost::Quick),
    Case::new("planted_panic", |_| panic!("planted panic")).cost(Cost::Quick),
    Case::new("planted_thread_panic", thread_panic).cost(Cost::Quick),
    Case::new("planted_exit", |_| std::process::exit(0)).cost(Cost::Quick),
    Case::new("planted_dies_as_expected", |_| crash(libc::SIGBUS)).dies_by(libc::SIGBUS).cost(Cost::Quick),
    Case::new("planted_dies_otherwise", |_| crash(libc::SIGSEGV)).dies_by(libc::SIGBUS).cost(Cost::Quick),
    Case::new("planted_survives", |_| Verdict::Pass).dies_by(libc::SIGBUS).cost(Cost::Quick),
    Case::new("planted_orphan", orphan).cost(Cost::Quick),
    Case::new("planted_hang_long", hang).timeout(60).cost(Cost::Long),
    Case::new("planted_long", |_| Verdict::Fail("ran without --long".into())).cost(Cost::Long),
];

fn crash(signal: i32) -> Verdict {
    println!("planted output before the crash");
    // std's own handler returns from a raised SIGSEGV, so it goes first.
    // SAFETY: the default action is always a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // SAFETY: raises a signal in this process, which is what the case is for.
    unsafe { libc::raise(signal) };
    Verdict::Fail("survived its own signal".into())
}

/// Hangs together with a child of its own; both must be gone afterwards.
fn hang(_: &mut Ctx) -> Verdict {
    let child = Command::new("sleep").arg("1000").spawn();
    println!("child {}", child.map_or(0, |c| c.id()));
    loop {
        std::thread::park();
    }
}

fn thread_panic(_: &mut Ctx) -> Verdict {
    let _ = std::thread::spawn(|| panic!("planted panic in a thread")).join();
    Verdict::Pass
}

/// Passes, and leaves a process behind that holds its output open: it must not delay the runner, and be killed.
fn orphan(_: &mut Ctx) -> Verdict {
    match Command::new("sleep").arg("1000").spawn() {
        Ok(_) => Verdict::Pass,
        Err(e) => Verdict::Fail(format!("cannot start sleep: {e}")),
    }
}
