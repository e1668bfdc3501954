//! What the built libsmc.so exports, as names and as an ABI description.

use crate::repo;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo's target directory.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repo::root().join("target"), PathBuf::from)
}

/// Builds libsmc.so in a profile; its path.
pub fn build(profile: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    repo::run(command.current_dir(repo::root()).args(["build", "-p", "smc-interpose", "--profile", profile]))?;
    // The one profile whose folder has another name.
    Ok(target().join(if profile == "dev" { "debug" } else { profile }).join("libsmc.so"))
}

/// The exported symbols, one a line as `NAME[@@VERSION]`, sorted.
pub fn symbols(library: &Path) -> Result<String, String> {
    let out = repo::run(Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library))?;
    Ok(parse_nm(&out))
}

fn parse_nm(out: &str) -> String {
    let mut lines: Vec<String> =
        out.lines().filter_map(|l| l.split_whitespace().last()).map(|name| format!("{name}\n")).collect();
    lines.sort();
    lines.concat()
}

/// True when the ABI tools are installed.
pub fn has_abi_tools() -> bool {
    Command::new("abidiff").arg("--version").output().is_ok()
}

/// Describes the library's ABI in `out`. Leaves out paths and line numbers, which are not part of it.
pub fn describe(library: &Path, out: &Path) -> Result<(), String> {
    let mut command = Command::new("abidw");
    command.args(["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--out-file"]).arg(out).arg(library);
    repo::run(&mut command)?;
    let text = std::fs::read_to_string(out).map_err(|e| e.to_string())?;
    let lines: Vec<String> = text.lines().map(without_place).collect();
    std::fs::write(out, lines.join("\n") + "\n").map_err(|e| e.to_string())
}

/// A line whose `path='...'` names the source below its package only: where packages and the standard library lie
/// on this machine is nobody's ABI.
fn without_place(line: &str) -> String {
    let Some((before, rest)) = line.split_once(" path='") else { return line.into() };
    let Some((path, after)) = rest.split_once('\'') else { return line.into() };
    let path = path.split_once("/@/").map_or(path, |(source, _unit)| source);
    let below = |mark: &str| path.split_once(mark).and_then(|(_, p)| p.split_once('/')).map(|(_, p)| p);
    let root = format!("{}/", repo::root().display());
    let short =
        below("registry/src/").or_else(|| below("/rustc/")).or_else(|| path.strip_prefix(&root)).unwrap_or(path);
    format!("{before} path='{short}'{after}")
}

/// How the library's ABI relates to a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AbiChange {
    /// Equal.
    None,
    /// Old programs still work; the report says what was added or renamed.
    Compatible(String),
    /// Old programs break; the report says why.
    Incompatible(String),
}

/// Compares a description with a library by abidiff, whose exit status is a set of bits.
pub fn compare(description: &Path, library: &Path) -> Result<AbiChange, String> {
    let out = Command::new("abidiff").arg(description).arg(library).output().map_err(|e| format!("abidiff: {e}"))?;
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    match out.status.code() {
        Some(0) => Ok(AbiChange::None),
        Some(c) if c & 3 == 0 && c & 8 != 0 => Ok(AbiChange::Incompatible(said)),
        Some(c) if c & 3 == 0 => Ok(AbiChange::Compatible(said)),
        _ => Err(format!("abidiff failed ({}):\n{said}", out.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nm_lines_become_names() {
        assert_eq!(
            parse_nm("0000000000001000 T smc_map@@SMC_1.0\n0000000000002000 T malloc\n"),
            "malloc\nsmc_map@@SMC_1.0\n"
        );
    }

    #[test]
    fn places_are_taken_out() {
        let line = |p: &str| without_place(&format!("<abi-instr path='{p}' language='x'>"));
        assert_eq!(
            line("/home/u/.cargo/registry/src/index-1/libc-0.2/src/lib.rs/@/libc.1-cgu.0"),
            "<abi-instr path='libc-0.2/src/lib.rs' language='x'>"
        );
        assert_eq!(
            line("/rustc/abc/library/core/src/lib.rs"),
            "<abi-instr path='library/core/src/lib.rs' language='x'>"
        );
        assert_eq!(
            line(&format!("{}/src/lib.rs", repo::root().display())),
            "<abi-instr path='src/lib.rs' language='x'>"
        );
        assert_eq!(without_place("<x a='1'>"), "<x a='1'>");
    }

    /// A removed function and a grown struct must be seen, or the check is blind.
    #[test]
    fn planted_abi_changes_are_found() {
        if !has_abi_tools() {
            assert!(std::env::var_os("CI").is_none(), "abigail-tools is missing");
            eprintln!("skipped: abigail-tools is not installed");
            return;
        }
        let dir = crate::abi::scratch("abi").unwrap();
        let build = |name: &str, text: &str| {
            let (source, library) = (format!("{name}.c"), dir.join(name).with_extension("so"));
            std::fs::write(dir.join(&source), text).unwrap();
            let mut gcc = Command::new("gcc");
            repo::run(gcc.current_dir(&dir).args(["-g", "-shared", "-fPIC", &source, "-o"]).arg(&library)).unwrap();
            library
        };
        let old = build("old", "struct s { int a; }; int f(struct s *p) { return p->a; } int g(void) { return 1; }\n");
        let grown = build(
            "grown",
            "struct s { int b; int a; }; int f(struct s *p) { return p->a; } int g(void) { return 1; }\n",
        );
        let gone = build("gone", "struct s { int a; }; int f(struct s *p) { return p->a; }\n");
        let golden = dir.join("old.abi");
        describe(&old, &golden).unwrap();
        let changes = [&old, &grown, &gone].map(|l| compare(&golden, l).unwrap());
        let text = std::fs::read_to_string(&golden).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(changes[0], AbiChange::None);
        assert_ne!(changes[1], AbiChange::None);
        assert!(matches!(changes[2], AbiChange::Incompatible(_)), "{:?}", changes[2]);
        assert!(!text.contains(&*dir.to_string_lossy()), "the description names a place on this machine");
    }
}
