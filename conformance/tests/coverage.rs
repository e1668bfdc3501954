//! Which hooks a program's calls reach, seen from outside: the C API, `smc explain` and `smc doctor`.

mod preload_support;

use preload_support::{app, library, limited, output, target, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Hooks without a call that has no effect: looked up, not tried.
const NOT_TRIED: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "posix_memalign",
    "aligned_alloc",
    "memalign",
    "valloc",
    "pvalloc",
    "malloc_usable_size",
    "fopen",
    "fopen64",
    "fileno",
    "fileno_unlocked",
    "dlvsym",
    "dlopen",
    "dlmopen",
    "setuid",
    "setreuid",
    "setresuid",
    "setgid",
    "setregid",
    "setresgid",
    "setgroups",
    "initgroups",
    "sigsetmask",
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "posix_spawn",
    "posix_spawnp",
    "pthread_attr_setsigmask_np",
    "pthread_attr_getsigmask_np",
    "remap_file_pages",
    "fork",
    "_Fork",
    "wait",
];

/// Some libc of those supported lacks these.
const OPTIONAL: &[&str] = &["cfree", "free_sized", "free_aligned_sized", "mseal", "process_madvise", "epoll_pwait2"];

fn tool() -> PathBuf {
    std::env::var_os("SMC_BIN").map_or_else(|| target().join("release/smc"), Into::into)
}

/// The library that takes a name.
fn shadow(what: &str) -> PathBuf {
    // All are compiled to one name first.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let own = target().join("apps").join(format!("shadow_{what}.{}.so", std::process::id()));
    let made = app("shadow", &["-shared", "-fPIC", "-fno-builtin", &format!("-D{what}")]);
    std::fs::copy(made, &own).expect("copy the library");
    own
}

fn before(first: &[&Path]) -> String {
    let lib = library();
    first.iter().copied().chain([lib.as_path()]).map(|p| p.display().to_string()).collect::<Vec<_>>().join(":")
}

/// `name -> (state, off, by)`, as the C API says without a region.
fn listed(preload: &str) -> Vec<(String, String, String)> {
    let mut c = limited(app("coverage", &[]).to_str().expect("UTF-8"), &[]);
    c.env("LD_PRELOAD", preload);
    let out = output(c);
    assert!(out.status.success(), "{preload}: {out:?}");
    eprint!("{}", text(&out.stderr));
    let line = |l: &str| {
        let w: Vec<&str> = l.split(' ').collect();
        (w[1].to_owned(), format!("{} {}", w[2], w[3]), w[4..].join(" "))
    };
    text(&out.stdout).lines().map(line).collect()
}

#[test]
fn every_hook_fires_in_a_plain_program() {
    let hooks = listed(&before(&[]));
    assert!(hooks.len() > 100, "{hooks:?}");
    for (name, found, by) in &hooks {
        let want: &[&str] = match name.as_str() {
            n if NOT_TRIED.contains(&n) => &["2 0"],
            n if OPTIONAL.contains(&n) || n.starts_with("__") => &["1 0", "5 0"],
            _ => &["1 0"],
        };
        assert!(want.contains(&found.as_str()) && by == "-", "{name}: {found} {by}");
    }
}

#[test]
fn a_library_before_ours_is_named() {
    for (what, name, found) in [
        ("MALLOC", "malloc", "4 0"),
        ("OPEN", "open", "4 0"),
        ("MUNMAP", "munmap", "4 2"),
        ("CLOSE", "close", "4 1"),
        ("FORWARD", "read", "3 0"),
    ] {
        let lib = shadow(what);
        let by = lib.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
        for (n, f, b) in listed(&before(&[&lib])) {
            if n == name {
                assert_eq!((f.as_str(), &b), (found, &by), "{what}");
            } else {
                assert!(b == "-" && !f.starts_with('4'), "{what}: {n} {f} {b}");
            }
        }
    }
}

/// An exporter of one region, ended with this object.
struct Exporter(Child, String);

impl Exporter {
    fn start(what: &str) -> Exporter {
        let name = format!("cover-{what}-{}", std::process::id());
        let mut c = Command::new(tool());
        c.args(["serve", "--name", &name, "--size", "64K"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = c.spawn().expect("start smc serve");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        Exporter(child, format!("/smc/local/{name}"))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program `coverage` with a region open, ended with this object.
struct Program {
    child: Child,
    said: Vec<String>,
    _input: ChildStdin,
}

impl Program {
    fn start(preload: &str, path: &str, lines: usize) -> Program {
        let mut c = Command::new(app("coverage", &[]));
        c.arg(path).env("LD_PRELOAD", preload).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = c.spawn().expect("start the program");
        let mut out = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = || {
            let mut l = String::new();
            out.read_line(&mut l).expect("a line");
            l.trim_end().to_owned()
        };
        let said = (0..lines).map(|_| line()).collect();
        let input = child.stdin.take().expect("its input");
        Program { child, said, _input: input }
    }

    fn explain(&self) -> (String, Value) {
        let pid = self.child.id().to_string();
        let run = |args: &[&str]| text(&output(limited(tool().to_str().expect("UTF-8"), args)).stdout);
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let v: Value = serde_json::from_str(&run(&["explain", &pid, "--json"])).expect("JSON");
            // The hooks are posted with the region, before its first call is counted.
            if v["hooks"]["functions"]["openat"]["hits"].as_u64() > Some(0) || v["published"] == false {
                return (run(&["explain", &pid]), v);
            }
            assert!(Instant::now() < end, "{v}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn family<'a>(v: &'a Value, name: &str) -> &'a Value {
    v["hooks"]["families"].as_array().and_then(|f| f.iter().find(|f| f["family"] == name)).expect("the family")
}

#[test]
fn explain_tells_what_works() {
    let e = Exporter::start("plain");
    let p = Program::start(&before(&[]), &e.1, 2);
    assert_eq!(p.said, ["open ok", "mmap ok"]);
    let (shown, v) = p.explain();
    assert_eq!(
        (&v["published"], &v["hooks"]["present"], &v["hooks"]["unlisted"]),
        (&true.into(), &true.into(), &0.into())
    );
    for f in ["paths", "files", "maps", "buffers", "stdio", "heap", "loader", "users"] {
        let f = family(&v, f);
        let gone = f["not_covered"].as_array().expect("a list");
        assert!(gone.iter().all(|h| h["why"] == "absent in this libc"), "{f}");
        assert_eq!(f["off"], Value::Array(Vec::new()), "{f}");
    }
    let region = &v["regions"][0];
    assert!(region["open"] == true && region["backend"].is_string(), "{v}");
    assert!(region["reason"].as_str().expect("a reason").starts_with("chosen by the self-test"), "{v}");
    assert!(v["passed_through"]["other_file"].is_u64(), "{v}");
    for text in ["hooks\n", "  maps     ", "calls passed through\n", "regions\n", "chosen by the self-test"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    assert!(!shown.contains("switched off") && !shown.contains("lost"), "{shown}");
}

/// What would lose stores silently is refused, with the culprit's name.
#[test]
fn what_depends_on_a_shadowed_hook_is_off() {
    let e = Exporter::start("off");
    let lib = shadow("MUNMAP");
    let by = lib.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    let p = Program::start(&before(&[&lib]), &e.1, 2);
    assert_eq!(p.said, ["open ok", "mmap EOPNOTSUPP"], "reading works");
    let (shown, v) = p.explain();
    let maps = family(&v, "maps");
    assert_eq!(maps["off"][0], "mapping files under /smc/", "{maps}");
    let named = |h: &&Value| h["name"] == "munmap";
    let munmap = maps["not_covered"].as_array().expect("a list").iter().find(named).expect("munmap is not covered");
    assert_eq!(munmap["by"], by.as_str(), "{maps}");
    assert_eq!(family(&v, "files")["off"], Value::Array(Vec::new()), "{v}");
    assert!(
        shown.contains(&format!("munmap: not covered, shadowed by {by}")) && shown.contains("switched off: mapping")
    );

    let mut c = limited(app("coverage", &[]).to_str().expect("UTF-8"), &[&e.1]);
    let lib = shadow("CLOSE");
    c.env("LD_PRELOAD", before(&[&lib])).stdin(Stdio::null());
    let out = output(c);
    assert_eq!(text(&out.stdout), "open EOPNOTSUPP\n");
    let by = lib.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    assert!(
        text(&out.stderr).contains(&format!("opening files under /smc/ is off: calls of close go to {by}")),
        "{out:?}"
    );
}

#[test]
fn a_process_without_regions_publishes_nothing() {
    let p = Program::start(&before(&[]), "/smc/nothing", 1);
    let (shown, v) = p.explain();
    assert_eq!((&v["published"], v["regions"].as_array().map(Vec::len)), (&false.into(), Some(0)));
    assert!(shown.contains("has opened no region"), "{shown}");
    let gone = output(limited(tool().to_str().expect("UTF-8"), &["explain", "4194304"]));
    assert!(!gone.status.success() && text(&gone.stderr).contains("there is no such process"), "{gone:?}");
}

#[test]
fn doctor_tests_the_hooks() {
    let row = |preload: Option<&Path>| {
        let mut c = limited(tool().to_str().expect("UTF-8"), &["doctor", "--json"]);
        c.envs(preload.map(|p| ("LD_PRELOAD", p)));
        let v: Value = serde_json::from_slice(&output(c).stdout).expect("JSON");
        v["rows"].as_array().and_then(|r| r.iter().find(|r| r["name"] == "hooks").cloned()).expect("a row")
    };
    let r = row(None);
    assert!(r["verdict"] == "ok" && r["value"].as_str().is_some_and(|v| v.contains(" fire, ")), "{r}");
    // `smc run` puts the library first, so what else is preloaded takes nothing away.
    let r = row(Some(&shadow("MUNMAP")));
    assert_eq!(r["verdict"], "ok", "{r}");
    // Where it is not there, this is said, with a remedy.
    let dir = std::env::temp_dir().join(format!("cover-doctor-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("make a directory");
    assert!(Command::new("cp").arg("-L").arg(tool()).arg(&dir).status().expect("run cp").success());
    let out = output(limited(dir.join("smc").to_str().expect("UTF-8"), &["doctor"]));
    let _ = std::fs::remove_dir_all(&dir);
    let shown = text(&out.stdout);
    assert!(shown.contains("not examined: ") && shown.contains("remedy: put libsmc.so beside"), "{shown}");
}
