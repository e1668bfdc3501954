//! Bystanders: programs and processes of unusual kinds, with the library preloaded. They behave as without it, or say in one
//! line why they cannot.

mod preload_support;
mod tool_support;

use preload_support::{library, limited, output, root, target, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tool_support::{Serve, smc, unique};

fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

/// What is missing is a printed skip; where everything must run, a failure.
fn skip(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "missing with CI=true: {why}");
    eprintln!("skipped: {why}");
}

/// Runs it with the library preloaded, and with these variables.
fn hooked(program: &[&str], env: &[(&str, &str)]) -> Output {
    let mut c = limited(program[0], &program[1..]);
    c.envs(env.iter().copied()).env("LD_PRELOAD", library());
    // `timeout` itself needs no library; nothing is said by it.
    output(c)
}

/// A program of conformance/apps under a name of its own.
fn built(name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let dir = target().join("inert");
    std::fs::create_dir_all(&dir).expect("make a directory");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread"]);
    cc.arg(root().join("conformance/apps").join(source)).args(flags.iter().filter(|f| !f.is_empty()));
    let out = output({
        cc.arg("-o").arg(dir.join(name));
        cc
    });
    assert!(out.status.success(), "{name}: {}", text(&out.stderr));
    dir.join(name)
}

/// True when this compiler has the sanitizer.
fn has_sanitizer(name: &str) -> bool {
    let mut c = Command::new("sh");
    c.args(["-c", &format!("echo 'int main(void){{return 0;}}' | cc -fsanitize={name} -x c -o /dev/null -")]);
    let has = output(c).status.success();
    if !has {
        skip(&format!("cc has no -fsanitize={name}"));
    }
    has
}

/// Sanitizers put functions of their own in front of libc's, some of them before they are ready, and not all of a family.
#[test]
fn sanitized_programs_run_and_reach_regions() {
    let name = unique("sanitized");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    let region = format!("/smc/local/{name}");
    let lib = library();
    for (kind, flag) in
        [("address", ""), ("address", "-static-libasan"), ("thread", ""), ("leak", ""), ("undefined", "")]
    {
        if !has_sanitizer(kind) {
            continue;
        }
        let out = format!("view_{kind}{flag}");
        let program = built(&out, "view.c", &[&format!("-fsanitize={kind}"), flag]);
        for backend in ["thread", "sigbus", "mprotect"] {
            for args in [&[][..], &[&*region]] {
                let words = [&["run", "--lib", utf8(&lib), "--fault", backend, "--", utf8(&program)], args].concat();
                let mut c = smc(&words);
                // Without it ThreadSanitizer takes the library's own atomics for races: nobody has told it of them.
                c.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1");
                let got = output(c);
                let want = if args.is_empty() {
                    (Some(3), "hello from 1 words\n")
                } else {
                    (Some(0), "hello from 2 words\nread stored\n")
                };
                assert_eq!((got.status.code(), &*text(&got.stdout)), want, "{out} {backend}: {}", text(&got.stderr));
                assert!(got.stderr.is_empty(), "{out} {backend}: {}", text(&got.stderr));
            }
        }
    }
}

/// The AddressSanitizer runtime wants to be the first library: a hint, and each of the documented ways out.
#[test]
fn address_sanitizer_and_the_order_of_libraries() {
    if !has_sanitizer("address") {
        return;
    }
    let program = built("view_order", "view.c", &["-fsanitize=address"]);
    let program = utf8(&program);
    let out = hooked(&[program], &[]);
    assert!(out.status.code() == Some(1) && text(&out.stderr).contains("ASan runtime does not come first"), "{out:?}");
    let good = |out: Output, what: &str| {
        assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(3), "hello from 1 words\n"), "{what}: {out:?}");
    };
    good(hooked(&[program], &[("ASAN_OPTIONS", "verify_asan_link_order=0")]), "by its option");
    let lib = library();
    let run = |options: &[&str], words: &[&str]| {
        let mut c = smc(&[&["run", "--lib", utf8(&lib)], options, &["--"], words].concat());
        c.env("ASAN_OPTIONS", "abort_on_error=0");
        output(c)
    };
    good(run(&[], &[program]), "by smc run");
    // Options that are there already stay.
    let seen = text(&run(&[], &[program]).stderr);
    assert_eq!(seen, "");
    // A child of another program: by the option.
    let script = "\"$0\"; exit $?";
    assert!(text(&run(&[], &["sh", "-c", script, program]).stderr).contains("ASan runtime does not come first"));
}
