//! The command line tool, run as its users run it; `smc serve` has a file of its own.

mod preload_support;
mod tool_support;

use preload_support::{app, installed, limited, output, text};
use serde_json::Value;
use smc_engine::base::config::VARS;
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, PeerName};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use tool_support::{Dir, Serve, as_nobody, engine, json, posted, run, smc, tool, unique};

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
    for sub in ["serve", "ls", "stat", "explain", "doctor", "run", "env", "keygen"] {
        let out = run(&[sub, "--help"]);
        assert!(out.status.success() && text(&out.stdout).contains("Examples:\n  smc "), "{sub}: {out:?}");
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
        // SAFETY: inside the view that the test has mapped.
        unsafe { v.wrapping_add(page * PAGE).write_volatile(1) };
    }
    assert_eq!(region.release(0, 0), Status::OK);
    let r = posted(&name, |r| r["counters"]["releases"] == 1);
    let mut counters = Vec::new();
    region.stats().each(|n, _, v| counters.push((n, v)));
    for (n, v) in counters {
        assert_eq!(r["counters"][n], v, "{n}");
    }
    assert_eq!(
        (&r["open"], &r["status"], &r["bytes"], &r["policy"]),
        (&true.into(), &"OK".into(), &1048576.into(), &"byte".into())
    );
    assert_eq!(r["backend"], region.backend().name());
    assert!(r["resident"].as_u64().expect("a number") >= 8 * PAGE as u64);
    let me = std::process::id().to_string();
    let shown = text(&run(&["stat", &me]).stdout);
    assert!(shown.contains(&format!("  {name}  1 MiB  read-write  OK")) && shown.contains("pages_pushed"), "{shown}");
    assert!(!shown.contains("selftest"), "{shown}");

    // A fork child holds the descriptor too, but it is not its board.
    // SAFETY: the child only pauses, until it is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: only waits.
            unsafe { libc::pause() };
        }
    }
    let all = json(&run(&["stat", "--json"]));
    let of_child = run(&["stat", &child.to_string()]);
    // SAFETY: concerns a child of this test only.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: as above.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let pids: Vec<_> =
        all.as_array().expect("an array").iter().map(|p| p["pid"].as_i64().expect("a pid") as i32).collect();
    assert!(pids.contains(&(std::process::id() as i32)) && !pids.contains(&child), "{pids:?}");
    assert!(of_child.status.code() == Some(1) && text(&of_child.stderr).contains("it has no regions"), "{of_child:?}");

    assert_eq!(region.unmap_view(v as usize, 1 << 20), Status::OK);
    drop(region);
    // Taking the view away and closing release too.
    assert_eq!(posted(&name, |r| r["open"] == false)["counters"]["releases"], 3);
}

#[test]
fn stat_explains_what_it_cannot_read() {
    let out = run(&["stat", "999999999"]);
    assert_eq!(
        (out.status.code(), &*text(&out.stderr)),
        (Some(1), "smc: cannot read the counters of process 999999999: there is no such process\n")
    );
    // A memory file of the name that is no board, and a board of another version.
    let fake = |bytes: &[u8]| {
        let mut c = limited(
            "python3",
            &[
                "-c",
                "import os,sys\nf=os.memfd_create('libsmc-stats')\nos.write(f,sys.stdin.buffer.read())\nprint(os.getpid(),flush=True)\nos.read(0,1) or __import__('time').sleep(20)",
            ],
        );
        let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start python3");
        std::io::Write::write_all(&mut child.stdin.take().expect("stdin"), bytes).expect("write");
        let mut pid = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut pid).expect("a pid");
        let out = run(&["stat", pid.trim()]);
        // SAFETY: concerns a child of this test only.
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
        assert!(
            !r["value"].as_str().expect("a value").is_empty() && !r["meaning"].as_str().expect("a meaning").is_empty(),
            "{r}"
        );
    }
    assert_eq!(verdict(&report, "GPU"), "unknown");
    assert!(verdict(&report, "RDMA") == "ok" || verdict(&report, "RDMA") == "warn");
    let shown = text(&run(&["doctor"]).stdout);
    assert!(shown.starts_with("ok      fault back end"), "{shown}");
}

#[test]
fn doctor_under_a_filter_that_refuses_userfaultfd() {
    let filter = app("no_uffd", &[]);
    let out = output(limited(filter.to_str().expect("UTF-8"), &[tool().to_str().expect("UTF-8"), "doctor", "--json"]));
    let report = json(&out);
    assert_eq!(
        (out.status.code(), &report["backend"], &report["works"]),
        (Some(0), &"mprotect".into(), &serde_json::json!(["mprotect"]))
    );
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

#[test]
fn doctor_without_privilege() {
    let dir = Dir::new();
    let report = json(&output(as_nobody(&dir.tool(), &["doctor", "--json"])));
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    assert!(report["works"].as_array().expect("an array").contains(&"mprotect".into()), "{report}");
    // SAFETY: takes nothing and cannot fail.
    if sysctl.trim() == "0" && unsafe { libc::geteuid() } == 0 {
        let open = fs::metadata("/dev/userfaultfd").is_ok_and(|m| m.permissions().mode() & 0o006 == 0o006);
        let want = if open { "ok" } else { "warn" };
        assert_eq!(verdict(&report, "vm.unprivileged_userfaultfd"), want, "{report}");
        assert_eq!(verdict(&report, "back end thread"), want, "{report}");
    }
}

#[test]
fn another_user_is_admitted_by_name_only() {
    // SAFETY: takes nothing and cannot fail.
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
    let answers =
        |n: &str| listed.as_array().expect("an array").iter().find(|r| r["name"] == n).map(|r| r["answers"].clone());
    assert_eq!((answers(&name), answers(&open)), (Some(false.into()), Some(true.into())), "{listed}");
}

#[test]
fn env_is_the_table_of_the_library() {
    let names: Vec<_> = VARS.iter().map(|v| v.name).collect();
    let listed = json(&run(&["env", "--json"]));
    let got: Vec<_> =
        listed.as_array().expect("an array").iter().map(|v| v["name"].as_str().expect("a name")).collect();
    assert_eq!(got, names);
    let markdown = text(&run(&["env", "--markdown"]).stdout);
    assert!(names.iter().all(|n| markdown.contains(&format!("| `{n}` |"))), "{markdown}");
    let mut c = smc(&["env"]);
    c.env("LIBSMC_WAIT", "-3");
    let out = output(c);
    let said = text(&out.stdout);
    let set = said.lines().find_map(|l| l.strip_prefix("LIBSMC_WAIT ")?.split_whitespace().next());
    assert_eq!(set, Some("-3"), "{out:?}");
    assert!(text(&out.stderr).contains("LIBSMC_WAIT=-3 ignored"), "{out:?}");
}
