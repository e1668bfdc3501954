//! The product's side: an exporter of its own, a child with a fresh key, and a link to it.

use crate::bench::rig::Home;
use crate::out::cannot;
use serde_json::Value;
use smc_engine::base::config::{Config, variable};
use smc_engine::base::{Error, Result, Status};
use smc_engine::link::mgmt::key::Key;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A key of this run's own, which this process and its children find in LIBSMC_KEY; its file goes with it.
pub struct Fresh(PathBuf);

impl Fresh {
    /// Makes the key and names it and the device in the environment.
    ///
    /// # Safety
    /// No other thread runs yet.
    pub unsafe fn prepare(device: Option<&str>) -> Result<Fresh> {
        let dir = std::env::temp_dir().join(format!("smc-bench-{}", std::process::id()));
        let fail = |e| cannot(format!("make the folder {} for a key", dir.display()), e);
        DirBuilder::new().mode(0o700).create(&dir).map_err(fail)?;
        let fresh = Fresh(dir);
        let file = fresh.0.join("key");
        Key::generate(None)?.save(&file, false)?;
        // SAFETY: the caller vouches that nobody reads the environment meanwhile.
        unsafe { std::env::set_var("LIBSMC_KEY", &file) };
        if let Some(name) = device {
            // SAFETY: as above.
            unsafe { std::env::set_var("LIBSMC_DEVICE", name) };
        }
        Ok(fresh)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An exporter process; told to end when dropped.
pub struct Exporting(Child);

impl Drop for Exporting {
    fn drop(&mut self) {
        // SAFETY: a plain signal to a child that was not waited for yet.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

/// The port of the exporter, from what it says once it listens.
fn port(child: &mut Child) -> Option<u16> {
    let out = BufReader::new(child.stdout.take()?);
    let events = out.lines().map_while(std::result::Result::ok).filter_map(|l| serde_json::from_str::<Value>(&l).ok());
    let address = events.filter_map(|e| e.get("address").and_then(Value::as_str).map(str::to_owned)).next()?;
    address.rsplit_once(':')?.1.parse().ok()
}

/// Exports `len` bytes from a child and connects to it over the network.
pub fn start(len: usize) -> Result<Home> {
    let attempt = "start an exporter for the bench";
    let exe = std::env::current_exe().map_err(|e| cannot(attempt, e))?;
    let mut c = Command::new(exe);
    // Two benches may run at a time, and names are the whole host's.
    let name = format!("bench-verbs-{}", std::process::id());
    c.args(["serve", "--name", &name, "--size", &len.to_string(), "--listen", "127.0.0.1:0", "--json"]);
    // Should the bench be killed, its exporter ends too.
    let follow = || {
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) };
        Ok(())
    };
    // SAFETY: one system call between fork and exec.
    unsafe { c.pre_exec(follow) };
    let child = c.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|e| cannot(attempt, e))?;
    let mut child = Exporting(child);
    let port = port(&mut child.0);
    let port = port.ok_or_else(|| Error::new(Status::SYSTEM, attempt, "it does not say where it listens"))?;
    let link = smc_engine::link::connect(Some(("127.0.0.1", port)), &Config::parse(variable))?;
    Ok(Home::elsewhere(link, &name, child))
}
