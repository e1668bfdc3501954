//! smc: the command line tool of libsmc.

mod bench;
mod doctor;
mod env;
mod explain;
mod key;
mod keygen;
mod launch;
mod ls;
mod os;
mod out;
mod serve;
mod stat;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Remote accelerator memory by plain load and store.
#[derive(Parser)]
#[command(name = "smc", version, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Ls(ls::Args),
    Stat(stat::Args),
    Explain(explain::Args),
    Doctor(doctor::Args),
    Run(launch::Args),
    Keygen(keygen::Args),
    Env(env::Args),
    Bench(bench::Args),
}

fn main() -> ExitCode {
    // Usage errors end the process with status 2 inside `parse`.
    let result = match Cli::parse().command {
        Command::Serve(a) => serve::run(a),
        Command::Ls(a) => ls::run(&a),
        Command::Stat(a) => stat::run(&a),
        Command::Explain(a) => explain::run(&a),
        Command::Doctor(a) => doctor::run(&a),
        Command::Run(a) => launch::run(&a),
        Command::Keygen(a) => keygen::run(&a),
        Command::Env(a) => env::run(&a),
        Command::Bench(a) => bench::run(&a),
    };
    result.unwrap_or_else(|e| {
        eprintln!("smc: {e}");
        ExitCode::FAILURE
    })
}
