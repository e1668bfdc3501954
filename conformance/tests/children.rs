//! `--children clean`, or LIBSMC_CHILDREN by hand: the program has the library, what it starts has not, and no environment
//! tells of it.

mod preload_support;
mod tool_support;

use preload_support::{app, installed, library, limited, output, text};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tool_support::{Dir, Serve, change, smc, unique};

fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

fn lib() -> String {
    utf8(&library().canonicalize().expect("the library")).to_owned()
}

/// `smc run --children clean` with options, then the program.
fn clean(options: &[&str], program: &[&str]) -> Command {
    let lib = lib();
    let mut c = smc(&[&["run", "--lib", &lib, "--children", "clean"], options, &["--"], program].concat());
    c.env("LIBSMC_CONFIG", "");
    c
}

fn facts(mut c: Command) -> String {
    // Its own number differs, and nothing else may.
    c.env_remove("LIBSMC_CONFIG");
    let out = output(c);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    text(&out.stdout).lines().filter(|l| !l.starts_with("pid ")).collect::<Vec<_>>().join("\n")
}

/// The program and a program it starts see the same environment, in the same order, as without us.
#[test]
fn the_environment_is_as_without_us() {
    let birth = app("birth", &[]);
    let birth = utf8(&birth);
    let script = format!("{birth} child");
    for env in [
        &[("A", "1"), ("Z", "")][..],
        &[("LD_PRELOAD", "libm.so.6"), ("A", "1")],
        &[("LD_PRELOAD", ""), ("LIBSMC_WAIT", "77"), ("B", "x=y")],
        &[("LIBSMC_LOG", "error"), ("LIBSMC_CHILDREN", "clean"), ("LD_PRELOAD", "libm.so.6:libdl.so.2")],
    ] {
        for options in [&[][..], &["--wait", "9"], &["--wait", "9", "--log", "error"]] {
            for program in [
                &[birth, "itself"][..],
                &["sh", "-c", &script],
                &["python3", "-c", "import os,sys; os.execv(sys.argv[1], sys.argv[1:])", birth],
            ] {
                let set = |mut c: Command| {
                    c.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").envs(env.iter().copied());
                    c
                };
                let plain = facts(set(limited(program[0], &program[1..])));
                assert!(plain.contains("page size 4096"), "{plain}");
                assert_eq!(facts(set(clean(options, program))), plain, "{env:?} {options:?} {program:?}");
            }
        }
    }
}

#[test]
fn the_program_is_covered_and_its_children_are_not() {
    let name = unique("children");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    change(&name, 8, 0, b"by store");
    let region = format!("/smc/local/{name}");
    let script = "read -r -N 8 x < $0; echo \"$x $LD_PRELOAD.\"; cat $0";
    let check = |out: Output, inside: &str| {
        assert_eq!(text(&out.stdout), format!("by store {inside}.\n"), "{out:?}");
        let said = text(&out.stderr);
        assert!(said.contains("cat: ") && said.contains("No such file or directory"), "{said}");
    };
    check(output(clean(&[], &["bash", "-c", script, &region])), "");
    // By hand.
    let by_hand = |preload: &str| {
        let mut c =
            limited("env", &[&format!("LD_PRELOAD={preload}"), "LIBSMC_CHILDREN=clean", "bash", "-c", script, &region]);
        c.env_remove("LIBSMC_CHILDREN");
        output(c)
    };
    check(by_hand(&lib()), "");
    check(by_hand(&format!("libm.so.6:{}", lib())), "libm.so.6");
    // From the settings.
    let dir = Dir::new();
    let file = dir.path("smc.toml");
    fs::write(&file, "[program.\"ba*\"]\nLIBSMC_CHILDREN = \"clean\"\n").expect("write");
    let lib = lib();
    check(output(smc(&["run", "--lib", &lib, "--config", utf8(&file), "--", "bash", "-c", script, &region])), "");
    // The control: preloaded, the child reads it too.
    let out = output(smc(&[
        "run",
        "--lib",
        &lib,
        "--no-config",
        "--children",
        "preload",
        "--",
        "bash",
        "-c",
        script,
        &region,
    ]));
    assert!(text(&out.stdout).contains("\nby store"), "{out:?}");
}

/// Under the loader as a program, which moves the environment; and with a variable of another library's, which that library
/// reads for itself.
#[test]
fn the_environment_is_found_where_it_is() {
    let birth = app("birth", &[]);
    let loader = ["/lib64/ld-linux-x86-64.so.2", utf8(&birth)];
    let set = |mut c: Command| {
        c.env_clear().env("PATH", "/usr/bin:/bin").env("LD_PRELOAD", "libm.so.6").env("Z", "");
        c
    };
    assert_eq!(facts(set(clean(&["--wait", "9"], &loader))), facts(set(limited(loader[0], &loader[1..]))));
    let dir = Dir::new();
    let (source, program) = (dir.path("a.c"), dir.path("asan"));
    fs::write(&source, "#include <stdlib.h>\nint main(void) { return system(\"echo $LD_PRELOAD.$ASAN_OPTIONS.\"); }\n")
        .expect("write");
    let mut cc = Command::new("cc");
    cc.args(["-fsanitize=address", "-o"]).args([&program, &source]);
    if !output(cc).status.success() {
        return eprintln!("skipped: cc has no -fsanitize=address");
    }
    for old in ["", "detect_leaks=0"] {
        let mut c = clean(&[], &[utf8(&program)]);
        c.env("ASAN_OPTIONS", old);
        let out = output(c);
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), format!(".{old}.\n")), "{out:?}");
    }
}

/// What the program does not see any more the library knows all the same.
#[test]
fn settings_reach_the_library() {
    let name = unique("settings");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    let lib = lib();
    let dir = Path::new(&lib).parent().expect("a directory");
    let with_api = app(
        "demo",
        &[
            "-I",
            utf8(&preload_support::root().join("include")),
            &format!("-L{}", utf8(dir)),
            "-Wl,--no-as-needed",
            "-lsmc",
        ],
    );
    let region = format!("/smc/local/{name}");
    for (program, what) in [(&["head", "-c", "1", &*region][..], "hooks"), (&[utf8(&with_api), &*name], "C API")] {
        for (options, env, speaks) in [
            (&[][..], &[][..], false),
            (&["--log", "info"], &[], true),
            (&["--log", "error"], &[("LIBSMC_LOG", "info")], false),
            (&["--log", "info"], &[("LIBSMC_LOG", "off")], true),
            (&[], &[("LIBSMC_LOG", "info")], true),
        ] {
            let mut c = clean(options, program);
            c.env("LD_LIBRARY_PATH", dir).envs(env.iter().copied());
            let out = output(c);
            assert!(out.status.success(), "{what} {options:?}: {out:?}");
            assert_eq!(text(&out.stderr).contains("libsmc: "), speaks, "{what} {options:?} {env:?}: {out:?}");
        }
    }
}

/// Programs that a preloaded library disturbs, as children.
#[test]
fn delicate_children_run() {
    let dir = Dir::new();
    let at = |n: &str| utf8(&dir.path(n)).to_owned();
    fs::write(dir.path("a.c"), "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n").expect("write");
    let asan = "cc -fsanitize=address -o $1/asan $1/a.c 2>/dev/null || { echo ran; exit 0; }; $1/asan";
    let scripts = [
        ("cc", "cc -o $1/plain $1/a.c && $1/plain"),
        ("cc", asan),
        ("make", "cd $1; printf 'all:\\n\\t@cc -o made a.c && ./made\\n' > Makefile; make -s"),
        ("gdb", "cc -g -o $1/g $1/a.c && gdb -q -batch -ex run $1/g 2>/dev/null | grep -x ran"),
        ("valgrind", "cc -g -o $1/v $1/a.c && valgrind -q --error-exitcode=9 $1/v"),
    ];
    for (needs, script) in scripts {
        if !installed(needs) {
            continue;
        }
        let out = output(clean(&[], &["sh", "-c", script, "sh", &at("")]));
        assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(0), "ran\n"), "{script}: {}", text(&out.stderr));
        assert!(out.stderr.is_empty(), "{script}: {}", text(&out.stderr));
    }
}

const GO: &str = r#"package main

// int seven(void) { return 7; }
import "C"
import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	out, _ := exec.Command("sh", "-c", "echo child:$LD_PRELOAD:$LIBSMC_WAIT").Output()
	fmt.Printf("%d %d %q %q %s", C.seven(), os.Getpagesize(), os.Getenv("LD_PRELOAD"), os.Getenv("A"), out)
}
"#;

/// Go's runtime looks for the auxiliary vector behind the environment, and does not start without the page size.
#[test]
fn a_go_program_finds_what_lies_behind_its_environment() {
    if std::env::var("SMC_EFFORT").as_deref() == Ok("quick") || !installed("go") {
        return eprintln!("skipped: Go takes long to build, or is not there");
    }
    let dir = Dir::new();
    fs::write(dir.path("a.go"), GO).expect("write");
    let program = dir.path("a");
    let mut c = Command::new("timeout");
    c.args(["-k", "5", "300", "go", "build", "-o"]).arg(&program).arg(dir.path("a.go"));
    c.env("GOFLAGS", "-p=2").env("CGO_ENABLED", "1").env("GO111MODULE", "off").env_remove("LD_PRELOAD");
    let built = output(c);
    assert!(built.status.success(), "{}", text(&built.stderr));
    for options in [&[][..], &["--wait", "9"]] {
        let mut c = clean(options, &[utf8(&program)]);
        c.env("A", "b");
        let out = output(c);
        assert_eq!(text(&out.stdout), "7 4096 \"\" \"b\" child::\n", "{out:?}");
    }
}

/// Nobody would take the lines back.
#[test]
fn a_program_without_the_library_gets_none_of_it() {
    let dir = Dir::new();
    let program = dir.path("birth");
    let source = preload_support::root().join("conformance/apps/birth.c");
    let done = Command::new("cc").arg("-static").arg(source).arg("-o").arg(&program).output().expect("run cc");
    if !done.status.success() {
        return eprintln!("skipped: no static C library");
    }
    let plain = facts(limited(utf8(&program), &[]));
    let mut c = clean(&["--force", "--wait", "9"], &[utf8(&program)]);
    c.env_remove("LIBSMC_CONFIG");
    let out = output(c);
    assert!(text(&out.stderr).starts_with("smc: warning: "), "{out:?}");
    let seen: Vec<String> = text(&out.stdout).lines().filter(|l| !l.starts_with("pid ")).map(str::to_owned).collect();
    assert_eq!(seen.join("\n"), plain);
}
