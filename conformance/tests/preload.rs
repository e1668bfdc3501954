//! The preloaded library in programs that have nothing to do with it: nobody can tell that it is there.

mod preload_support;

use preload_support::{app, installed, library, limited, output, preloaded, text};
use std::process::{Command, Output};
use std::time::Instant;

fn same(program: &str, args: &[&str]) {
    same_env(program, args, &[]);
}

/// Runs the program without and with the library and compares everything that can be seen.
fn same_env(program: &str, args: &[&str], env: &[(&str, &str)]) -> Output {
    let run = |mut c: Command| {
        c.envs(env.iter().copied());
        output(c)
    };
    let plain = run(limited(program, args));
    let hooked = run(preloaded(program, args));
    assert_ne!(plain.status.code(), Some(124), "{program} {args:?}: took too long");
    assert_eq!(plain.status, hooked.status, "{program} {args:?}: {}", text(&hooked.stderr));
    assert_eq!(text(&plain.stdout), text(&hooked.stdout), "{program} {args:?}");
    assert_eq!(text(&plain.stderr), text(&hooked.stderr), "{program} {args:?}");
    hooked
}

#[test]
fn everyday_programs_behave_the_same() {
    same("/bin/true", &[]);
    same("/bin/false", &[]);
    same("ls", &["-l", "/usr", "/nowhere"]);
    same(
        "bash",
        &[
            "-c",
            "x=$(echo sub | tr a-z A-Z); echo $x; (exit 3) || echo $?; read -r l < /etc/passwd; echo \"$l\" | wc -c; exec 7</etc/passwd 8>&1; cat <&7 | head -1 >&8",
        ],
    );
    same("awk", &["BEGIN { while ((getline l < \"/etc/passwd\") > 0) n++; print n > \"/dev/stdout\" }"]);
    same("sh", &["-c", "tar cf - -C /etc passwd group | tar tf -"]);
    same("sh", &["-c", "dd if=/dev/zero bs=1000 count=100 2>/dev/null | cksum"]);
    same("sh", &["-c", "ulimit -v 200000; ls / | sort -r"]);
    same("env", &["-i", "/bin/echo", "nothing"]);
}

#[test]
fn interpreters_and_compilers_behave_the_same() {
    if installed("python3") {
        same("python3", &["-c", PYTHON]);
    }
    if installed("perl") {
        same(
            "perl",
            &[
                "-e",
                "open(F,'<','/etc/passwd') or die; $n++ while <F>; print \"$n\\n\"; print `echo child`; my %h = map {$_=>$_**2} 1..10000; print $h{77},\"\\n\";",
            ],
        );
    }
    if installed("git") {
        same("git", &["--version"]);
    }
    same(
        "sh",
        &[
            "-c",
            "d=$(mktemp -d); echo 'int puts(const char*);int main(){puts(\"built\");return 7;}' > $d/a.c; cc -O2 -o $d/a $d/a.c && $d/a; r=$?; rm -r $d; exit $r",
        ],
    );
}

const PYTHON: &str = r#"
import json, mmap, multiprocessing, os, subprocess, tempfile, threading
print(subprocess.run(["echo", "child"], capture_output=True).stdout)
with tempfile.TemporaryFile() as f:
    f.write(b"x" * 10000); f.flush()
    m = mmap.mmap(f.fileno(), 0); m[5:8] = b"abc"; m.flush(); m.madvise(mmap.MADV_WILLNEED); print(m[:10]); m.resize(4096) if hasattr(m, "resize") else None; m.close()
    f.seek(-3, 2); print(f.read(), f.tell())
r, w = os.pipe(); os.write(w, b"pipe"); d = os.dup(r); print(os.read(d, 10))
ts = [threading.Thread(target=lambda: [bytearray(i * 100) for i in range(500)]) for _ in range(8)]
[t.start() for t in ts]; [t.join() for t in ts]
with multiprocessing.get_context("fork").Pool(3) as p: print(sum(p.map(len, [b"x" * i for i in range(1000)])))
try: open("/smcx/local/x")
except OSError as e: print(e)
print(json.dumps({"a": [1, 2]}))
"#;

#[test]
fn binding_at_load_time_works() {
    same_env("ls", &["/"], &[("LD_BIND_NOW", "1")]);
}

#[test]
fn an_idle_process_has_no_trace_of_it() {
    // The listing of one's own descriptors, and the number of one's own threads.
    same("ls", &["/proc/self/fd"]);
    same("grep", &["-E", "^(Threads|FDSize|SigCgt|SigBlk|SigIgn):", "/proc/self/status"]);
    same("sh", &["-c", "grep Threads /proc/$$/status; ls /proc/$$/fd"]);
}

#[test]
fn an_empty_environment_works() {
    let preload = format!("LD_PRELOAD={}", library().display());
    let out = output(limited("env", &["-i", &preload, "/bin/sh", "-c", "echo alive; exec /bin/ls /"]));
    assert!(out.status.success(), "{out:?}");
    assert!(text(&out.stdout).starts_with("alive\n") && out.stderr.is_empty(), "{out:?}");
}

#[test]
fn the_heap_is_the_same() {
    let heap = app("heap", &["-ldl"]);
    same(heap.to_str().expect("UTF-8"), &[]);
}

#[test]
fn a_cancelled_thread_unwinds_through_the_hooks() {
    let program = app("cancel", &[]);
    same(program.to_str().expect("UTF-8"), &[]);
}

#[test]
fn another_allocator_keeps_working_before_and_behind() {
    let heap = app("other_heap", &["-shared", "-fPIC"]);
    let lib = library();
    for order in [format!("{}:{}", lib.display(), heap.display()), format!("{}:{}", heap.display(), lib.display())] {
        for (program, args) in [("ls", &["-l", "/usr"][..]), ("bash", &["-c", "x=$(echo hi); echo $x"][..])] {
            let plain = output(limited(program, args));
            let mut c = limited("env", &[&format!("LD_PRELOAD={order}"), program]);
            c.args(args);
            let out = output(c);
            assert!(out.status.success(), "{order}: {program}: {out:?}");
            assert_eq!(text(&plain.stdout), text(&out.stdout), "{order}: {program}");
        }
    }
}

#[test]
fn switched_off_there_is_no_smc() {
    let mut c = preloaded("cat", &["/smc/local/anything?page=nonsense"]);
    c.env("LIBSMC_DISABLE", "1");
    let out = output(c);
    assert!(text(&out.stderr).contains("No such file or directory"), "{out:?}");
    // The control: switched on, the library sees the bad option.
    let out = output(preloaded("cat", &["/smc/local/anything?page=nonsense"]));
    assert!(text(&out.stderr).contains("Invalid argument"), "{out:?}");
}

/// Start-up cost: best of many, so that a busy machine does not matter much; three tries.
#[test]
fn a_start_costs_little() {
    let best = |preload: bool| {
        let one = || {
            let mut c = Command::new("/bin/true");
            c.env_clear();
            if preload {
                c.env("LD_PRELOAD", library());
            }
            let start = Instant::now();
            assert!(c.status().expect("run true").success());
            start.elapsed().as_micros()
        };
        (0..150).map(|_| one()).min().expect("some runs")
    };
    let tries: Vec<_> = (0..3).map(|_| (best(false), best(true))).collect();
    eprintln!("exec of /bin/true, microseconds (without, with): {tries:?}");
    // In a debug build of this suite the library is still the release build.
    assert!(tries.iter().any(|(without, with)| with.saturating_sub(*without) < 150), "{tries:?}");
}
