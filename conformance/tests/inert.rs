//! Bystanders: programs and processes of unusual kinds, with the library preloaded. They behave as without it, or say in one
//! line why they cannot.

mod preload_support;
mod tool_support;

use preload_support::{installed, library, limited, output, root, target, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tool_support::{Dir, Serve, as_nobody, copy, smc, unique};

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
    // Tests run at once: each compiles for itself and the last one wins.
    let own = dir.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let out = output({
        cc.arg("-o").arg(&own);
        cc
    });
    assert!(out.status.success(), "{name}: {}", text(&out.stderr));
    fs::rename(own, dir.join(name)).expect("put the program in its place");
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

/// `odd` in one of its states, by a shell line in which $0 is the program.
fn odd(line: &str, args: &[&str], env: &[(&str, &str)]) -> Output {
    let program = built("odd", "odd.c", &[]);
    hooked(&[&["sh", "-c", line, utf8(&program)], args].concat(), env)
}

fn good(out: &Output, what: &str) {
    assert!(
        out.status.success(),
        "{what}: {}: line {:?} of odd.c: {}",
        out.status,
        out.status.code(),
        text(&out.stderr)
    );
}

const BACKENDS: [&str; 4] = ["thread", "sigbus", "sync", "mprotect"];

#[test]
fn threads_with_the_smallest_stack() {
    good(&odd("exec \"$0\" stack", &[], &[]), "hooks");
    let name = unique("stack");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    for b in BACKENDS {
        let region = format!("/smc/local/{name}");
        good(&odd("exec \"$0\" stack $1", &[&region], &[("LIBSMC_FAULT", b)]), b);
    }
}

#[test]
fn strict_seccomp_allows_what_it_allows() {
    let out = odd("exec \"$0\" strict", &[], &[]);
    good(&out, "strict");
    assert_eq!(text(&out.stdout), "strict\n");
}

/// The numbers 0, 1 and 2 are the program's, whatever is or is not open there.
#[test]
fn standard_descriptors_are_never_taken_nor_written_to() {
    let name = unique("stdio");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    let (dir, region) = (Dir::new(), format!("/smc/local/{name}"));
    for b in BACKENDS {
        for log in ["error", "debug"] {
            let env = [("LIBSMC_FAULT", b), ("LIBSMC_LOG", log)];
            good(&odd("exec \"$0\" closed $1 $2 <&- >&- 2>&-", &[&region, utf8(&dir.0)], &env), b);
        }
    }
    let out = odd("exec \"$0\" replaced $1", &[utf8(&dir.0)], &[]);
    good(&out, "replaced");
    assert!(out.stderr.is_empty(), "{out:?}");
}

/// Little memory: the region is refused, or works; the program goes on.
#[test]
fn little_memory_is_an_error_and_not_the_end() {
    let name = unique("memory");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    let region = format!("/smc/local/{name}");
    let (mut refused, mut worked) = (0, 0);
    for kb in [5000, 6000, 8000, 10000, 12000, 20000, 100_000] {
        for b in ["thread", "sigbus", "mprotect"] {
            let out = odd(&format!("ulimit -v {kb}; exec \"$0\" region $1"), &[&region], &[("LIBSMC_FAULT", b)]);
            let said = text(&out.stderr);
            match out.status.code() {
                Some(0) => worked += 1,
                // Too little even for the loader.
                Some(127) => assert!(said.contains("error while loading shared libraries"), "{kb} {b}: {out:?}"),
                Some(c) if c < 124 => {
                    assert!(said.starts_with("libsmc: ") && said.lines().count() == 1, "{kb} {b}: {said}");
                    refused += 1;
                }
                c => panic!("{kb} {b}: status {c:?}: {said}"),
            }
        }
    }
    assert!(refused > 0 && worked > 0, "{refused} refused, {worked} worked");
}

/// Beside the loader's work on one more file there is one system call: is stderr open?
#[test]
fn the_start_asks_the_kernel_once() {
    if !installed("strace") {
        return;
    }
    let calls = |preload: Option<&Path>| {
        let mut words = vec!["-o".to_owned(), "/dev/stdout".to_owned()];
        words.extend(preload.iter().flat_map(|l| ["-E".to_owned(), format!("LD_PRELOAD={}", l.display())]));
        words.push("/bin/true".to_owned());
        let out = output(limited("strace", &words.iter().map(String::as_str).collect::<Vec<_>>()));
        if !out.status.success() {
            return None;
        }
        // What the loader does for each file it loads.
        let loading =
            ["openat", "read", "pread64", "newfstatat", "fstat", "mmap", "munmap", "close", "mprotect", "access"];
        let name = |l: &str| l.split('(').next().unwrap_or_default().to_owned();
        let mut all: Vec<String> = text(&out.stdout).lines().map(name).collect();
        all.retain(|n| !n.starts_with('+') && !loading.contains(&n.as_str()));
        all.sort();
        Some(all)
    };
    let (Some(mut plain), Some(hooked)) = (calls(None), calls(Some(&library()))) else {
        return skip("strace cannot trace here");
    };
    plain.push("fcntl".into());
    plain.sort();
    assert_eq!(hooked, plain);
}

/// The library's own file and the zeros behind its data: nothing else is mapped, started or changed.
#[test]
fn an_idle_process_has_its_own_mappings_only() {
    let script = "cat /proc/self/maps; grep -E '^(Threads|SigCgt|SigBlk|SigIgn|Seccomp|NoNewPrivs|TracerPid):' /proc/self/status >&2";
    let plain = output(limited("sh", &["-c", script]));
    let hooked = hooked(&["sh", "-c", script], &[]);
    assert_eq!(text(&plain.stderr), text(&hooked.stderr));
    let count = |out: &Output, ours: bool| text(&out.stdout).lines().filter(|l| l.contains("libsmc") == ours).count();
    assert!(count(&hooked, true) >= 4, "{hooked:?}");
    assert!(count(&hooked, false) <= count(&plain, false) + 1, "{}\n{}", text(&plain.stdout), text(&hooked.stdout));
}

#[test]
fn ldd_and_the_loader_show_it_and_go_on() {
    let lib = library();
    for program in [&["ldd", "/bin/true"][..], &["/lib64/ld-linux-x86-64.so.2", "--list", "/bin/true"]] {
        let out = hooked(program, &[]);
        let said = text(&out.stdout);
        assert!(out.status.success() && out.stderr.is_empty(), "{program:?}: {out:?}");
        assert!(said.contains(utf8(&lib)) && said.contains("libc.so.6"), "{program:?}: {said}");
    }
}

/// Not there by any path: the loader says so, and the program runs, and can know.
#[test]
fn a_library_that_is_not_there() {
    let program = built("absent", "secure.c", &[]);
    let (dir, lib) = (Dir::new(), library());
    copy(&lib, &dir.path("libsmc.so"));
    let absent = "secure 0, open No such file or directory, no library\n";
    let there = "secure 0, open Invalid argument, active 2, init 0\n";
    for (preload, want, complaint) in [
        ("/nowhere/libsmc.so", absent, true),
        ("libsmc.so", absent, true),
        ("./libsmc.so", there, false),
        (utf8(&dir.path("libsmc.so")), there, false),
    ] {
        let mut c = limited("sh", &["-c", "cd $1 && LD_PRELOAD=$2 exec $0", utf8(&program), utf8(&dir.0), preload]);
        c.env("LIBSMC_LOG", "off").env_remove("LD_LIBRARY_PATH");
        let out = output(c);
        assert!(out.status.success(), "{preload}: {out:?}");
        assert_eq!(text(&out.stdout), want, "{preload}");
        assert_eq!(text(&out.stderr).contains("cannot be preloaded"), complaint, "{preload}: {out:?}");
    }
}

#[test]
fn static_programs_are_left_alone() {
    let dir = Dir::new();
    let source = root().join("conformance/apps/secure.c");
    let program = dir.path("static");
    let mut cc = Command::new("cc");
    cc.args(["-static", "-o"]).arg(&program).arg(source);
    if output(cc).status.success() {
        let out = hooked(&[utf8(&program)], &[]);
        assert_eq!(text(&out.stdout), "secure 0, open No such file or directory, no library\n", "{out:?}");
        assert!(out.stderr.is_empty(), "{out:?}");
    } else {
        skip("no static C library");
    }
    if !installed("go") {
        return skip("go");
    }
    // With C in it, which asks by the weak symbol; and without.
    for (name, content, flags) in [("with-c", GO_WITH_C, "-linkmode external -extldflags -static"), ("bare", GO, "")] {
        fs::write(dir.path("a.go"), content).expect("write");
        let mut go = Command::new("timeout");
        go.args(["-k", "5", "300", "go", "build", "-ldflags", flags, "-o"]).arg(dir.path(name)).arg(dir.path("a.go"));
        go.env("CGO_ENABLED", if name == "bare" { "0" } else { "1" }).env("GO111MODULE", "off").env("GOFLAGS", "-p=2");
        let made = output({
            go.env_remove("LD_PRELOAD");
            go
        });
        assert!(made.status.success(), "{name}: {}", text(&made.stderr));
        let out = hooked(&[utf8(&dir.path(name))], &[]);
        let said = "open /smc/local/x: no such file or directory, active false\n";
        assert_eq!((out.status.code(), &*text(&out.stderr)), (Some(5), said), "{name}");
    }
}

const GO: &str = r#"package main
import "os"
func main() { _, e := os.Open("/smc/local/x"); print(e.Error(), ", active ", false, "\n"); os.Exit(5) }
"#;

const GO_WITH_C: &str = r#"package main
// #include <stdint.h>
// extern uint32_t smc_is_active(void) __attribute__((weak));
// static int active(void) { return smc_is_active != 0 && smc_is_active() != 0; }
import "C"
import "os"
func main() { _, e := os.Open("/smc/local/x"); print(e.Error(), ", active ", C.active() != 0, "\n"); os.Exit(5) }
"#;

/// musl's loader cannot load it: it says what it misses, and does not crash. `smc run` refuses before that.
#[test]
fn musl_programs_end_with_a_message() {
    let at = "/usr/lib/x86_64-linux-musl";
    if !Path::new(at).join("crt1.o").exists() || !Path::new("/lib/ld-musl-x86_64.so.1").exists() {
        return skip("musl-dev");
    }
    let dir = Dir::new();
    let (source, program) = (dir.path("a.c"), dir.path("musl"));
    fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n").expect("write");
    let line = format!(
        "cc -nostdinc -isystem /usr/include/x86_64-linux-musl -nostdlib -no-pie -Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1 -o $1 $2 {at}/crt1.o {at}/crti.o -L{at} -lc {at}/crtn.o"
    );
    let made = output(limited("sh", &["-c", &line, "sh", utf8(&program), utf8(&source)]));
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert_eq!(text(&output(limited(utf8(&program), &[])).stdout), "ran\n");
    let out = hooked(&["env", utf8(&program)], &[]);
    let said = text(&out.stderr);
    assert!(
        out.status.code() == Some(127) && said.starts_with("Error loading shared library ld-linux-x86-64.so.2"),
        "{out:?}"
    );
    let lib = library();
    let run = |options: &[&str], words: &[&str]| {
        output(smc(&[&["run", "--lib", utf8(&lib), "--no-config"], options, &["--"], words].concat()))
    };
    let said = text(&run(&[], &[utf8(&program)]).stderr);
    assert!(said.lines().count() == 1 && said.contains("libsmc.so is built for the GNU C library"), "{said}");
    // As a child it needs to be spared.
    let out = run(&["--children", "clean"], &["sh", "-c", "$0; exit $?", utf8(&program)]);
    assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(0), "ran\n"), "{out:?}");
}

/// A program with more rights than its caller takes no orders from its caller's environment: no variable is read, and no
/// file that one names is opened.
#[test]
fn privileged_programs_read_no_environment() {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can make privileged programs");
    }
    let dir = Dir::new();
    let lib = dir.path("libsmc.so.1");
    copy(&library(), &lib);
    let at = |n: &str| utf8(&dir.path(n)).to_owned();
    // In secure mode the loader takes the library when the program itself names it.
    let linked = built(
        "secure_linked",
        "secure.c",
        &[&format!("-Wl,-rpath,{}", utf8(&dir.0)), "-Wl,--no-as-needed", utf8(&lib)],
    );
    let plain = built("secure_plain", "secure.c", &[]);
    let report = dir.path("report");
    let nobody = |program: &str| {
        let mut c = as_nobody(Path::new(program), &[]);
        let own = dir.path("own");
        fs::create_dir_all(&own).expect("mkdir");
        std::os::unix::fs::chown(&own, Some(65534), None).expect("chown");
        c.current_dir(&own).env("LIBSMC_DISABLE", "1").env("LIBSMC_LOG", "debug").env("LIBSMC_WAIT", "odd");
        c.env("LIBSMC_REPORT", own.join("report")).env("LIBSMC_CHILDREN", "clean").env("LIBSMC_RUN", "clean");
        output(c)
    };
    let capability = |p: &str| {
        let hex = "010000020004000000000000000000000000000000000000";
        let set = format!("import os; os.setxattr({p:?}, 'security.capability', bytes.fromhex('{}'))", &hex[..40]);
        output(limited("python3", &["-c", &set])).status.success()
    };
    let install = |from: &Path, name: &str, mode: u32| {
        copy(from, &dir.path(name));
        fs::set_permissions(dir.path(name), fs::Permissions::from_mode(mode)).expect("chmod");
        at(name)
    };
    // The control: an ordinary program obeys.
    let out = nobody(&install(&linked, "ordinary", 0o755));
    assert_eq!(text(&out.stdout), "secure 0, open No such file or directory, active 1, init 0\n", "{out:?}");
    assert!(text(&out.stderr).contains("LIBSMC_WAIT=odd ignored"), "{out:?}");
    let mut privileged = vec![install(&linked, "set-user-id", 0o4755)];
    let capable = install(&linked, "capable", 0o755);
    if capability(&capable) {
        privileged.push(capable);
    } else {
        skip("this file system keeps no capabilities");
    }
    for p in privileged {
        let out = nobody(&p);
        assert_eq!(text(&out.stdout), "secure 1, open Invalid argument, active 2, init 0\n", "{p}: {out:?}");
        assert!(!text(&out.stderr).contains("LIBSMC_") && !report.exists(), "{p}: {out:?}");
        assert!(fs::read_dir(dir.path("own")).expect("read").next().is_none(), "{p}: a file was written");
    }
    // Preloaded by the caller it is not loaded at all.
    let mut c = as_nobody(Path::new(&install(&plain, "bare", 0o4755)), &[]);
    c.env("LD_PRELOAD", &lib);
    let out = output(c);
    assert_eq!(text(&out.stdout), "secure 1, open No such file or directory, no library\n", "{out:?}");
}
