//! The program behind a name: the file that is started, the interpreters between it and the processor, and whether the
//! loader will load our library into it.

use super::elf::{self, Elf};
use crate::os;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Scripts that name scripts as their interpreters: as deep as the kernel goes.
const DEPTH: usize = 5;
/// Bytes of a script that the kernel looks at.
const HEAD: usize = 256;

/// A program that cannot be started: the shell's exit status for it, and why.
pub struct Failure {
    /// 127 when there is no such program, 126 when it cannot be started.
    pub status: u8,
    pub why: String,
}

fn broken(why: impl Into<String>) -> Failure {
    Failure { status: 126, why: why.into() }
}

/// What comes of preloading.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Covered,
    /// The file cannot be read, or is of a kind that only the kernel knows.
    Unknown(String),
    /// The program would run without the library: why, and what the user can do.
    Not(String, &'static str),
}

/// A program that can be started.
pub struct Program {
    /// The file itself.
    pub file: PathBuf,
    /// The interpreters of a script, in order; the last one is what really runs.
    pub through: Vec<PathBuf>,
    pub verdict: Verdict,
    /// It is linked with the shared AddressSanitizer runtime of this name, which wants to be the first library.
    pub asan: Option<String>,
}

/// The file that execvp would start for this name.
pub fn find(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        return startable(Path::new(name)).map(|()| name.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    let absent = |p: &Path| fs::metadata(p).is_err_and(|e| e.kind() == io::ErrorKind::NotADirectory);
    for file in std::env::split_paths(&path).map(|d| d.join(name)) {
        if name.is_empty() || absent(&file) {
            continue;
        }
        match startable(&file) {
            Ok(()) => return Ok(file),
            Err(f) if f.status == 127 => {}
            Err(f) => refused = refused.or(Some(broken(format!("{}: {}", file.display(), f.why)))),
        }
    }
    Err(refused.unwrap_or(Failure { status: 127, why: "there is no such program in PATH".into() }))
}

fn startable(p: &Path) -> Result<(), Failure> {
    match fs::metadata(p) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Failure { status: 127, why: "there is no such file".into() })
        }
        Err(e) => Err(broken(e.to_string())),
        Ok(m) if m.is_dir() => Err(broken("it is a directory")),
        Ok(m) if !m.is_file() => Err(broken("it is not a regular file")),
        Ok(_) if os::may_execute(p) => Ok(()),
        Ok(_) => Err(broken("it is not executable, or its file system is mounted noexec")),
    }
}

/// Looks into the file, and into the interpreters it names.
pub fn examine(file: &Path) -> Result<Program, Failure> {
    let mut through: Vec<PathBuf> = Vec::new();
    loop {
        let now = through.last().map_or(file, PathBuf::as_path);
        let head = match head_of(now) {
            Ok(h) => h,
            Err(e) => {
                let verdict = Verdict::Unknown(format!("{} cannot be read: {e}", now.display()));
                return Ok(Program { file: file.into(), through, verdict, asan: None });
            }
        };
        if head.starts_with(b"\x7fELF") {
            let (verdict, asan) = judge(now)?;
            return Ok(Program { file: file.into(), through, verdict, asan });
        }
        if through.len() >= DEPTH {
            return Err(broken(format!("its interpreters are scripts, more than {DEPTH} deep")));
        }
        through.push(interpreter(&head, now)?);
    }
}

fn head_of(p: &Path) -> io::Result<Vec<u8>> {
    let mut head = vec![0u8; HEAD];
    let n = File::open(p)?.read_at(&mut head, 0)?;
    head.truncate(n);
    Ok(head)
}

/// What runs a file that is not ELF: its `#!` line, or the shell. `env` is looked through.
fn interpreter(head: &[u8], file: &Path) -> Result<PathBuf, Failure> {
    let line = head.strip_prefix(b"#!").and_then(|l| l.split(|b| *b == b'\n' || *b == 0).next()).unwrap_or(b"");
    let mut words = line.split(|b| matches!(b, b' ' | b'\t')).filter(|w| !w.is_empty()).map(OsStr::from_bytes);
    // execvp's answer to "exec format error".
    let Some(named) = words.next() else { return Ok("/bin/sh".into()) };
    let path = PathBuf::from(named);
    startable(&path).map_err(|f| broken(format!("{} is run by {named:?}, and {}", file.display(), f.why)))?;
    if path.file_name() != Some(OsStr::new("env")) {
        return Ok(path);
    }
    let program = |w: &&OsStr| !w.as_bytes().starts_with(b"-") && !w.as_bytes().contains(&b'=');
    match words.find(program) {
        Some(name) => find(name).map_err(|f| broken(format!("{} is run by {name:?}, and {}", file.display(), f.why))),
        None => Ok(path),
    }
}

const RUN_BEHIND: &str = "start `smc run` behind it, as in `sudo smc run -- PROGRAM`";

/// Of an ELF file: whether the library will be loaded, and the shared AddressSanitizer runtime it wants.
fn judge(p: &Path) -> Result<(Verdict, Option<String>), Failure> {
    let elf = File::open(p).ok().and_then(|f| elf::read(&f)).unwrap_or_default();
    let asan = elf.needed.iter().find(|n| n.starts_with("libasan.so") || n.starts_with("libclang_rt.asan")).cloned();
    if let Some(why) = privileged(p) {
        return Ok((Verdict::Not(why, RUN_BEHIND), asan));
    }
    Ok((suited(p, &elf)?, asan))
}

fn suited(p: &Path, elf: &Elf) -> Result<Verdict, Failure> {
    if !elf.ours {
        let why = format!("it is a program for {}, and libsmc.so is built for x86-64", elf.machine);
        return Ok(Verdict::Not(why, ""));
    }
    let Some(loader) = &elf.loader else {
        // The loader itself, given a program as its argument.
        if elf.soname.as_deref().is_some_and(glibc_loader) {
            return Ok(Verdict::Covered);
        }
        let why = "it is statically linked, so no library can be loaded into it";
        return Ok(Verdict::Not(why.into(), "link it dynamically"));
    };
    if !Path::new(loader).exists() {
        return Err(broken(format!("{} needs the loader {loader}, which is not there", p.display())));
    }
    if !glibc_loader(loader.rsplit('/').next().unwrap_or(loader)) {
        let why = format!("its loader is {loader}, and libsmc.so is built for the GNU C library");
        return Ok(Verdict::Not(why, ""));
    }
    Ok(Verdict::Covered)
}

fn glibc_loader(name: &str) -> bool {
    name.starts_with("ld-linux-x86-64.so")
}

/// Why the loader would ignore LD_PRELOAD: the process would get rights that its caller has not.
fn privileged(p: &Path) -> Option<String> {
    let ignored = "the loader ignores LD_PRELOAD in programs with more rights than their caller";
    let ids = os::ids();
    let gains = !os::no_new_privileges() && !os::no_set_user_id(p);
    let meta = fs::metadata(p).ok()?;
    let bits = if gains { meta.mode() } else { 0 };
    if bits & libc::S_ISUID != 0 && meta.uid() != ids.user {
        return Some(format!("it is set-user-ID to user {}, and {ignored}", meta.uid()));
    }
    // Without group execute the bit means something else.
    let sets_group = bits & libc::S_ISGID != 0 && bits & libc::S_IXGRP != 0;
    if sets_group && meta.gid() != ids.group {
        return Some(format!("it is set-group-ID to group {}, and {ignored}", meta.gid()));
    }
    if gains && ids.user != 0 && os::has_attribute(p, c"security.capability") {
        return Some(format!("its file has capabilities, and {ignored}"));
    }
    let keeps_user = bits & libc::S_ISUID == 0 && ids.effective_user != ids.user;
    if keeps_user || !sets_group && ids.effective_group != ids.group {
        return Some(format!("this process runs set-user-ID or set-group-ID itself, and {ignored}"));
    }
    None
}
