//! `smc-tasks`: regenerates and checks what is committed but made by a program.

use clap::{Args, Parser, Subcommand};
use smc_conformance::abi::library::{self, AbiChange};
use smc_conformance::{abi, repo};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Repository tasks: the C header, the list of exported symbols, the ABI description.
///
/// Exit status: 0 done, 1 failed or different, 77 skipped (an error when CI=true).
#[derive(Parser)]
#[command(name = "smc-tasks", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

const EXAMPLES: &str = "\
Examples:
  smc-tasks header            after a change in src/capi
  smc-tasks header --check    is the committed header current?
  smc-tasks symbols           after a change of what libsmc.so exports
  smc-tasks abi               at a release, or after a deliberate change of the ABI
  smc-tasks abi-check         does a program built against the last ABI still run?";

#[derive(Subcommand)]
enum Task {
    /// Regenerate include/smc.h from src/capi with the pinned cbindgen
    Header(Mode),
    /// Update conformance/golden/symbols.txt from the release build of libsmc.so
    Symbols(Mode),
    /// Describe the ABI of libsmc.so (a debug build, which has its types) in conformance/golden/smc-0.abi
    Abi,
    /// Compare the ABI of libsmc.so with conformance/golden/smc-0.abi
    AbiCheck,
}

#[derive(Args)]
struct Mode {
    /// Write nothing; show the difference and fail when there is one
    #[arg(long)]
    check: bool,
}

/// What came of a task.
enum Done {
    Ok(String),
    Skipped(String),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Header(mode) => abi::header::generate().and_then(|t| settle(&abi::header_path(), &t, &mode, "header")),
        Task::Symbols(mode) => symbols(&mode),
        Task::Abi => describe(),
        Task::AbiCheck => check(),
    };
    match result {
        Ok(Done::Ok(text)) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Done::Skipped(why)) if std::env::var("CI").is_ok_and(|v| v == "true") => {
            fail(&format!("skipped under CI: {why}"))
        }
        Ok(Done::Skipped(why)) => {
            println!("skipped: {why}");
            ExitCode::from(77)
        }
        Err(why) => fail(&why),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("smc-tasks: {why}");
    ExitCode::FAILURE
}

/// Writes `text` to `path`, or shows how it differs from what is there.
fn settle(path: &Path, text: &str, mode: &Mode, task: &str) -> Result<Done, String> {
    let old = std::fs::read_to_string(path).ok();
    let name = path.strip_prefix(repo::root()).unwrap_or(path).display().to_string();
    if old.as_deref() == Some(text) {
        return Ok(Done::Ok(format!("{name} is current")));
    }
    if mode.check {
        return Err(format!(
            "{name} is not current; run `smc-tasks {task}`\n{}",
            repo::diff(old.as_deref().unwrap_or_default(), text)
        ));
    }
    write(path, text)?;
    Ok(Done::Ok(format!("{name} written")))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let parent: PathBuf = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
    std::fs::create_dir_all(&parent)
        .and_then(|()| std::fs::write(path, text))
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn symbols(mode: &Mode) -> Result<Done, String> {
    let library = library::build("release")?;
    settle(&abi::golden("symbols.txt"), &library::symbols(&library)?, mode, "symbols")
}

fn no_tools() -> Done {
    Done::Skipped("abidw and abidiff are not installed (package abigail-tools)".into())
}

fn describe() -> Result<Done, String> {
    if !library::has_abi_tools() {
        return Ok(no_tools());
    }
    let golden = abi::golden("smc-0.abi");
    library::describe(&library::build("dev")?, &golden)?;
    Ok(Done::Ok("conformance/golden/smc-0.abi written".into()))
}

fn check() -> Result<Done, String> {
    if !library::has_abi_tools() {
        return Ok(no_tools());
    }
    match library::compare(&abi::golden("smc-0.abi"), &library::build("dev")?)? {
        AbiChange::None => Ok(Done::Ok("the ABI is that of conformance/golden/smc-0.abi".into())),
        AbiChange::Compatible(report) => Err(format!("the ABI grew; if that is meant, run `smc-tasks abi`\n{report}")),
        AbiChange::Incompatible(report) => Err(format!("the ABI broke: old programs would fail\n{report}")),
    }
}
