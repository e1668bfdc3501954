//! `smc explain`: why a process's calls reach the library, or do not, and what follows.

use crate::out;
use crate::stat::{self, Process};
use serde_json::{Value, json};
use smc_engine::base::{Error, Status};
use smc_engine::core::board::{PostedCoverage, PostedHook};
use smc_engine::core::coverage::{Family, Off, State};
use std::path::Path;
use std::process::ExitCode;

/// Say which hooks of a process work, why others do not, and what that costs it
///
/// By family: how many hooked functions are covered, how many calls the library acted on, which functions are not covered
/// and why, what the program loses and what is switched off. Then why calls were passed through, and the fault back end of
/// each region with the reason for it. A process without regions publishes nothing.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  smc explain 4711\n  smc explain 4711 --json | jq '.hooks.families[].not_covered[]'"
)]
pub struct Args {
    /// The process
    pid: u32,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Why a hook is not reached, in words.
pub fn why(h: &PostedHook) -> String {
    match h.state {
        State::Shadowed => format!("shadowed by {}", h.by),
        s => s.name().to_owned(),
    }
}

/// What is off because of these hooks.
pub fn switched_off<'a>(hooks: impl Iterator<Item = &'a PostedHook>) -> Vec<&'static str> {
    let off: Vec<Off> = hooks.map(|h| h.row().off()).collect();
    Off::ALL.iter().filter(|o| **o != Off::Nothing && off.contains(o)).map(|o| o.name()).collect()
}

fn of<'a>(c: &'a PostedCoverage, f: &Family) -> Vec<&'a PostedHook> {
    c.hooks.iter().filter(|h| h.family == *f).collect()
}

fn family_json(c: &PostedCoverage, f: &Family) -> Value {
    let hooks = of(c, f);
    let row = |h: &&&PostedHook| {
        json!({"name": h.name, "state": h.state.name(), "why": why(h), "by": h.by, "required": h.required,
               "off": h.row().off().name()})
    };
    let not: Vec<Value> = hooks.iter().filter(|h| !h.row().covered()).map(|h| row(&h)).collect();
    json!({"family": f.name(), "hooks": hooks.len(), "covered": hooks.len() - not.len(),
           "fires": hooks.iter().filter(|h| matches!(h.state, State::Fires | State::Forwarded)).count(),
           "hits": hooks.iter().map(|h| h.hits).sum::<u64>(),
           "lost": (!not.is_empty()).then(|| f.lost()), "off": switched_off(hooks.iter().copied()), "not_covered": not})
}

fn as_json(p: &Process) -> Value {
    let c = &p.board.coverage;
    let hook = |h: &PostedHook| (h.name.clone(), json!({"state": h.state.name(), "by": h.by, "hits": h.hits}));
    let all: serde_json::Map<String, Value> = c.hooks.iter().map(hook).collect();
    let families: Vec<Value> = Family::ALL.iter().map(|f| family_json(c, f)).collect();
    let regions: Vec<Value> = p
        .board
        .regions
        .iter()
        .map(|r| {
            json!({"name": r.name, "open": r.open, "backend": r.backend.map(|b| b.name()), "reason": c.backend_reason})
        })
        .collect();
    let reasons: serde_json::Map<String, Value> = c.reasons.iter().map(|(n, v)| (n.clone(), json!(v))).collect();
    json!({"pid": p.pid, "command": p.name, "published": true,
           "hooks": {"present": c.present, "families": families, "functions": all, "unlisted": c.unlisted},
           "passed_through": reasons, "regions": regions})
}

fn family_text(c: &PostedCoverage, f: &Family) -> String {
    let hooks = of(c, f);
    let not: Vec<_> = hooks.iter().filter(|h| !h.row().covered()).collect();
    let hits: u64 = hooks.iter().map(|h| h.hits).sum();
    let mut text = format!("  {:<8} {} of {} covered, {hits} calls\n", f.name(), hooks.len() - not.len(), hooks.len());
    for h in hooks.iter().filter(|h| h.state == State::Bound || h.state == State::Forwarded) {
        let how = if h.by.is_empty() { String::new() } else { format!(" by {}", h.by) };
        text += &format!("    {}: {}{how}\n", h.name, h.state.name());
    }
    for h in &not {
        text += &format!("    {}: not covered, {}\n", h.name, why(h));
    }
    if not.iter().any(|h| h.state == State::Shadowed) {
        text += &format!("    lost: {}\n", f.lost());
    }
    for off in switched_off(hooks.iter().copied()) {
        text += &format!("    switched off: {off}; remedy: put libsmc.so first in LD_PRELOAD\n");
    }
    text
}

fn show(p: &Process) -> String {
    let c = &p.board.coverage;
    let mut text = format!("{} (pid {})\n", p.name, p.pid);
    if c.present {
        text += "hooks\n";
        text += &Family::ALL.iter().map(|f| family_text(c, f)).collect::<String>();
        text += "calls passed through\n";
        text += &c.reasons.iter().map(|(n, v)| format!("  {n:<12} {v}\n")).collect::<String>();
    } else {
        text += "hooks: none; the engine is part of the program\n";
    }
    text += "regions\n";
    for r in &p.board.regions {
        let back = r.backend.map_or("unknown", |b| b.name());
        let state = if r.open { "" } else { ", closed" };
        text += &format!("  {}: back end {back}, {}{state}\n", r.name, c.backend_reason);
    }
    text
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let attempt = format!("explain process {}", a.pid);
    if !Path::new(&format!("/proc/{}", a.pid)).exists() {
        return Err(Error::new(Status::NOT_FOUND, attempt, "there is no such process"));
    }
    let found = stat::examine(a.pid).map_err(|why| out::cannot(&attempt, why).remedy("run as its user or as root"))?;
    match (found, a.json) {
        (Some(p), true) => out::json(&as_json(&p)),
        (Some(p), false) => out::line(show(&p).trim_end()),
        (None, true) => out::json(&json!({"pid": a.pid, "published": false, "regions": []})),
        (None, false) => out::line(format!(
            "process {} has opened no region: it publishes nothing, its hooks were not tested, and its calls go straight to libc",
            a.pid
        )),
    }
    Ok(ExitCode::SUCCESS)
}
