//! Other processes, and small things every test needs.

use smc_engine::base::HomeOff;
use smc_engine::base::Status;
use smc_engine::core::export::{Export, ExportOptions, Exporter, Memory};
use smc_engine::link::embedded::EmbeddedLink;
use smc_engine::link::{Access, AtomicOp, Link, RegionKey};
use smc_engine::sys::clock::Deadline;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longest life of a child and longest wait for a line, in seconds.
const LIMIT: u32 = 60;

/// Another process of this binary.
pub struct Child {
    proc: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Starts `role` with arguments it finds by [`arg`].
    pub fn start(role: &str, args: &[&str]) -> Child {
        let mut c = Command::new(std::env::current_exe().unwrap());
        c.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        c.env("SMC_TEST_ROLE", role).env("SMC_TEST_ARGS", args.join(" "));
        let mut proc = c.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(proc.stdout.take().unwrap());
        let (tx, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // libtest prints its own lines, and begins ours with the test's name.
                if let Some((_, said)) = line.split_once("@@ ") {
                    let _ = tx.send(said.to_owned());
                }
            }
        });
        Child { proc, lines }
    }

    /// The next line it says.
    pub fn hear(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(LIMIT.into())).expect("the child said nothing in time")
    }

    /// Waits for exactly this line.
    pub fn expect(&self, want: &str) {
        assert_eq!(self.hear(), want);
    }

    /// Gives it a line.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.proc.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Ends it without mercy.
    pub fn kill(&mut self) {
        self.proc.kill().unwrap();
        self.proc.wait().unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.proc.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.proc.kill();
        let _ = self.proc.wait();
    }
}

/// In a child: says a line.
pub fn say(line: impl std::fmt::Display) {
    println!("@@ {line}");
    std::io::stdout().flush().unwrap();
}

/// In a child: waits for a line.
pub fn listen() -> String {
    let mut s = String::new();
    std::io::stdin().read_line(&mut s).unwrap();
    s.trim().to_owned()
}

/// In a child: the n-th argument.
pub fn arg(n: usize) -> String {
    std::env::var("SMC_TEST_ARGS").unwrap().split(' ').nth(n).unwrap_or_default().to_owned()
}

/// In a child: dies when the limit is reached, whatever hangs.
pub fn limit_life() {
    // SAFETY: alarm has no preconditions; SIGALRM's default ends the process.
    unsafe { libc::alarm(LIMIT) };
}

/// A name no other test uses.
pub fn unique(stem: &str) -> String {
    static N: AtomicU64 = AtomicU64::new(0);
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| {
        drop(std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(180));
            eprintln!("a test hangs: the suite takes seconds");
            std::process::exit(124);
        }))
    });
    format!("test.{stem}.{}.{}", std::process::id(), N.fetch_add(1, SeqCst))
}

pub fn soon() -> Deadline {
    Deadline::in_ms(10_000)
}

pub fn export(stem: &str, len: usize) -> Export {
    export_with(stem, len, ExportOptions::default())
}

pub fn export_with(stem: &str, len: usize, options: ExportOptions) -> Export {
    Exporter::get().unwrap().export(&unique(stem), Memory::New(len), options).unwrap()
}

/// The exporter's own word at a byte offset.
pub fn word(e: &Export, off: usize) -> &AtomicU64 {
    assert!(off + 8 <= e.len() && off.is_multiple_of(8));
    // SAFETY: inside the exported memory, aligned, and shared memory of atomics for as long as the export.
    unsafe { &*e.base().wrapping_add(off).cast::<AtomicU64>() }
}

/// A link with one region open.
pub struct Client {
    pub link: EmbeddedLink,
    pub key: RegionKey,
}

impl Client {
    pub fn open(name: &str, want: Access) -> Client {
        let link = EmbeddedLink::connect_local();
        let key = link.open(name, want, soon()).unwrap().key;
        Client { link, key }
    }

    pub fn fetch(&self, off: u64, buf: &mut [u8]) -> Status {
        // SAFETY: the buffer is writable for its length.
        unsafe { self.link.fetch(self.key, HomeOff(off), buf.as_mut_ptr(), buf.len(), soon()) }
    }

    pub fn put(&self, off: u64, buf: &[u8]) -> Status {
        // SAFETY: the buffer is readable for its length.
        unsafe { self.link.put(self.key, HomeOff(off), buf.as_ptr(), buf.len(), soon()) }
    }

    pub fn atomic(&self, off: u64, op: AtomicOp) -> Result<u64, Status> {
        self.link.atomic(self.key, HomeOff(off), op, soon())
    }

    pub fn word(&self, off: u64) -> Result<u64, Status> {
        let mut b = [0; 8];
        self.fetch(off, &mut b).ok().map(|()| u64::from_le_bytes(b))
    }
}

/// Repeats `f` until it is true; fails after ten seconds.
pub fn eventually(what: &str, mut f: impl FnMut() -> bool) {
    let end = soon();
    while !f() {
        assert!(!end.passed(), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sets its flag when dropped: a panic in a scope then ends the scope's threads instead of waiting for them for ever.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
