//! The built tool, and what its tests share.
#![allow(dead_code)]

use crate::preload_support::{limited, output, root, target};
use serde_json::Value;
use smc_engine::base::config::{Config, VARS};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::engine::Engine;
use smc_engine::core::options::{MapOptions, PeerName};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The tool: `SMC_TOOL`, or a debug build, made anew when a source has changed.
pub fn tool() -> PathBuf {
    static TOOL: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        if let Some(t) = std::env::var_os("SMC_TOOL") {
            return t.into();
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "smc", "--bin", "smc", "--target-dir"]).arg(target()).current_dir(root());
        assert!(cargo.status().expect("run cargo").success(), "cannot build the tool");
        target().join("debug/smc")
    };
    TOOL.get_or_init(make).clone()
}

/// The tool with arguments, a time limit and no settings.
pub fn smc(args: &[&str]) -> Command {
    let mut c = limited(tool().to_str().expect("UTF-8"), args);
    VARS.iter().for_each(|v| {
        c.env_remove(v.name);
    });
    c
}

/// Runs it to its end.
pub fn run(args: &[&str]) -> Output {
    output(smc(args))
}

/// Its output, parsed.
pub fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

/// A name nobody else uses.
pub fn unique(what: &str) -> String {
    static N: AtomicU32 = AtomicU32::new(0);
    format!("tool-{what}-{}-{}", std::process::id(), N.fetch_add(1, SeqCst))
}

/// A directory of this test, gone at its end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Dir {
        let d = std::env::temp_dir().join(unique("dir"));
        fs::create_dir(&d).expect("make a directory");
        // Other users' programs look into it.
        fs::set_permissions(&d, fs::Permissions::from_mode(0o755)).expect("open it");
        Dir(d)
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// The tool where every user may run it.
    pub fn tool(&self) -> PathBuf {
        let to = self.path("smc");
        copy(&tool(), &to);
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("let everybody run it");
        to
    }
}

/// Copies a program. Not in this process: what another test starts meanwhile would hold it open for writing, and a
/// program that is open for writing cannot be run.
pub fn copy(from: &Path, to: &Path) {
    let cp = Command::new("cp").arg("-L").arg(from).arg(to).status();
    assert!(cp.expect("run cp").success(), "cannot copy {}", from.display());
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `smc serve`, and what it prints.
pub struct Serve {
    child: Child,
    out: BufReader<ChildStdout>,
    pub pid: i32,
}

impl Serve {
    /// Starts it without `timeout` in between, so that signals reach it; ends with this object at the latest.
    pub fn start(args: &[&str]) -> Serve {
        Serve::start_with(args, &[])
    }
    /// The same with variables.
    pub fn start_with(args: &[&str], env: &[(&str, &str)]) -> Serve {
        let mut c = Command::new(tool());
        c.envs(env.iter().copied());
        c.arg("serve").args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = c.spawn().expect("start smc serve");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let pid = child.id() as i32;
        Serve { child, out, pid }
    }
    pub fn line(&mut self) -> String {
        let mut l = String::new();
        self.out.read_line(&mut l).expect("a line");
        l.trim_end().to_owned()
    }
    pub fn event(&mut self) -> Value {
        let l = self.line();
        serde_json::from_str(&l).unwrap_or_else(|e| panic!("{e}: {l:?}"))
    }
    pub fn signal(&self, s: i32) {
        // SAFETY: sends a signal to a child of this test.
        assert_eq!(unsafe { libc::kill(self.pid, s) }, 0);
    }
    /// Sends a signal with a number.
    pub fn queue(&self, s: i32, number: i64) {
        let value = libc::sigval { sival_ptr: std::ptr::without_provenance_mut(number as usize) };
        // SAFETY: sends a signal to a child of this test; nobody follows the pointer.
        assert_eq!(unsafe { libc::sigqueue(self.pid, s, value) }, 0);
    }
    /// Ends it and answers its status, the rest of its output, and stderr.
    pub fn end(mut self, s: i32) -> (Option<i32>, String, String) {
        self.signal(s);
        let end = Instant::now() + Duration::from_secs(30);
        while self.child.try_wait().expect("wait").is_none() {
            assert!(Instant::now() < end, "smc serve does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (mut rest, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut rest).expect("the rest");
        self.child.stderr.take().expect("stderr").read_to_string(&mut err).expect("stderr");
        (self.child.wait().expect("wait").code(), rest, err)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This process's engine.
pub fn engine() -> &'static Engine {
    Engine::get(Config::default).expect("the engine")
}

/// Bytes without a pattern, always the same ones for a seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Maps `name`, stores `bytes` at `at` through loads and stores, releases, and answers all bytes as the client saw them
/// before.
pub fn change(name: &str, len: usize, at: usize, bytes: &[u8]) -> Vec<u8> {
    let region = engine().open(&PeerName::Local, name, &MapOptions::default()).expect("open");
    let v = region.map_view(0, false, 0, len.next_multiple_of(PAGE), true).expect("map") as *mut u8;
    // SAFETY: inside the view that the test has mapped.
    let seen = (0..len).map(|i| unsafe { v.wrapping_add(i).read_volatile() }).collect();
    for (i, b) in bytes.iter().enumerate() {
        // SAFETY: inside the view that the test has mapped.
        unsafe { v.wrapping_add(at + i).write_volatile(*b) };
    }
    assert_eq!(region.release(0, 0), Status::OK);
    assert_eq!(region.unmap_view(v as usize, len.next_multiple_of(PAGE)), Status::OK);
    seen
}

/// Starts a command as nobody when this is root.
pub fn as_nobody(program: &Path, args: &[&str]) -> Command {
    let program = program.to_str().expect("UTF-8");
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return limited(program, args);
    }
    let drop = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", program];
    limited("setpriv", &[&drop, args].concat())
}

/// This process's region `name` as `smc stat` shows it, once `ready` likes it.
pub fn posted(name: &str, ready: impl Fn(&Value) -> bool) -> Value {
    let me = std::process::id().to_string();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let all = json(&run(&["stat", &me, "--json"]));
        let found =
            all[0]["regions"].as_array().and_then(|r| r.iter().find(|r| r["name"] == name && ready(r)).cloned());
        if let Some(r) = found {
            return r;
        }
        assert!(Instant::now() < end, "{name} is never shown like that");
        std::thread::sleep(Duration::from_millis(50));
    }
}
