//! Where the built library is, and running programs with and without it.
#![allow(dead_code)]

pub mod exporter;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the suite lies in the repository").to_owned()
}

/// The target directory this test was built in.
pub fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    exe.ancestors().nth(3).expect("target/PROFILE/deps/TEST").to_owned()
}

/// libsmc.so: `SMC_LIB`, or the release build, which is made when it is not there.
pub fn library() -> PathBuf {
    static LIB: OnceLock<PathBuf> = OnceLock::new();
    LIB.get_or_init(|| {
        if let Some(lib) = std::env::var_os("SMC_LIB") {
            return lib.into();
        }
        let lib = target().join("release/libsmc.so");
        if !lib.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--release", "-p", "smc-interpose", "--target-dir"]).arg(target()).current_dir(root());
            assert!(cargo.status().expect("run cargo").success(), "cannot build {}", lib.display());
        }
        lib
    })
    .clone()
}

/// A C program of conformance/apps, compiled; extra arguments go to cc.
pub fn app(name: &str, args: &[&str]) -> PathBuf {
    let dir = target().join("apps");
    std::fs::create_dir_all(&dir).expect("make target/apps");
    let out = dir.join(name);
    std::fs::create_dir_all(out.parent().expect("a directory")).expect("make its directory");
    let source = root().join("conformance/apps").join(format!("{name}.c"));
    // Tests run at once: each compiles for itself and the last one wins.
    let own = dir.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let cc = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"])
        .arg(&own)
        .arg(source)
        .arg("-pthread")
        .args(args)
        .status();
    assert!(cc.expect("run cc").success(), "cannot compile {name}.c");
    std::fs::rename(&own, &out).expect("put the program in its place");
    out
}

/// A command under a time limit of a minute.
pub fn limited(program: &str, args: &[&str]) -> Command {
    let mut c = Command::new("timeout");
    c.args(["-k", "5", "60", program]).args(args);
    c.env_remove("LD_PRELOAD");
    c
}

/// The same with the library preloaded.
pub fn preloaded(program: &str, args: &[&str]) -> Command {
    let mut c = limited(program, args);
    c.env("LD_PRELOAD", library());
    c
}

/// Runs to the end and takes stdout, stderr and the status.
pub fn output(mut c: Command) -> Output {
    c.output().unwrap_or_else(|e| panic!("{c:?}: {e}"))
}

/// Text of a stream.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// True when a program is installed; says so when it is not.
pub fn installed(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}
