//! The baselines, each the smallest code that does the same job without libsmc, and each under 80 lines. They use the
//! same page size, population and number of threads as the product beside them.

use smc_engine::base::addr::PAGE;
use smc_engine::base::{Error, Result, Status};
use smc_engine::sys::event::readable;
use smc_engine::sys::mem::{self, Mapping};
use smc_engine::sys::pagemap::{Pagemap, Run};
use smc_engine::sys::signal::{self, Action};
use smc_engine::sys::uffd::{self, Msg, Uffd};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn bad(e: impl std::fmt::Display) -> Error {
    Error::new(Status::SYSTEM, "set up a bench baseline", e.to_string())
}

const SYNC: u64 = uffd::FEATURE_MINOR_SHMEM | uffd::FEATURE_WP_SHMEM | uffd::FEATURE_WP_UNPOPULATED;

/// A memory file mapped twice, populated, its second mapping under userfaultfd: what every baseline below stands on.
pub struct Bare {
    a: Mapping,
    v: Mapping,
    uffd: Uffd,
    pagemap: Pagemap,
}

impl Bare {
    /// `len` bytes with asynchronous write protection, and `features`.
    pub fn new(len: usize, features: u64) -> Result<Bare> {
        Bare::with(len, SYNC | uffd::FEATURE_WP_ASYNC | features)
    }

    fn with(len: usize, features: u64) -> Result<Bare> {
        let file = mem::memfd(c"bench", len as u64).map_err(bad)?;
        let a = Mapping::shared(file.as_fd(), 0, len, mem::RW).map_err(bad)?;
        a.advise(0, len, mem::POPULATE_WRITE).map_err(bad)?;
        let v = Mapping::shared(file.as_fd(), 0, len, mem::RW).map_err(bad)?;
        let uffd = Uffd::open(features).map_err(bad)?;
        // SAFETY: a fresh mapping of the memory file.
        unsafe { uffd.register(v.addr(), len) }.map_err(bad)?;
        uffd.write_protect(v.addr(), len, true).map_err(bad)?;
        Ok(Bare { a, v, uffd, pagemap: Pagemap::open().map_err(bad)? })
    }

    /// The watched mapping.
    pub fn v(&self) -> *mut u8 {
        self.v.ptr()
    }

    /// Shows every page, clean.
    pub fn show_all(&self) -> Result<()> {
        self.uffd.admit(self.v.addr(), self.v.len(), true).map_err(bad)
    }

    /// One get-and-reprotect scan over everything; answers the number of runs found.
    pub fn scan(&self) -> Result<usize> {
        let mut runs = [Run::default(); 128];
        let end = self.v.addr() + self.v.len();
        self.pagemap.scan(self.v.addr(), end, true, &mut runs).map(|(n, _)| n).map_err(bad)
    }
}

/// Brings the page at an offset to an address. Runs in a signal handler.
pub type Bring<'a> = dyn Fn(usize, *mut u8) + 'a;

/// Where the handler below finds its things: start of V, start of A, the address of a `&Bring`, the descriptor.
static HANDLER: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// The smallest SIGBUS handler that fetches a page: bring 4 KiB, CONTINUE.
extern "C" fn on_bus(_sig: i32, info: *mut signal::Info, _ctx: *mut signal::Context) {
    let get = |i: usize| HANDLER.get(i).map_or(0, |h| h.load(SeqCst));
    // SAFETY: the kernel's info of a SIGBUS.
    let page = unsafe { signal::fault_addr(info) } & !(PAGE - 1);
    let off = page.wrapping_sub(get(0));
    // SAFETY: HANDLER[2] holds the address of a reference that outlives the handler.
    let bring = unsafe { &*(get(2) as *const &Bring) };
    bring(off, (get(1) + off) as *mut u8);
    // SAFETY: HANDLER[3] holds the address of a Uffd that outlives the handler.
    let uffd = unsafe { &*(get(3) as *const Uffd) };
    let _ = uffd.admit(page, PAGE, true);
}

/// First touches served by [`on_bus`] with a copy of 4 KiB; calls `f` with V while the handler is installed.
pub fn with_sigbus_loop(len: usize, home: *const u8, f: impl FnOnce(*mut u8)) -> Result<()> {
    let bare = Bare::new(len, uffd::FEATURE_SIGBUS)?;
    // SAFETY: A and the home are mapped for as long as the handler is installed, and as long as V.
    let copy = |off: usize, to: *mut u8| unsafe { std::ptr::copy_nonoverlapping(home.wrapping_add(off), to, PAGE) };
    bare.serve(&copy, f)
}

impl Bare {
    /// A.
    pub fn a(&self) -> &Mapping {
        &self.a
    }

    /// First touches served by [`on_bus`]; made with [`uffd::FEATURE_SIGBUS`].
    pub fn serve(&self, bring: &Bring, f: impl FnOnce(*mut u8)) -> Result<()> {
        serve(self, &bring, f)
    }
}

fn serve(bare: &Bare, bring: &&Bring, f: impl FnOnce(*mut u8)) -> Result<()> {
    let values = [bare.v.addr(), bare.a.addr(), std::ptr::from_ref(bring) as usize, &raw const bare.uffd as usize];
    for (slot, value) in HANDLER.iter().zip(values) {
        slot.store(value, SeqCst);
    }
    let old = signal::set(signal::SIGBUS, &Action::handle(on_bus)).map_err(bad)?;
    f(bare.v());
    signal::set(signal::SIGBUS, &old).map_err(bad).map(drop)
}

/// First touches served by a thread that does nothing else: blocking poll, read, copy 4 KiB, CONTINUE.
pub fn with_thread_loop(len: usize, home: *const u8, f: impl FnOnce(*mut u8)) -> Result<()> {
    let bare = Bare::new(len, 0)?;
    let stop = smc_engine::sys::event::EventFd::new().map_err(bad)?;
    let (home, v, a) = (home as usize, bare.v.addr(), bare.a.addr());
    std::thread::scope(|s| {
        let uffd = &bare.uffd;
        let stop_fd = stop.raw_fd();
        s.spawn(move || {
            let mut msgs = [Msg::default(); 16];
            loop {
                let n = uffd.read(&mut msgs).unwrap_or(0);
                if n == 0 && matches!(readable([uffd.fd().as_raw_fd(), stop_fd], None), Ok([_, true])) {
                    return;
                }
                for m in msgs.iter().take(n) {
                    let page = m.addr() & !(PAGE - 1);
                    // SAFETY: A and the home are mapped for the whole scope, and as long as V.
                    unsafe {
                        std::ptr::copy_nonoverlapping((home + page - v) as *const u8, (a + page - v) as *mut u8, PAGE)
                    };
                    let _ = uffd.admit(page, PAGE, true);
                }
            }
        });
        f(bare.v());
        stop.set();
    });
    Ok(())
}

/// Sum of all words of a range: the work a reader does on both sides.
pub fn sum(p: *const u8, len: usize) -> u64 {
    // SAFETY: suites pass ranges of their own mappings, aligned to pages; nobody writes them meanwhile.
    let words = unsafe { std::slice::from_raw_parts(p.cast::<u64>(), len / 8) };
    words.iter().fold(0u64, |s, w| s.wrapping_add(*w))
}

/// memcpy.
pub fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: suites pass ranges of their own, disjoint mappings.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// Start of the protected mapping and of its writable alias, for the handler below.
static EMULATION: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The smallest handler that performs a faulting `mov [reg], reg`: decode, store through the alias, step over.
extern "C" fn on_store(_sig: i32, _info: *mut signal::Info, ctx: *mut signal::Context) {
    use iced_x86::{Decoder, DecoderOptions, Register};
    // SAFETY: the kernel's context of this fault.
    let mut frame = unsafe { smc_engine::sys::sigframe::Frame::new(ctx.cast()) };
    let mut code = [0u8; smc_engine::sys::sigframe::MAX_INSTRUCTION];
    let n = frame.code(&mut code, false);
    let i = Decoder::with_ip(64, code.get(..n).unwrap_or(&[]), frame.rip(), DecoderOptions::NONE).decode();
    let reg = |r: Register| frame.gpr(r.full_register().number());
    let (to, value) = (reg(i.memory_base()), reg(i.op1_register()));
    let get = |k: usize| EMULATION.get(k).map_or(0, |e| e.load(SeqCst));
    let alias = to as usize - get(0) + get(1);
    // SAFETY: the store lies inside the protected mapping, so the alias is mapped there too.
    unsafe { (alias as *mut u64).write_volatile(value) };
    frame.set_rip(i.next_ip());
}

/// Stores to write-protected pages performed by [`on_store`]; calls `f` with the protected mapping.
pub fn with_emulation_loop(len: usize, f: impl FnOnce(*mut u8)) -> Result<()> {
    let bare = Bare::with(len, uffd::FEATURE_SIGBUS | SYNC)?;
    bare.show_all()?;
    for (slot, value) in EMULATION.iter().zip([bare.v.addr(), bare.a.addr()]) {
        slot.store(value, SeqCst);
    }
    let old = signal::set(signal::SIGBUS, &Action::handle(on_store)).map_err(bad)?;
    f(bare.v());
    signal::set(signal::SIGBUS, &old).map_err(bad).map(drop)
}
