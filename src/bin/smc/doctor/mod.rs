//! `smc doctor`: what this host allows, found by trying, and what to do about the rest.

mod backends;
mod hooks;
mod host;
mod rdma;

use crate::out;
use serde_json::json;
use smc_engine::base::Error;
use std::io::IsTerminal;
use std::process::{Child, ExitCode, Output};
use std::time::{Duration, Instant};

/// Examine this host: which fault back ends work, and why others do not
///
/// Each back end is really tried, on a region of two pages in a process of its own, and the hooks of the preloaded library
/// in another. The other rows are facts that decide
/// what works or how fast. Exit status 0 when some back end works, 1 otherwise. Changes nothing.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  smc doctor\n  smc doctor --json | jq '.rows[] | select(.verdict != \"ok\")'")]
pub struct Args {
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Tries one back end and prints what came of it: how doctor tries them
    #[arg(long, hide = true)]
    trial: Option<String>,
    /// Tests the hooks of the library that is preloaded and prints them: how doctor tests them
    #[arg(long, hide = true)]
    hooks: bool,
}

/// What a row says about this host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    Warn,
    Bad,
    Unknown,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Bad => "bad",
            Verdict::Unknown => "unknown",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Verdict::Ok => "\x1b[32m",
            Verdict::Warn => "\x1b[33m",
            Verdict::Bad => "\x1b[31m",
            Verdict::Unknown => "\x1b[2m",
        }
    }
}

/// One finding.
pub struct Row {
    pub name: &'static str,
    pub verdict: Verdict,
    pub value: String,
    pub meaning: String,
    /// A command or a setting; empty where there is nothing to do.
    pub remedy: String,
}

impl Row {
    pub fn new(name: &'static str, verdict: Verdict, value: impl Into<String>, meaning: impl Into<String>) -> Row {
        Row { name, verdict, value: value.into(), meaning: meaning.into(), remedy: String::new() }
    }

    /// What to do, shown when the verdict is not ok.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Row {
        if self.verdict != Verdict::Ok {
            self.remedy = remedy.into();
        }
        self
    }
}

fn print(rows: &[Row]) {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for r in rows {
        let word = format!("{:<7}", r.verdict.name());
        let word = if colours { format!("{}{word}\x1b[0m", r.verdict.colour()) } else { word };
        out::line(format!("{word} {:<width$}  {}", r.name, r.value));
        out::line(format!("        {:<width$}  {}", "", r.meaning));
        if !r.remedy.is_empty() {
            out::line(format!("        {:<width$}  remedy: {}", "", r.remedy));
        }
    }
}

/// Time one child may take; it needs a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// Waits for a child and takes its output, which must fit a pipe; a child that does not end is ended.
fn wait(mut child: Child) -> Result<Output, String> {
    let end = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("the trial did not end within {} seconds", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().map_err(|e| e.to_string())
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    if let Some(name) = &a.trial {
        return Ok(backends::one_trial(name));
    }
    if a.hooks {
        return Ok(hooks::child());
    }
    let found = backends::examine();
    let mut rows = found.rows();
    rows.push(hooks::row());
    rows.extend(host::rows(&found));
    if a.json {
        let list: Vec<_> = rows
            .iter()
            .map(|r| {
                json!({"name": r.name, "verdict": r.verdict.name(), "value": r.value, "meaning": r.meaning, "remedy": r.remedy})
            })
            .collect();
        let works: Vec<&str> = found.working().map(|b| b.name()).collect();
        out::json(&json!({"backend": found.chosen().map(|b| b.name()), "works": works, "rows": list}));
    } else {
        print(&rows);
    }
    Ok(if found.working().next().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
