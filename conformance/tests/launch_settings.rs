//! `smc run` and `smc.toml`: settings per program, where they are looked for, and `--explain`.

mod launch_support;
mod preload_support;
mod tool_support;

use launch_support::{Maker, launch, launched, lib, utf8, verdict};
use preload_support::{output, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use tool_support::{Dir, json};

/// `NAME=VALUE from SOURCE` of `--explain`, without LD_PRELOAD; the file is called FILE.
fn explained(c: Command, file: &str) -> Vec<String> {
    let out = output(c);
    assert!(out.stderr.is_empty(), "{out:?}");
    let of = |v: &serde_json::Value| {
        let s = |k: &str| v[k].as_str().expect("a text").to_owned();
        format!("{}={} from {}", s("name"), s("value"), s("from").replacen(file, "FILE", 1))
    };
    let all = json(&out)["variables"].as_array().expect("variables").iter().map(of).collect::<Vec<_>>();
    assert!(all[0].starts_with("LD_PRELOAD="), "{all:?}");
    all[1..].to_vec()
}

const SETTINGS: &str = "# for tests
[program.\"*\"]
LIBSMC_WAIT = 1
LIBSMC_LOG = \"info\"

[program.\"py*\"]
LIBSMC_WAIT = 2
LIBSMC_RESIDENT = \"1M\"

[program.\"*/opt/*\"]
LIBSMC_WAIT = 3

[program.aaa]
LIBSMC_DISABLE = true
";

#[test]
fn settings_come_from_the_file_by_program() {
    let dir = Dir::new();
    let file = dir.path("smc.toml");
    fs::write(&file, SETTINGS).expect("write");
    let program = |name: &str| {
        let p = dir.path(name);
        fs::create_dir_all(p.parent().expect("a directory")).expect("mkdir");
        fs::write(&p, "#!/bin/sh\necho $LIBSMC_WAIT/$LIBSMC_LOG/$LIBSMC_RESIDENT/$LIBSMC_DISABLE\n").expect("write");
        fs::set_permissions(&p, fs::Permissions::from_mode(0o755)).expect("chmod");
        utf8(&p).to_owned()
    };
    let (log, wait) = ("LIBSMC_LOG=info from FILE:4", "LIBSMC_WAIT=1 from FILE:3");
    for (name, want, seen) in [
        ("ls", &[wait, log][..], "1/info//"),
        ("python3", &["LIBSMC_WAIT=2 from FILE:7", "LIBSMC_RESIDENT=1M from FILE:8", log], "2/info/1M/"),
        ("opt/python3", &["LIBSMC_WAIT=3 from FILE:11", "LIBSMC_RESIDENT=1M from FILE:8", log], "3/info/1M/"),
        ("aaa", &[wait, log, "LIBSMC_DISABLE=1 from FILE:14"], "1/info//1"),
    ] {
        let program = program(name);
        let options = ["--config", utf8(&file)];
        let c = launched(&[&options[..], &["--explain", "--json"]].concat(), &[&program]);
        assert_eq!(explained(c, utf8(&file)), want, "{name}");
        assert_eq!(text(&launch(&options, &[&program]).stdout).trim(), seen, "{name}");
    }
    // An option counts more than the environment, and that more than the file.
    let mut c = launched(&["--config", utf8(&file), "--log", "off", "--explain", "--json"], &["ls"]);
    c.env("LIBSMC_WAIT", "77");
    assert_eq!(explained(c, utf8(&file)), ["LIBSMC_WAIT=77 from environment", "LIBSMC_LOG=off from --log"]);
}

#[test]
fn the_file_is_looked_for_where_its_owner_may_write() {
    let dir = Dir::new();
    let place = |at: &str, wait: u32| {
        let p = dir.path(at);
        fs::create_dir_all(p.parent().expect("a directory")).expect("mkdir");
        fs::write(&p, format!("[program.\"*\"]\nLIBSMC_WAIT = {wait}\n")).expect("write");
        p
    };
    let named = place("named.toml", 1);
    let (xdg, home, here) =
        (place("xdg/libsmc/smc.toml", 2), place("home/.config/libsmc/smc.toml", 3), place("smc.toml", 4));
    let (xdg_dir, home_dir) = (dir.path("xdg"), dir.path("home"));
    let wait = |env: &[(&str, &Path)], options: &[&str]| {
        let mut c = launched(options, &["sh", "-c", "echo $LIBSMC_WAIT"]);
        c.env_remove("LIBSMC_CONFIG")
            .env_remove("XDG_CONFIG_HOME")
            .env("HOME", "/nowhere")
            .current_dir(&dir.0)
            .envs(env.iter().copied());
        output(c)
    };
    let said = |out: Output| text(&out.stdout).trim().to_owned();
    let etc = if Path::new("/etc/libsmc/smc.toml").exists() { "its own" } else { "" };
    let (x, h) = (("XDG_CONFIG_HOME", xdg_dir.as_path()), ("HOME", home_dir.as_path()));
    assert_eq!(said(wait(&[x, h, ("LIBSMC_CONFIG", &here)], &["--config", utf8(&named)])), "1");
    assert_eq!(said(wait(&[x, h, ("LIBSMC_CONFIG", &named)], &[])), "1");
    assert_eq!(said(wait(&[x, h], &[])), "2");
    assert_eq!(said(wait(&[h], &[])), "3");
    assert_eq!(said(wait(&[x, h], &["--no-config"])), "");
    assert_eq!(said(wait(&[x, h, ("LIBSMC_CONFIG", Path::new(""))], &[])), "");
    if etc.is_empty() {
        // Neither the current directory nor a relative one.
        assert_eq!(said(wait(&[("XDG_CONFIG_HOME", Path::new("xdg"))], &[])), "");
    }
    // One that was named must be there, and one that was found must be its owner's.
    for (env, options) in
        [(&[("LIBSMC_CONFIG", Path::new("/nowhere/x"))][..], &[][..]), (&[], &["--config", "/nowhere/x"])]
    {
        let (status, said) = verdict(&wait(env, options));
        assert!(status == Some(125) && said.contains("/nowhere/x: No such file"), "{said}");
    }
    fs::set_permissions(&xdg, fs::Permissions::from_mode(0o666)).expect("chmod");
    let (status, said) = verdict(&wait(&[x, h], &[]));
    assert!(status == Some(125) && said.contains("everybody may write it"), "{said}");
    assert_eq!(verdict(&wait(&[x], &["--config", utf8(&xdg)])).0, Some(0));
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::chown(&home, Some(65534), None).expect("chown");
        let (status, said) = verdict(&wait(&[h], &[]));
        assert!(status == Some(125) && said.contains("it belongs to user 65534"), "{said}");
    }
}

#[test]
fn mistakes_in_the_file_are_said_with_their_line() {
    let dir = Dir::new();
    let file = dir.path("smc.toml");
    for (content, line, why) in [
        ("x = 1\n", 1, "unknown field `x`"),
        ("\n[programs.a]\n", 2, "unknown field `programs`"),
        ("\n[program.a]\nLIBSMC_WAIT = 0\n", 3, "LIBSMC_WAIT=0: expected milliseconds, 1..3600000"),
        ("[program.a]\nLIBSMC_WAIT = 1.5\n", 2, "LIBSMC_WAIT needs a text, a whole number, true or false"),
        ("[program.a]\nLIBSMC_DISABLE = \"yes\"\n", 2, "expected 1, or 0"),
        ("[program.a]\n\nWAIT = 1\n", 3, "unknown variable `WAIT`; is LIBSMC_WAIT meant?"),
        ("[program.a]\nLIBSMC_CONFIG = \"x\"\n", 2, "unknown variable `LIBSMC_CONFIG`"),
        ("[program.a]\nLD_PRELOAD = \"x\"\n", 2, "unknown variable `LD_PRELOAD`; `smc env` lists"),
        ("[program.a]\nLIBSMC_LOG = \"info\n", 2, "invalid basic string"),
        ("[program.a]\nLIBSMC_LOG = \"info\"\nLIBSMC_LOG = \"off\"\n", 3, "duplicate key"),
        ("[program.a]\nLIBSMC_TRUST = \"a\\u0000b\"\n", 2, "cannot hold a zero byte"),
        ("program = 7\n", 1, "invalid type"),
    ] {
        fs::write(&file, content).expect("write");
        // Also for a program that the table is not meant for.
        let out = launch(&["--config", utf8(&file)], &["echo", "ran"]);
        let (status, said) = verdict(&out);
        assert!(status == Some(125) && out.stdout.is_empty(), "{content:?}: {out:?}");
        let start = format!("smc: cannot use {} line {line}: ", file.display());
        assert!(said.starts_with(&start) && said.contains(why) && said.lines().count() == 1, "{content:?}: {said}");
    }
}

#[test]
fn explains_without_starting_anything() {
    let make = Maker::new();
    let plain = make.program("plain", &[]).expect("a program");
    let script = make.script("script", &format!("#!{}", plain.display()));
    let out = launch(&["--explain", "--wait", "7"], &[utf8(&script)]);
    let said = text(&out.stdout);
    assert_eq!(verdict(&out), (Some(0), String::new()));
    assert!(!said.contains("ran") && said.contains("covered   yes\n"), "{said}");
    assert!(said.contains(&format!("run by    {}", plain.display())) && said.contains("LIBSMC_WAIT"), "{said}");
    let j = json(&launch(&["--explain", "--json"], &[utf8(&script)]));
    assert_eq!((&j["covered"], &j["through"][0]), (&true.into(), &utf8(&plain).into()), "{j}");
    assert_eq!(j["library"], lib());
    if let Some(p) = make.program("static", &["-static"]) {
        let out = launch(&["--explain", "--json"], &[utf8(&p)]);
        assert_eq!((out.status.code(), &json(&out)["covered"]), (Some(125), &false.into()), "{out:?}");
        let out = launch(&["--explain", "--force"], &[utf8(&p)]);
        assert!(out.status.success() && text(&out.stdout).contains("covered   no: it is statically linked"), "{out:?}");
    }
    assert_eq!(launch(&["--explain"], &["/nowhere/x"]).status.code(), Some(127));
    assert_eq!(launch(&["--json"], &["true"]).status.code(), Some(2));
}
