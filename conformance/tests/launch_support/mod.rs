//! `smc run` as the tests start it.
#![allow(dead_code)]

use crate::preload_support::{library, output, text};
use crate::tool_support::{Dir, copy, smc};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A path as text.
pub fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

/// The library under test.
pub fn lib() -> String {
    utf8(&library().canonicalize().expect("the library")).to_owned()
}

/// `smc run` with options, then the program.
pub fn launched(options: &[&str], program: &[&str]) -> Command {
    let lib = lib();
    let mut c = smc(&[&["run", "--lib", &lib], options, &["--"], program].concat());
    // Whoever runs the tests may have settings.
    c.env("LIBSMC_CONFIG", "");
    c
}

/// Runs it, within a time limit.
pub fn launch(options: &[&str], program: &[&str]) -> Output {
    output(launched(options, program))
}

/// Status, and what was said on stderr.
pub fn verdict(out: &Output) -> (Option<i32>, String) {
    (out.status.code(), text(&out.stderr))
}

/// Programs made for the refusals.
pub struct Maker(pub Dir);

impl Maker {
    pub fn new() -> Maker {
        let dir = Dir::new();
        let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n";
        fs::write(dir.path("hello.c"), source).expect("write");
        Maker(dir)
    }

    /// `None`, with the reason printed, when this compiler cannot make it.
    pub fn program(&self, name: &str, flags: &[&str]) -> Option<PathBuf> {
        let out = self.0.path(name);
        let done = Command::new("cc").arg("-o").arg(&out).arg(self.0.path("hello.c")).args(flags).output();
        let done = done.expect("run cc").status.success();
        if !done {
            eprintln!("skipped: cc cannot make the {name} program");
        }
        done.then_some(out)
    }

    pub fn script(&self, name: &str, first: &str) -> PathBuf {
        let p = self.0.path(name);
        fs::write(&p, format!("{first}\n")).expect("write");
        fs::set_permissions(&p, fs::Permissions::from_mode(0o755)).expect("chmod");
        p
    }

    /// A copy of the program with bytes of its header changed.
    pub fn patched(&self, name: &str, from: &Path, at: usize, bytes: &[u8]) -> PathBuf {
        let mut b = fs::read(from).expect("read");
        b[at..at + bytes.len()].copy_from_slice(bytes);
        let p = self.0.path(name);
        // By another process, see `copy`.
        let tmp = self.0.path("bytes");
        fs::write(&tmp, b).expect("write");
        copy(&tmp, &p);
        fs::set_permissions(&p, fs::Permissions::from_mode(0o755)).expect("chmod");
        p
    }
}
