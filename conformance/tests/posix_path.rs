//! Unmodified programs on `/smc/local/NAME`, with an exporter in a process of its own.
//!
//! Needs `smc serve` (`SMC_BIN`, or the release build): skipped with a reason when the tool has no such command.

mod preload_support;

use preload_support::exporter::{Exporter, SIZE, good};
use preload_support::{app, installed, limited, output, preloaded, target, text};
use std::process::Stdio;

/// The exporter dies with stores pending: at its exit the program's user is told which, unless he asked for silence.
#[test]
fn stores_that_are_lost_at_exit_are_named() {
    use std::io::{BufRead, BufReader, Write};
    let program = app("store_and_wait", &[]);
    for (log, told) in [("", true), ("error", true), ("off", false)] {
        let Some(mut e) = Exporter::start() else { return };
        let mut c = preloaded(program.to_str().expect("UTF-8"), &[&e.path()]);
        c.env("LIBSMC_LOG", if log.is_empty() { "error" } else { log }).env("LIBSMC_WAIT", "500");
        let mut p = c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start it");
        let mut line = String::new();
        BufReader::new(p.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        assert_eq!(line, "stored\n");
        e.process.kill().expect("kill the exporter");
        e.process.wait().expect("its end");
        p.stdin.take().expect("stdin").write_all(b"go\n").expect("let it end");
        let out = p.wait_with_output().expect("its end");
        let said = text(&out.stderr);
        assert!(out.status.success(), "{}: {said}", out.status);
        assert_eq!(said.contains("stores are lost at 4100..4101"), told, "LIBSMC_LOG={log}: {said:?}");
        assert!(told || said.is_empty(), "LIBSMC_LOG={log}: {said:?}");
    }
}

#[test]
fn posix_calls_do_what_they_say_on_every_back_end() {
    let program = app("posix_path", &[]);
    let program = program.to_str().expect("UTF-8");
    for backend in ["", "thread", "sigbus", "sync", "mprotect"] {
        let Some(e) = Exporter::start() else { return };
        let mut probe = preloaded("stat", &[&e.path()]);
        probe.env("LIBSMC_FAULT", backend);
        let probe = output(probe);
        if !probe.status.success() {
            eprintln!("skipped: back end {backend:?} does not work here: {}", text(&probe.stderr));
            continue;
        }
        let mut c = preloaded(program, &[&e.path(), &SIZE.to_string()]);
        c.env("LIBSMC_FAULT", backend);
        assert_eq!(good(c), "posix path ok\n", "back end {backend:?}");
    }
}

#[test]
fn a_cancelled_thread_unwinds_while_a_region_is_open() {
    let program = app("cancel", &[]);
    let Some(e) = Exporter::start() else { return };
    assert_eq!(good(preloaded(program.to_str().expect("UTF-8"), &[&e.path()])), "cancel ok\n");
}

#[test]
fn a_view_too_many_is_refused_and_changes_nothing() {
    let program = app("full_views", &[]);
    for backend in ["", "sigbus", "sync", "mprotect"] {
        let Some(e) = Exporter::start() else { return };
        let mut c = preloaded(program.to_str().expect("UTF-8"), &[&e.path()]);
        c.env("LIBSMC_FAULT", backend);
        good(c);
    }
}

#[test]
fn numbers_never_show_another_files_bytes() {
    let program = app("files_stress", &[]);
    let Some(e) = Exporter::start() else { return };
    let seed = std::env::var("SMC_SEED").unwrap_or_else(|_| std::process::id().to_string());
    eprintln!("SMC_SEED={seed}");
    let out = good(preloaded(program.to_str().expect("UTF-8"), &[&e.path(), &SIZE.to_string(), "3", &seed]));
    assert_eq!(out, "files stress ok\n");
}

#[test]
fn a_normal_exit_leaves_nothing_behind() {
    let program = app("exit_flush", &[]);
    let Some(e) = Exporter::start() else { return };
    good(preloaded(program.to_str().expect("UTF-8"), &[&e.path()]));
    let at = |skip: &str, count: &str| {
        let arg = |k: &str, v: &str| format!("{k}={v}");
        good(preloaded("dd", &[&arg("if", &e.path()), "bs=1", &arg("skip", skip), &arg("count", count), "status=none"]))
    };
    assert_eq!(at("1000", "8"), "buffered");
    assert_eq!(at("2000", "6"), "mapped");
}

#[test]
fn bytes_written_by_one_program_are_read_by_the_next() {
    let Some(e) = Exporter::start() else { return };
    let p = e.path();
    let dir = target().join("apps");
    std::fs::create_dir_all(&dir).expect("make target/apps");
    let file = dir.join(&e.name);
    let data: Vec<u8> = (0..SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&file, &data).expect("write the pattern");
    let f = file.to_str().expect("UTF-8");
    good(preloaded("dd", &[&format!("if={f}"), &format!("of={p}"), "bs=64k", "conv=notrunc", "status=none"]));
    good(preloaded("cmp", &[&p, f]));
    // The control: one byte changed is seen.
    good(preloaded("sh", &["-c", &format!("printf X | dd of={p} bs=1 seek=70000 conv=notrunc status=none")]));
    let out = output(preloaded("cmp", &[&p, f]));
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(text(&out.stdout).contains("byte 70001"), "{out:?}");
    std::fs::remove_file(file).expect("clean up");
}

#[test]
fn everyday_tools_read_it() {
    let Some(e) = Exporter::start() else { return };
    let p = e.path();
    good(preloaded("sh", &["-c", &format!("printf 'b\\na\\n' | dd of={p} conv=notrunc status=none")]));
    assert_eq!(good(preloaded("wc", &["-c", &p])), format!("{SIZE} {p}\n"));
    assert_eq!(good(preloaded("head", &["-n", "2", &p])), "b\na\n");
    assert!(good(preloaded("ls", &["-l", &p])).contains(&format!(" {SIZE} ")));
    assert_eq!(good(preloaded("bash", &["-c", &format!("read -r l < {p}; echo $l")])), "b\n");
    let copy = target().join("apps").join(format!("{}.copy", e.name));
    good(preloaded("cp", &["-a", &p, copy.to_str().expect("UTF-8")]));
    assert_eq!(std::fs::read(&copy).expect("read the copy").len(), SIZE);
    std::fs::remove_file(copy).expect("clean up");
    if installed("perl") {
        assert_eq!(good(preloaded("perl", &["-e", &format!("open(F,'<','{p}') or die; print scalar <F>")])), "b\n");
    }
}

#[test]
fn python_maps_it_without_knowing() {
    if !installed("python3") {
        return;
    }
    let Some(e) = Exporter::start() else { return };
    let writer = r#"
import mmap, os, sys
fd = os.open(sys.argv[1] + "?policy=byte&acquire=10ms", os.O_RDWR)
assert os.fstat(fd).st_size == int(sys.argv[2])
m = mmap.mmap(fd, 0)
m[5000:5005] = b"numpy"
m.flush()
assert os.pread(fd, 5, 5000) == b"numpy"
os.pwrite(fd, b"N", 5000)
assert m[5000:5005] == b"Numpy"
m.madvise(mmap.MADV_WILLNEED)
m.close(); os.close(fd)
try: os.open(sys.argv[1] + "?policy=bits", os.O_RDWR); raise SystemExit("accepted")
except OSError as e: assert e.errno == 22, e
"#;
    let reader = r#"
import mmap, sys
with open(sys.argv[1], "rb") as f:
    m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    print(m[5000:5005].decode(), f.seek(5000), f.read(5).decode())
    c = mmap.mmap(f.fileno(), 8192, access=mmap.ACCESS_COPY); c[5000] = 65; print(c[5000:5005].decode(), m[5000:5005].decode())
"#;
    let (p, size) = (e.path(), SIZE.to_string());
    good(preloaded("python3", &["-c", writer, &p, &size]));
    assert_eq!(good(preloaded("python3", &["-c", reader, &p])), "Numpy 5000 Numpy\nAumpy Numpy\n");
}

#[test]
fn a_descriptor_that_bypasses_the_hooks_never_reads_zeros() {
    let Some(e) = Exporter::start() else { return };
    // The child of an exec has the number but not the region: an error, not the empty memory file.
    let out = output(preloaded("bash", &["-c", &format!("exec 7<{}; exec env -u LD_PRELOAD head -c 5 <&7", e.path())]));
    assert!(!out.status.success() && out.stdout.is_empty(), "{out:?}");
    let out = output(limited("cat", &[&e.path()]));
    assert!(text(&out.stderr).contains("No such file"), "{out:?}");
}

const MEMMAP_WRITER: &str = r#"
import os, sys, numpy as np
a = np.memmap(sys.argv[1], dtype=np.uint8, mode="r+", shape=(int(sys.argv[2]),))
n = 16 * 4096
# Pages no load has brought: the kernel meets them first, in a read and in a write.
r, w = os.pipe()
os.write(w, b"from the pipe")
assert os.readv(r, [memoryview(a)[5 * n + 4090 : 5 * n + 4103]]) == 13
assert os.write(w, memoryview(a)[7 * n : 7 * n + 6000]) == 6000
assert os.read(r, 6000) == bytes(a[7 * n : 7 * n + 6000])
with open(sys.argv[3], "rb") as f:
    f.seek(9 * n)
    assert os.preadv(f.fileno(), [memoryview(a)[9 * n - 100 : 9 * n]], 0) == 100
a[11 * n : 11 * n + 9000 : 2] ^= 0xFF
a.view(np.uint64)[12 * n // 8] = 1 << 40
a.flush()
"#;

const MEMMAP_READER: &str = r#"
import sys, numpy as np
a = np.memmap(sys.argv[1], dtype=np.uint8, mode="r")
want = np.fromfile(sys.argv[3], dtype=np.uint8)
n = 16 * 4096
want[5 * n + 4090 : 5 * n + 4103] = np.frombuffer(b"from the pipe", np.uint8)
want[9 * n - 100 : 9 * n] = want[:100]
want[11 * n : 11 * n + 9000 : 2] ^= 0xFF
want.view(np.uint64)[12 * n // 8] = 1 << 40
bad = np.flatnonzero(a != want)
assert bad.size == 0, bad[:10]
c = np.memmap(sys.argv[1], dtype=np.uint8, mode="c")
c[:10] = 1
assert (a[:10] == want[:10]).all()
print(int(a.sum()) == int(want.sum(dtype=np.uint64)))
"#;

/// dd, cmp and numpy on every back end: also those where a system call on an absent page must be tried again.
#[test]
fn common_programs_work_on_every_back_end() {
    let numpy = output(limited("/usr/bin/python3", &["-c", "import numpy"])).status.success();
    if !numpy {
        eprintln!("skipped in part: /usr/bin/python3 has no numpy");
    }
    for backend in ["thread", "sigbus", "sync", "mprotect"] {
        let Some(e) = Exporter::start() else { return };
        let on = |program: &str, args: &[&str]| {
            let mut c = preloaded(program, args);
            c.env("LIBSMC_FAULT", backend);
            c
        };
        let (p, size) = (e.path(), SIZE.to_string());
        let probe = output(on("stat", &[&p]));
        if !probe.status.success() {
            eprintln!("skipped: back end {backend:?} does not work here: {}", text(&probe.stderr));
            continue;
        }
        let file = target().join("apps").join(format!("{}.{backend}", e.name));
        std::fs::create_dir_all(target().join("apps")).expect("make target/apps");
        let data: Vec<u8> = (0..SIZE as u32).map(|i| (i.wrapping_mul(2_246_822_519) >> 11) as u8).collect();
        std::fs::write(&file, &data).expect("write the pattern");
        let f = file.to_str().expect("UTF-8");
        good(on("dd", &[&format!("if={f}"), &format!("of={p}"), "bs=37k", "conv=notrunc", "status=none"]));
        good(on("cmp", &[&p, f]));
        good(on("sh", &["-c", &format!("dd if={p} bs=64k status=none | cmp - {f}")]));
        if numpy {
            good(on("/usr/bin/python3", &["-c", MEMMAP_WRITER, &p, &size, f]));
            // The control: cmp sees that something changed, and where first.
            let out = output(on("cmp", &[&p, f]));
            assert_eq!(out.status.code(), Some(1), "{backend}: {out:?}");
            assert_eq!(good(on("/usr/bin/python3", &["-c", MEMMAP_READER, &p, &size, f])), "True\n", "{backend}");
        }
        std::fs::remove_file(&file).expect("clean up");
    }
}

#[test]
fn descriptors_that_the_library_closes_on_its_own_threads_are_not_ours() {
    let program = app("own_descriptors", &[]);
    let (Some(a), Some(b), Some(c)) = (Exporter::start(), Exporter::start(), Exporter::start()) else { return };
    let said = good(preloaded(program.to_str().expect("UTF-8"), &[&a.path(), &b.path(), &c.path()]));
    assert_eq!(said, "ok\n");
}

#[test]
fn locked_memory_and_read_only_views_on_every_back_end() {
    let program = app("locked", &[]);
    for backend in ["thread", "sigbus", "sync", "mprotect"] {
        let Some(e) = Exporter::start() else { return };
        let mut c = preloaded(program.to_str().expect("UTF-8"), &[&e.path()]);
        c.env("LIBSMC_FAULT", backend);
        let out = output(c);
        assert_eq!(text(&out.stdout), "ok\n", "{backend}: {}{}", out.status, text(&out.stderr));
    }
}
