//! Torture: one fixed program, run once for each operation that can fail, with that one failing.
//!
//! What can fail is every system call of the library that the kernel may refuse, every operation of the link, and every
//! allocation. Each run is a process of its own with a time limit. It must not crash, hang, or show a wrong byte; afterwards,
//! with nothing failing any more, what was stored is at the home or was named as lost, and everything works.

use crate::rig::{Home, load8, store8};
use crate::runner::{Case, Ctx, Verdict};
use smc_engine::base::{HomeOff, PAGE, Status, config::Backend};
use smc_engine::core::options::{MapOptions, OnError};
use smc_engine::core::region::{Parts, Region};
use smc_engine::core::selftest;
use smc_engine::link::*;
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::inject;
use smc_engine::sys::mem::{self, Mapping};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One case per back end. Not by `cases!`: the case's own process must not use the library, for its children to.
pub const CASES: &[Case] = &[
    case("torture_every_failure_thread", |c| every_failure(c, Backend::Thread)),
    case("torture_every_failure_sigbus", |c| every_failure(c, Backend::Sigbus)),
    case("torture_every_failure_sync", |c| every_failure(c, Backend::Sync)),
    case("torture_every_failure_mprotect", |c| every_failure(c, Backend::Mprotect)),
];

const fn case(name: &'static str, run: fn(&mut Ctx) -> Verdict) -> Case {
    Case::new(name, run).timeout(120)
}

/// The program stays below this many operations.
const MOST: u64 = 2000;
const PAGES: usize = 96;
const ERROR: u8 = 0xEE;
/// Longest run.
const LIMIT: Duration = Duration::from_secs(20);

/// A link whose operations can be the one that fails.
struct Struck(Arc<dyn Link>);

fn strike() -> Result<(), Status> {
    if inject::link_fails() { Err(Status::LINK_DOWN) } else { Ok(()) }
}

impl Link for Struck {
    fn name(&self) -> &'static str {
        "struck"
    }
    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, smc_engine::base::Error> {
        strike().map_err(|s| smc_engine::base::Error::of(s, "open"))?;
        self.0.open(name, want, deadline)
    }
    fn close(&self, key: RegionKey) {
        self.0.close(key);
    }
    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, smc_engine::base::Error> {
        self.0.list(deadline)
    }
    fn health(&self, key: RegionKey) -> Health {
        self.0.health(key)
    }
    fn abandon(&self, key: RegionKey) {
        self.0.abandon(key);
    }
    fn attachments(&self, key: RegionKey) -> u64 {
        self.0.attachments(key)
    }
    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status {
        if let Err(s) = strike() {
            return s;
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.fetch(key, off, dst, len, deadline) }
    }
    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status {
        if let Err(s) = strike() {
            return s;
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.put(key, off, src, len, deadline) }
    }
    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        strike()?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.post(key, ops) }
    }
    fn wait(&self, key: RegionKey, ticket: Ticket, deadline: Deadline) -> Status {
        let s = self.0.wait(key, ticket, deadline);
        strike().err().unwrap_or(s)
    }
    fn fence(&self, key: RegionKey, deadline: Deadline) -> Status {
        strike().err().unwrap_or_else(|| self.0.fence(key, deadline))
    }
    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        strike()?;
        self.0.atomic(key, off, op, deadline)
    }
    fn wants_registration(&self) -> bool {
        self.0.wants_registration()
    }
    unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Registration, Status> {
        strike()?;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.0.register(ptr, len) }
    }
    fn deregister(&self, r: Registration) {
        self.0.deregister(r);
    }
    fn stats(&self) -> &smc_engine::base::stats::LinkStats {
        self.0.stats()
    }
}

/// The program's own idea of the bytes: the first byte of page p is p, and it stores at offset 100.
struct Script {
    region: Arc<Region>,
    v: usize,
    /// Last value stored in each page.
    stored: Vec<Option<u8>>,
}

impl Script {
    fn load(&self, page: usize, when: &str) {
        let got = load8(self.v + page * PAGE);
        assert!(got == page as u8 || got == ERROR, "{when}: page {page} begins with {got:#x}");
        let got = load8(self.v + page * PAGE + 100);
        let want = self.stored[page].unwrap_or(0);
        // A store to a page that failed is lost; its page shows the error value or the home's byte.
        let lost = self.lost(page) && got == 0;
        assert!(got == want || got == ERROR || lost, "{when}: page {page} holds {got:#x} instead of {want:#x}");
    }

    fn lost(&self, page: usize) -> bool {
        let at = (page * PAGE + 100) as u64;
        self.region.lost(usize::MAX).iter().any(|(s, e)| (*s..*e).contains(&at))
    }

    fn store(&mut self, page: usize, value: u8) {
        store8(self.v + page * PAGE + 100, value);
        self.stored[page] = Some(value);
    }

    fn run(&mut self) {
        (0..PAGES).step_by(7).for_each(|p| self.load(p, "first loads"));
        (0..PAGES).step_by(5).for_each(|p| self.store(p, 1 + p as u8));
        let _ = self.region.release(0, 0);
        let _ = self.region.prefetch(0, 0);
        (0..PAGES).step_by(3).for_each(|p| self.load(p, "loads again"));
        let _ = self.region.acquire(0, 0);
        (0..PAGES).step_by(9).for_each(|p| self.store(p, 2 + p as u8));
        (0..PAGES).step_by(4).for_each(|p| self.load(p, "after an acquire"));
        let _ = self.region.flush(0, 0);
        let _ = self.region.invalidate(0, 16 * PAGE as u64);
        let _ = self.region.at_home(200, AtomicOp::FetchAdd(0));
        let mut buf = [0u8; 2 * PAGE];
        // SAFETY: the buffer has this many bytes.
        let s = unsafe { self.region.read(10 * PAGE as u64, buf.as_mut_ptr(), buf.len()) };
        assert!(!s.is_ok() || (buf[0], buf[PAGE]) == (10, 11), "a read shows {} {}", buf[0], buf[PAGE]);
        let v = self.region.map_view(0, false, 8 * PAGE as u64, 8 * PAGE, true);
        if let Ok(w) = v {
            let got = load8(w);
            assert!(got == 8 || got == ERROR, "a second view shows {got:#x}");
            let _ = self.region.unmap_view(w + 2 * PAGE, 2 * PAGE);
            let got = load8(w + PAGE);
            assert!(got == 9 || got == ERROR, "the rest of a second view shows {got:#x}");
            let _ = self.region.unmap_view(w, 8 * PAGE);
        }
        let _ = self.region.barrier();
        let _ = self.region.release(0, 0);
    }
}

/// What a run was.
const FINE: i32 = 0;
/// The access was refused with SIGBUS: it could not be shown. Allowed.
const REFUSED: i32 = 77;
/// A promise was broken; the text is on stderr.
const BROKEN: i32 = 101;

extern "C" fn refused(_: i32) {
    // SAFETY: async-signal-safe, and does not return.
    unsafe { libc::_exit(REFUSED) }
}

fn options(n: u64) -> MapOptions {
    MapOptions {
        resident_limit: if n.is_multiple_of(2) { 256 << 10 } else { 1 << 30 },
        on_error: OnError::WaitValue,
        wait_ms: 300,
        window: 4,
        error_byte: ERROR,
        ..MapOptions::default()
    }
}

/// One run with the n-th operation failing. Ends the process. `paged` decides between the two kinds of region.
fn one(backend: Backend, n: u64, paged: u64, counted: &std::sync::atomic::AtomicU64) -> i32 {
    // SAFETY: the handler only ends the process. The library's own comes later and goes before it.
    unsafe { libc::signal(libc::SIGBUS, refused as *const () as libc::sighandler_t) };
    let home = Home::embedded(PAGES * PAGE, 0);
    (0..PAGES).for_each(|p| home.poke(p * PAGE, &[p as u8]));
    let link: Arc<dyn Link> = Arc::new(Struck(home.link.clone()));
    let open = || {
        let opts = options(paged);
        let opened = link.open(&home.region, opts.access, Deadline::in_ms(2000)).map_err(|e| e.to_string())?;
        let key = opened.key;
        let made = Region::new(Parts { link: link.clone(), opened, opts, backend });
        made.inspect_err(|_| link.close(key)).map_err(|e| e.to_string())
    };
    let view = |r: &Arc<Region>| r.map_view(0, false, 0, PAGES * PAGE, true).map_err(|e| e.to_string());
    inject::arm(n);
    let first = open().and_then(|r| view(&r).map(|v| (r, v)));
    let mut script = match first {
        Ok((region, v)) => Script { region, v, stored: vec![None; PAGES] },
        Err(e) => {
            // Making it failed, and said so; the next try works.
            inject::disarm();
            assert!(inject::struck() != 0, "nothing failed, and opening says: {e}");
            let region = open().unwrap_or_else(|e| panic!("a second try fails too: {e}"));
            let v = view(&region).unwrap_or_else(|e| panic!("a second view fails too: {e}"));
            Script { region, v, stored: vec![None; PAGES] }
        }
    };
    script.run();
    counted.store(inject::disarm(), std::sync::atomic::Ordering::SeqCst);
    // Nothing fails any more: everything comes to rest.
    let start = Instant::now();
    loop {
        let s = script.region.release(0, 0);
        if (s.is_ok() || s == Status::POISONED) && script.region.acquire(0, 0).is_ok() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(8), "it does not recover: {:?}", script.region.condition());
        std::thread::sleep(Duration::from_millis(1));
    }
    for p in 0..PAGES {
        script.load(p, "at the end");
        let (at_home, want) = (home.bytes(p * PAGE + 100, 1)[0], script.stored[p].unwrap_or(0));
        assert!(at_home == want || script.lost(p), "page {p} of the home holds {at_home:#x} instead of {want:#x}");
    }
    let s = script.region.unmap_view(script.v, PAGES * PAGE);
    assert!(s.is_ok() || s == Status::POISONED, "unmapping at the end: {s}");
    FINE
}

/// Runs `f` in a child process; `Err` when it did not end in time or ended badly.
fn in_child(f: impl FnOnce() -> i32) -> Result<i32, String> {
    // SAFETY: this process has one thread and has not used the library.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let code = f();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(code) };
    }
    let start = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: our own child and a live out value.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 if start.elapsed() > LIMIT => {
                // SAFETY: our own child, not reaped yet.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(pid, &raw mut status, 0) };
                return Err(format!("it hangs: not over after {LIMIT:?}"));
            }
            0 => std::thread::sleep(Duration::from_micros(500)),
            _ if libc::WIFEXITED(status) => return Ok(libc::WEXITSTATUS(status)),
            _ => return Err(format!("it died of signal {}", libc::WTERMSIG(status))),
        }
    }
}

/// Each operation fails once: all of them in a long run, a seeded choice in the others.
fn every_failure(ctx: &mut Ctx, backend: Backend) -> Verdict {
    if in_child(|| i32::from(selftest::try_backend(backend).outcome.is_err())) != Ok(0) {
        return Verdict::Skip(format!("{} does not work here", backend.name()));
    }
    let file = mem::memfd(c"counter", PAGE as u64).expect("a memory file");
    let shared = Mapping::shared(file.as_fd(), 0, PAGE, mem::RW).expect("shared memory");
    // SAFETY: a live mapping of a page, used as one atomic word only.
    let counted = unsafe { &*shared.ptr().cast::<std::sync::atomic::AtomicU64>() };
    let time = Duration::from_millis(ctx.scale(1_000, 12_000, 800_000));
    let start = Instant::now();
    let (mut runs, mut refused) = (0, 0);
    for paged in [1, 0] {
        let counting = in_child(|| one(backend, u64::MAX - 1, paged, counted));
        assert_eq!(counting, Ok(FINE), "without a failure");
        let total = counted.load(std::sync::atomic::Ordering::SeqCst);
        assert!((100..MOST).contains(&total), "the program has {total} operations");
        let mut all: Vec<u64> = (0..total).collect();
        ctx.rng(paged).shuffle(&mut all);
        let until = time / 2 * if paged == 1 { 1 } else { 2 };
        for n in all {
            if start.elapsed() > until {
                break;
            }
            runs += 1;
            match in_child(|| one(backend, n, paged, counted)) {
                Ok(FINE) => {}
                Ok(REFUSED) => refused += 1,
                Ok(BROKEN) => panic!("operation {n} of {total} (paged {}) failing: see the text above", paged == 0),
                Ok(other) => panic!("operation {n} of {total} (paged {}) failing: exit status {other}", paged == 0),
                Err(e) => panic!("operation {n} of {total} (paged {}) failing: {e}", paged == 0),
            }
        }
        println!("{} paged {}: {total} operations", backend.name(), paged == 0);
    }
    println!("{}: {runs} runs, {refused} with a refused access", backend.name());
    Verdict::Pass
}
