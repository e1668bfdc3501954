//! `smc keygen`: makes the pre-shared key of the management path over a network.

use crate::key::{self, ORDER};
use crate::out;
use serde_json::json;
use smc_engine::base::{Error, Status};
use smc_engine::link::mgmt::key::Key;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a pre-shared key, with which hosts know each other over a network
///
/// Writes 32 random bytes as one line of text to FILE, which must not exist, for its owner alone (mode 0600), and prints the
/// key's fingerprint. Copy the file to the other hosts over a safe way, as scp: whoever has the key may be a client and
/// an exporter. The fingerprint may be shown: it tells whether two hosts have the same key.
///
/// With --client the key is that client's: the exporter that has it too knows him by NAME, can give him access of his own (`smc serve --allow`), and
/// shuts him out when the key is taken away. Clients who share one key without a name cannot be told apart, nor shut out but by a
/// new key for all the others.
#[derive(clap::Args)]
#[command(after_help = format!("{ORDER}

Examples:
  smc keygen ~/.config/libsmc/key
  smc keygen --client node7 /etc/libsmc/clients/node7
  smc keygen --check /etc/libsmc/key
  smc keygen --json ./key | jq -r .fingerprint"))]
pub struct Args {
    /// The key file
    #[arg(value_name = "FILE", required_unless_present = "check")]
    file: Option<PathBuf>,
    /// The key of one client: 1 to 64 bytes of [A-Za-z0-9._-]
    #[arg(long, value_name = "NAME", conflicts_with = "check")]
    client: Option<String>,
    /// Replace a file that exists, in one step: hosts that have the old key are no longer answered
    #[arg(long, conflicts_with = "check")]
    force: bool,
    /// Make nothing: see whether FILE, or the key file that would be used, holds usable keys, and print their fingerprints
    #[arg(long)]
    check: bool,
    /// One JSON object for each key: file, fingerprint, client (null for a shared key)
    #[arg(long)]
    json: bool,
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let (file, keys) = match &a.file {
        Some(file) if !a.check => (file.clone(), make(file, a)?.into()),
        file => key::find_all(file.as_deref())?,
    };
    let file = file.display().to_string();
    for key in keys.keys() {
        let (print, client) = (key.fingerprint(), key.client());
        if a.json {
            out::json(&json!({"file": file, "fingerprint": print, "client": client.map(|n| &**n)}));
        } else {
            out::line(format!("{print}  {file}{}", client.map(|n| format!("  {n}")).unwrap_or_default()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn make(file: &Path, a: &Args) -> Result<Key, Error> {
    let key = Key::generate(a.client.as_deref())?;
    key.save(file, a.force).map_err(|e| match e.status {
        Status::EXISTS => e.remedy("--force replaces it"),
        _ => e,
    })?;
    Ok(key)
}
