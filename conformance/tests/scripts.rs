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
    for name in ["test", "install", "guest/run", "guest/kernel", "guest/wire", "guest/probe"] {
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

/// A machine as the scripts see it: an RDMA device in a folder, and the programs that are asked about it.
struct Machine(std::path::PathBuf);

const SYSTEM: &str = r#"echo "netns shared copy-on-fork on""#;
const LINK: &str = r#"echo "link d0/1 state ACTIVE physical_state LINK_UP netdev d0""#;

impl Machine {
    /// Where everything is in order.
    fn new() -> Machine {
        let m = Machine(smc_conformance::abi::scratch("machine").expect("scratch directory"));
        std::fs::create_dir_all(m.0.join("bin")).expect("directory");
        for tool in ["bash", "dirname", "mktemp", "cat", "rm", "sleep", "grep", "timeout"] {
            let at = ["/usr/bin", "/bin"].map(|d| std::path::Path::new(d).join(tool)).into_iter().find(|p| p.exists());
            std::os::unix::fs::symlink(at.expect("a usual tool"), m.0.join("bin").join(tool)).expect("link");
        }
        m.rdma(SYSTEM, LINK);
        m.tool("modinfo", "exit 0");
        m.tool("ibv_devices", r#"printf '    device  node GUID\n    ------  ----\n    d0  0000\n'"#);
        m.tool("ibv_rc_pingpong", "exit 0");
        m.put("state", "4: ACTIVE\n");
        m.put("link_layer", "Ethernet\n");
        m.put("gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
        m.put("gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        ["0", "1"].iter().for_each(|i| m.put(&format!("gid_attrs/types/{i}"), "RoCE v2\n"));
        m
    }

    fn rdma(&self, system: &str, link: &str) {
        self.tool("rdma", &format!("case $1 in system) {system} ;; link) {link} ;; esac"));
    }

    fn tool(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let at = self.0.join("bin").join(name);
        std::fs::write(&at, format!("#!/bin/bash\n{text}\n")).expect("a program");
        std::fs::set_permissions(&at, std::fs::Permissions::from_mode(0o755)).expect("rights");
    }

    fn put(&self, file: &str, text: &str) {
        let at = self.0.join("class/d0/ports/1").join(file);
        std::fs::create_dir_all(at.parent().expect("a folder")).expect("directory");
        std::fs::write(at, text).expect("a file of the device");
    }

    fn no_class(&self) {
        std::fs::remove_dir_all(self.0.join("class")).expect("remove");
    }

    fn probe(&self, args: &[&str]) -> Output {
        // Not by itself: a copy of a program that was just written may be open in a child of another test.
        let mut c = Command::new("/bin/bash");
        c.arg(repo::root().join("conformance/guest/probe")).args(args);
        c.env("PATH", self.0.join("bin")).env("DEVICES_AT", self.0.join("class")).env("DEVICE_LIMIT", "2");
        c.output().expect("start the script")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whatever is wrong with the set-up: the probe ends in time, with the status of a skip and the reason.
#[test]
fn a_device_that_cannot_be_used_is_a_skip_with_the_reason() {
    let good = Machine::new();
    for args in [&[][..], &["d0"], &["d0:1", "1"]] {
        let out = good.probe(args);
        assert!(out.status.success() && said(&out).starts_with("d0"), "{args:?}: {}", said(&out));
    }
    type Change = fn(&Machine);
    let causes: &[(&str, Change, &str)] = &[
        (
            "no module",
            |m| {
                m.no_class();
                m.tool("modinfo", "exit 1");
            },
            "it has no module ib_core",
        ),
        ("not loaded", Machine::no_class, "nobody has loaded it"),
        (
            "no device",
            |m| std::fs::rename(m.0.join("class/d0"), m.0.join("class/d7")).expect("rename"),
            "no such device; there are: d7",
        ),
        ("port down", |m| m.put("state", "1: DOWN\n"), "port 1 is not active but DOWN"),
        (
            "link down",
            |m| m.rdma(SYSTEM, "echo link d0/1 state DOWN physical_state DISABLED"),
            "rdma link: link d0/1 state DOWN",
        ),
        (
            "another namespace",
            |m| m.rdma(r#"echo "netns exclusive""#, "echo Wrong device name; exit 1"),
            "d0 is not of this one",
        ),
        ("rdma hangs", |m| m.rdma(SYSTEM, "trap '' TERM; sleep 20"), "rdma does not answer within 2 s"),
        (
            "no address",
            |m| m.put("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            "RoCE v2 GID of an IPv4 address",
        ),
        ("RoCE v1", |m| m.put("gid_attrs/types/1", "IB/RoCE v1\n"), "RoCE v2 GID of an IPv4 address"),
        ("no provider", |m| m.tool("ibv_devices", "echo device"), "libibverbs does not list it"),
        (
            "no answer",
            |m| m.tool("ibv_rc_pingpong", "echo Failed to modify QP to RTR; exit 3"),
            "ended with 3: Failed to modify QP to RTR",
        ),
        (
            "it hangs",
            |m| m.tool("ibv_rc_pingpong", "trap '' TERM; sleep 20"),
            "ibv_rc_pingpong does not answer within 2 s",
        ),
    ];
    for (what, change, words) in causes {
        let m = Machine::new();
        change(&m);
        let start = std::time::Instant::now();
        let out = m.probe(&["d0"]);
        let text = said(&out);
        assert!(out.status.code() == Some(77) && text.contains(words), "{what}: {:?} {text}", out.status);
        assert!(start.elapsed().as_secs() < 10, "{what}: it took {:?}", start.elapsed());
        // Looked for instead of named: the same.
        if *what != "no device" {
            let out = m.probe(&[]);
            assert!(out.status.code() == Some(77) && said(&out).contains(words), "{what}: {}", said(&out));
        }
    }
}

/// The verbs part with a device that cannot be used is skipped, and fails where nobody reads of skips.
#[test]
fn a_part_without_its_device_is_skipped() {
    let dir = smc_conformance::abi::scratch("no-device").expect("scratch directory");
    for file in ["test", "needs", "guest/device"] {
        let to = dir.join("conformance").join(file);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("directory");
        std::fs::copy(repo::root().join("conformance").join(file), to).expect("copy");
    }
    let m = Machine::new();
    m.tool("cargo", "exit 0");
    let path = format!("{}:{}", m.0.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    for (ci, code, last) in [("", 0, "1 passed, 0 failed, 1 skipped"), ("true", 1, "1 passed, 1 failed, 0 skipped")] {
        let mut c = Command::new("/bin/bash");
        c.arg(dir.join("conformance/test")).args(["--quick", "--only", "verbs", "--device", "d3"]);
        c.env("CI", ci).env("LIBSMC_NO_INSTALL", "1").env("PATH", &path).env("DEVICES_AT", m.0.join("class"));
        let out = c.output().expect("start the script");
        let text = said(&out);
        assert!(text.contains("d3 cannot be used: no such device; there are: d0"), "CI={ci}: {text}");
        assert_eq!((out.status.code(), text.lines().last()), (Some(code), Some(last)), "CI={ci}: {text}");
    }
    let _ = std::fs::remove_dir_all(&dir);
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
