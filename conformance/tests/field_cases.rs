//! What broke comparable libraries in the field: the first allocation of a process, other allocators, other runtimes.

mod preload_support;

use preload_support::exporter::{Exporter, good};
use preload_support::{app, installed, library, limited, output, preloaded, root, target, text};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Each other allocator, as its package installs it.
const ALLOCATORS: [&str; 3] = ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"];

/// What a slow start is; a deadlock is what it finds, so a busy host may take its time.
const LIMIT: &str = "10";

/// What is missing is a printed skip; where everything must run, a failure.
fn skip(why: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "missing with CI=true: {why}");
    eprintln!("skipped: {why}");
}

/// A shared library by its name, where the loader finds it.
fn shared_library(name: &str) -> Option<PathBuf> {
    let mut c = Command::new("/sbin/ldconfig");
    c.arg("-p");
    let list = text(&output(c).stdout);
    let line = list.lines().find(|l| l.split_whitespace().next() == Some(name) && l.contains("x86-64"));
    line.and_then(|l| l.split(" => ").nth(1)).map(PathBuf::from).filter(|p| p.exists())
}

fn compiled(compiler: &str, source: &str, out: &Path, args: &[&str]) {
    let mut c = Command::new(compiler);
    c.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(out);
    c.arg(root().join("conformance/apps").join(source)).args(args).arg("-pthread");
    let out = output(c);
    assert!(out.status.success(), "{compiler} {source}: {}", text(&out.stderr));
}

/// A directory of this test, empty at first.
fn fresh_dir(name: &str) -> PathBuf {
    let dir = target().join("field-cases").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("make a directory");
    dir
}

fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

fn run(preload: &[&Path], program: &[&str]) -> Output {
    let list: Vec<_> = preload.iter().map(|p| utf8(p)).collect();
    let mut c = Command::new("timeout");
    c.args(["-k", "1", LIMIT, "env", "-u", "LD_PRELOAD"]);
    if !list.is_empty() {
        c.arg(format!("LD_PRELOAD={}", list.join(":")));
    }
    c.args(program);
    output(c)
}

fn all_good(preload: &[&Path], program: &[&str], want: &Output) {
    let out = run(preload, program);
    assert!(out.status.success(), "{preload:?} {program:?}: {}: {}", out.status, text(&out.stderr));
    assert_eq!(text(&out.stdout), text(&want.stdout), "{preload:?} {program:?}");
    assert_eq!(text(&out.stderr), text(&want.stderr), "{preload:?} {program:?}");
}

/// The program whose first call of libc is calloc, and the library that is started before ours.
fn early_program(dir: &Path) -> PathBuf {
    let (lib, program) = (dir.join("libearly.so"), dir.join("early_heap"));
    compiled("cc", "early_heap.c", &lib, &["-DLIBRARY", "-shared", "-fPIC", "-Wl,-z,initfirst"]);
    let (at, path) = (format!("-L{}", utf8(dir)), format!("-Wl,-rpath,{}", utf8(dir)));
    compiled("cc", "early_heap.c", &program, &[&at, "-learly", &path]);
    program
}

#[test]
fn a_constructor_can_run_before_ours() {
    let program = early_program(&fresh_dir("order"));
    let mut c = limited("env", &["LD_DEBUG=files", &format!("LD_PRELOAD={}", utf8(&library())), utf8(&program)]);
    c.env_remove("LD_PRELOAD");
    let out = output(c);
    assert!(out.status.success(), "{out:?}");
    let said = text(&out.stderr);
    // Of env itself, then of the program: the last start of each is the program's.
    let started = |name: &str| said.rfind(&format!("calling init: {name}")).unwrap_or_else(|| panic!("{name}: {said}"));
    let early = started(&format!("{}/libearly.so", utf8(program.parent().expect("a directory"))));
    assert!(early < started(utf8(&library())), "libsmc was started first: this case tests nothing");
}

#[test]
fn the_first_call_works_with_every_allocator() {
    let dir = fresh_dir("allocators");
    let (early, global) = (early_program(&dir), dir.join("global_heap"));
    compiled("c++", "global_heap.cpp", &global, &["-std=c++17"]);
    let python = "import json, sys; print(json.dumps([len(bytearray(i)) for i in range(100)]), sys.byteorder)";
    let programs: [&[&str]; 5] = [
        &["/bin/true"],
        &["bash", "-c", "x=$(echo sub; (exit 0)); read -r l </etc/passwd; echo \"$x ${l%%:*}\""],
        &["/usr/bin/python3", "-c", python],
        &[utf8(&global)],
        &[utf8(&early)],
    ];
    let ours = library();
    for program in programs {
        if !installed(program[0]) {
            skip(program[0]);
            continue;
        }
        let plain = run(&[], program);
        assert!(plain.status.success(), "{program:?}: {plain:?}");
        all_good(&[&ours], program, &plain);
        for other in ALLOCATORS {
            let Some(other) = shared_library(other) else {
                skip(&format!("{other} is not installed"));
                continue;
            };
            // What the allocator by itself does is its own affair.
            let alone = run(&[&other], program);
            if !alone.status.success() {
                eprintln!("skipped: {program:?} does not run with {} alone: {}", other.display(), alone.status);
                continue;
            }
            all_good(&[&ours, &other], program, &alone);
            all_good(&[&other, &ours], program, &alone);
        }
    }
}

fn preloaded_ok(program: &[&str], env: &[(&str, &str)]) -> String {
    let mut c = limited(program[0], &program[1..]);
    c.envs(env.iter().copied()).env("LD_PRELOAD", library());
    let out = output(c);
    assert!(out.status.success(), "{program:?}: {}: {}", out.status, text(&out.stderr));
    text(&out.stdout)
}

const NUMPY: &str = r#"
import numpy as np, numpy.linalg, threading
a = np.arange(250000, dtype=np.float64).reshape(500, 500) / 1e5 + np.eye(500)
x = np.linalg.solve(a, np.ones(500))
assert np.allclose(a @ x, 1)
ts = [threading.Thread(target=lambda: np.fft.fft(np.random.rand(1 << 16))) for _ in range(4)]
[t.start() for t in ts]; [t.join() for t in ts]
try: np.linalg.inv(np.zeros((3, 3)))
except np.linalg.LinAlgError as e: print(e)
"#;

#[test]
fn numpy_brings_its_own_libraries() {
    if !output(limited("/usr/bin/python3", &["-c", "import numpy"])).status.success() {
        return skip("/usr/bin/python3 with numpy (python3-numpy)");
    }
    assert_eq!(preloaded_ok(&["/usr/bin/python3", "-c", NUMPY], &[]), "Singular matrix\n");
}

// Arrow's own buffers, not a file object of Python: reading one of those leaves a thread of Arrow's pool that
// waits for the interpreter, and about one run in twenty aborts at the end, without a preload too.
const WHEELS: &str = r#"
import numpy as np, scipy.sparse, scipy.sparse.linalg, scipy.integrate, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
m = scipy.sparse.eye(1000, format="csc") * 2
assert np.allclose(scipy.sparse.linalg.spsolve(m, np.ones(1000)), 0.5)
assert abs(scipy.integrate.quad(np.sin, 0, np.pi)[0] - 2) < 1e-9
t = pa.table({"x": list(range(10000)), "s": [str(i) for i in range(10000)]})
b = pa.BufferOutputStream(); pq.write_table(t, b, compression="snappy")
assert pc.sum(pq.read_table(pa.BufferReader(b.getvalue()))["x"]).as_py() == 49995000
try: pa.array([1, "a"])
except pa.ArrowInvalid as e: print("caught")
"#;

/// Wheels carry their own C++ and Fortran runtimes. They are fetched once for a build directory.
#[test]
fn scipy_and_pyarrow_wheels_work() {
    if std::env::var("SMC_EFFORT").as_deref() == Ok("quick") {
        eprintln!("skipped: the wheels are large, and this is a quick run");
        return;
    }
    let dir = target().join("field-cases/wheels");
    let (done, path) = (dir.join(".complete"), utf8(&dir));
    if !done.exists() {
        let _ = std::fs::remove_dir_all(&dir);
        let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"];
        let mut c = Command::new("timeout");
        c.args(["-k", "5", "150", "/usr/bin/python3"]).args(pip);
        c.args(["--retries", "1", "--timeout", "15", "--target", path, "scipy", "pyarrow"]).env_remove("LD_PRELOAD");
        let got = output(c);
        if !got.status.success() {
            let _ = std::fs::remove_dir_all(&dir);
            // The network is not ours to demand: a skip even where everything else must be there.
            eprintln!("skipped: pip cannot install scipy and pyarrow: {}", text(&got.stderr).trim());
            return;
        }
        std::fs::write(&done, "").expect("mark the directory");
    }
    assert_eq!(preloaded_ok(&["/usr/bin/python3", "-c", WHEELS], &[("PYTHONPATH", path)]), "caught\n");
}

#[test]
fn another_cxx_library_comes_first() {
    let (Some(cxx), Some(gcc)) = (shared_library("libstdc++.so.6"), shared_library("libgcc_s.so.1")) else {
        return skip("libstdc++.so.6 or libgcc_s.so.1");
    };
    let dir = fresh_dir("runtime");
    for lib in [cxx, gcc] {
        std::fs::copy(&lib, dir.join(lib.file_name().expect("a name"))).expect("copy a runtime library");
    }
    let program = dir.join("global_heap");
    compiled("c++", "global_heap.cpp", &program, &["-std=c++17"]);
    let plain = run(&[], &[utf8(&program)]);
    let env = [("LD_LIBRARY_PATH", utf8(&dir)), ("LD_BIND_NOW", "1")];
    assert_eq!(preloaded_ok(&[utf8(&program)], &env), text(&plain.stdout));
    // It really is the other copy, and ours needs neither.
    let seen = preloaded_ok(&["ldd", utf8(&program)], &env[..1]);
    assert!(seen.contains(&format!("{}/libstdc++.so.6", utf8(&dir))), "{seen}");
    let mut c = limited("ldd", &[utf8(&library())]);
    c.env("LD_LIBRARY_PATH", &dir);
    let needs = text(&output(c).stdout);
    assert!(!needs.contains("libstdc++") && !needs.contains("libgcc_s"), "{needs}");
}

/// Every symbol is looked up at once, with no driver library anywhere.
#[test]
fn binds_at_once_in_linked_preloaded_and_opened_form() {
    let lib = library();
    let now = [("LD_BIND_NOW", "1")];
    assert_eq!(preloaded_ok(&["sh", "-c", "echo bound"], &now), "bound\n");
    let open = format!("import ctypes; print(ctypes.CDLL({:?}, mode=2).smc_version() > 0)", utf8(&lib));
    if installed("/usr/bin/python3") {
        let mut c = limited("/usr/bin/python3", &["-c", &open]);
        let out = output({
            c.env("LD_BIND_NOW", "1");
            c
        });
        assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(0), "True\n"), "{}", text(&out.stderr));
    }
    let dir = lib.parent().expect("a directory");
    let program = app("version", &[&format!("-L{}", utf8(dir)), "-lsmc", "-Wl,-z,now"]);
    let mut c = limited(utf8(&program), &[]);
    c.env("LD_LIBRARY_PATH", dir).env("LD_BIND_NOW", "1");
    assert!(output(c).status.success());
}

/// A driver library that lacks everything newer than its first function: nothing of ours asks it for more.
#[test]
fn loads_beside_an_old_driver_library() {
    let dir = target().join("field-cases/old-driver");
    std::fs::create_dir_all(&dir).expect("make a directory");
    let (source, lib) = (dir.join("cuda.c"), dir.join("libcuda.so.1"));
    std::fs::write(&source, "int cuInit(unsigned flags) { return (int)flags + 100; }\n").expect("write the stub");
    let cc = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&lib).arg(&source).status();
    assert!(cc.expect("run cc").success());
    let ask =
        "import ctypes; c = ctypes.CDLL('libcuda.so.1', mode=2); print(c.cuInit(7), hasattr(c, 'cuMemAllocAsync'))";
    let env = [("LD_LIBRARY_PATH", utf8(&dir)), ("LD_BIND_NOW", "1")];
    assert_eq!(preloaded_ok(&["python3", "-c", ask], &env), "107 False\n");
}

/// Libraries have used up the room for thread-local memory at fixed distances before ours is opened.
#[test]
fn opens_late_beside_many_libraries_with_thread_local_memory() {
    let dir = fresh_dir("late-open");
    let (program, first) = (dir.join("late_open"), dir.join("0.so"));
    compiled("cc", "late_open.c", &program, &[]);
    compiled("cc", "late_open.c", &first, &["-DOTHER", "-shared", "-fPIC"]);
    let mut libraries = vec![utf8(&library()).to_owned(), utf8(&first).to_owned()];
    for n in 1..200 {
        let copy = dir.join(format!("{n}.so"));
        std::fs::copy(&first, &copy).expect("copy the library");
        libraries.push(utf8(&copy).to_owned());
    }
    let opened = |libraries: &[String]| {
        let args: Vec<&str> = libraries.iter().map(String::as_str).collect();
        let out = output(limited(utf8(&program), &args));
        assert!(out.status.success(), "{}: {}", out.status, text(&out.stderr));
        let said = text(&out.stdout);
        said.split(' ').next().and_then(|n| n.parse::<usize>().ok()).expect("a number")
    };
    // Twenty fit; with all of them nothing is left, and ours still comes in.
    assert_eq!(opened(&libraries[..21]), 20);
    let room = opened(&libraries);
    assert!((20..200).contains(&room), "{room} libraries opened: the room was never used up");
}

#[test]
fn loads_beside_others_with_thread_local_memory_and_under_an_auditor() {
    let beside: Vec<PathBuf> = ["libgomp.so.1", ALLOCATORS[0]].into_iter().filter_map(shared_library).collect();
    if beside.len() < 2 {
        return skip("libgomp or jemalloc");
    }
    let lib = library();
    let all: Vec<&Path> = std::iter::once(lib.as_path()).chain(beside.iter().map(PathBuf::as_path)).collect();
    let program = ["sh", "-c", "ls / | wc -l; cat /proc/self/comm"];
    let want = run(&[], &program);
    all_good(&all, &program, &want);
    let dir = fresh_dir("auditor");
    let (source, auditor) = (dir.join("auditor.c"), dir.join("auditor.so"));
    std::fs::write(&source, "unsigned la_version(unsigned v) { return v; }\n").expect("write the auditor");
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&auditor).arg(&source).status();
    assert!(cc.expect("run cc").success());
    let audited = ["env", &format!("LD_AUDIT={}", utf8(&auditor)), "sh", "-c", program[2]];
    // jemalloc does not start under an auditor, with or without us.
    all_good(&all[..2], &audited, &want);
    assert_eq!(run(&all, &audited).status, run(&all[1..], &audited).status);
}

/// The threads of the library have room for the program's thread-local memory.
#[test]
fn a_region_works_in_a_program_with_much_thread_local_memory() {
    let program = app("heavy_tls", &[]);
    let Some(e) = Exporter::start() else { return };
    for backend in ["thread", "sigbus"] {
        let mut c = preloaded(utf8(&program), &[&e.path()]);
        c.env("LIBSMC_FAULT", backend);
        assert_eq!(good(c), "heavy\n", "{backend}");
    }
}

/// Each function that allocates, with sizes at the edges, through realloc and back: the same rows as without us.
#[test]
fn the_whole_family_of_malloc_answers_the_same() {
    let program = fresh_dir("family").join("heap_table");
    compiled("c++", "heap_table.cpp", &program, &["-std=c++17"]);
    let (ours, table) = (library(), [utf8(&program)]);
    let plain = run(&[], &table);
    assert!(plain.status.success() && text(&plain.stdout).lines().count() > 80, "{plain:?}");
    all_good(&[&ours], &table, &plain);
    if !installed("valgrind") {
        return skip("valgrind");
    }
    let check = ["valgrind", "-q", "--leak-check=full", "--error-exitcode=9", utf8(&program), "sizes-that-can-be-had"];
    let mut c = limited(check[0], &check[1..]);
    c.env("LD_PRELOAD", &ours);
    let out = output(c);
    assert!(out.status.success() && out.stderr.is_empty(), "{}: {}", out.status, text(&out.stderr));
}

/// Threads that allocate, and one that opens and closes a region, while children are made, by each way to make them; and a
/// signal a thousand times a second whose handler allocates and sends.
#[test]
fn children_and_signals_in_the_middle_of_everything() {
    let program = fresh_dir("storm").join("storm");
    compiled("cc", "storm.c", &program, &["-std=gnu11"]);
    let Some(e) = Exporter::start() else { return };
    let region = e.path();
    let quick = std::env::var("SMC_EFFORT").as_deref() == Ok("quick");
    let (children, seconds) = if quick { ("50", "1") } else { ("500", "3") };
    let storm = |backend: &str, words: &[&str]| {
        let mut c = limited(utf8(&program), words);
        c.env("LD_PRELOAD", library()).env("LIBSMC_FAULT", backend);
        let out = output(c);
        assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(0), "storm over\n"), "{backend} {words:?}: {out:?}");
    };
    for how in ["fork", "vfork", "spawn"] {
        storm("thread", &[how, children]);
        storm("thread", &[how, children, &region]);
        storm("sigbus", &[how, children, &region]);
    }
    for backend in ["thread", "sigbus", "mprotect"] {
        storm(backend, &["signal", seconds, &region]);
    }
}
