//! `smc-conformance`: the runner of the conformance suite.

fn main() -> std::process::ExitCode {
    smc_conformance::runner::cli::main(&smc_conformance::suites::all())
}
