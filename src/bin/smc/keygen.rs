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
/// an exporter, and cannot be shut out but by a new key for all the others. The fingerprint may be shown: it tells whether two hosts have the same key.
#[derive(clap::Args)]
#[command(after_help = format!("{ORDER}

Examples:
  smc keygen ~/.config/libsmc/key
  smc keygen --check /etc/libsmc/key
  smc keygen --json ./key | jq -r .fingerprint"))]
pub struct Args {
    /// The key file
    #[arg(value_name = "FILE", required_unless_present = "check")]
    file: Option<PathBuf>,
    /// Replace a file that exists, in one step: hosts that have the old key are no longer answered
    #[arg(long, conflicts_with = "check")]
    force: bool,
    /// Make nothing: see whether FILE, or the key file that would be used, holds a usable key, and print its fingerprint
    #[arg(long)]
    check: bool,
    /// One JSON object: file, fingerprint
    #[arg(long)]
    json: bool,
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let (file, key) = match &a.file {
        Some(file) if !a.check => (file.clone(), make(file, a.force)?),
        file => key::find(file.as_deref())?,
    };
    let (file, fingerprint) = (file.display().to_string(), key.fingerprint());
    if a.json {
        out::json(&json!({"file": file, "fingerprint": fingerprint}));
    } else {
        out::line(format!("{fingerprint}  {file}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn make(file: &Path, replace: bool) -> Result<Key, Error> {
    let key = Key::generate()?;
    key.save(file, replace).map_err(|e| match e.status {
        Status::EXISTS => e.remedy("--force replaces it"),
        _ => e,
    })?;
    Ok(key)
}
