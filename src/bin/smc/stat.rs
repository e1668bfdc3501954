//! `smc stat`: live counters of the processes that have regions.

use crate::out::{self, cannot};
use serde_json::{Value, json};
use smc_engine::base::{Error, Status};
use smc_engine::core::board::{self, Posted, Reading};
use smc_engine::core::options::{Policy, Through};
use smc_engine::sys::clock;
use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Show what the regions of running processes do
///
/// One block per region: size, bytes that are here, fault back end, policy, state, and every counter that is not zero.
/// Without a PID every process whose descriptors this user may see. Figures are posted by the processes themselves, at
/// most five times a second; reading them does not disturb anybody. A closed region stays listed until its process needs
/// the place.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  smc stat\n  smc stat 4711 --watch 1\n  smc stat --json | jq '.[].regions[].counters.faults'"
)]
pub struct Args {
    /// One process; otherwise all
    pid: Option<u32>,
    /// One JSON array of processes (with --watch, one per line)
    #[arg(long)]
    json: bool,
    /// Again every so many seconds, with rates, until interrupted or the process ends
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,
    /// Counters that are zero too
    #[arg(long)]
    all: bool,
}

fn seconds(s: &str) -> Result<Duration, String> {
    let n: f64 = s.parse().map_err(|_| "expected seconds".to_owned())?;
    if (0.1..=86_400.0).contains(&n) {
        Ok(Duration::from_secs_f64(n))
    } else {
        Err("expected 0.1 to 86400 seconds".into())
    }
}

/// One process and its board.
pub struct Process {
    pub pid: u32,
    pub name: String,
    pub board: Reading,
}

/// The process's own idea of its pid: the last one in a chain of pid namespaces.
fn own_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

/// The descriptor that is the board: of the process, or, when the program has closed it, of one of our threads.
fn find(pid: u32) -> std::io::Result<Option<PathBuf>> {
    let is_board =
        |p: &Path| fs::read_link(p).is_ok_and(|l| l.to_string_lossy().starts_with(&format!("/memfd:{}", board::FILE)));
    let in_table = |dir: PathBuf| -> std::io::Result<Option<PathBuf>> {
        Ok(fs::read_dir(dir)?.filter_map(Result::ok).map(|e| e.path()).find(|p| is_board(p)))
    };
    if let Some(p) = in_table(format!("/proc/{pid}/fd").into())? {
        return Ok(Some(p));
    }
    let ours = |t: &Path| fs::read_to_string(t.join("comm")).is_ok_and(|c| c.trim() == "smc-keeper");
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.filter_map(Result::ok).map(|e| e.path());
    Ok(threads.filter(|t| ours(t)).find_map(|t| in_table(t.join("fd")).ok().flatten()))
}

/// `None` for a process without regions, and for a fork child that only inherited its parent's board.
pub fn examine(pid: u32) -> Result<Option<Process>, String> {
    let Some(path) = find(pid).map_err(|e| e.to_string())? else { return Ok(None) };
    let reading = board::read(|| fs::read(&path)).map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    if own_pid(pid) != Some(reading.owner) {
        return Ok(None);
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "?".into(), |c| c.trim().to_owned());
    Ok(Some(Process { pid, name, board: reading }))
}

fn survey(only: Option<u32>) -> Result<Vec<Process>, Error> {
    if let Some(pid) = only {
        let attempt = format!("read the counters of process {pid}");
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(Error::new(Status::NOT_FOUND, attempt, "there is no such process"));
        }
        let found = examine(pid).map_err(|why| cannot(&attempt, why).remedy("run as its user or as root"))?;
        let none = || Error::new(Status::NOT_FOUND, attempt, "it has no regions").remedy("see `smc stat` for who has");
        return found.map(|p| vec![p]).ok_or_else(none);
    }
    let dir = fs::read_dir("/proc").map_err(|e| cannot("list processes", e))?;
    let mut pids: Vec<u32> = dir.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    Ok(pids.into_iter().filter_map(|p| examine(p).ok().flatten()).collect())
}

fn policy(p: Option<Policy>) -> &'static str {
    match p {
        Some(Policy::Byte) => "byte",
        Some(Policy::Line) => "line",
        Some(Policy::Page) => "page",
        None => "unknown",
    }
}

fn through(t: Option<Through>) -> &'static str {
    match t {
        Some(Through::Off) => "off",
        Some(Through::Bounded) => "bounded",
        Some(Through::Exact) => "exact",
        None => "unknown",
    }
}

fn state(r: &Posted) -> &'static str {
    if r.open { r.status.name() } else { "CLOSED" }
}

fn as_json(p: &Process) -> Value {
    let region = |r: &Posted| {
        let counters: serde_json::Map<String, Value> =
            r.counters.iter().map(|(n, _, v)| ((*n).to_owned(), json!(v))).collect();
        json!({"name": r.name, "open": r.open, "status": r.status.name(), "bytes": r.len, "resident": r.resident,
               "local": r.local, "limit": r.limit, "backend": r.backend.map(|b| b.name()), "policy": policy(r.policy),
               "through": through(r.through), "access": out::access(r.access), "page_unit": r.page_unit,
               "opened_ns": r.opened, "updated_ns": r.updated, "counters": counters})
    };
    let regions: Vec<Value> = p.board.regions.iter().map(region).collect();
    json!({"pid": p.pid, "command": p.name, "unlisted": p.board.unlisted, "regions": regions})
}

/// Values of the last round, by process, region's opening and counter.
type Last = BTreeMap<(u32, u64, &'static str), u64>;

fn show(p: &Process, all: bool, last: &Last, step: Option<Duration>) -> String {
    let mut text = format!("{} (pid {})\n", p.name, p.pid);
    for r in &p.board.regions {
        let limit = r.limit.map_or_else(|| "all fits".to_owned(), |l| format!("limit {}", out::bytes(l)));
        let age = clock::now().saturating_sub(r.opened) / 1_000_000_000;
        let back = r.backend.map_or("unknown", |b| b.name());
        text +=
            &format!("  {}  {}  {}  {}  open {age} s\n", r.name, out::bytes(r.len), out::access(r.access), state(r));
        text += &format!("    resident {}, local memory {} ({limit})\n", out::bytes(r.resident), out::bytes(r.local));
        text += &format!("    back end {back}, policy {}, write-through {}\n", policy(r.policy), through(r.through));
        let mut rows = Vec::new();
        for (name, meaning, n) in r.counters.iter().filter(|(_, _, n)| all || *n > 0) {
            let before = last.get(&(p.pid, r.opened, *name));
            let rate = match (before, step) {
                (Some(b), Some(s)) => format!("{:.0}/s", n.saturating_sub(*b) as f64 / s.as_secs_f64()),
                _ => String::new(),
            };
            rows.push(vec!["   ".to_owned(), (*name).to_owned(), n.to_string(), rate, (*meaning).to_owned()]);
        }
        text += &out::table(&rows, &[2, 3]);
    }
    if p.board.unlisted > 0 {
        text += &format!("  and {} more regions that found no place on the board\n", p.board.unlisted);
    }
    text
}

fn round(a: &Args, last: &mut Last) -> Result<(), Error> {
    let found = survey(a.pid)?;
    if a.json {
        out::json(&found.iter().map(as_json).collect::<Vec<_>>().into());
        return Ok(());
    }
    let mut text: String = found.iter().map(|p| show(p, a.all, last, a.watch)).collect();
    if found.is_empty() {
        text = "no process that this user may look into has regions\n".into();
    }
    if a.watch.is_some() && std::io::stdout().is_terminal() {
        // Home, text, erase what is left of the last round.
        text = format!("\x1b[H\x1b[J{text}");
    }
    out::line(text.trim_end());
    last.clear();
    for (p, r) in found.iter().flat_map(|p| p.board.regions.iter().map(move |r| (p, r))) {
        last.extend(r.counters.iter().map(|(name, _, n)| ((p.pid, r.opened, *name), *n)));
    }
    Ok(())
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let mut last = Last::new();
    round(a, &mut last)?;
    while let Some(pause) = a.watch {
        std::thread::sleep(pause);
        match round(a, &mut last) {
            // The process that was watched has ended.
            Err(e) if e.status == Status::NOT_FOUND => break,
            r => r?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
