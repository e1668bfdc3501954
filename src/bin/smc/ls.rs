//! `smc ls`: what is exported on this host.

use crate::out;
use serde_json::json;
use smc_engine::base::Error;
use smc_engine::base::config::Config;
use smc_engine::link::{self, MemoryKind, RegionInfo, embedded};
use smc_engine::sys::clock::Deadline;
use std::process::ExitCode;

/// List the regions exported on this host
///
/// Shows every name in this network namespace: size, access, kind of memory, clients that have it open, and the
/// exporter's process. A name whose exporter does not answer, or does not admit this user, is shown with dashes.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  smc ls\n  smc ls --json | jq -r '.[].name'")]
pub struct Args {
    /// One JSON array instead of a table
    #[arg(long)]
    json: bool,
    /// Milliseconds to wait for the exporters' answers
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    wait: u64,
}

fn kind(k: MemoryKind) -> &'static str {
    match k {
        MemoryKind::System => "system",
        MemoryKind::Pinned => "pinned",
        MemoryKind::Device => "device",
    }
}

fn row(name: &str, r: Option<&RegionInfo>) -> Vec<String> {
    let show = |f: &dyn Fn(&RegionInfo) -> String| r.map_or_else(|| "-".to_owned(), f);
    vec![
        name.to_owned(),
        show(&|r| out::bytes(r.len)),
        show(&|r| out::access(r.access).into()),
        show(&|r| kind(r.kind).into()),
        show(&|r| r.clients.to_string()),
        show(&|r| r.pid.to_string()),
    ]
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let known =
        link::connect(None, &Config::parse(|v| std::env::var(v).ok()).trust, "")?.list(Deadline::in_ms(a.wait))?;
    let listening = embedded::list_local().map_err(|e| out::cannot("list exported regions", e))?;
    // Long names are listed cut, with a `~`: their exporters tell the full ones.
    let silent: Vec<String> =
        listening.into_iter().filter(|n| !n.contains('~') && known.iter().all(|r| r.name != *n)).collect();
    if a.json {
        let mut all: Vec<_> = known
            .iter()
            .map(|r| {
                json!({"name": r.name, "bytes": r.len, "access": out::access(r.access), "kind": kind(r.kind),
                       "clients": r.clients, "pid": r.pid, "answers": true})
            })
            .collect();
        all.extend(silent.iter().map(|n| json!({"name": n, "answers": false})));
        out::json(&all.into());
        return Ok(ExitCode::SUCCESS);
    }
    if known.is_empty() && silent.is_empty() {
        eprintln!("no region is exported on this host");
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["NAME", "SIZE", "ACCESS", "KIND", "CLIENTS", "PID"].map(String::from).to_vec()];
    rows.extend(known.iter().map(|r| row(&r.name, Some(r))));
    rows.extend(silent.iter().map(|n| row(n, None)));
    out::line(out::table(&rows, &[1, 4, 5]).trim_end());
    Ok(ExitCode::SUCCESS)
}
