//! One region.

use super::options::MapOptions;
use crate::base::{Result, Status};

/// A remote region in this process. Dropping the last Arc releases what is dirty and closes it.
pub struct Region {}

#[allow(unused_variables)]
impl Region {
    /// Name at the exporter.
    pub fn name(&self) -> &str {
        ""
    }
    /// Bytes.
    pub fn len(&self) -> u64 {
        0
    }
    /// Options it was opened with.
    pub fn options(&self) -> &MapOptions {
        unimplemented!()
    }
    /// Maps `[off, off + len)` (page aligned) as a view for the application and answers its address.
    /// `hint` as in mmap; `fixed` replaces what is there. `write` false gives a read-only view.
    pub fn map_view(self: &std::sync::Arc<Self>, hint: usize, fixed: bool, off: u64, len: usize, write: bool) -> Result<usize> {
        unimplemented!()
    }
    /// Takes `[addr, addr + len)` of a view away (whole or a part); releases what is dirty in it first.
    pub fn unmap_view(&self, addr: usize, len: usize) -> Status {
        unimplemented!()
    }
    /// All earlier stores in the range are readable at the home when this returns OK.
    pub fn release(&self, off: u64, len: u64) -> Status {
        unimplemented!()
    }
    /// Later loads see the home as of now or later; own stores survive.
    pub fn acquire(&self, off: u64, len: u64) -> Status {
        unimplemented!()
    }
    /// Starts bringing pages in.
    pub fn prefetch(&self, off: u64, len: u64) -> Status {
        unimplemented!()
    }
    /// Copies region bytes to `dst` through the same pages (pread).
    ///
    /// # Safety
    /// `dst` is valid for `len` writes.
    pub unsafe fn read(&self, off: u64, dst: *mut u8, len: usize) -> Status {
        unimplemented!()
    }
    /// Copies `src` into the region through the same pages (pwrite).
    ///
    /// # Safety
    /// `src` is valid for `len` reads.
    pub unsafe fn write(&self, off: u64, src: *const u8, len: usize) -> Status {
        unimplemented!()
    }
}
