//! The library's place in LD_PRELOAD, and where it is.

use super::elf;
use crate::out::cannot;
use smc_engine::base::{Error, Status};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where the library goes in a list that does not name it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Position {
    First,
    Last,
}

/// Directories that may hold the library, seen from the tool's own.
const PLACES: &[&str] = &[".", "../lib", "../lib64", "../lib/x86_64-linux-gnu"];
const NAMES: &[&str] = &["libsmc.so.1", "libsmc.so"];

/// The library as a path without links that the loader will take.
pub fn find_library(given: Option<&Path>) -> Result<PathBuf, Error> {
    let attempt = "find libsmc.so";
    if let Some(p) = given {
        let p = p.canonicalize().map_err(|e| cannot(attempt, format!("{}: {e}", p.display())))?;
        return usable(&p).map(|()| p);
    }
    let exe = std::env::current_exe().map_err(|e| cannot(attempt, e))?;
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let all = PLACES.iter().flat_map(|d| NAMES.iter().map(move |n| dir.join(d).join(n)));
    let found = all.filter_map(|p| p.canonicalize().ok()).next().ok_or_else(|| {
        Error::new(Status::NOT_FOUND, attempt, format!("it is neither in {} nor in ../lib", dir.display()))
            .remedy("name it with --lib")
    })?;
    usable(&found).map(|()| found)
}

/// The loader only warns of a library that it cannot preload: better to say so at once.
fn usable(p: &Path) -> Result<(), Error> {
    let attempt = format!("preload {}", p.display());
    let bad = |why: &str, remedy: &str| Err(Error::new(Status::INVALID_ARGUMENT, &attempt, why).remedy(remedy));
    if p.as_os_str().as_bytes().iter().any(|b| matches!(b, b':' | b' ')) {
        return bad("LD_PRELOAD cannot hold a path with a space or a colon", "put the library elsewhere");
    }
    let file = File::open(p).map_err(|e| cannot(&attempt, e))?;
    match elf::read(&file) {
        Some(e) if e.ours && e.soname.as_deref().is_some_and(is_ours) => Ok(()),
        _ => bad("it is not libsmc.so for x86-64", "name the library with --lib"),
    }
}

/// True for a name of our library.
fn is_ours(name: &str) -> bool {
    name == "libsmc.so" || name.starts_with("libsmc.so.")
}

/// The new value of LD_PRELOAD. What it holds keeps its order, byte by byte. A libsmc that is named already is replaced
/// where it stands, unless a position is asked for.
pub fn list(lib: &Path, old: Option<&OsStr>, at: Option<Position>) -> OsString {
    let (lib, old) = (lib.as_os_str().as_bytes(), old.unwrap_or_default().as_bytes());
    // The loader takes both.
    let pieces: Vec<&[u8]> = old.split_inclusive(|b| matches!(b, b':' | b' ')).collect();
    let bare = |p: &[u8]| p.strip_suffix(b":").or(p.strip_suffix(b" ")).map_or(p.len(), <[u8]>::len);
    let ours = |p: &&[u8]| {
        let name = p.get(..bare(p)).and_then(|n| n.rsplit(|b| *b == b'/').next()).unwrap_or_default();
        is_ours(&String::from_utf8_lossy(name))
    };
    let mut value = Vec::new();
    if at.is_none() && pieces.iter().any(&ours) {
        for p in &pieces {
            match ours(p) {
                true => value.extend([lib, p.get(bare(p)..).unwrap_or_default()].concat()),
                false => value.extend_from_slice(p),
            }
        }
        return OsString::from_vec(value);
    }
    let rest: Vec<u8> = pieces.into_iter().filter(|p| !ours(p)).flatten().copied().collect();
    let colon: &[u8] = if rest.is_empty() || at == Some(Position::Last) && rest.ends_with(b":") { b"" } else { b":" };
    let parts = if at == Some(Position::Last) { [&rest, colon, lib] } else { [lib, colon, &rest] };
    OsString::from_vec(parts.concat())
}
