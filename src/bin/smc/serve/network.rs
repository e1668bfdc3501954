//! What of `smc serve` concerns other hosts: where it listens, whom it knows, who may have what.

use super::Args;
use crate::{key, out};
use serde_json::json;
use smc_engine::base::config::Config;
use smc_engine::base::{Error, Status};
use smc_engine::core::export::net::{Keyring, ListenOptions, Network};
use smc_engine::core::export::{Exporter, Reach};
use smc_engine::link::Access;
use std::fs::Metadata;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One `--allow NAME[:ro|:rw]`.
pub fn allowed(s: &str) -> Result<(String, Access), String> {
    Reach::parse(s).ok_or_else(|| "expected NAME, NAME:ro or NAME:rw, where NAME is a client's name".into())
}

/// Whom on other hosts a region is shown.
pub fn reach(a: &Args, region: &str) -> Reach {
    if a.host_only.iter().any(|n| n == region) {
        Reach::Host
    } else if a.allow.is_empty() {
        Reach::Members
    } else {
        Reach::Clients(a.allow.clone())
    }
}

/// How often the keys are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// A listening exporter and the file or folder of its keys.
pub struct Listening {
    network: Network,
    path: PathBuf,
    seen: Vec<Stamp>,
    looked: Instant,
    json: bool,
}

/// What changes when a file does.
type Stamp = (PathBuf, [i64; 5]);

fn stamp(path: PathBuf) -> Option<Stamp> {
    let m: Metadata = path.metadata().ok()?;
    Some((path, [m.ino() as i64, m.ctime(), m.ctime_nsec(), m.mtime(), m.len() as i64]))
}

/// The file, or the folder and what is in it.
fn stamps(path: &Path) -> Vec<Stamp> {
    let inside = std::fs::read_dir(path).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
    let mut all: Vec<Stamp> = std::iter::once(path.to_owned()).chain(inside).filter_map(stamp).collect();
    all.sort();
    all
}

impl Listening {
    /// Listens, if that is wanted.
    pub fn start(a: &Args) -> Result<Option<Listening>, Error> {
        let Some(at) = &a.listen else { return Ok(None) };
        let (path, _) = key::find_all(a.key.as_deref())?;
        // Before they are read: what changes from here on is seen.
        let seen = stamps(&path);
        let keys = Keyring::load(&path)?;
        let known = |name: &str| keys.keys().any(|k| k.client().is_some_and(|c| &**c == name));
        for (name, _) in a.allow.iter().filter(|(name, _)| !known(name)) {
            eprintln!("smc: warning: there is no key of \"{name}\" in {} yet", path.display());
        }
        let bad = |why: String| Error::new(Status::INVALID_ARGUMENT, format!("listen on {at}"), why);
        let mut addresses =
            at.to_socket_addrs().map_err(|e| bad(e.to_string()).remedy("give an address and a port"))?;
        let address: SocketAddr = addresses.next().ok_or_else(|| bad("it has no address".into()))?;
        let device = Config::parse(|v| std::env::var(v).ok()).device;
        let options = ListenOptions { device, ..ListenOptions::default() };
        let network = Exporter::get()?.listen_with(address, keys, options)?;
        Ok(Some(Listening { network, path, seen, looked: Instant::now(), json: a.json }))
    }

    pub fn address(&self) -> SocketAddr {
        self.network.address()
    }

    /// Takes the keys anew when they have changed. Keys that cannot be used change nothing.
    pub fn look(&mut self) {
        if self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let now = stamps(&self.path);
        if now == self.seen {
            return;
        }
        self.seen = now;
        let taken = Keyring::load(&self.path).and_then(|k| {
            let count = k.keys().count();
            self.network.take_keys(k).map(|()| count)
        });
        match taken {
            Ok(n) if self.json => out::json(&json!({"event": "keys-changed", "keys": n})),
            Ok(n) => out::line(format!("the keys have changed: {n} are good now")),
            Err(e) => eprintln!("smc: the keys have changed, and the old ones stay: {e}"),
        }
    }
}
