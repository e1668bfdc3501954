//! The runner, tested by runs that must fail.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn planted(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_smc-conformance")).arg("--planted").args(args).output().expect("start the runner")
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The line of the report that begins with this word and case.
fn line<'a>(report: &'a str, word: &str, case: &str) -> &'a str {
    let start = format!("{word} {case}");
    let ends = |l: &&str| l.strip_prefix(&start).is_some_and(|r| r.starts_with([' ', ':']));
    report.lines().find(ends).unwrap_or_else(|| panic!("no `{start}` in:\n{report}"))
}

#[test]
fn every_planted_fault_is_reported() {
    let start = Instant::now();
    let out = planted(&["--quick", "--seed", "7"]);
    let report = text(&out);
    assert_eq!(out.status.code(), Some(1), "{report}");
    assert!(start.elapsed() < Duration::from_secs(60), "an orphan or a hang delayed the runner");
    assert_eq!(report.lines().last(), Some("3 passed, 8 failed, 2 skipped"), "{report}");
    for (case, words) in [
        ("planted_fail", "planted: 2 is not 3"),
        ("planted_hang", "timed out after 1 s"),
        ("planted_crash", "ended by SIGSEGV"),
        ("planted_panic", "panic: planted panic at"),
        ("planted_thread_panic", "panic: planted panic in a thread"),
        ("planted_exit", "exited with 0 without a verdict"),
        ("planted_dies_otherwise", "ended by SIGSEGV, expected SIGBUS"),
        ("planted_survives", "ended normally, expected SIGBUS"),
    ] {
        let l = line(&report, "FAIL", case);
        assert!(l.contains(words) && l.contains("seed=7"), "{l}");
    }
    for case in ["planted_pass", "planted_dies_as_expected", "planted_orphan"] {
        line(&report, "pass", case);
    }
    assert!(line(&report, "skip", "planted_skip").contains("no such hardware"));
    assert!(line(&report, "skip", "planted_need").contains("needs 1000000 CPUs"));
    assert!(report.contains("| planted output before the crash"), "captured output is shown:\n{report}");
}

/// The hang's child writes its process id; after the run that process must be gone.
#[test]
fn a_time_out_kills_the_whole_group() {
    let report = text(&planted(&["--filter", "=planted_hang"]));
    let pid = report.lines().find_map(|l| l.trim().strip_prefix("| child ")).unwrap_or_else(|| panic!("{report}"));
    let cmdline = || std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(10);
    while cmdline().starts_with("sleep") {
        assert!(Instant::now() < deadline, "process {pid} survived its case");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Children of every thread of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|t| std::fs::read_to_string(t.path().join("children")).unwrap_or_default());
    lists.flat_map(|l| l.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<_>>()).collect()
}

/// An interrupted runner takes its cases with it.
#[test]
fn an_interrupt_reaches_the_cases() {
    let mut runner = Command::new(env!("CARGO_BIN_EXE_smc-conformance"));
    let mut runner = runner.args(["--planted", "--filter", "=planted_hang_long"]).spawn().expect("start the runner");
    let deadline = Instant::now() + Duration::from_secs(20);
    let sleeper = loop {
        if let Some(sleeper) = children(runner.id()).first().and_then(|case| children(*case).first().copied()) {
            break sleeper;
        }
        assert!(Instant::now() < deadline, "the case did not start");
        std::thread::sleep(Duration::from_millis(10));
    };
    // SAFETY: signals the child started above, which is not reaped yet.
    unsafe { libc::kill(runner.id() as i32, libc::SIGTERM) };
    assert_eq!(runner.wait().expect("wait").signal(), Some(libc::SIGTERM));
    while std::fs::read_to_string(format!("/proc/{sleeper}/cmdline")).unwrap_or_default().starts_with("sleep") {
        assert!(Instant::now() < deadline, "process {sleeper} survived the runner");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn machine_reports_agree() {
    let file = std::env::temp_dir().join(format!("smc-runner-junit-{}.xml", std::process::id()));
    let out = planted(&["--filter", "=planted_pass,=planted_fail", "--json", "--junit", &file.to_string_lossy()]);
    let j: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON on standard output and nothing else");
    assert_eq!((&j["passed"], &j["failed"]), (&1.into(), &1.into()));
    let xml = std::fs::read_to_string(&file).expect("junit file");
    let _ = std::fs::remove_file(&file);
    assert!(xml.contains("tests=\"2\" failures=\"1\""), "{xml}");
    let tap = text(&planted(&["--filter", "=planted_skip", "--tap"]));
    assert!(tap.ends_with("1..1\nok 1 - planted_skip # SKIP planted: no such hardware\n"), "{tap}");
}

/// A case on the list that is skipped, left out or unknown is a failure; one that is not on it may be skipped.
#[test]
fn cases_that_must_run_may_not_be_skipped() {
    let file = std::env::temp_dir().join(format!("smc-runner-must-{}", std::process::id()));
    let run = |list: &str| {
        std::fs::write(&file, list).expect("write the list");
        planted(&["--filter", "=planted_skip,=planted_pass,=planted_need", "--must-run", &file.to_string_lossy()])
    };
    let good = run("# what is there\nplanted_pass\n");
    assert_eq!((good.status.code(), text(&good).lines().last()), (Some(0), Some("1 passed, 0 failed, 2 skipped")));
    let bad = run("planted_skip\nplanted_orphan\nplanted_gone\n");
    let report = text(&bad);
    assert_eq!(
        (bad.status.code(), report.lines().last()),
        (Some(1), Some("1 passed, 3 failed, 1 skipped")),
        "{report}"
    );
    for (case, why) in [
        ("planted_skip", "may not be skipped here: planted: no such hardware"),
        ("planted_orphan", "not among the chosen"),
        ("planted_gone", "no case has this name"),
    ] {
        assert!(report.lines().any(|l| l.starts_with(&format!("failed: {case} ")) && l.contains(why)), "{report}");
    }
    std::fs::remove_file(&file).expect("clean up");
    assert_eq!(planted(&["--must-run", "/no/such/file"]).status.code(), Some(2));
}

#[test]
fn list_help_and_wrong_use() {
    let list = planted(&["--list", "--long"]);
    assert!(list.status.success() && text(&list).lines().any(|l| l == "planted_long"));
    let help = planted(&["--help"]);
    assert!(help.status.success() && text(&help).contains("Examples:"));
    assert_eq!(planted(&["--filter", "no_such_case"]).status.code(), Some(2));
    assert_eq!(planted(&["--jobs", "0"]).status.code(), Some(2));
}
