//! Which key file is meant.

use smc_engine::base::{Error, Result, Status};
use smc_engine::link::mgmt::key::Key;
use smc_engine::link::mgmt::ring::Keyring;
use std::path::{Path, PathBuf};

/// Shown in the help of every command that uses a key.
pub const ORDER: &str = "The key file is the one that --key names, or else the variable LIBSMC_KEY; without them the first there is of \
$XDG_CONFIG_HOME/libsmc/key (~/.config/libsmc/key) and /etc/libsmc/key. It must belong to you or root, and nobody else may \
have a right to it (mode 0600). An exporter may have several keys there: a file with one in each line, or a folder of files.";

/// The key file of the whole host.
const SYSTEM: &str = "/etc/libsmc/key";

/// Where a key is looked for when none is named. Not in the current directory.
fn places() -> impl Iterator<Item = PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = absolute("XDG_CONFIG_HOME").or(absolute("HOME").map(|h| h.join(".config")));
    own.map(|p| p.join("libsmc/key")).into_iter().chain([SYSTEM.into()])
}

/// What is to be used and where it was. One that is named must be there; one that is found must be fit: an unfit key does not let the next place win.
fn look<T>(named: Option<&Path>, load: impl Fn(&Path) -> Result<T>) -> Result<(PathBuf, T)> {
    let variable = std::env::var_os("LIBSMC_KEY").filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(p) = named.map(Path::to_owned).or(variable) {
        return load(&p).map(|k| (p, k));
    }
    for p in places() {
        match load(&p) {
            Err(e) if e.status == Status::NOT_FOUND => {}
            r => return r.map(|k| (p, k)),
        }
    }
    let e = Error::new(Status::NOT_FOUND, "find a key", "no --key, no LIBSMC_KEY, and no key file in the usual places");
    Err(e.remedy("make one with `smc keygen FILE` and copy it to the other hosts"))
}

/// The one key of a client.
pub fn find(named: Option<&Path>) -> Result<(PathBuf, Key)> {
    look(named, Key::load)
}

/// The keys of an exporter.
pub fn find_all(named: Option<&Path>) -> Result<(PathBuf, Keyring)> {
    look(named, Keyring::load)
}
