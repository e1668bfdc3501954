//! What the suites run on: an exported home, a link to it, a region and its view.

use super::report::{On, Truth};
use super::verbs::Exporting;
use smc_engine::base::addr::PAGE;
use smc_engine::base::config::Backend;
use smc_engine::base::{HomeOff, Result, Status};
use smc_engine::core::export::{Export, ExportOptions, Exporter, Memory};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::core::region::{Parts, Region};
use smc_engine::link::embedded::EmbeddedLink;
use smc_engine::link::faulty::{Faulty, Plan as Faults};
use smc_engine::link::{Access, Link, RegionKey};
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::mem::{self, Mapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// An exported home of this process and a link to it.
pub struct Home {
    /// The path to it.
    pub link: Arc<dyn Link>,
    name: String,
    // After the link: the home goes last.
    keep: Keep,
}

/// What keeps the memory.
enum Keep {
    /// An export of this process.
    Own(Export),
    /// Another process.
    Child { _child: Exporting },
}

impl Home {
    /// `len` bytes over the bare embedded link, or with the wire model around it.
    pub fn new(len: usize, model: Option<&str>) -> Result<Home> {
        static N: AtomicU32 = AtomicU32::new(0);
        let name = format!("bench-{}-{}", std::process::id(), N.fetch_add(1, SeqCst));
        let export = Exporter::get()?.export(&name, Memory::New(len), ExportOptions::default())?;
        let bare: Arc<dyn Link> = Arc::new(EmbeddedLink::connect_local());
        let link = match model {
            Some(m) => Arc::new(Faulty::new(bare, Faults::parse(m)?)),
            None => bare,
        };
        // Every page of the home exists: a fetch must not pay for the exporter's first touch.
        // SAFETY: the export's memory is `len` bytes and lives as long as the export.
        unsafe { std::ptr::write_bytes(export.base(), 1, len) };
        Ok(Home { link, name, keep: Keep::Own(export) })
    }

    /// The home of another process.
    pub fn elsewhere(link: Arc<dyn Link>, name: &str, child: Exporting) -> Home {
        Home { link, name: name.into(), keep: Keep::Child { _child: child } }
    }

    /// First byte of a home of this process; null for one elsewhere.
    pub fn base(&self) -> *mut u8 {
        if let Keep::Own(export) = &self.keep { export.base() } else { std::ptr::null_mut() }
    }

    /// Label for reports.
    pub fn on(&self) -> On<'static> {
        (self.link.name(), if self.link.modelled() { Truth::Modelled } else { Truth::Measured })
    }

    /// Opens the region for raw use of the link.
    pub fn open(&self) -> Result<RegionKey> {
        Ok(self.link.open(&self.name, Access::ReadWrite, Deadline::in_ms(10_000))?.key)
    }

    /// Maps it whole.
    pub fn map(&self, backend: Option<Backend>, opts: MapOptions) -> Result<Rig> {
        let backend = match backend {
            Some(b) => b,
            None => default_backend(),
        };
        let opened = self.link.open(&self.name, Access::ReadWrite, Deadline::in_ms(10_000))?;
        let opts = MapOptions {
            wait_ms: 5000,
            resident_limit: if opts.resident_limit == 0 { 16 << 30 } else { opts.resident_limit },
            ..opts
        };
        let region = Region::new(Parts { link: self.link.clone(), opened, opts, backend })?;
        let len = region.len() as usize;
        let v = region.map_view(0, false, 0, len, true)?;
        Ok(Rig { region, v: v as *mut u8, len })
    }
}

/// The back end that LIBSMC_FAULT names, or else the self-test chooses here.
pub fn default_backend() -> Backend {
    let named = smc_engine::base::config::variable("LIBSMC_FAULT").and_then(|v| Backend::parse(&v));
    if let Some(b) = named {
        return b;
    }
    smc_engine::core::selftest::choose().0.unwrap_or(Backend::Mprotect)
}

/// A mapped region.
pub struct Rig {
    /// The region.
    pub region: Arc<Region>,
    /// Its view.
    pub v: *mut u8,
    /// Bytes.
    pub len: usize,
}

impl Rig {
    /// Loads one byte of each page, so that every page is resident.
    pub fn touch_all(&self) {
        for at in (0..self.len).step_by(PAGE) {
            load(self.v.wrapping_add(at));
        }
    }

    /// Releases and insists that it worked.
    pub fn release(&self) {
        assert_eq!(self.region.release(0, 0), Status::OK, "release failed in a bench");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.region.unmap_view(self.v as usize, self.len);
    }
}

/// Options with a policy.
pub fn policy(policy: Policy) -> MapOptions {
    MapOptions { policy, ..MapOptions::default() }
}

/// A volatile load of a byte.
pub fn load(p: *const u8) -> u8 {
    // SAFETY: suites pass addresses inside their own mappings.
    unsafe { p.read_volatile() }
}

/// Fills `[p, p + len)`.
pub fn fill(p: *mut u8, byte: u8, len: usize) {
    // SAFETY: suites pass ranges of their own mappings.
    unsafe { std::ptr::write_bytes(p, byte, len) };
}

/// Stores 64 bytes at `p`, as one store loop iteration of a program would.
pub fn store64(p: *mut u8, value: u64) {
    let line = [value; 8];
    // SAFETY: suites pass 64 writable, 8-byte aligned bytes of their own mappings.
    unsafe { p.cast::<[u64; 8]>().write_volatile(line) };
}

/// A populated buffer of 4 KiB pages, as a program that registers memory once would have.
pub fn buffer(len: usize) -> Result<Mapping> {
    let m = Mapping::anonymous(len, mem::RW)
        .map_err(|e| smc_engine::base::Error::new(Status::NO_RESOURCES, "make a bench buffer", e.to_string()))?;
    fill(m.ptr(), 1, len);
    Ok(m)
}

/// The same of huge pages, where the kernel gives them.
pub fn huge_buffer(len: usize) -> Result<Mapping> {
    let m = Mapping::anonymous(len, mem::RW)
        .map_err(|e| smc_engine::base::Error::new(Status::NO_RESOURCES, "make a bench buffer", e.to_string()))?;
    m.collapse();
    fill(m.ptr(), 1, len);
    Ok(m)
}

/// One completed put.
pub fn put(link: &dyn Link, key: RegionKey, off: u64, src: *const u8, len: usize) {
    // SAFETY: suites pass sources inside their own mappings.
    let s = unsafe { link.put(key, HomeOff(off), src, len, Deadline::in_ms(5000)) };
    assert_eq!(s, Status::OK, "put failed in a bench");
}

/// Nanoseconds `f` takes.
pub fn time(f: impl FnOnce()) -> f64 {
    let t = std::time::Instant::now();
    f();
    t.elapsed().as_nanos() as f64
}

/// A small deterministic generator (xorshift*).
pub struct Rng(pub u64);

impl Rng {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n as u64) as usize
    }

    /// A random order of `0..n`.
    pub fn order(&mut self, n: usize) -> Vec<usize> {
        let mut v: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|i| v.swap(i, self.below(i + 1)));
        v
    }
}
