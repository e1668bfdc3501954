//! `smc run`: what the program is born with, what is preloaded, and which programs are refused.

mod preload_support;
mod tool_support;

use preload_support::{app, library, limited, output, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tool_support::{Dir, Serve, as_nobody, change, copy, json, run, smc, tool, unique};

fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

fn lib() -> String {
    utf8(&library().canonicalize().expect("the library")).to_owned()
}

/// `smc run` with options, then the program.
fn launched(options: &[&str], program: &[&str]) -> Command {
    let lib = lib();
    let mut c = smc(&[&["run", "--lib", &lib], options, &["--"], program].concat());
    // Whoever runs the tests may have settings.
    c.env("LIBSMC_CONFIG", "");
    c
}

fn launch(options: &[&str], program: &[&str]) -> Output {
    output(launched(options, program))
}

/// Status, and what was said on stderr.
fn verdict(out: &Output) -> (Option<i32>, String) {
    (out.status.code(), text(&out.stderr))
}

#[test]
fn preloads_and_sets_the_variables() {
    let lib = lib();
    let script = "echo $LD_PRELOAD/$LIBSMC_FAULT/$LIBSMC_RESIDENT/$LIBSMC_WAIT/$LIBSMC_LOG/$LIBSMC_DISABLE; exit 7";
    let options = ["--fault", "uffd-sigbus", "--resident", "1M", "--wait", "9", "--log", "off", "--disable"];
    let out = launch(&options, &["sh", "-c", script]);
    assert_eq!(verdict(&out), (Some(7), String::new()));
    assert_eq!(text(&out.stdout), format!("{lib}/sigbus/1048576/9/off/1\n"));
    // Variables that no option names stay as they are.
    let mut c = launched(&[], &["sh", "-c", script]);
    c.env("LIBSMC_WAIT", "77");
    assert_eq!(text(&output(c).stdout), format!("{lib}///77//\n"));
}

/// What LD_PRELOAD holds keeps its order; `OURS` stands for the library.
#[test]
fn keeps_what_is_preloaded_already() {
    let lib = lib();
    let dir = Dir::new();
    let other = dir.path("libsmc.so.1");
    fs::write(&other, "").expect("write");
    let other = utf8(&other);
    for (old, options, new) in [
        (None, &[][..], "OURS"),
        (Some(""), &[], "OURS"),
        (Some("libm.so.6"), &[], "OURS:libm.so.6"),
        (Some("libm.so.6:libdl.so.2"), &["--position", "first"], "OURS:libm.so.6:libdl.so.2"),
        (Some("libm.so.6 libdl.so.2"), &[], "OURS:libm.so.6 libdl.so.2"),
        (Some("libm.so.6:libdl.so.2"), &["--position", "last"], "libm.so.6:libdl.so.2:OURS"),
        (Some("libm.so.6:"), &["--position", "last"], "libm.so.6:OURS"),
        (None, &["--position", "last"], "OURS"),
        // Named already: replaced where it stands, by whatever name, unless it is to move.
        (Some("libm.so.6:OTHER:libdl.so.2"), &[], "libm.so.6:OURS:libdl.so.2"),
        (Some("libm.so.6:OURS"), &[], "libm.so.6:OURS"),
        (Some("libm.so.6:OURS"), &["--position", "first"], "OURS:libm.so.6:"),
        (Some("OTHER:libm.so.6"), &["--position", "last"], "libm.so.6:OURS"),
    ] {
        let full = |t: &str| t.replace("OURS", &lib).replace("OTHER", other);
        // Not for the tool itself: a bad library would be complained about twice.
        let mut c = limited("env", &[]);
        if let Some(old) = old {
            c.arg(format!("LD_PRELOAD={}", full(old)));
        }
        c.arg(tool()).args(["run", "--lib", &lib]).args(options).args(["--", "sh", "-c", "echo \"$LD_PRELOAD\""]);
        let out = output(c);
        assert_eq!(text(&out.stdout).trim_end(), full(new), "{old:?} {options:?}: {out:?}");
    }
}

#[test]
fn finds_the_library() {
    for place in ["bin", "lib"] {
        let dir = Dir::new();
        fs::create_dir(dir.path("bin")).expect("mkdir");
        let smc = dir.path("bin/smc");
        copy(&tool(), &smc);
        let none = output(limited(utf8(&smc), &["run", "true"]));
        assert!(none.status.code() == Some(125) && text(&none.stderr).ends_with("; name it with --lib\n"), "{none:?}");
        let _ = fs::create_dir(dir.path("lib"));
        let at = dir.path(place).join("libsmc.so.1");
        copy(&library(), &at);
        let out = output(limited(utf8(&smc), &["run", "--", "sh", "-c", "echo $LD_PRELOAD"]));
        assert_eq!(text(&out.stdout).trim(), utf8(&at.canonicalize().expect("there")), "{out:?}");
    }
}

/// The loader would print a line and start the program without it.
#[test]
fn a_library_that_cannot_be_preloaded_is_refused() {
    let dir = Dir::new();
    let spaced = dir.path("a library.so");
    copy(&library(), &spaced);
    let text_file = dir.path("libsmc.so");
    fs::write(&text_file, "not a library\n").expect("write");
    for (lib, why) in [
        (spaced, "cannot hold a path with a space"),
        (text_file, "it is not libsmc.so for x86-64"),
        (tool(), "it is not libsmc.so for x86-64"),
        (dir.path("nowhere.so"), "No such file"),
    ] {
        let (status, said) = verdict(&run(&["run", "--lib", utf8(&lib), "--", "echo", "ran"]));
        assert!(status == Some(125) && said.contains(why), "{}: {said}", lib.display());
    }
}

#[test]
fn reaches_a_region() {
    let name = unique("run");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    change(&name, 8, 0, b"by store");
    let out = launch(&[], &["head", "-c", "8", &format!("/smc/local/{name}")]);
    assert_eq!(text(&out.stdout), "by store", "{out:?}");
}

/// The same program, started in the same odd state, with and without us.
#[test]
fn the_program_is_born_as_without_us() {
    let birth = app("birth", &[]);
    let (birth, lib, tool) = (utf8(&birth), lib(), tool());
    let through = [utf8(&tool), "run", "--lib", &lib, "--"];
    let facts = |words: &[&str]| {
        let mut c = Command::new(words[0]);
        c.args(&words[1..]).env_clear().envs([
            ("Z", "1"),
            ("PATH", "/usr/bin:/bin"),
            ("LD_PRELOAD", "libm.so.6"),
            ("A", "x=y"),
        ]);
        let child = c.stdout(std::process::Stdio::piped()).spawn().expect("start");
        let pid = format!("pid {}\n", child.id());
        let out = child.wait_with_output().expect("wait");
        assert!(out.status.success(), "{words:?}: {out:?}");
        let said = text(&out.stdout);
        assert!(said.contains(&pid), "another process: {said}");
        said.replace(&pid, "").replace(&format!("{lib}:"), "")
    };
    let same = |a: &[&str], b: &[&str]| assert_eq!(facts(a), facts(b));
    same(&[birth, "one", ""], &[&through[..], &[birth, "one", ""]].concat());
    let odd = [birth, "--as"];
    let said = facts(&[&odd[..], &[birth, "x"]].concat());
    assert!(
        said.contains("signal 13 ignored\n") && said.contains("signal 10 blocked\n") && said.contains("umask 027"),
        "{said}"
    );
    assert!(!said.contains("descriptor 0\n") && said.contains("descriptor 7\n"), "{said}");
    assert_eq!(said, facts(&[&odd[..], &through, &[birth, "x"]].concat()));
}

#[test]
fn ends_as_the_program_ends() {
    use std::os::unix::process::ExitStatusExt;
    let (lib, tool) = (lib(), tool());
    for (script, code, signal) in
        [("exit 0", Some(0), None), ("exit 77", Some(77), None), ("kill -KILL $$", None, Some(9))]
    {
        let status =
            Command::new(&tool).args(["run", "--lib", &lib, "--", "sh", "-c", script]).status().expect("start");
        assert_eq!((status.code(), status.signal()), (code, signal), "{script}");
    }
}

/// Statuses as of a shell, and why.
#[test]
fn what_cannot_be_started_is_said_as_a_shell_says_it() {
    let dir = Dir::new();
    let file = |name: &str, mode: u32, content: &str| {
        let p = dir.path(name);
        fs::write(&p, content).expect("write");
        fs::set_permissions(&p, fs::Permissions::from_mode(mode)).expect("chmod");
        utf8(&p).to_owned()
    };
    fs::create_dir(dir.path("sub")).expect("mkdir");
    let plain = file("plain", 0o644, "echo ran\n");
    for (name, status, why) in [
        ("no-such-program-here".into(), 127, "there is no such program in PATH"),
        ("".into(), 127, "there is no such program in PATH"),
        ("/nowhere/x".into(), 127, "there is no such file"),
        (format!("{plain}/x"), 126, "Not a directory"),
        (utf8(&dir.path("sub")).to_owned(), 126, "it is a directory"),
        (plain, 126, "it is not executable"),
        ("/dev/null".into(), 126, "it is not a regular file"),
        (file("no-interpreter", 0o755, "#!/nowhere/sh\n"), 126, "is run by \"/nowhere/sh\", and there is no such file"),
        (file("dos", 0o755, "#!/bin/sh\r\necho ran\r\n"), 126, "is run by \"/bin/sh\\r\", and there is no such file"),
        (file("no-env", 0o755, "#!/usr/bin/env no-such-program-here\n"), 126, "is run by \"no-such-program-here\""),
    ] {
        let (code, said) = verdict(&launch(&[], &[&name]));
        assert_eq!(code, Some(status), "{name:?}: {said}");
        assert!(said.starts_with("smc: cannot run ") && said.contains(why), "{name:?}: {said}");
        // A shell says the same, but for what bash and dash do not agree on: an interpreter that is missing.
        if !said.contains("is run by") && !name.is_empty() {
            assert_eq!(output(limited("bash", &["-c", "exec \"$0\"", &name])).status.code(), Some(status), "{name:?}");
        }
    }
    // The first that may be started is taken, as execvp does; one that may not counts when there is no other.
    fs::create_dir(dir.path("bin")).expect("mkdir");
    file("bin/plain", 0o755, "echo found\n");
    for (path, status, said) in
        [(format!("{0}:{0}/bin", utf8(&dir.0)), 0, "found\n"), (utf8(&dir.0).to_owned(), 126, "")]
    {
        let mut c = launched(&[], &["plain"]);
        c.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap_or_default()));
        let out = output(c);
        assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(status), said), "{path}: {out:?}");
    }
}

/// Programs made for the refusals.
struct Maker(Dir);

impl Maker {
    fn new() -> Maker {
        let dir = Dir::new();
        let source = "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n";
        fs::write(dir.path("hello.c"), source).expect("write");
        Maker(dir)
    }

    /// `None`, with the reason printed, when this compiler cannot make it.
    fn program(&self, name: &str, flags: &[&str]) -> Option<PathBuf> {
        let out = self.0.path(name);
        let done = Command::new("cc").arg("-o").arg(&out).arg(self.0.path("hello.c")).args(flags).output();
        let done = done.expect("run cc").status.success();
        if !done {
            eprintln!("skipped: cc cannot make the {name} program");
        }
        done.then_some(out)
    }

    fn script(&self, name: &str, first: &str) -> PathBuf {
        let p = self.0.path(name);
        fs::write(&p, format!("{first}\n")).expect("write");
        fs::set_permissions(&p, fs::Permissions::from_mode(0o755)).expect("chmod");
        p
    }

    /// A copy of the program with bytes of its header changed.
    fn patched(&self, name: &str, from: &Path, at: usize, bytes: &[u8]) -> PathBuf {
        let mut b = fs::read(from).expect("read");
        b[at..at + bytes.len()].copy_from_slice(bytes);
        let p = self.0.path(name);
        // By another process, see `copy`.
        let tmp = self.0.path("bytes");
        fs::write(&tmp, b).expect("write");
        copy(&tmp, &p);
        fs::set_permissions(&p, fs::Permissions::from_mode(0o755)).expect("chmod");
        p
    }
}

fn refused(p: &Path, why: &str) {
    let out = launch(&[], &[utf8(p)]);
    let (status, said) = verdict(&out);
    assert!(status == Some(125) && out.stdout.is_empty(), "{}: {out:?}", p.display());
    let start = format!("smc: cannot run {}: libsmc cannot be preloaded: ", p.display());
    assert!(said.starts_with(&start) && said.contains(why), "{}: {said}", p.display());
    assert!(said.trim_end().ends_with("run it without libsmc by --force"), "{said}");
}

#[test]
fn programs_that_cannot_be_covered_are_refused() {
    let make = Maker::new();
    let plain = make.program("plain", &[]).expect("a plain program");
    assert_eq!(verdict(&launch(&[], &[utf8(&plain)])), (Some(0), String::new()));
    for flag in ["-static", "-static-pie"] {
        let Some(p) = make.program(&flag[1..], &[flag]) else { continue };
        refused(&p, "it is statically linked");
        let script = make.script("by-static", &format!("#! {} -x", p.display()));
        refused(&script, &format!("{} runs it, and it is statically linked", p.display()));
        refused(&make.script("nested", &format!("#!{}", script.display())), "it is statically linked");
        let name = utf8(p.file_name().expect("a name").as_ref()).to_owned();
        let by_env = make.script("by-env", &format!("#!/usr/bin/env -S A=1 {name}"));
        let mut c = launched(&[], &[utf8(&by_env)]);
        c.env("PATH", format!("{}:/usr/bin:/bin", utf8(&make.0.0)));
        assert!(verdict(&output(c)).1.contains("it is statically linked"));
        // Wanted all the same.
        let out = launch(&["--force"], &[utf8(&p)]);
        let said = format!(
            "smc: warning: {} is not covered: it is statically linked, so no library can be loaded into it\n",
            p.display()
        );
        assert_eq!((&*text(&out.stdout), verdict(&out)), ("ran\n", (Some(0), said)));
    }
    for (name, at, bytes, why) in [
        ("arm", 18, &[183, 0][..], "it is a program for ARM64"),
        ("x86", 4, &[1], "it is a program for 32-bit x86-64"),
        ("s390", 5, &[2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 22], "it is a program for big-endian S/390"),
    ] {
        refused(&make.patched(name, &plain, at, bytes), why);
    }
    // musl's loader, whether or not this host has it.
    let loader = make.0.path("ld-musl-x86_64.so.1");
    let musl = make.program("musl", &[&format!("-Wl,--dynamic-linker={}", loader.display())]).expect("a program");
    let (status, said) = verdict(&launch(&[], &[utf8(&musl)]));
    assert!(status == Some(126) && said.contains("which is not there"), "{said}");
    fs::write(&loader, "").expect("write");
    refused(&musl, "libsmc.so is built for the GNU C library");
    // The loader as a program loads what LD_PRELOAD says.
    if Path::new("/lib64/ld-linux-x86-64.so.2").exists() {
        let out = launch(&[], &["/lib64/ld-linux-x86-64.so.2", utf8(&plain)]);
        assert_eq!((&*text(&out.stdout), verdict(&out)), ("ran\n", (Some(0), String::new())));
    }
}

#[test]
fn programs_with_more_rights_than_their_caller_are_refused() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root can make such programs");
    }
    let make = Maker::new();
    for (name, mode, owner, why) in [
        ("set-user-ID", 0o4755, 65534, "it is set-user-ID to user 65534"),
        ("set-group-ID", 0o2755, 65534, "it is set-group-ID to group 65534"),
    ] {
        let p = make.program(name, &[]).expect("a program");
        std::os::unix::fs::chown(&p, Some(owner), Some(owner)).expect("chown");
        fs::set_permissions(&p, fs::Permissions::from_mode(mode)).expect("chmod");
        refused(&p, why);
        let script = make.script("script", &format!("#!{}", p.display()));
        refused(&script, why);
        // Where no rights are gained, nothing is lost.
        let lib = lib();
        let words = ["--no-new-privs", utf8(&tool()), "run", "--lib", &lib, "--", utf8(&p)].map(str::to_owned);
        let out = output(limited("setpriv", &words.each_ref().map(String::as_str)));
        assert_eq!((&*text(&out.stdout), verdict(&out)), ("ran\n", (Some(0), String::new())));
    }
    // One's own set-user-ID program gains nothing.
    let own = make.program("own", &[]).expect("a program");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o4755)).expect("chmod");
    assert_eq!(verdict(&launch(&[], &[utf8(&own)])), (Some(0), String::new()));
    let tool = make.0.tool();
    let at = make.0.path("libsmc.so.1");
    copy(&library(), &at);
    fs::set_permissions(&at, fs::Permissions::from_mode(0o755)).expect("chmod");
    let nobody = |p: &Path| verdict(&output(as_nobody(&tool, &["run", utf8(p)])));
    assert!(nobody(&own).1.contains("it is set-user-ID to user 0"), "{:?}", nobody(&own));
    let capable = make.program("capable", &[]).expect("a program");
    let python = format!(
        "import os; os.setxattr({:?}, 'security.capability', bytes.fromhex('010000020004000000000000000000000000000000'[:40]))",
        utf8(&capable)
    );
    if !output(limited("python3", &["-c", &python])).status.success() {
        return eprintln!("skipped: this file system keeps no capabilities");
    }
    let (status, said) = nobody(&capable);
    assert!(status == Some(125) && said.contains("its file has capabilities"), "{said}");
    // Root gains nothing by them.
    assert_eq!(verdict(&launch(&[], &[utf8(&capable)])), (Some(0), String::new()));
}

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

#[test]
fn a_script_without_a_first_line_is_run_by_the_shell() {
    let make = Maker::new();
    let script = make.script("script", "echo \"$0 $1\"");
    let out = launch(&[], &[utf8(&script), "by the shell"]);
    assert_eq!(text(&out.stdout), format!("{} by the shell\n", script.display()), "{out:?}");
}

/// May be run, but not read: nobody can tell, so it is run.
#[test]
fn a_program_that_cannot_be_read_is_run_with_a_warning() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("skipped: only root can become somebody who may not read it");
    }
    let make = Maker::new();
    let (tool, at) = (make.0.tool(), make.0.path("libsmc.so.1"));
    copy(&library(), &at);
    let secret = make.program("secret", &[]).expect("a program");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o711)).expect("chmod");
    let out = output(as_nobody(&tool, &["run", "--no-config", utf8(&secret)]));
    assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(0), "ran\n"), "{out:?}");
    assert!(text(&out.stderr).starts_with("smc: warning: cannot tell whether "), "{out:?}");
}
