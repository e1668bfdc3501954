//! `smc-conformance`: the runner of the conformance suite.

use smc_engine::sys::reserve::Reserved;
use std::alloc::System;

/// As in the library, so that the suite can let allocations fail.
#[global_allocator]
static HEAP: Reserved<System> = Reserved::new(System);

fn main() -> std::process::ExitCode {
    smc_conformance::runner::cli::main(&smc_conformance::suites::all())
}
