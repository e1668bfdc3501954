//! The command line tool, run as its users run it.

mod preload_support;

use preload_support::{app, installed, library, limited, output, root, target, text};
use serde_json::Value;
use smc_engine::base::config::{Config, VARS};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::engine::Engine;
use smc_engine::core::options::{MapOptions, PeerName};
use smc_engine::link::Access;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The tool: `SMC_TOOL`, or a debug build, made anew when a source has changed.
fn tool() -> PathBuf {
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

fn smc(args: &[&str]) -> Command {
    let mut c = limited(tool().to_str().expect("UTF-8"), args);
    VARS.iter().for_each(|v| {
        c.env_remove(v.name);
    });
    c
}

fn run(args: &[&str]) -> Output {
    output(smc(args))
}

fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
}

/// A name nobody else uses.
fn unique(what: &str) -> String {
    static N: AtomicU32 = AtomicU32::new(0);
    format!("tool-{what}-{}-{}", std::process::id(), N.fetch_add(1, SeqCst))
}

/// A directory of this test, gone at its end.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        let d = std::env::temp_dir().join(unique("dir"));
        fs::create_dir(&d).expect("make a directory");
        // Other users' programs look into it.
        fs::set_permissions(&d, fs::Permissions::from_mode(0o755)).expect("open it");
        Dir(d)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// The tool where every user may run it.
    fn tool(&self) -> PathBuf {
        let to = self.path("smc");
        fs::copy(tool(), &to).expect("copy the tool");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("let everybody run it");
        to
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running `smc serve`, and what it prints.
struct Serve {
    child: Child,
    out: BufReader<ChildStdout>,
    pid: i32,
}

impl Serve {
    /// Starts it without `timeout` in between, so that signals reach it; ends with this object at the latest.
    fn start(args: &[&str]) -> Serve {
        let mut c = Command::new(tool());
        c.arg("serve").args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = c.spawn().expect("start smc serve");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let pid = child.id() as i32;
        Serve { child, out, pid }
    }
    fn line(&mut self) -> String {
        let mut l = String::new();
        self.out.read_line(&mut l).expect("a line");
        l.trim_end().to_owned()
    }
    fn event(&mut self) -> Value {
        let l = self.line();
        serde_json::from_str(&l).unwrap_or_else(|e| panic!("{e}: {l:?}"))
    }
    fn signal(&self, s: i32) {
        assert_eq!(unsafe { libc::kill(self.pid, s) }, 0);
    }
    /// Ends it and answers its status, the rest of its output, and stderr.
    fn end(mut self, s: i32) -> (Option<i32>, String, String) {
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

fn engine() -> &'static Engine {
    Engine::get(Config::default).expect("the engine")
}

/// Bytes without a pattern, always the same ones for a seed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

#[test]
fn serve_says_when_it_is_ready_and_ls_lists_it() {
    let (a, b) = (unique("a"), unique("b"));
    let mut s = Serve::start(&["--name", &a, "--size", "1MiB", "--name", &b, "--size", "5000", "--read-only"]);
    assert_eq!(s.line(), format!("serving {a} 1048576 bytes pid {}", s.pid));
    assert_eq!(s.line(), format!("serving {b} 8192 bytes pid {}", s.pid));
    let listed = json(&run(&["ls", "--json"]));
    let find = |name: &str| listed.as_array().expect("an array").iter().find(|r| r["name"] == name).expect("listed").clone();
    assert_eq!((&find(&a)["bytes"], &find(&a)["access"], &find(&a)["clients"]), (&1048576.into(), &"read-only".into(), &0.into()));
    assert_eq!(find(&b)["pid"], s.pid);
    let table = text(&run(&["ls"]).stdout);
    let row = table.lines().find(|l| l.starts_with(&format!("{a} "))).expect("a row");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), [&a, "1", "MiB", "read-only", "system", "0", &s.pid.to_string()]);
    let (status, rest, err) = s.end(libc::SIGTERM);
    assert_eq!((status, &*rest, &*err), (Some(0), "", ""));
    assert!(!text(&run(&["ls"]).stdout).contains(&a));
}

#[test]
fn a_taken_name_is_an_error_of_one_line() {
    let name = unique("taken");
    let mut s = Serve::start(&["--name", &name, "--size", "4K"]);
    s.line();
    let out = run(&["serve", "--name", &name, "--size", "4K"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(text(&out.stderr), format!("smc: cannot export \"{name}\": the name is taken; see `smc ls` for who has it\n"));
    assert!(out.stdout.is_empty());
}

#[test]
fn wrong_usage_is_status_2() {
    for args in [
        &["serve", "--name", "x"][..],
        &["serve", "--name", "x", "--size", "many"],
        &["serve", "--name", "x", "--name", "y", "--file", "f"],
        &["serve", "--name", "x", "--size", "4K", "--size", "4K"],
        &["nothing"],
        &["run"],
        &["run", "--fault", "magic", "--", "true"],
        &["stat", "--watch", "0"],
    ] {
        let out = run(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {out:?}");
        assert!(!out.stderr.is_empty());
    }
}

#[test]
fn every_subcommand_has_help_with_examples() {
    for sub in ["serve", "ls", "stat", "doctor", "run", "env"] {
        let out = run(&[sub, "--help"]);
        assert!(out.status.success() && text(&out.stdout).contains("Examples:\n  smc "), "{sub}: {out:?}");
    }
}

#[test]
fn serve_tells_who_comes_and_goes() {
    let name = unique("clients");
    let dir = Dir::new();
    let pid_file = dir.path("pid");
    let mut s = Serve::start(&["--name", &name, "--size", "64K", "--json", "--pid-file", pid_file.to_str().expect("UTF-8")]);
    let ready = s.event();
    assert_eq!((&ready["event"], &ready["name"], &ready["bytes"], &ready["pid"]), (&"ready".into(), &name.clone().into(), &65536.into(), &s.pid.into()));
    assert_eq!(fs::read_to_string(&pid_file).expect("the pid file").trim(), s.pid.to_string());
    let opts = MapOptions { access: Access::ReadOnly, ..MapOptions::default() };
    let region = engine().open(&PeerName::Local, &name, &opts).expect("open");
    let came = s.event();
    assert_eq!((&came["event"], &came["pid"], &came["access"]), (&"client-opened".into(), &std::process::id().into(), &"read-only".into()));
    s.signal(libc::SIGUSR1);
    let list = s.event();
    assert_eq!((&list["event"], &list["clients"][0]["client"]), (&"clients".into(), &came["client"]));
    drop(region);
    let left = s.event();
    assert_eq!((&left["event"], &left["client"]), (&"client-left".into(), &came["client"]));
    let (status, rest, _) = s.end(libc::SIGINT);
    assert_eq!((status, rest.trim()), (Some(0), r#"{"event":"end"}"#));
    assert!(!pid_file.exists());
}

/// Maps `name`, stores `bytes` at `at` through loads and stores, releases, and answers all bytes as the client saw them
/// before.
fn change(name: &str, len: usize, at: usize, bytes: &[u8]) -> Vec<u8> {
    let region = engine().open(&PeerName::Local, name, &MapOptions::default()).expect("open");
    let v = region.map_view(0, false, 0, len.next_multiple_of(PAGE), true).expect("map") as *mut u8;
    let seen = (0..len).map(|i| unsafe { v.add(i).read_volatile() }).collect();
    for (i, b) in bytes.iter().enumerate() {
        unsafe { v.add(at + i).write_volatile(*b) };
    }
    assert_eq!(region.release(0, 0), Status::OK);
    assert_eq!(region.unmap_view(v as usize, len.next_multiple_of(PAGE)), Status::OK);
    seen
}

#[test]
fn a_file_is_served_and_what_clients_change_comes_back() {
    let dir = Dir::new();
    let (file, name) = (dir.path("weights"), unique("file"));
    // No whole number of pages.
    let mut want = noise(1, 300_001);
    fs::write(&file, &want).expect("write");
    for (round, end) in [libc::SIGTERM, libc::SIGINT].into_iter().enumerate() {
        let mut s = Serve::start(&["--name", &name, "--file", file.to_str().expect("UTF-8")]);
        assert_eq!(s.line(), format!("serving {name} 303104 bytes pid {}", s.pid));
        let other = run(&["serve", "--name", &unique("other"), "--file", file.to_str().expect("UTF-8")]);
        assert!(text(&other.stderr).contains("another process has locked it"), "{other:?}");
        let stores = noise(2 + round as u64, 9000);
        assert!(change(&name, want.len(), 100_000, &stores) == want, "round {round}: the client saw other bytes than the file's");
        want[100_000..109_000].copy_from_slice(&stores);
        let (status, rest, err) = s.end(end);
        // Bytes 100000..109000 lie in the blocks 24 to 26.
        let said = format!("wrote 12288 changed bytes of 300001 back to {}\n", file.display());
        assert_eq!((status, rest, &*err), (Some(0), said, ""));
        assert!(fs::read(&file).expect("read") == want, "round {round}: the file differs");
        assert!(!dir.path("weights.smc-journal").exists());
    }
}

#[test]
fn an_unchanged_or_read_only_file_is_not_touched() {
    let dir = Dir::new();
    let file = dir.path("f");
    fs::write(&file, noise(5, 10_000)).expect("write");
    let before = fs::metadata(&file).expect("stat").modified().expect("mtime");
    for extra in [&[][..], &["--read-only"]] {
        let name = unique("same");
        let mut s = Serve::start(&[&["--name", &name, "--file", file.to_str().expect("UTF-8")], extra].concat());
        s.line();
        assert_eq!(s.end(libc::SIGTERM).0, Some(0));
        assert_eq!(fs::metadata(&file).expect("stat").modified().expect("mtime"), before);
    }
}

#[test]
fn a_new_file_is_made_with_a_size() {
    let dir = Dir::new();
    let (file, name) = (dir.path("new"), unique("new"));
    let path = file.to_str().expect("UTF-8");
    let out = run(&["serve", "--name", &name, "--file", path]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).ends_with("; give --size to make it\n"), "{out:?}");
    let mut s = Serve::start(&["--name", &name, "--file", path, "--size", "64K"]);
    s.line();
    change(&name, 65536, 5000, b"stored");
    assert_eq!(s.end(libc::SIGTERM).0, Some(0));
    let got = fs::read(&file).expect("read");
    assert_eq!((got.len(), &got[5000..5006]), (8192, &b"stored"[..]));
}

/// The journal that a crash while writing back leaves: complete, cut short, or of another file.
#[test]
fn an_interrupted_write_back_is_completed() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new();
    let (file, journal) = (dir.path("f"), dir.path("f.smc-journal"));
    let old = noise(6, 20_000);
    fs::write(&file, &old).expect("write");
    let inode = fs::metadata(&file).expect("stat").ino();
    let new = noise(7, 4096);
    let mut bytes = b"SMCJRNL1".to_vec();
    for word in [inode, 1, 8192, 4096] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(&new);
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for word in bytes.chunks(8) {
        sum = (sum ^ u64::from_le_bytes(word.try_into().expect("8 bytes"))).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }
    bytes.extend(sum.to_le_bytes());
    let serve = |extra: &[&str]| {
        let name = unique("journal");
        let mut s = Serve::start(&[&["--name", &name, "--file", file.to_str().expect("UTF-8")], extra].concat());
        s.line();
        s.end(libc::SIGTERM).2
    };
    for cut in [3, 40, bytes.len() - 1] {
        fs::write(&journal, &bytes[..cut]).expect("write");
        assert_eq!(serve(&[]), "", "cut at {cut}");
        assert!(fs::read(&file).expect("read") == old && !journal.exists(), "cut at {cut}");
    }
    fs::write(&journal, &bytes).expect("write");
    let refused = run(&["serve", "--name", &unique("ro"), "--read-only", "--file", file.to_str().expect("UTF-8")]);
    assert!(text(&refused.stderr).contains("an interrupted write-back waits"), "{refused:?}");
    assert!(serve(&[]).contains("completed an interrupted write-back"));
    let got = fs::read(&file).expect("read");
    assert!(got[8192..12_288] == new && got[..8192] == old[..8192] && got[12_288..] == old[12_288..] && !journal.exists());
    bytes[8] ^= 1;
    fs::write(&journal, &bytes).expect("write");
    let other = run(&["serve", "--name", &unique("other"), "--file", file.to_str().expect("UTF-8")]);
    assert!(text(&other.stderr).contains("belongs to another file"), "{other:?}");
}

/// This process's region `name` as `smc stat` shows it, once `ready` likes it.
fn posted(name: &str, ready: impl Fn(&Value) -> bool) -> Value {
    let me = std::process::id().to_string();
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let all = json(&run(&["stat", &me, "--json"]));
        let found = all[0]["regions"].as_array().and_then(|r| r.iter().find(|r| r["name"] == name).cloned());
        if let Some(r) = found.filter(&ready) {
            return r;
        }
        assert!(Instant::now() < end, "never shown: {all}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn stat_shows_this_process() {
    let name = unique("stat");
    let mut s = Serve::start(&["--name", &name, "--size", "1M"]);
    s.line();
    let region = engine().open(&PeerName::Local, &name, &MapOptions::default()).expect("open");
    let v = region.map_view(0, false, 0, 1 << 20, true).expect("map") as *mut u8;
    for page in 0..8 {
        unsafe { v.add(page * PAGE).write_volatile(1) };
    }
    assert_eq!(region.release(0, 0), Status::OK);
    let r = posted(&name, |r| r["counters"]["releases"] == 1);
    let mut counters = Vec::new();
    region.stats().each(|n, _, v| counters.push((n, v)));
    for (n, v) in counters {
        assert_eq!(r["counters"][n], v, "{n}");
    }
    assert_eq!((&r["open"], &r["status"], &r["bytes"], &r["policy"]), (&true.into(), &"OK".into(), &1048576.into(), &"byte".into()));
    assert_eq!(r["backend"], region.backend().name());
    assert!(r["resident"].as_u64().expect("a number") >= 8 * PAGE as u64);
    let me = std::process::id().to_string();
    let shown = text(&run(&["stat", &me]).stdout);
    assert!(shown.contains(&format!("  {name}  1 MiB  read-write  OK")) && shown.contains("pages_pushed"), "{shown}");
    assert!(!shown.contains("selftest"), "{shown}");

    // A fork child holds the descriptor too, but it is not its board.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            unsafe { libc::pause() };
        }
    }
    let all = json(&run(&["stat", "--json"]));
    let of_child = run(&["stat", &child.to_string()]);
    unsafe { libc::kill(child, libc::SIGKILL) };
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let pids: Vec<_> = all.as_array().expect("an array").iter().map(|p| p["pid"].as_i64().expect("a pid") as i32).collect();
    assert!(pids.contains(&(std::process::id() as i32)) && !pids.contains(&child), "{pids:?}");
    assert!(of_child.status.code() == Some(1) && text(&of_child.stderr).contains("it has no regions"), "{of_child:?}");

    assert_eq!(region.unmap_view(v as usize, 1 << 20), Status::OK);
    drop(region);
    assert_eq!(posted(&name, |r| r["open"] == false)["counters"]["releases"], 2);
}

#[test]
fn stat_explains_what_it_cannot_read() {
    let out = run(&["stat", "999999999"]);
    assert_eq!((out.status.code(), &*text(&out.stderr)), (Some(1), "smc: cannot read the counters of process 999999999: there is no such process\n"));
    // A memory file of the name that is no board, and a board of another version.
    let fake = |bytes: &[u8]| {
        let mut c = limited("python3", &["-c", "import os,sys\nf=os.memfd_create('libsmc-stats')\nos.write(f,sys.stdin.buffer.read())\nprint(os.getpid(),flush=True)\nos.read(0,1) or __import__('time').sleep(20)"]);
        let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start python3");
        std::io::Write::write_all(&mut child.stdin.take().expect("stdin"), bytes).expect("write");
        let mut pid = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut pid).expect("a pid");
        let out = run(&["stat", pid.trim()]);
        unsafe { libc::kill(pid.trim().parse().expect("a pid"), libc::SIGKILL) };
        let _ = child.wait();
        (out.status.code(), text(&out.stderr))
    };
    if installed("python3") {
        let (status, err) = fake(b"nonsense");
        assert!(status == Some(1) && err.contains("it is not a libsmc board"), "{err}");
        let mut other = b"SMCBOARD".to_vec();
        other.extend(77u64.to_le_bytes());
        other.resize(1 << 16, 0);
        let (status, err) = fake(&other);
        assert!(status == Some(1) && err.contains("board version 77"), "{err}");
    }
}

fn verdict<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    &rows.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("no row {name}: {report}"))["verdict"]
}

#[test]
fn doctor_agrees_with_the_engine() {
    let out = run(&["doctor", "--json"]);
    let report = json(&out);
    let choice = engine().choice();
    assert_eq!(report["backend"], choice.backend.expect("a back end").name());
    assert_eq!(out.status.code(), Some(0));
    for r in report["rows"].as_array().expect("rows") {
        let v = r["verdict"].as_str().expect("a verdict");
        assert!(["ok", "warn", "bad", "unknown"].contains(&v), "{r}");
        assert!(!r["value"].as_str().expect("a value").is_empty() && !r["meaning"].as_str().expect("a meaning").is_empty(), "{r}");
    }
    for name in ["HCA", "GPU"] {
        assert_eq!(verdict(&report, name), "unknown");
    }
    let shown = text(&run(&["doctor"]).stdout);
    assert!(shown.starts_with("ok      fault back end"), "{shown}");
}

#[test]
fn doctor_under_a_filter_that_refuses_userfaultfd() {
    let filter = app("no_uffd", &[]);
    let out = output(limited(filter.to_str().expect("UTF-8"), &[tool().to_str().expect("UTF-8"), "doctor", "--json"]));
    let report = json(&out);
    assert_eq!((out.status.code(), &report["backend"], &report["works"]), (Some(0), &"mprotect".into(), &serde_json::json!(["mprotect"])));
    for b in ["thread", "sigbus", "sync"] {
        assert_eq!(verdict(&report, &format!("back end {b}")), "warn");
    }
    assert_eq!((verdict(&report, "back end mprotect"), verdict(&report, "seccomp")), (&"ok".into(), &"warn".into()));
    // Forcing one that does not work is seen.
    let mut c = limited(filter.to_str().expect("UTF-8"), &[tool().to_str().expect("UTF-8"), "doctor", "--json"]);
    c.env("LIBSMC_FAULT", "thread");
    let report = json(&output(c));
    assert_eq!((&report["backend"], verdict(&report, "fault back end")), (&Value::Null, &"bad".into()));
}

/// Starts a command as nobody when this is root.
fn as_nobody(program: &Path, args: &[&str]) -> Command {
    let program = program.to_str().expect("UTF-8");
    if unsafe { libc::geteuid() } != 0 {
        return limited(program, args);
    }
    let drop = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", program];
    limited("setpriv", &[&drop, args].concat())
}

#[test]
fn doctor_without_privilege() {
    let dir = Dir::new();
    let report = json(&output(as_nobody(&dir.tool(), &["doctor", "--json"])));
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    assert!(report["works"].as_array().expect("an array").contains(&"mprotect".into()), "{report}");
    if sysctl.trim() == "0" && unsafe { libc::geteuid() } == 0 {
        let open = fs::metadata("/dev/userfaultfd").is_ok_and(|m| m.permissions().mode() & 0o006 == 0o006);
        let want = if open { "ok" } else { "warn" };
        assert_eq!(verdict(&report, "vm.unprivileged_userfaultfd"), want, "{report}");
        assert_eq!(verdict(&report, "back end thread"), want, "{report}");
    }
}

#[test]
fn another_user_is_admitted_by_name_only() {
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let (dir, name, open) = (Dir::new(), unique("mine"), unique("all"));
    let mut s = Serve::start(&["--name", &name, "--size", "4K"]);
    s.line();
    let mut s2 = Serve::start(&["--name", &open, "--size", "4K", "--allow-uid", "65534"]);
    s2.line();
    let listed = json(&output(as_nobody(&dir.tool(), &["ls", "--json"])));
    let answers = |n: &str| listed.as_array().expect("an array").iter().find(|r| r["name"] == n).map(|r| r["answers"].clone());
    assert_eq!((answers(&name), answers(&open)), (Some(false.into()), Some(true.into())), "{listed}");
}

#[test]
fn run_preloads_and_sets_the_variables() {
    let lib = library().canonicalize().expect("the library");
    let lib = lib.to_str().expect("UTF-8");
    let script = "echo $LD_PRELOAD/$LIBSMC_FAULT/$LIBSMC_RESIDENT/$LIBSMC_WAIT/$LIBSMC_LOG/$LIBSMC_DISABLE; exit 7";
    let args = ["run", "--lib", lib, "--fault", "uffd-sigbus", "--resident", "1M", "--wait", "9", "--log", "off", "--disable", "--", "sh", "-c", script];
    let out = run(&args);
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(7), String::new()));
    assert_eq!(text(&out.stdout), format!("{lib}/sigbus/1048576/9/off/1\n"));
    // What was preloaded before stays, behind ours; variables that no option names stay as they are.
    let mut c = Command::new("timeout");
    c.args(["60"]).arg(tool()).args(["run", "--lib", lib, "--", "sh", "-c", script]);
    c.env("LD_PRELOAD", "libm.so.6:libdl.so.2").env("LIBSMC_WAIT", "77");
    let out = output(c);
    assert_eq!(text(&out.stdout), format!("{lib}:libm.so.6:libdl.so.2///77//\n"), "{out:?}");
}

#[test]
fn run_finds_the_library() {
    let lib = library();
    for place in ["bin", "lib"] {
        let dir = Dir::new();
        fs::create_dir(dir.path("bin")).expect("mkdir");
        let smc = dir.path("bin/smc");
        fs::copy(tool(), &smc).expect("copy");
        let none = output(limited(smc.to_str().expect("UTF-8"), &["run", "true"]));
        assert!(none.status.code() == Some(1) && text(&none.stderr).ends_with("; name it with --lib\n"), "{none:?}");
        let _ = fs::create_dir(dir.path("lib"));
        let at = dir.path(place).join("libsmc.so.1");
        fs::copy(&lib, &at).expect("copy");
        let out = output(limited(smc.to_str().expect("UTF-8"), &["run", "--", "sh", "-c", "grep -c libsmc /proc/self/maps >&2; echo $LD_PRELOAD"]));
        assert_eq!(text(&out.stdout).trim(), at.canonicalize().expect("there").to_str().expect("UTF-8"), "{out:?}");
    }
}

#[test]
fn run_reaches_a_region() {
    let name = unique("run");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    change(&name, 8, 0, b"by store");
    let out = run(&["run", "--lib", library().to_str().expect("UTF-8"), "--", "head", "-c", "8", &format!("/smc/local/{name}")]);
    assert_eq!(text(&out.stdout), "by store", "{out:?}");
}

#[test]
fn run_says_what_it_cannot_cover() {
    let lib = library();
    let dir = Dir::new();
    let source = dir.path("hello.c");
    fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n").expect("write");
    let cc = |out: &Path, extra: &[&str]| Command::new("cc").arg("-o").arg(out).arg(&source).args(extra).status().is_ok_and(|s| s.success());
    let try_it = |p: &Path| output(smc(&["run", "--lib", lib.to_str().expect("UTF-8"), "--", p.to_str().expect("UTF-8")]));
    let plain = dir.path("plain");
    assert!(cc(&plain, &[]));
    assert_eq!(text(&try_it(&plain).stderr), "");
    for (name, flag) in [("static", "-static"), ("static-pie", "-static-pie")] {
        let p = dir.path(name);
        if !cc(&p, &[flag]) {
            eprintln!("skipped: no {flag} C library");
            continue;
        }
        let out = try_it(&p);
        let said = format!("smc: warning: {} is not covered: it is statically linked, so no library can be loaded into it\n", p.display());
        assert_eq!((&*text(&out.stdout), text(&out.stderr)), ("ran\n", said));
    }
    if unsafe { libc::geteuid() } == 0 {
        for (mode, word) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
            let p = dir.path(word);
            assert!(cc(&p, &[]));
            std::os::unix::fs::chown(&p, Some(65534), Some(65534)).expect("chown");
            fs::set_permissions(&p, fs::Permissions::from_mode(mode)).expect("chmod");
            let err = text(&try_it(&p).stderr);
            assert!(err.starts_with("smc: warning: ") && err.contains(word), "{err}");
        }
    }
    let out = run(&["run", "--lib", lib.to_str().expect("UTF-8"), "--", "no-such-program-here"]);
    assert_eq!((out.status.code(), &*text(&out.stderr)), (Some(1), "smc: cannot run no-such-program-here: there is no such program in PATH\n"));
}

#[test]
fn env_is_the_table_of_the_library() {
    let names: Vec<_> = VARS.iter().map(|v| v.name).collect();
    let listed = json(&run(&["env", "--json"]));
    let got: Vec<_> = listed.as_array().expect("an array").iter().map(|v| v["name"].as_str().expect("a name")).collect();
    assert_eq!(got, names);
    let markdown = text(&run(&["env", "--markdown"]).stdout);
    assert!(names.iter().all(|n| markdown.contains(&format!("| `{n}` |"))), "{markdown}");
    let mut c = smc(&["env"]);
    c.env("LIBSMC_WAIT", "-3");
    let out = output(c);
    assert!(text(&out.stdout).contains("LIBSMC_WAIT      -3"), "{out:?}");
    assert!(text(&out.stderr).contains("LIBSMC_WAIT=-3 ignored"), "{out:?}");
}
