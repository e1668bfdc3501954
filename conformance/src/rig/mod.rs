//! A region under test: a home of every kind, a back end, one view.
//!
//! Suites run their cases in a process of their own and say what is wrong by `assert!`: a panic in any thread is the
//! case's failing verdict.

pub mod card;
pub mod home;
pub mod net;
pub mod node;
pub mod setting;
pub mod valve;
pub mod wire;

pub use card::Card;
pub use home::Home;
pub use valve::Valve;

use crate::runner::{Ctx, Over, Verdict};
use smc_engine::base::{PAGE, Status, config::Backend};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::core::region::{Parts, Region};
use smc_engine::core::selftest;
use smc_engine::link::Access;
use smc_engine::sys::clock::Deadline;
use std::sync::Arc;

/// All write-back policies.
pub const POLICIES: [Policy; 3] = [Policy::Byte, Policy::Line, Policy::Page];

/// What a case of one back end is given.
pub struct Bench<'a> {
    /// The case.
    pub ctx: &'a Ctx,
    /// The back end under test.
    pub backend: Backend,
    /// Processes that wait to become nodes, where the case asked for some.
    pub children: Vec<Arc<node::Child>>,
}

/// Runs `body` on a back end, or skips the case with the reason why the host does not allow it.
pub fn on(ctx: &mut Ctx, backend: Backend, children: usize, body: fn(&Bench)) -> Verdict {
    // Before this process uses the library: a child of one that has may not.
    let children = (0..children).map(|_| Arc::new(node::Child::fork(backend))).collect();
    if Over::now() == Over::Verbs
        && let Err(why) = net::device()
    {
        return Verdict::Skip(why);
    }
    if let Err(why) = selftest::try_backend(backend).outcome {
        return Verdict::Skip(format!("{} does not work here: {why}", backend.name()));
    }
    body(&Bench { ctx, backend, children });
    Verdict::Pass
}

/// One case per back end, `FAMILY_NAME_BACKEND`: `cases!(CASES, "paging", name: Cost, seconds; ...)`, where `dies SIGNAL`
/// or `children NUMBER` may follow.
#[macro_export]
macro_rules! cases {
    ($list:ident, $family:literal, $($f:ident: $cost:ident, $t:literal $(, dies $sig:ident)? $(, children $n:literal)?;)*) => {
        /// The suite, one case per back end.
        pub const $list: &[$crate::runner::Case] = &[$(
            $crate::cases!(@one $family, $f, "thread", Thread, $cost, $t $(, dies $sig)? $(, children $n)?),
            $crate::cases!(@one $family, $f, "sigbus", Sigbus, $cost, $t $(, dies $sig)? $(, children $n)?),
            $crate::cases!(@one $family, $f, "sync", Sync, $cost, $t $(, dies $sig)? $(, children $n)?),
            $crate::cases!(@one $family, $f, "mprotect", Mprotect, $cost, $t $(, dies $sig)? $(, children $n)?),
        )*];
    };
    (@one $family:literal, $f:ident, $text:literal, $b:ident, $cost:ident, $t:literal $(, dies $sig:ident)? $(, children $n:literal)?) => {
        $crate::runner::Case::new(
            concat!($family, "_", stringify!($f), "_", $text),
            |c: &mut $crate::runner::Ctx| $crate::rig::on(c, smc_engine::base::config::Backend::$b, 0 $(+ $n)?, $f),
        )
        .timeout($t)
        .cost($crate::runner::Cost::$cost)
        $(.dies_by(libc::$sig))?
    };
}

impl Bench<'_> {
    /// Calls `f` with a fresh home of every kind.
    pub fn each_home(&self, len: usize, f: impl Fn(Home)) {
        let all = [Home::embedded, Home::loopback, Home::reordering, Home::wired];
        // Over a device there is one kind.
        let n = if Over::now() == Over::Verbs { 1 } else { all.len() };
        for make in all.into_iter().take(n) {
            f(make(len, self.ctx.seed));
        }
    }

    /// Calls `f` with every policy on a fresh home of every kind.
    pub fn each(&self, len: usize, f: impl Fn(Home, Policy)) {
        for policy in POLICIES {
            self.each_home(len, |home| f(home, policy));
        }
    }

    /// A region over `home` with one view of all of it.
    pub fn rig(&self, home: Home, opts: MapOptions) -> Rig {
        Rig::new(self.backend, home, opts)
    }

    /// A rig over a loopback home of whole pages.
    pub fn pages(&self, pages: usize, opts: MapOptions) -> Rig {
        self.rig(Home::loopback(pages * PAGE, 0), opts)
    }
}

/// Options with this policy.
pub fn policy(policy: Policy) -> MapOptions {
    MapOptions { policy, ..MapOptions::default() }
}

/// A region, its home and one view of all of it. Dropping it unmaps.
pub struct Rig {
    /// The other side.
    pub home: Home,
    /// This side.
    pub region: Arc<Region>,
    /// Address of the view.
    pub v: usize,
    /// What a failure names: back end, link, policy.
    pub tag: String,
}

/// Opens a region on `home`.
pub fn open(backend: Backend, home: &Home, opts: MapOptions) -> Arc<Region> {
    let mut opts = opts;
    opts.wait_ms = if opts.wait_ms == 0 { 5000 } else { opts.wait_ms };
    opts.resident_limit = if opts.resident_limit == 0 { 1 << 30 } else { opts.resident_limit };
    let opened = home.link.open(&home.region, opts.access, Deadline::in_ms(20_000)).expect("open");
    Region::new(Parts { link: home.link.clone(), opened, opts, backend }).expect("a region")
}

impl Rig {
    /// A region over `home` with one view of all of it.
    pub fn new(backend: Backend, home: Home, opts: MapOptions) -> Rig {
        let tag = format!("{} {} {:?}", backend.name(), home.name, opts.policy);
        let region = open(backend, &home, opts);
        let write = region.options().access == Access::ReadWrite;
        let v = region.map_view(0, false, 0, home.len, write).expect("a view");
        Rig { home, region, v, tag }
    }

    /// Loads a byte.
    pub fn load8(&self, at: usize) -> u8 {
        load8(self.v + at)
    }

    /// Loads an aligned word.
    pub fn load(&self, at: usize) -> u64 {
        load(self.v + at)
    }

    /// Stores a byte.
    pub fn store8(&self, at: usize, value: u8) {
        store8(self.v + at, value);
    }

    /// Stores an aligned word.
    pub fn store(&self, at: usize, value: u64) {
        store(self.v + at, value);
    }

    /// Stores bytes.
    pub fn store_bytes(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the view spans the home and callers stay inside it; nobody holds a reference into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (self.v + at) as *mut u8, bytes.len()) };
    }

    /// Loads bytes.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        // SAFETY: as in `store_bytes`, in the other direction.
        unsafe { std::ptr::copy_nonoverlapping((self.v + at) as *const u8, out.as_mut_ptr(), len) };
        out
    }

    /// Region::read.
    pub fn pread(&self, at: usize, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        // SAFETY: the buffer has `len` bytes.
        let s = unsafe { self.region.read(at as u64, out.as_mut_ptr(), len) };
        assert_eq!(s, Status::OK, "{}: read {at}+{len}", self.tag);
        out
    }

    /// Region::write.
    pub fn pwrite(&self, at: usize, bytes: &[u8]) {
        // SAFETY: the slice is valid for its length.
        let s = unsafe { self.region.write(at as u64, bytes.as_ptr(), bytes.len()) };
        assert_eq!(s, Status::OK, "{}: write {at}+{}", self.tag, bytes.len());
    }

    /// Releases everything.
    pub fn release(&self) {
        assert_eq!(self.region.release(0, 0), Status::OK, "{}: release", self.tag);
    }

    /// Acquires everything.
    pub fn acquire(&self) {
        assert_eq!(self.region.acquire(0, 0), Status::OK, "{}: acquire", self.tag);
    }

    /// Asserts that the home's word is `want`.
    pub fn home_is(&self, at: usize, want: u64) {
        assert_eq!(self.home.word(at), want, "{}: the home's word at {at}", self.tag);
    }

    /// Asserts that a load of the word gives `want`.
    pub fn loads(&self, at: usize, want: u64) {
        assert_eq!(self.load(at), want, "{}: a load at {at}", self.tag);
    }

    /// Waits until pages are resident: a fault thread lets the toucher go a moment earlier.
    pub fn wait_resident(&self, pages: impl IntoIterator<Item = usize>) {
        let start = std::time::Instant::now();
        for page in pages {
            while !self.region.is_resident(page) {
                assert!(start.elapsed().as_secs() < 5, "{}: page {page} was never brought", self.tag);
                std::thread::yield_now();
            }
        }
    }

    /// Unmaps and says how that went.
    pub fn unmap(&self) -> Status {
        self.region.unmap_view(self.v, self.home.len.next_multiple_of(PAGE))
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.unmap();
    }
}

/// Loads a byte of a view.
pub fn load8(at: usize) -> u8 {
    // SAFETY: callers pass an address inside a view they mapped; absent pages are what is being tested.
    unsafe { (at as *const u8).read_volatile() }
}

/// Loads an aligned word of a view.
pub fn load(at: usize) -> u64 {
    // SAFETY: as in `load8`; callers align.
    unsafe { (at as *const u64).read_volatile() }
}

/// Stores a byte to a view.
pub fn store8(at: usize, value: u8) {
    // SAFETY: as in `load8`.
    unsafe { (at as *mut u8).write_volatile(value) }
}

/// Stores an aligned word to a view.
pub fn store(at: usize, value: u64) {
    // SAFETY: as in `load`.
    unsafe { (at as *mut u64).write_volatile(value) }
}
