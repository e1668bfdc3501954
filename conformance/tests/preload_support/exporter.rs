//! An exporter in a process of its own, for programs on `/smc/local/NAME`.
//!
//! Needs `smc serve` (`SMC_BIN`, or the release build).

use super::{output, preloaded, target, text};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of the region.
pub const SIZE: usize = 1 << 20;

/// A region of zeros, exported until dropped.
pub struct Exporter {
    pub process: Child,
    pub name: String,
}

impl Exporter {
    /// `None`, with the reason printed, when the tool cannot export.
    pub fn start() -> Option<Exporter> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let tool = std::env::var_os("SMC_BIN").map_or_else(|| target().join("release/smc"), Into::into);
        let help = Command::new(&tool).args(["serve", "--help"]).output();
        if !help.is_ok_and(|h| text(&h.stdout).contains("--name")) {
            assert!(std::env::var_os("CI").is_none(), "{} has no serve command", tool.display());
            eprintln!("skipped: {} has no serve command", tool.display());
            return None;
        }
        let name = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mut c = Command::new(&tool);
        c.args(["serve", "--name", &name, "--size", &SIZE.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut e = Exporter { process: c.spawn().expect("start the exporter"), name };
        let start = Instant::now();
        while !output(preloaded("stat", &[&e.path()])).status.success() {
            let ended = e.process.try_wait().expect("ask for the exporter");
            assert!(ended.is_none(), "the exporter has ended: {ended:?}");
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "the exporter does not come up: {:?}",
                output(preloaded("stat", &[&e.path()]))
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(e)
    }

    /// What programs open.
    pub fn path(&self) -> String {
        format!("/smc/local/{}", self.name)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs to a good end; what was printed.
pub fn good(mut c: Command) -> String {
    let out = c.output().expect("run");
    assert!(out.status.success(), "{c:?}: {}\n{}{}", out.status, text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}
