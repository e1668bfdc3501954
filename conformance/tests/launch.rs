//! `smc run`: what the program is born with, what is preloaded, and which programs are refused.

mod launch_support;
mod preload_support;
mod tool_support;

use launch_support::{Maker, launch, launched, lib, utf8, verdict};
use preload_support::{app, library, limited, output, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tool_support::{Dir, Serve, as_nobody, change, copy, run, tool, unique};

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
