//! `smc ls`: what is exported on this host, or on another.

use crate::{key, out};
use serde_json::json;
use smc_engine::base::config::Config;
use smc_engine::base::{Error, Status};
use smc_engine::link::mgmt::RegionDesc;
use smc_engine::link::mgmt::tcp::Client;
use smc_engine::link::{self, MemoryKind, RegionInfo, embedded};
use smc_engine::sys::clock::Deadline;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::process::ExitCode;

/// List the regions exported on this host, or by an exporter on another
///
/// Shows every name in this network namespace: size, access, kind of memory, clients that have it open, and the
/// exporter's process. A name whose exporter does not answer, or does not admit this user, is shown with dashes.
///
/// With HOST:PORT the exporter that listens there (`smc serve --listen`) is asked instead. Both sides must have the same key.
#[derive(clap::Args)]
#[command(after_help = format!("{}

Examples:
  smc ls
  smc ls --json | jq -r '.[].name'
  smc ls node7:7471 --key ./key", key::ORDER))]
pub struct Args {
    /// The exporter to ask; an IPv6 address in brackets
    #[arg(value_name = "HOST:PORT")]
    peer: Option<String>,
    /// Key file
    #[arg(long, value_name = "FILE", requires = "peer")]
    key: Option<PathBuf>,
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

/// What is known, and the names whose exporters do not answer.
type Listed = (Vec<RegionInfo>, Vec<String>);

fn here(deadline: Deadline) -> Result<Listed, Error> {
    let read = Config::parse(|v| std::env::var(v).ok());
    let config = Config { link_model: String::new(), ..read };
    let known = link::connect(None, &config)?.list(deadline)?;
    let listening = embedded::list_local().map_err(|e| out::cannot("list exported regions", e))?;
    // Long names are listed cut, with a `~`: their exporters tell the full ones.
    let silent = listening.into_iter().filter(|n| !n.contains('~') && known.iter().all(|r| r.name != *n)).collect();
    Ok((known, silent))
}

fn there(peer: &str, a: &Args, deadline: Deadline) -> Result<Listed, Error> {
    let (_, key) = key::find(a.key.as_deref())?;
    let addresses = peer.to_socket_addrs().map_err(|e| {
        let e = Error::new(Status::NOT_FOUND, format!("reach {peer}"), e.to_string());
        e.remedy("give a host and a port, as node7:7471 or [fd00::7]:7471")
    })?;
    let addresses: Vec<_> = addresses.take(8).collect();
    let list = Client::connect(&addresses, &key, peer, deadline)?.list()?;
    Ok((list.iter().map(RegionDesc::info).collect(), Vec::new()))
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let deadline = Deadline::in_ms(a.wait);
    let (known, silent) = match &a.peer {
        Some(peer) => there(peer, a, deadline)?,
        None => here(deadline)?,
    };
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
        eprintln!("no region is exported {}", a.peer.as_ref().map_or("on this host".into(), |p| format!("by {p}")));
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["NAME", "SIZE", "ACCESS", "KIND", "CLIENTS", "PID"].map(String::from).to_vec()];
    rows.extend(known.iter().map(|r| row(&r.name, Some(r))));
    rows.extend(silent.iter().map(|n| row(n, None)));
    out::line(out::table(&rows, &[1, 4, 5]).trim_end());
    Ok(ExitCode::SUCCESS)
}
