//! Exporters that end and come back: what their clients see.

mod preload_support;
mod tool_support;

use smc_engine::base::{PAGE, Status, config::Backend};
use smc_engine::core::condition::Condition;
use smc_engine::core::export::{Export, ExportOptions, Exporter, Memory};
use smc_engine::core::options::{MapOptions, OnError};
use smc_engine::core::region::{Parts, Region};
use smc_engine::core::selftest;
use smc_engine::link::embedded::EmbeddedLink;
use smc_engine::link::{Access, Health, Link};
use smc_engine::sys::clock::Deadline;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGES: usize = 32;

/// A client of one region, with a view of all of it.
struct Client {
    region: Arc<Region>,
    v: usize,
}

impl Client {
    fn open(name: &str, opts: MapOptions) -> Client {
        let backend = Backend::ALL.into_iter().find(|b| selftest::try_backend(*b).outcome.is_ok()).expect("a back end");
        let link: Arc<dyn Link> = Arc::new(EmbeddedLink::connect_local());
        let opened = link.open(name, opts.access, Deadline::in_ms(5000)).expect("open");
        let opts = MapOptions { resident_limit: 1 << 30, wait_ms: opts.wait_ms.max(1), ..opts };
        let write = opts.access == Access::ReadWrite;
        let region = Region::new(Parts { link, opened, opts, backend }).expect("a region");
        let v = region.map_view(0, false, 0, PAGES * PAGE, write).expect("a view");
        Client { region, v }
    }

    fn load(&self, at: usize) -> u64 {
        // SAFETY: callers stay inside the view.
        unsafe { ((self.v + at) as *const u64).read_volatile() }
    }

    fn store(&self, at: usize, value: u64) {
        // SAFETY: as above.
        unsafe { ((self.v + at) as *mut u64).write_volatile(value) }
    }

    fn health(&self) -> Health {
        self.region.link().health(self.region.key())
    }

    fn attachments(&self) -> u64 {
        self.region.link().attachments(self.region.key())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.region.unmap_view(self.v, PAGES * PAGE);
    }
}

fn eventually(what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn unique(tag: &str) -> String {
    format!("restart-{tag}-{}", std::process::id())
}

fn opts() -> MapOptions {
    MapOptions { on_error: OnError::WaitValue, wait_ms: 5000, window: 1, ..MapOptions::default() }
}

fn word(e: &Export, at: usize) -> u64 {
    assert!(at + 8 <= e.len());
    // SAFETY: inside the export's memory, which lives as long as it.
    unsafe { e.base().wrapping_add(at).cast::<u64>().read_volatile() }
}

fn set(e: &Export, at: usize, value: u64) {
    assert!(at + 8 <= e.len());
    // SAFETY: as above.
    unsafe { e.base().wrapping_add(at).cast::<u64>().write_volatile(value) }
}

fn export(name: &str, incarnation: u64, pages: usize) -> Export {
    let options = ExportOptions { incarnation, ..ExportOptions::default() };
    Exporter::get().and_then(|x| x.export(name, Memory::New(pages * PAGE), options)).expect("an export")
}

/// The same content comes back: loads wait for it, stores that were not released are kept and arrive, and what was cached is
/// fetched anew; nothing is mapped again.
#[test]
fn the_same_memory_goes_on() {
    let name = unique("same");
    let first = export(&name, 77, PAGES);
    (0..PAGES).for_each(|p| set(&first, p * PAGE, p as u64 + 1));
    let c = Client::open(&name, opts());
    assert_eq!((c.load(0), c.load(PAGE)), (1, 2));
    c.store(8, 5);
    drop(first);
    eventually("the end is seen", || c.health() == Health::Retrying(Status::PEER_DEAD));
    eventually("and told", || c.region.condition() == (Condition::Degraded, Status::PEER_DEAD));
    assert_eq!(c.region.release(0, 0), Status::PEER_DEAD);
    assert_eq!((c.load(8), c.load(0)), (5, 1), "own stores stay in sight");
    assert_eq!(c.region.unreleased(9), [(8, 9)]);
    assert_eq!(c.region.lost(9), [], "nothing is lost yet");
    let second = std::thread::scope(|s| {
        let again = s.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            let e = export(&name, 77, PAGES);
            (0..PAGES).for_each(|p| set(&e, p * PAGE, p as u64 + 1001));
            e
        });
        // A load waits for the home to come back.
        let seen = c.load(20 * PAGE);
        assert!(seen == 1021 || seen == 0, "saw {seen:#x}");
        again.join().expect("an export")
    });
    eventually("the store arrives", || word(&second, 8) == 5);
    eventually("the region is well", || c.region.condition().0 == Condition::Ok);
    eventually("clean pages are fetched anew", || c.load(PAGE) == 1002);
    assert_eq!((c.load(8), c.attachments()), (5, 2));
    c.store(16, 6);
    assert_eq!(c.region.release(0, 0), Status::OK);
    assert_eq!(word(&second, 16), 6);
}

/// Other memory under the old name is never touched: the region says STALE, for good, and names what it could not send.
#[test]
fn other_memory_is_not_mixed_in() {
    for (tag, incarnation, pages) in [("other", 78, PAGES), ("any", 0, PAGES), ("longer", 77, 2 * PAGES)] {
        let name = unique(tag);
        let first = export(&name, 77, PAGES);
        set(&first, 0, 1);
        let c = Client::open(&name, opts());
        assert_eq!(c.load(0), 1);
        c.store(8, 5);
        drop(first);
        let second = export(&name, incarnation, pages);
        set(&second, 20 * PAGE, 9);
        eventually("it is known", || c.health() == Health::Down(Status::STALE));
        assert_eq!(c.region.condition(), (Condition::Unavailable, Status::STALE), "{tag}");
        assert_eq!(c.load(20 * PAGE), u64::MAX, "{tag}: a byte of the new memory was shown");
        assert_eq!((c.load(0), c.load(8)), (1, 5), "{tag}: what is here stays");
        assert_eq!(c.region.release(0, 0), Status::STALE, "{tag}");
        assert_eq!(c.region.lost(9), [(8, 9)], "{tag}");
        assert_eq!(word(&second, 8), 0, "{tag}: a store went to the new memory");
        eventually("nobody stays connected", || second.clients().is_empty());
        assert_eq!(Client::open(&name, opts()).load(20 * PAGE), 9, "{tag}: a new mapping works");
    }
}

/// Restart after restart, with threads at work all the while: no wrong byte, no hang, every store arrives.
#[test]
fn restarts_under_load() {
    let name = unique("load");
    let memory = smc_engine::sys::mem::Mapping::anonymous(PAGES * PAGE, smc_engine::sys::mem::RW).expect("memory");
    let mut e = Some(export_at(&name, &memory));
    (8..11).for_each(|p| set(e.as_ref().expect("an export"), p * PAGE, 7));
    let c = Client::open(&name, opts());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        for t in 0..3usize {
            let (c, stop) = (&c, &stop);
            s.spawn(move || {
                let mut n = 0u64;
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    n += 1;
                    c.store(t * PAGE + 8, n);
                    let _ = c.region.release(0, 0);
                    assert_eq!(c.load(t * PAGE + 8), n, "an own store went out of sight");
                    let _ = c.region.acquire(0, 0);
                    assert_eq!(c.load(t * PAGE + 8), n, "an own store went out of sight");
                    assert_eq!(c.load((8 + t) * PAGE), 7, "a wrong byte");
                }
            });
        }
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(60));
            // The memory is the caller's: it keeps every byte that an export of it has taken.
            drop(e.take());
            e = Some(export_at(&name, &memory));
        }
        eventually("it is well", || c.region.condition().0 == Condition::Ok);
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    assert_eq!(c.region.release(0, 0), Status::OK);
    let e = e.expect("an export");
    (0..3).for_each(|t| assert_eq!(word(&e, t * PAGE + 8), c.load(t * PAGE + 8), "thread {t}"));
}

/// The same memory of the caller again and again.
fn export_at(name: &str, m: &smc_engine::sys::mem::Mapping) -> Export {
    // SAFETY: anonymous memory that outlives the export, and nobody has a reference to it.
    let memory = unsafe { Memory::at(m.ptr(), m.len()) };
    let options = ExportOptions { incarnation: 5, ..ExportOptions::default() };
    Exporter::get().and_then(|x| x.export(name, memory, options)).expect("an export")
}

struct Serve(Child);

impl Serve {
    fn start(args: &[&str]) -> Serve {
        let mut child = Command::new(tool_support::tool())
            .arg("serve")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("smc serve");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        assert!(line.starts_with("serving"), "{line:?}");
        Serve(child)
    }

    fn end(mut self, signal: i32) {
        // SAFETY: our own child, not reaped yet.
        unsafe { libc::kill(self.0.id() as i32, signal) };
        let _ = self.0.wait();
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scratch(tag: &str) -> std::path::PathBuf {
    let p = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique(tag));
    std::fs::write(&p, vec![1u8; PAGES * PAGE]).expect("a file");
    p
}

/// `smc serve --file`, ended and started again: the content survives, and so do its clients.
#[test]
fn serve_with_a_file_survives() {
    let (name, file) = (unique("file"), scratch("file"));
    let args = ["--name", &name, "--file", file.to_str().expect("a path")];
    let first = Serve::start(&args);
    let c = Client::open(&name, opts());
    c.store(0, 5);
    assert_eq!(c.region.release(0, 0), Status::OK);
    c.store(PAGE, 6);
    first.end(libc::SIGTERM);
    eventually("the end is seen", || c.health() == Health::Retrying(Status::PEER_DEAD));
    let second = Serve::start(&args);
    eventually("it is back, or not", || !matches!(c.health(), Health::Retrying(_)));
    let known = c.health() == Health::Up;
    if !known {
        // A file system without extended attributes: every serving is new content.
        assert_eq!(c.health(), Health::Down(Status::STALE));
        assert!(!xattrs_work(&file), "the number was left on the file and not found");
        return;
    }
    assert_eq!(c.region.release(0, 0), Status::OK);
    assert_eq!(c.region.acquire(0, 0), Status::OK);
    assert_eq!((c.load(0), c.load(PAGE), c.load(2 * PAGE)), (5, 6, u64::from_le_bytes([1; 8])));
    // A crash: what was released is not in the file, so the next one is other memory.
    second.end(libc::SIGKILL);
    let _third = Serve::start(&args);
    eventually("it is known", || c.health() == Health::Down(Status::STALE));
    let fresh = Client::open(&name, opts());
    assert_eq!(fresh.load(0), 5, "what the regular end wrote back");
    let _ = std::fs::remove_file(file);
}

fn xattrs_work(file: &Path) -> bool {
    let c = std::ffi::CString::new(file.to_str().expect("a path")).expect("a path");
    // SAFETY: NUL-terminated strings and an empty value.
    unsafe { libc::setxattr(c.as_ptr(), c"user.smc.probe".as_ptr(), std::ptr::null(), 0, 0) == 0 }
}

/// A file that is only read is the same after a crash too.
#[test]
fn serve_read_only_survives_a_crash() {
    let (name, file) = (unique("ro"), scratch("ro"));
    let args = ["--name", &name, "--file", file.to_str().expect("a path"), "--read-only"];
    let first = Serve::start(&args);
    let c = Client::open(&name, MapOptions { access: Access::ReadOnly, ..opts() });
    assert_eq!(c.load(0), u64::from_le_bytes([1; 8]));
    first.end(libc::SIGKILL);
    eventually("the end is seen", || c.health() == Health::Retrying(Status::PEER_DEAD));
    let _second = Serve::start(&args);
    eventually("it is back", || c.health() == Health::Up);
    assert_eq!(c.load(20 * PAGE), u64::from_le_bytes([1; 8]));
    let _ = std::fs::remove_file(file);
}

/// `smc serve` takes the memory away from its clients when it is told to, and serves others.
#[test]
fn serve_revokes_on_demand() {
    let name = unique("usr2");
    let serve = Serve::start(&["--name", &name, "--size", "128K"]);
    let c = Client::open(&name, opts());
    c.store(0, 5);
    assert_eq!(c.region.release(0, 0), Status::OK);
    c.store(PAGE, 6);
    // SAFETY: our own child.
    unsafe { libc::kill(serve.0.id() as i32, libc::SIGUSR2) };
    eventually("it is revoked", || c.health() == Health::Down(Status::REVOKED));
    assert_eq!(c.region.release(0, 0), Status::REVOKED);
    assert_eq!(c.region.lost(9), [(PAGE as u64, PAGE as u64 + 1)]);
    let other = Client::open(&name, opts());
    assert_eq!((other.load(0), other.load(PAGE)), (5, 0));
}

/// Without a file the memory is new.
#[test]
fn serve_without_a_file_is_new() {
    let name = unique("new");
    let args = ["--name", &name, "--size", "128K"];
    let first = Serve::start(&args);
    let c = Client::open(&name, opts());
    c.store(0, 5);
    first.end(libc::SIGTERM);
    let _second = Serve::start(&args);
    eventually("it is known", || c.health() == Health::Down(Status::STALE));
    assert_eq!(c.region.release(0, 0), Status::STALE);
    assert_eq!(c.region.lost(9), [(0, 1)]);
}
