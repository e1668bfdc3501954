//! `smc serve`: exports memory under a name until it is told to end.

mod audit;
mod content;
mod identity;
mod journal;
mod network;
mod watch;

use crate::key;
use crate::os::{self, Signals};
use crate::out::{self, cannot};
use audit::Audit;
use content::Content;
use network::Listening;
use serde_json::json;
use smc_engine::base::addr::round_up_page;
use smc_engine::base::{Error, Status};
use smc_engine::core::export::{Export, ExportOptions, Exporter, Memory};
use smc_engine::link::Access;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use watch::Watch;

/// Export memory under a name
///
/// Prints one line when clients can open the region, and serves until SIGINT or SIGTERM; SIGUSR1 prints who has it
/// open. SIGUSR2 takes the memory away from every client, or from one: `kill -q CLIENT -USR2 PID`. Clients of this user and of root are admitted, others by --allow-uid and --allow-any.
///
/// With --file the memory starts with the file's content, and at the end the blocks that clients have changed are
/// written back. The file is locked meanwhile. A crash while writing back leaves a journal, FILE.smc-journal, which
/// the next serve of the file completes. Loading and ending take twice the memory for a moment.
///
/// Clients survive a restart: when a --file is served again with the content that it had at the end (that is after a
/// regular end, or with --read-only, and unless somebody else has changed it), they go on where they were. After a crash of a
/// writable one, and without --file, the memory is new: clients get STALE and must open it again.
///
/// With --listen, clients on other hosts list (`smc ls HOST:PORT`) and open what is exported here: everybody who has a key
/// of this exporter, over an encrypted connection, and nobody else. With --allow only the clients it names, known by their keys
/// (`smc keygen --client`), see the regions; --host-only keeps a region on this host. Keys may be added and taken away while it
/// runs, in the file or folder of --key: within two seconds the new ones are good, and whose key has gone loses his access.
///
/// Their queue pairs are connected as they ask for it (LIBSMC_RENDEZVOUS): by numbers told over that connection, or by the kernel's RDMA
/// connection manager, where this host has it (module rdma_ucm). The exporter listens there from the first time that somebody asks, on a free port of
/// the RDMA device's address, and takes only whom it has told a token; others are refused, and recorded. See `smc doctor`, row RDMA.
///
/// With --audit every grant, refusal, revocation and end is recorded, of clients of this host and of others: one JSON object a line
/// with time, event (grant, refusal, revocation, end), client (the name in his key), id, address, pid, uid, region, access, device, why and
/// untold, and the same in words on stderr. A grant is told when a region is opened, and again, with the device, when its memory is registered for
/// a client of another host. When somebody is refused too often, untold says how many refusals were left out before a line.
#[derive(clap::Args)]
#[command(after_help = format!("{}

Examples:
  smc serve --name grads --size 1GiB
  smc serve --name weights --file weights.bin --read-only
  smc serve --name a --size 64M --name b --size 2G --json
  smc serve --name grads --size 1GiB --listen 0.0.0.0:7471
  smc serve --name grads --size 1GiB --listen 0.0.0.0:7471 --key /etc/libsmc/clients --allow node7 --allow node8:ro \\
            --audit /var/log/grads.log", key::ORDER))]
pub struct Args {
    /// Name of the region; with several, the sizes belong to them in order
    #[arg(long, required = true, value_name = "NAME")]
    name: Vec<String>,
    /// Bytes (suffixes K, M, G, T), rounded up to whole pages [default: the file's size]
    #[arg(long, value_name = "SIZE", value_parser = out::size_arg, required_unless_present = "file")]
    size: Vec<u64>,
    /// File that holds the content; one name only
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Clients may only read
    #[arg(long)]
    read_only: bool,
    /// Admit this user id too
    #[arg(long, value_name = "UID")]
    allow_uid: Vec<u32>,
    /// Admit every user of this host
    #[arg(long)]
    allow_any: bool,
    /// Serve clients on other hosts: address of this host and port (0: any free one)
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Key file, or a folder with the keys of several clients
    #[arg(long, value_name = "FILE", requires = "listen")]
    key: Option<PathBuf>,
    /// Of the clients on other hosts admit this one, to read only (:ro) or also to write (:rw, as without); may be repeated [default: all who have a key]
    #[arg(long, value_name = "NAME[:ro|:rw]", requires = "listen", value_parser = network::allowed)]
    allow: Vec<(String, Access)>,
    /// Keep this region on this host
    #[arg(long, value_name = "NAME", requires = "listen")]
    host_only: Vec<String>,
    /// Append a record of every grant, refusal, revocation and end to this file (mode 0600), and say it on stderr
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
    /// One JSON object per event: ready, listening, client-opened, client-left, keys-changed, written-back, end
    #[arg(long)]
    json: bool,
    /// Write the ready line to this open descriptor too, and close it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..))]
    ready_fd: Option<i32>,
    /// Write the process id to this file once ready; removed at the end
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
}

fn usage(why: &str) -> ! {
    use clap::CommandFactory;
    crate::Cli::command().error(clap::error::ErrorKind::ValueValidation, why).exit()
}

fn check(a: &Args) {
    if a.file.is_some() && a.name.len() > 1 {
        usage("--file goes with one --name only");
    }
    if a.size.len() > a.name.len() || (a.file.is_none() && a.size.len() < a.name.len()) {
        usage("each --name needs one --size");
    }
    if a.host_only.iter().any(|n| !a.name.contains(n)) {
        usage("--host-only goes with a --name");
    }
}

/// How often clients are looked at.
const LOOK: Duration = Duration::from_millis(100);

pub fn run(a: Args) -> Result<ExitCode, Error> {
    check(&a);
    let take = |fd| os::inherited(fd).map_err(|e| cannot(format!("use descriptor {fd}"), e));
    let ready = a.ready_fd.map(take).transpose()?;
    // Before the exporter's thread starts, so that every thread has them blocked.
    let mut wanted = vec![libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];
    if !os::ignored(libc::SIGHUP) {
        wanted.push(libc::SIGHUP);
    }
    let signals = Signals::block(&wanted);
    let options = ExportOptions {
        access: if a.read_only { Access::ReadOnly } else { Access::ReadWrite },
        allow_uids: a.allow_uid.clone(),
        allow_any: a.allow_any,
        ..ExportOptions::default()
    };
    let audit = a.audit.as_deref().map(Audit::start).transpose()?;
    // Before anybody can store into the memory: a failure here loses nothing.
    let mut network = Listening::start(&a)?;
    // In this order: whatever happens, the export ends before its memory goes.
    let (content, exports) = export(&a, &options)?;
    announce(&a, &exports, network.as_ref(), ready)?;
    let mut watch = Watch::new(a.json);
    loop {
        watch.look(&exports);
        if let Some(n) = &mut network {
            n.look();
        }
        match signals.next(LOOK) {
            None => {}
            Some((libc::SIGUSR1, _)) => watch.list(&exports),
            Some((libc::SIGUSR2, client)) => revoke(&exports, client),
            Some(_) => break,
        }
    }
    drop(network);
    // Ends every client's access first: from here on nothing changes the content.
    drop(exports);
    if let Some(audit) = audit {
        audit.end();
    }
    let written = content.map(|c| c.write_back(a.json));
    if let Some(f) = &a.pid_file {
        let _ = std::fs::remove_file(f);
    }
    written.transpose()?;
    if a.json {
        out::json(&json!({"event": "end"}));
    }
    Ok(ExitCode::SUCCESS)
}

fn export(a: &Args, options: &ExportOptions) -> Result<(Option<Content>, Vec<Export>), Error> {
    let exporter = Exporter::get()?;
    if let (Some(file), Some(name)) = (&a.file, a.name.first()) {
        let content = Content::load(file, a.size.first().copied(), !a.read_only)?;
        let incarnation = content.incarnation();
        let options = ExportOptions { incarnation, reach: network::reach(a, name), ..options.clone() };
        let export = exporter.export(name, content.memory(), options)?;
        return Ok((Some(content), vec![export]));
    }
    let mut all = Vec::new();
    for (name, size) in a.name.iter().zip(&a.size) {
        let attempt = || format!("export \"{name}\"");
        let len = usize::try_from(*size).ok().and_then(round_up_page);
        let len = len.ok_or_else(|| Error::new(Status::INVALID_ARGUMENT, attempt(), "the size is too large"))?;
        let options = ExportOptions { reach: network::reach(a, name), ..options.clone() };
        all.push(exporter.export(name, Memory::New(len), options)?);
    }
    Ok((None, all))
}

/// Revokes a client by its number, or all of them (0).
fn revoke(exports: &[Export], client: u64) {
    const REASON: &str = "the exporter was told to";
    for e in exports {
        let known = client == 0 || e.clients().iter().any(|c| c.id == client);
        // Nothing in this process stores into the memory.
        let done = match (known, client) {
            (false, _) => continue,
            (true, 0) => e.revoke_all(REASON, true),
            (true, id) => e.revoke(id, REASON, true),
        };
        if let Err(e) = done {
            eprintln!("smc: {e}");
        }
    }
}

fn announce(a: &Args, exports: &[Export], network: Option<&Listening>, ready: Option<File>) -> Result<(), Error> {
    let pid = std::process::id();
    if let Some(f) = &a.pid_file {
        std::fs::write(f, format!("{pid}\n")).map_err(|e| cannot(format!("write {}", f.display()), e))?;
    }
    let mut lines = Vec::new();
    for e in exports {
        let ready = json!({"event": "ready", "name": e.name(), "bytes": e.len(), "pid": pid});
        let text = format!("serving {} {} bytes pid {pid}", e.name(), e.len());
        lines.push(if a.json { ready.to_string() } else { text });
    }
    if let Some(n) = network {
        let listening = json!({"event": "listening", "address": n.address().to_string()});
        lines.push(if a.json { listening.to_string() } else { format!("listening on {}", n.address()) });
    }
    let text = lines.join("\n");
    out::line(&text);
    if let Some(mut f) = ready {
        writeln!(f, "{text}").map_err(|e| cannot("write to the descriptor of --ready-fd", e))?;
    }
    Ok(())
}
