//! The entry scripts: what they say when something is missing or asked wrongly.

use smc_conformance::repo;
use std::process::{Command, Output};

fn script(name: &str, args: &[&str]) -> Output {
    Command::new(repo::root().join(name)).args(args).output().expect("start the script")
}

fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Sources `needs` with an empty search path, as on a host where nothing is installed.
fn needs(capabilities: &str) -> Output {
    let text = format!(
        "PATH=/nonexistent; HOME=/nonexistent; LIBSMC_NO_INSTALL=1; . conformance/needs; needs {capabilities}; echo went on"
    );
    let mut bash = Command::new("/bin/bash");
    bash.current_dir(repo::root()).args(["-c", &text]).output().expect("start bash")
}

#[test]
fn what_is_missing_is_listed_with_its_package() {
    let out = needs("compiler abi pkg-config rust");
    let text = said(&out);
    assert_eq!(out.status.code(), Some(2), "{text}");
    for line in ["compiler: apt-get install gcc", "abi: apt-get install abigail-tools", "rust: cargo and rustc"] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
    assert!(!text.contains("went on"), "{text}");
}

#[test]
fn an_unknown_capability_is_refused() {
    let out = needs("teapot");
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
    assert!(said(&out).contains("no capability is named teapot"), "{}", said(&out));
}

#[test]
fn nothing_missing_goes_on() {
    let text = ". conformance/needs; needs rust; echo went on";
    let out = Command::new("/bin/bash").current_dir(repo::root()).args(["-c", text]).output().expect("start bash");
    assert_eq!(said(&out), "went on\n");
}

#[test]
fn help_and_wrong_use() {
    for name in ["test", "install", "guest/run", "guest/kernel", "guest/wire"] {
        let name = &format!("conformance/{name}");
        let help = script(name, &["--help"]);
        assert!(help.status.success() && said(&help).contains("Usage:") && said(&help).contains("Examples:"), "{name}");
        assert_eq!(script(name, &["--no-such-option"]).status.code(), Some(2), "{name}");
    }
    assert_eq!(script("conformance/test", &["--only", "no-such-part"]).status.code(), Some(2));
    let parts = script("conformance/test", &["--list"]);
    assert!(said(&parts).lines().any(|l| l == "suite"), "{}", said(&parts));
    let relative =
        Command::new(repo::root().join("conformance/install")).arg("--no-build").env("PREFIX", "here").output();
    assert_eq!(relative.expect("start the script").status.code(), Some(2));
}

/// A device of this machine is used as it is, without a guest; one that cannot be used is refused with the reason.
#[test]
fn a_device_of_this_machine_is_looked_at_first() {
    let dir = smc_conformance::abi::scratch("devices").expect("scratch directory");
    let put = |file: &str, text: &str| {
        let file = dir.join("d0/ports").join(file);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("directory");
        std::fs::write(file, text).expect("a file of the device");
    };
    for (port, state) in [("1", "4: ACTIVE\n"), ("2", "1: DOWN\n")] {
        put(&format!("{port}/state"), state);
        put(&format!("{port}/link_layer"), "Ethernet\n");
    }
    put("1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    put("1/gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
    ["0", "1"].iter().for_each(|i| put(&format!("1/gid_attrs/types/{i}"), "RoCE v2\n"));
    let run = |args: &[&str]| {
        let mut c = Command::new(repo::root().join("conformance/guest/run"));
        c.env("DEVICES_AT", &dir).args(args).args(["--", "bash", "-c", "echo on $LIBSMC_DEVICE $LIBSMC_GID_INDEX"]);
        c.output().expect("start the script")
    };
    for (args, code, words) in [
        (&["--device", "d0"][..], 0, "on d0\n"),
        (&["--device", "d0:1", "--gid-index", "1"], 0, "on d0:1 1\n"),
        (&["--device", "d0", "--gid-index", "0"], 125, "GID 0 of port 1 is empty"),
        (&["--device", "d0:2"], 125, "port 2 is not active but DOWN"),
        (&["--device", "d0:3"], 125, "it has no port 3"),
        (&["--device", "d9"], 125, "no such device; there are: d0"),
        (&["--gid-index", "1"], 2, "Usage:"),
    ] {
        let out = run(args);
        assert!(out.status.code() == Some(code) && said(&out).contains(words), "{args:?}: {}", said(&out));
    }
    std::fs::remove_dir_all(&dir).expect("clean up");
}

/// The parts' counts are summed, and a failing part makes the whole fail: a run of the format part on a copy of
/// the tree in which one file is badly formatted.
#[test]
fn a_failing_part_fails_the_whole() {
    let dir = smc_conformance::abi::scratch("scripts").expect("scratch directory");
    for file in ["test", "needs"] {
        std::fs::create_dir_all(dir.join("conformance")).expect("directory");
        std::fs::copy(repo::root().join("conformance").join(file), dir.join("conformance").join(file)).expect("copy");
    }
    std::fs::create_dir_all(dir.join("src")).expect("directory");
    std::fs::write(dir.join("Cargo.toml"), "[package]\nname = \"x\"\nedition = \"2024\"\n").expect("manifest");
    let run = |text: &str| {
        std::fs::write(dir.join("src/lib.rs"), text).expect("source");
        // Not by itself: a child that another test starts meanwhile may still hold the copy open for writing.
        Command::new("/bin/bash")
            .arg(dir.join("conformance/test"))
            .args(["--quick", "--only", "format"])
            .output()
            .expect("start the script")
    };
    let (good, bad) = (run("fn f() {}\n"), run("fn  f( ){}\n"));
    let _ = std::fs::remove_dir_all(&dir);
    let last = |o: &Output| String::from_utf8_lossy(&o.stdout).lines().last().map(str::to_string);
    assert_eq!(
        (good.status.code(), last(&good).as_deref()),
        (Some(0), Some("1 passed, 0 failed, 0 skipped")),
        "{}",
        said(&good)
    );
    assert_eq!(
        (bad.status.code(), last(&bad).as_deref()),
        (Some(1), Some("0 passed, 1 failed, 0 skipped")),
        "{}",
        said(&bad)
    );
}
