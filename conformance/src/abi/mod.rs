//! The C border as a promise: the header, the layout of its types, the exported symbols, the ABI as DWARF sees it.

pub mod compile;
#[cfg(feature = "tasks")]
pub mod header;
pub mod layout;
pub mod library;

use crate::repo;
use std::path::PathBuf;

/// The committed header.
pub fn header_path() -> PathBuf {
    repo::root().join("include/smc.h")
}

/// Directory of the committed references.
pub fn golden(name: &str) -> PathBuf {
    repo::root().join("conformance/golden").join(name)
}

/// A new, empty directory below the system's temporary one. The caller removes it.
pub fn scratch(name: &str) -> std::io::Result<PathBuf> {
    let dir = std::env::temp_dir().join(format!("smc-{name}-{}-{:x}", std::process::id(), fastrand::u32(..)));
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}
