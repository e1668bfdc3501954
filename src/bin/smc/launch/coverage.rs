//! Whether the loader will load our library into a program: dynamic, for this machine and C library, and not made
//! privileged by its file (the loader then ignores LD_PRELOAD).

use crate::os;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Scripts that name scripts as their interpreters: as deep as the kernel goes.
const DEPTH: usize = 5;

/// True for a regular file with an execute bit.
pub fn executable(p: &Path) -> bool {
    fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Why the library will not be loaded into the program; `None` when it will, or when the program cannot be read.
pub fn not_covered(program: &Path) -> Option<String> {
    let mut file = program.to_owned();
    for _ in 0..DEPTH {
        match script_interpreter(&file) {
            // Privileges of a script's file do not count; those of its interpreter do.
            Some(i) => file = i,
            None => return privileged(&file).or_else(|| unsuited(&file)),
        }
    }
    None
}

/// `#!/bin/sh -e` -> `/bin/sh`.
fn script_interpreter(p: &Path) -> Option<PathBuf> {
    let mut head = [0u8; 256];
    let n = File::open(p).ok()?.read_at(&mut head, 0).ok()?;
    let line = head.get(..n)?.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let text = String::from_utf8_lossy(line);
    text.split_whitespace().next().map(PathBuf::from)
}

fn privileged(p: &Path) -> Option<String> {
    if os::no_new_privileges() {
        return None;
    }
    let meta = fs::metadata(p).ok()?;
    let (uid, gid) = os::real_ids();
    let mode = meta.mode();
    let ignored = "the loader ignores LD_PRELOAD in privileged programs";
    if mode & libc::S_ISUID != 0 && meta.uid() != uid {
        return Some(format!("it is set-user-ID to user {}, and {ignored}", meta.uid()));
    }
    // Without group execute the bit means something else.
    if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && meta.gid() != gid {
        return Some(format!("it is set-group-ID to group {}, and {ignored}", meta.gid()));
    }
    if uid != 0 && os::has_attribute(p, c"security.capability") {
        return Some(format!("its file has capabilities, and {ignored}"));
    }
    None
}

fn unsuited(p: &Path) -> Option<String> {
    let f = File::open(p).ok()?;
    match interpreter(&f)? {
        Elf::Other(why) => Some(why.into()),
        Elf::Static => Some("it is statically linked, so no library can be loaded into it".into()),
        Elf::Loader(l) if l.contains("ld-linux-x86-64") => None,
        Elf::Loader(l) => Some(format!("its loader is {l}, and libsmc.so is built for the GNU C library")),
    }
}

enum Elf {
    /// Not for us.
    Other(&'static str),
    Static,
    /// PT_INTERP.
    Loader(String),
}

fn number(b: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut w = [0u8; 8];
    w.get_mut(..len)?.copy_from_slice(b.get(at..at.checked_add(len)?)?);
    Some(u64::from_le_bytes(w))
}

/// What an ELF file says about its loader; `None` for something else than ELF.
fn interpreter(f: &File) -> Option<Elf> {
    const PT_INTERP: u64 = 3;
    let mut head = [0u8; 64];
    f.read_exact_at(&mut head, 0).ok()?;
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    // ELFCLASS64, little endian, EM_X86_64.
    if head.get(4..6) != Some(&[2, 1]) || number(&head, 18, 2)? != 62 {
        return Some(Elf::Other("it is not a 64-bit x86 program"));
    }
    let (table, size, count) = (number(&head, 32, 8)?, number(&head, 54, 2)?, number(&head, 56, 2)?);
    for i in 0..count {
        let mut entry = [0u8; 56];
        f.read_exact_at(&mut entry, table.checked_add(i * size)?).ok()?;
        if number(&entry, 0, 4)? != PT_INTERP {
            continue;
        }
        let len = number(&entry, 32, 8)?.min(4096) as usize;
        let mut path = vec![0u8; len];
        f.read_exact_at(&mut path, number(&entry, 8, 8)?).ok()?;
        return Some(Elf::Loader(String::from_utf8_lossy(&path).trim_end_matches('\0').to_owned()));
    }
    Some(Elf::Static)
}
