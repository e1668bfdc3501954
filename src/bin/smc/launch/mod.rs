//! `smc run`: starts a program with the library preloaded.

mod config;
mod elf;
mod explain;
mod preload;
mod program;
mod start;

use crate::out;
use preload::Position;
pub use preload::{find_library, list};
use program::{Failure, Program, Verdict};
use smc_engine::base::config::{Backend, VARS};
use smc_engine::base::{Error, Status};
use start::Environment;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What stands below the options.
const HELP: &str = "Settings: a file smc.toml holds settings per program. A table is named after the program, or after its \
path when there is a slash in the name; *, ? and [] are as in the shell. Keys are the environment variables of `smc env`. \
All tables that fit count, a later one more than an earlier one; a variable that is set counts more than the file, and an \
option more than both.

  [program.\"python3*\"]
  LIBSMC_RESIDENT = \"512M\"
  LIBSMC_WAIT = 2000

The file is the one that --config names, or else the variable LIBSMC_CONFIG (empty: none); without them the first there is of \
$XDG_CONFIG_HOME/libsmc/smc.toml (~/.config/libsmc/smc.toml) and /etc/libsmc/smc.toml, which must belong to you or root and \
not be writable for everybody. The current directory is not looked into.

Children: without --children clean the programs that the program starts are preloaded as well. With it the program itself \
sees LD_PRELOAD and all other variables as they are now, so what it starts is started as without `smc run`. That is right for \
compilers, sanitized programs, tools that refuse a preloaded library; not for a shell script that starts the program meant. \
Only /proc/PID/environ still shows what the program was started with.

Exit status: that of the program. 2: wrong usage; 125: `smc run` itself fails or refuses; 126: the program is there but cannot \
be started; 127: there is no such program. --explain: 0, or what it would be without.

Examples:
  smc run -- python3 -c 'import numpy; print(numpy.memmap(\"/smc/local/grads\", \"u1\")[:8])'
  smc run --fault sigbus --resident 512M -- ./app --its-own options
  smc run --explain --json -- ./app | jq .covered";

/// Run a program with libsmc preloaded
///
/// Paths below /smc/ then are regions: open, mmap and load and store them. Adds the library to LD_PRELOAD, sets the
/// variables for the options given, and becomes the program: it keeps the process, its descriptors, signals, exit status
/// and the order of its environment.
///
/// LD_PRELOAD: what it holds keeps its order. The library comes first, or where --position says; a libsmc that is named
/// already is replaced where it stands.
///
/// A program that the library cannot be loaded into is refused: one that is statically linked, runs with more rights than
/// its caller (set-user-ID, set-group-ID, file capabilities), is for another processor or another C library, or a script
/// whose interpreter is one of these.
///
/// A program linked with the shared AddressSanitizer runtime is started with ASAN_OPTIONS=verify_asan_link_order=0: the
/// runtime would otherwise end it because a preloaded library comes first. Set that yourself for such programs that it
/// starts.
#[derive(clap::Args)]
#[command(after_help = HELP)]
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
    /// Place in LD_PRELOAD [default: first]
    #[arg(long, value_name = "PLACE")]
    position: Option<Position>,
    /// Start the program even if the library cannot be loaded into it; programs it starts may be covered
    #[arg(long)]
    force: bool,
    /// How programs are started that this one starts: with the library, or clean: without it, and with the environment as
    /// it is now (LIBSMC_CHILDREN)
    #[arg(long, value_name = "HOW", value_parser = ["preload", "clean"])]
    children: Option<String>,
    /// Read settings from this file [default: see below]
    #[arg(long, value_name = "FILE", conflicts_with = "no_config")]
    config: Option<PathBuf>,
    /// Read no settings
    #[arg(long)]
    no_config: bool,
    /// Start nothing: show what would be set, from where, and whether the program can be covered
    #[arg(long)]
    explain: bool,
    /// With --explain: one JSON object
    #[arg(long, requires = "explain")]
    json: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Exit status when the fault is ours and not the program's, as of env and timeout.
const OURS: u8 = 125;

fn backend(s: &str) -> Result<&'static str, String> {
    Backend::parse(s).map(Backend::name).ok_or_else(|| "expected thread, sigbus, sync or mprotect".into())
}

/// A refusal: the exit status, and the error to show.
struct Refusal(u8, Error);

impl From<Error> for Refusal {
    fn from(e: Error) -> Refusal {
        Refusal(OURS, e)
    }
}

fn failed(name: &OsStr, f: Failure) -> Refusal {
    let status = if f.status == 127 { Status::NOT_FOUND } else { Status::SYSTEM };
    Refusal(f.status, Error::new(status, attempt(name), f.why))
}

fn attempt(name: &OsStr) -> String {
    format!("run {}", name.to_string_lossy())
}

/// Says what a program that would run without the library is missing; an error unless it is to run all the same.
fn admit(a: &Args, name: &OsStr, p: &Program) -> Result<(), Refusal> {
    let shown = p.through.last().unwrap_or(&p.file).display();
    match &p.verdict {
        Verdict::Covered => {}
        Verdict::Unknown(why) => eprintln!("smc: warning: cannot tell whether {shown} is covered: {why}"),
        Verdict::Not(why, _) if a.force => eprintln!("smc: warning: {shown} is not covered: {why}"),
        Verdict::Not(why, remedy) => {
            let why = if p.through.is_empty() { why.clone() } else { format!("{shown} runs it, and {why}") };
            let or = if remedy.is_empty() { "" } else { ", or " };
            let e = Error::new(Status::NOT_SUPPORTED, attempt(name), format!("libsmc cannot be preloaded: {why}"));
            return Err(e.remedy(format!("{remedy}{or}run it without libsmc by --force")).into());
        }
    }
    Ok(())
}

/// Where a value comes from.
enum Source {
    /// The option of this name.
    Option(&'static str),
    /// It was set already.
    Environment,
    /// This line of the settings.
    File(PathBuf, usize),
    /// We set it, for this reason.
    Own(&'static str),
}

/// A variable as the program will see it.
struct Variable {
    name: &'static str,
    value: OsString,
    from: Source,
}

/// All that is known before the program is started.
struct Plan {
    program: Program,
    library: PathBuf,
    /// The file of settings that was read.
    config: Option<PathBuf>,
    variables: Vec<Variable>,
}

/// What says how the programs are started that this one starts.
const CHILDREN: &str = "LIBSMC_CHILDREN";

impl Variable {
    /// It tells us how to start the program; the library needs it only when nobody else has done the work.
    fn hidden(&self, clean: bool) -> bool {
        clean && self.name == CHILDREN
    }
}

impl Plan {
    fn clean(&self) -> bool {
        self.variables.iter().any(|v| v.name == CHILDREN && v.value == "clean")
    }
}

fn options(a: &Args) -> [(&'static str, &'static str, Option<String>); 6] {
    [
        ("LIBSMC_FAULT", "--fault", a.fault.map(str::to_owned)),
        ("LIBSMC_RESIDENT", "--resident", a.resident.map(|n| n.to_string())),
        ("LIBSMC_WAIT", "--wait", a.wait.map(|n| n.to_string())),
        ("LIBSMC_LOG", "--log", a.log.clone()),
        ("LIBSMC_DISABLE", "--disable", a.disable.then(|| "1".to_owned())),
        (CHILDREN, "--children", a.children.clone()),
    ]
}

/// An option counts most, then the environment, then the file.
fn settings(a: &Args, env: &Environment, file: Option<&config::Settings>, name: &OsStr, path: &Path) -> Vec<Variable> {
    let lines = file.map(|f| f.of(name, path)).unwrap_or_default();
    let given = options(a);
    let one = |v: &'static str| {
        let option = given.iter().find(|o| o.0 == v);
        let option = option.and_then(|(_, o, value)| Some((Source::Option(o), value.as_ref()?.into())));
        let set = || Some((Source::Environment, env.get(v)?.to_owned()));
        let line = || {
            let (s, f) = (lines.get(v)?, file?);
            Some((Source::File(f.path.clone(), s.line), s.value.clone().into()))
        };
        let (from, value) = option.or_else(set).or_else(line)?;
        Some(Variable { name: v, value, from })
    };
    VARS.iter().map(|v| v.name).filter(|v| *v != config::VARIABLE).filter_map(one).collect()
}

/// Options of AddressSanitizer.
const ASAN: &str = "ASAN_OPTIONS";

/// Lets the shared AddressSanitizer runtime come behind a preloaded library; otherwise it ends the program.
fn asan_options(old: Option<&OsStr>) -> OsString {
    let add = "verify_asan_link_order=0";
    match old {
        Some(o) if o.to_string_lossy().contains("verify_asan_link_order") => o.to_owned(),
        Some(o) if !o.is_empty() => [o, ":".as_ref(), add.as_ref()].into_iter().collect(),
        _ => add.into(),
    }
}

fn plan(a: &Args, name: &OsStr, env: &Environment) -> Result<Plan, Refusal> {
    let library = find_library(a.lib.as_deref())?;
    let file = program::find(name).map_err(|f| failed(name, f))?;
    let program = program::examine(&file).map_err(|f| failed(name, f))?;
    let file = config::read(a.config.as_deref(), a.no_config, env)?;
    let preload = list(&library, env.get("LD_PRELOAD"), a.position);
    let from = Source::Own("smc run: the library, and what was there");
    let mut variables = vec![Variable { name: "LD_PRELOAD", value: preload, from }];
    if program.asan.is_some() {
        let from = Source::Own("smc run: the program is linked with the shared AddressSanitizer runtime");
        variables.push(Variable { name: ASAN, value: asan_options(env.get(ASAN)), from });
    }
    variables.extend(settings(a, env, file.as_ref(), name, &program.file));
    Ok(Plan { program, library, config: file.map(|f| f.path), variables })
}

fn launch(a: &Args, name: &OsStr, args: &[OsString]) -> Result<ExitCode, Refusal> {
    let env = Environment::own();
    let plan = plan(a, name, &env)?;
    if a.explain {
        explain::show(&plan, a.json);
        let refused = matches!(plan.program.verdict, Verdict::Not(..)) && !a.force;
        return Ok(ExitCode::from(if refused { OURS } else { 0 }));
    }
    admit(a, name, &plan.program)?;
    // What the library would take back is not given to a program without it.
    let bare = plan.clean() && matches!(plan.program.verdict, Verdict::Not(..));
    let new = plan.variables.iter().filter(|v| !bare && !v.hidden(plan.clean()));
    let env = env.with(new.map(|v| (v.name, v.value.as_os_str())), plan.clean() && !bare);
    // Comes back only when it fails.
    Err(failed(name, start::become_program(&plan.program.file, name, args, &env)))
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let Some((name, args)) = a.program.split_first() else { return Ok(ExitCode::from(2)) };
    launch(a, name, args).or_else(|Refusal(status, e)| {
        eprintln!("smc: {e}");
        Ok(ExitCode::from(status))
    })
}
