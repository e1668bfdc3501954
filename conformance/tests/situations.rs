//! Region pages behave like memory in the situations that a program can create, or it is told loudly that they do not.
//!
//! The programs are in `conformance/apps/situations`; each case is a process of its own, on every back end that works here.

mod preload_support;
mod situations_support;

use preload_support::{installed, library, output, target, text};
use situations_support::{Exporter, SIZE, backends, command, everywhere, judge};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Buffers in absent, clean and dirty pages; bad addresses beside good ones; long buffers.
#[test]
fn system_calls() {
    everywhere("calls", &["files", "stdio", "sockets", "waiting", "processes"], "");
    everywhere("edges", &["checked", "big", "bad"], "");
}

/// The same where pages are driven out all the time.
#[test]
fn system_calls_on_a_region_larger_than_its_limit() {
    everywhere("calls", &["files", "sockets", "waiting", "processes"], "?resident=1m");
    everywhere("edges", &["big", "bad"], "?resident=1m");
}

/// Calls that wait while the pages of their buffers go, and then get what would be lost if they failed.
#[test]
fn calls_that_wait() {
    everywhere("late", &["all"], "");
}

/// mlock and its relatives, mincore, and what would change a view behind the library.
#[test]
fn memory_calls() {
    everywhere("memory", &["locks", "all", "refusals"], "");
    everywhere("memory", &["locks", "all"], "?resident=1m");
}

/// fork, clone, vfork, posix_spawn, exec.
#[test]
fn processes() {
    everywhere("family", &["forked", "busy", "sharing", "exec"], "");
}

/// Programs that close every descriptor, by every way there is, and daemons.
#[test]
fn descriptors() {
    everywhere("daemon", &["numbers", "close_range", "closefrom", "loop", "bypassed", "confined", "daemon"], "");
}

/// Little stacks, alternate stacks, signals to the library's threads, and no time for them.
#[test]
fn threads() {
    everywhere("threads", &["stacks", "altstacks", "small", "signals", "stopped", "starved"], "");
}

/// O_DIRECT and io_uring.
#[test]
fn input_past_the_page_tables() {
    everywhere("direct", &["files", "uring", "registered"], "");
    everywhere("direct", &["files"], "?resident=8m");
}

/// Another process reads and writes the memory.
#[test]
fn other_processes() {
    everywhere("outside", &["peeked", "traced"], "");
}

/// strace looks at every buffer of every call, and holds every thread that makes one.
#[test]
fn under_strace() {
    if !installed("strace") {
        return;
    }
    for backend in backends() {
        let e = Exporter::start("strace", SIZE);
        let mut c = command(&e, "outside", "traced", backend, "");
        let args: Vec<_> = c.get_args().map(ToOwned::to_owned).collect();
        let lib = format!("LD_PRELOAD={}", library().display());
        c = Command::new("timeout");
        // timeout -k 5 LIMIT strace ... program name case
        c.args(&args[..3]).args(["strace", "-f", "-q", "-o", "/dev/null", "-E", &lib]).args(&args[3..]);
        c.env("LIBSMC_FAULT", backend).stdin(Stdio::null());
        judge(output(c), &format!("strace {backend}"));
    }
}

/// A program that waits for a line, with one page here and another one absent.
struct Waiting {
    process: std::process::Child,
    pid: String,
    here: String,
    absent: String,
}

impl Waiting {
    fn start(e: &Exporter, backend: &str) -> Waiting {
        let mut c = command(e, "outside", "waits", backend, "");
        let mut process = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start it");
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().expect("stdout"));
        out.read_line(&mut line).expect("a line");
        process.stdout = Some(out.into_inner());
        let w: Vec<String> = line.split_whitespace().map(String::from).collect();
        assert_eq!(w[0], "ready", "{line}");
        Waiting { process, pid: w[1].clone(), here: w[2].clone(), absent: w[3].clone() }
    }

    fn goes_on(mut self, what: &str) {
        self.process.stdin.take().expect("stdin").write_all(b"\n").expect("let it go on");
        judge(self.process.wait_with_output().expect("its end"), what);
    }
}

/// A page that cannot be had is an error of the call, also where a load of it raises SIGBUS.
#[test]
fn a_dead_home() {
    for backend in backends() {
        let e = Exporter::start("gone", SIZE);
        let mut c = command(&e, "outside", "gone", backend, "?onerror=sigbus&wait=300ms");
        let mut process = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start it");
        let mut line = String::new();
        let mut out = BufReader::new(process.stdout.take().expect("stdout"));
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "{backend}");
        drop(e);
        process.stdin.take().expect("stdin").write_all(b"\n").expect("let it go on");
        process.stdout = Some(out.into_inner());
        judge(process.wait_with_output().expect("its end"), &format!("dead home {backend}"));
    }
}

/// What gdb says about two bytes at an address, or that it cannot read them.
fn examined(args: &[&str], at: &str) -> String {
    let mut c = Command::new("timeout");
    c.args(["-k", "5", "60", "gdb", "-nx", "-q", "-batch"]).args(args).args(["-ex", &format!("x/2xb {at}")]);
    let out = output(c);
    assert_ne!(out.status.code(), Some(124), "gdb waits for ever: {args:?}");
    // The address goes to one stream and the complaint to the other.
    if text(&out.stderr).contains(&format!("Cannot access memory at address {at}")) {
        return "cannot".into();
    }
    let all = text(&out.stdout);
    let line = all.lines().find(|l| l.starts_with(at)).unwrap_or_else(|| panic!("{args:?}: {out:?}"));
    line.split_once(':').expect("bytes").1.trim().into()
}

/// A debugger that holds all threads reads what is here, is told that it cannot read what is not, and does no harm. Core
/// dumps, its own and the kernel's, leave views out.
#[test]
fn debuggers_and_core_dumps() {
    if !installed("gdb") || !installed("gcore") {
        return;
    }
    let dir = target().join(format!("situations-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("make a directory");
    for backend in backends() {
        let e = Exporter::start("gdb", SIZE);
        let w = Waiting::start(&e, backend);
        let at = w.pid.as_str();
        assert_eq!(examined(&["-p", at], &w.here), "0x01\t0x08", "{backend}");
        // mprotect hides pages by their protection, which does not bind a debugger: it sees the page as it was last.
        let want = if backend == "mprotect" { "0x00\t0x00" } else { "cannot" };
        assert_eq!(examined(&["-p", at], &w.absent), want, "{backend}");
        let prefix = dir.join("core");
        let mut c = Command::new("timeout");
        c.args(["-k", "5", "60", "gcore", "-o", prefix.to_str().expect("UTF-8"), at]);
        let out = output(c);
        assert!(out.status.success(), "{backend}: {out:?}");
        let core = format!("{}.{at}", prefix.display());
        for address in [&w.here, &w.absent] {
            assert_eq!(examined(&["-c", &core], address), "cannot", "{backend}");
        }
        w.goes_on(&format!("gdb {backend}"));
    }
    std::fs::remove_dir_all(&dir).expect("clean up");
}

/// Address range of each segment of a core file, and how many bytes of it the file has.
fn segments(core: &[u8]) -> impl Iterator<Item = (std::ops::Range<u64>, u64)> + '_ {
    let u64_at = |at: usize| u64::from_le_bytes(core[at..at + 8].try_into().expect("eight bytes"));
    let count = usize::from(u16::from_le_bytes([core[56], core[57]]));
    let table = u64_at(32) as usize;
    (0..count).map(move |i| table + i * 56).filter(|h| core[*h] == 1).map(move |h| {
        let start = u64_at(h + 16);
        (start..start + u64_at(h + 40), u64_at(h + 32))
    })
}

/// Bytes that a core file has of the segment at an address. It must have the segment.
fn bytes_in_core(core: &[u8], at: u64) -> u64 {
    segments(core).find(|(range, _)| range.contains(&at)).expect("the view's segment").1
}

/// The kernel's dump of a program that dies with absent pages.
#[test]
fn the_kernel_dumps_a_core() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.contains(['/', '|', '%']) {
        eprintln!("skipped: cores go to {pattern:?}");
        return;
    }
    for backend in backends() {
        let dir = target().join(format!("situations-core-{}-{backend}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("make a directory");
        let e = Exporter::start("core", SIZE);
        let out = output({
            let mut c = command(&e, "outside", "dies", backend, "");
            c.current_dir(&dir);
            c
        });
        let files: Vec<_> = std::fs::read_dir(&dir).expect("read it").map(|f| f.expect("a file").path()).collect();
        assert_eq!(files.len(), 1, "{backend}: no core: {out:?}");
        let at = text(&out.stdout).trim().to_owned();
        let at = u64::from_str_radix(at.trim_start_matches("0x"), 16).expect("an address");
        let core = std::fs::read(&files[0]).expect("read the core");
        // gdb shows zeros for what a core leaves out, so the core itself is asked: it says that the bytes are not in it.
        assert_eq!(bytes_in_core(&core, at), 0, "{backend}");
        assert!(segments(&core).any(|(_, bytes)| bytes > 0), "{backend}: an empty core");
        std::fs::remove_dir_all(&dir).expect("clean up");
    }
}
