//! Memory registered in a protection domain that the program has made.
//!
//! The program's queue pairs of that domain can use the memory, and their other sides with its remote key, beside the library's own
//! clients, each of whom has a domain of his own. The domain is of the program's libibverbs, which is the one that the
//! library finds too, and its device has its descriptor in the program's table: everything here belongs to threads of the program.

use super::library::Library;
use super::words::{self, Call};
use crate::base::{Error, Result, Status};
use crate::link::Access;
use crate::sys::errno::around;
use crate::sys::{Errno, mem, process};
use ibverbs_sys as ib;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::NonNull;

/// A registration in a domain of the program's. The device does not reach the memory any more once it is dropped.
#[derive(Debug)]
pub struct Foreign {
    lib: &'static Library,
    mr: NonNull<ib::ibv_mr>,
    /// For requests of the program's queue pairs.
    pub lkey: u32,
    /// For those of their other sides.
    pub rkey: u32,
}

// SAFETY: libibverbs and its drivers lock for themselves.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Registers `len` bytes at `ptr` in `domain`, a `struct ibv_pd`, for what `access` says and for local requests.
    ///
    /// `INVALID_ARGUMENT` when that is no domain of an open device, `NOT_SUPPORTED` without libibverbs, `NO_RESOURCES` (names the limit),
    /// `SYSTEM`.
    ///
    /// # Safety
    /// `domain` stays as it is, and the memory mapped to the same pages, until the registration is dropped; what `access` says may be done
    /// to the memory meanwhile. The calling thread uses the program's descriptor table, here and when it is dropped.
    pub unsafe fn register(domain: *mut c_void, ptr: *mut u8, len: usize, access: Access) -> Result<Foreign> {
        let lib = Library::get()?;
        let attempt = || format!("register {len} bytes in the protection domain at {domain:?}");
        if !is_domain(lib, domain as usize) {
            let e = Error::new(Status::INVALID_ARGUMENT, attempt(), "that is no domain of a device that is open");
            return Err(e.remedy("pass what ibv_alloc_pd() has returned, before ibv_dealloc_pd()"));
        }
        use ib::ibv_access_flags as f;
        let changes = f::IBV_ACCESS_REMOTE_WRITE.0 | f::IBV_ACCESS_REMOTE_ATOMIC.0;
        let rights = f::IBV_ACCESS_LOCAL_WRITE.0
            | f::IBV_ACCESS_REMOTE_READ.0
            | if access == Access::ReadWrite { changes } else { 0 };
        // SAFETY: a live domain; the caller vouches for the memory.
        let make = || unsafe { (lib.reg_mr)(domain.cast(), ptr.cast(), len, ptr as u64, rights) };
        let (mr, e) = around(make);
        let mr = NonNull::new(mr).ok_or_else(|| {
            let e = if e.0 == 0 { Errno::INVAL } else { e };
            Error::new(words::status(e), attempt(), words::why(Call::Register, e, mem::lock_limit()))
        })?;
        // SAFETY: a live registration; its keys never change.
        let keys = unsafe { mr.as_ref() };
        Ok(Foreign { lib, mr, lkey: keys.lkey, rkey: keys.rkey })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: made by `register`, whose caller keeps the domain until now.
        around(|| unsafe { (self.lib.dereg_mr)(self.mr.as_ptr()) });
    }
}

/// A word of this process's memory, wherever that points.
fn word(at: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    process::read_own(at, &mut bytes).then(|| usize::from_ne_bytes(bytes))
}

/// True when there is something at `at` that leads to a device of this host by way of a context, as a domain does.
fn is_domain(lib: &Library, at: usize) -> bool {
    let context = word(at.wrapping_add(offset_of!(ib::ibv_pd, context)));
    let device = context.and_then(|c| word(c.wrapping_add(offset_of!(ib::ibv_context, device))));
    device.is_some_and(|d| super::device::is_listed(lib, d))
}
