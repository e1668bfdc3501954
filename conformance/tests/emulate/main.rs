//! The store emulator against the processor: every instruction is executed natively on ordinary memory and by the
//! emulator on write-protected memory, from the same registers at the same addresses, and everything must agree.

mod crafted;
mod forms;
mod generate;
mod libc_copies;
mod rig;
mod strings;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts allocations made while the emulator runs: there must be none.
struct Counting;

/// Allocations and releases seen inside the emulator.
static INSIDE: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes every request on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if rig::emulating() {
            INSIDE.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if rig::emulating() {
            INSIDE.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps GlobalAlloc's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Splitmix64: small, and its seed reproduces a run.
pub struct Rng(pub u64);

impl Rng {
    /// The seed in SMC_TEST_SEED, or one from the clock; printed, so that a failing run can be repeated.
    pub fn new(what: &str) -> Rng {
        let seed = std::env::var("SMC_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
        });
        println!("{what}: SMC_TEST_SEED={seed}");
        Rng(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A register value: often one at a border.
    pub fn value(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => (1u64 << self.below(64)).wrapping_sub(1),
            4 => self.below(256),
            5 => self.below(256).wrapping_neg(),
            _ => self.bits(),
        }
    }
}
