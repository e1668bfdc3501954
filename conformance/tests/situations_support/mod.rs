//! Runs one case of a program of `conformance/apps/situations` in a process of its own, under a time limit, with an
//! exporter of its own.

use crate::preload_support::{app, library, output, target, text};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Seconds a case may take: much more than it needs, much less than for ever.
const LIMIT: &str = "100";

/// The back ends that work here; of the others the reason is printed. A quick run takes one of each delivery that differs
/// most.
pub fn backends() -> Vec<&'static str> {
    let works = |b: &&str| {
        let e = Exporter::start("probe", 1 << 20);
        let mut c = Command::new("stat");
        c.arg(e.path()).env("LD_PRELOAD", library()).env("LIBSMC_FAULT", b);
        let out = output(c);
        if !out.status.success() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{b} does not work here: {}", text(&out.stderr));
            eprintln!("skipped: back end {b} does not work here: {}", text(&out.stderr));
        }
        out.status.success()
    };
    let quick = std::env::var("SMC_EFFORT").as_deref() == Ok("quick");
    let all: &[&str] = if quick { &["thread", "mprotect"] } else { &["thread", "sigbus", "sync", "mprotect"] };
    all.iter().copied().filter(works).collect()
}

/// A region of zeros, exported until dropped.
pub struct Exporter(Child, String);

impl Exporter {
    /// Returns when it can be reached.
    pub fn start(what: &str, size: usize) -> Exporter {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tool = std::env::var_os("SMC_BIN").map_or_else(|| target().join("release/smc"), PathBuf::from);
        let name = format!("situ-{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mut c = Command::new(&tool);
        c.args(["serve", "--name", &name, "--size", &size.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let e = Exporter(c.spawn().expect("start the exporter"), name);
        let start = Instant::now();
        loop {
            let mut c = Command::new("stat");
            c.arg(e.path()).env("LD_PRELOAD", library());
            if output(c).status.success() {
                return e;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the exporter does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its region as a file.
    pub fn path(&self) -> String {
        format!("/smc/local/{}", self.1)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes of the region of a case.
pub const SIZE: usize = 16 << 20;

/// A program's case on a back end, ready to run. `options` follow the `?` of the region's name.
pub fn command(e: &Exporter, program: &str, case: &str, backend: &str, options: &str) -> Command {
    let mut c = Command::new("timeout");
    let name = format!("{}{options}", e.path());
    c.args(["-k", "5", LIMIT]).arg(app(&format!("situations/{program}"), &[])).args([&name, case]);
    c.env("LD_PRELOAD", library()).env("LIBSMC_FAULT", backend).stdin(Stdio::null());
    c
}

/// Runs a case; it says `ok`, or why it is skipped.
pub fn run(program: &str, case: &str, backend: &str, options: &str) {
    let e = Exporter::start(program, SIZE);
    judge(output(command(&e, program, case, backend, options)), &format!("{program} {case} {backend} {options}"));
}

/// Fails unless the program has said `ok` or a reason to skip, and has ended by itself.
pub fn judge(out: Output, what: &str) {
    let said = text(&out.stdout);
    let good = out.status.success() && (said == "ok\n" || said.starts_with("skipped: "));
    assert!(good, "{what}: {}\n{said}{}", out.status, text(&out.stderr));
    if said != "ok\n" {
        eprint!("{what}: {said}");
    }
}

/// The cases of a program on every back end.
pub fn everywhere(program: &str, cases: &[&str], options: &str) {
    for backend in backends() {
        for case in cases {
            run(program, case, backend, options);
        }
    }
}
