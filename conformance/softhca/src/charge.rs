//! Registered memory against RLIMIT_MEMLOCK, when a fault asks for that: as the kernel counts what real devices pin.

use crate::raw;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: u64 = 4096;

/// Pages of this process that count against RLIMIT_MEMLOCK.
static LOCKED: AtomicU64 = AtomicU64::new(0);

/// Pages that count for as long as this lives.
#[derive(Default)]
pub struct Charge(u64);

impl Charge {
    /// So many more; `ENOMEM` past the limit, as the kernel answers.
    pub fn of(pages: u64) -> Result<Charge, i32> {
        let mut limit = [0u64; 2];
        let args = [0, libc::RLIMIT_MEMLOCK as usize, 0, limit.as_mut_ptr() as usize, 0, 0];
        // SAFETY: the kernel writes two words there.
        unsafe { raw::call(libc::SYS_prlimit64, args) }?;
        let charge = Charge(pages);
        let all = LOCKED.fetch_add(pages, Ordering::Relaxed) + pages;
        if all > limit[0] / PAGE { Err(libc::ENOMEM) } else { Ok(charge) }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        LOCKED.fetch_sub(self.0, Ordering::Relaxed);
    }
}
