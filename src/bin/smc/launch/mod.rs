//! `smc run`: starts a program with the library preloaded.

mod coverage;

use crate::out::{self, cannot};
use smc_engine::base::config::Backend;
use smc_engine::base::{Error, Status};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Run a program with libsmc preloaded
///
/// Paths below /smc/ then are regions: open, mmap and load and store them. Puts the library in front of what LD_PRELOAD
/// holds, sets the variables for the options given, and becomes the program. Warns when the program cannot be covered.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  smc run -- python3 -c 'import numpy; print(numpy.memmap(\"/smc/local/grads\", \"u1\")[:8])'
  smc run --fault sigbus --resident 512M -- ./app --its-own options")]
pub struct Args {
    /// Fault back end: thread, sigbus, sync or mprotect (LIBSMC_FAULT)
    #[arg(long, value_name = "BACKEND", value_parser = backend)]
    fault: Option<&'static str>,
    /// Local memory one region may keep (LIBSMC_RESIDENT)
    #[arg(long, value_name = "SIZE", value_parser = out::size_arg)]
    resident: Option<u64>,
    /// Longest wait for the home in milliseconds (LIBSMC_WAIT)
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    wait: Option<u64>,
    /// What the library says on stderr (LIBSMC_LOG)
    #[arg(long, value_name = "LEVEL", value_parser = ["off", "error", "info", "debug"])]
    log: Option<String>,
    /// Preload, but pass everything through (LIBSMC_DISABLE=1)
    #[arg(long)]
    disable: bool,
    /// The library [default: libsmc.so beside this tool, or in ../lib]
    #[arg(long, value_name = "FILE")]
    lib: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn backend(s: &str) -> Result<&'static str, String> {
    Backend::parse(s).map(Backend::name).ok_or_else(|| "expected thread, sigbus, sync or mprotect".into())
}

/// Directories that may hold the library, seen from the tool's own.
const PLACES: &[&str] = &[".", "../lib", "../lib64", "../lib/x86_64-linux-gnu"];
const NAMES: &[&str] = &["libsmc.so.1", "libsmc.so"];

pub fn find_library(given: Option<&Path>) -> Result<PathBuf, Error> {
    let attempt = "find libsmc.so";
    if let Some(p) = given {
        return p.canonicalize().map_err(|e| cannot(attempt, format!("{}: {e}", p.display())));
    }
    let exe = std::env::current_exe().map_err(|e| cannot(attempt, e))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let all = PLACES.iter().flat_map(|d| NAMES.iter().map(move |n| dir.join(d).join(n)));
    all.filter_map(|p| p.canonicalize().ok()).next().ok_or_else(|| {
        Error::new(Status::NOT_FOUND, attempt, format!("it is neither in {} nor in ../lib", dir.display()))
            .remedy("name it with --lib")
    })
}

/// The new value: ours first, then what was there.
pub fn preload(lib: &Path, old: Option<&OsStr>) -> Result<OsString, Error> {
    if lib.as_os_str().as_bytes().iter().any(|b| matches!(b, b':' | b' ')) {
        let why = "LD_PRELOAD cannot hold a path with a space or a colon";
        return Err(Error::new(Status::INVALID_ARGUMENT, format!("preload {}", lib.display()), why)
            .remedy("put the library elsewhere"));
    }
    let mut value = lib.as_os_str().to_owned();
    if let Some(old) = old.filter(|o| !o.is_empty()) {
        value.push(":");
        value.push(old);
    }
    Ok(value)
}

/// The file that execvp would start.
fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|d| d.join(name)).find(|p| coverage::executable(p))
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let lib = find_library(a.lib.as_deref())?;
    let Some((name, args)) = a.program.split_first() else { return Ok(ExitCode::from(2)) };
    let attempt = || format!("run {}", name.to_string_lossy());
    let program = find_program(name)
        .ok_or_else(|| Error::new(Status::NOT_FOUND, attempt(), "there is no such program in PATH"))?;
    if let Some(why) = coverage::not_covered(&program) {
        eprintln!("smc: warning: {} is not covered: {why}", program.display());
    }
    let mut c = Command::new(&program);
    c.arg0(name).args(args).env("LD_PRELOAD", preload(&lib, std::env::var_os("LD_PRELOAD").as_deref())?);
    let settings = [
        ("LIBSMC_FAULT", a.fault.map(str::to_owned)),
        ("LIBSMC_RESIDENT", a.resident.map(|n| n.to_string())),
        ("LIBSMC_WAIT", a.wait.map(|n| n.to_string())),
        ("LIBSMC_LOG", a.log.clone()),
        ("LIBSMC_DISABLE", a.disable.then(|| "1".to_owned())),
    ];
    c.envs(settings.into_iter().filter_map(|(k, v)| Some((k, v?))));
    // Comes back only when it fails.
    Err(cannot(attempt(), c.exec()))
}
