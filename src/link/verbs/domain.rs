//! Protection domains, and memory registered in them.

use super::device::{Caps, Device};
use super::words::{self, Call};
use crate::base::{Error, Result, Status};
use crate::sys::errno::around;
use crate::sys::{Errno, mem};
use ibverbs_sys as ib;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// Who may do what with registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// This process's own requests: source and destination. Registered with relaxed ordering where the device takes that: a completion is
    /// still seen after all bytes it stands for.
    Local,
    /// As Local, and READ by the other side.
    Read,
    /// As Read, and WRITE, FLUSH where the device has it, and atomics by the other side. Never with relaxed ordering: whoever looks at the memory must see writes in the
    /// order in which their sender fenced them.
    Write,
}

impl Rights {
    fn flags(self, caps: Caps) -> u32 {
        use ib::ibv_access_flags as f;
        let flush = if caps.flush { f::IBV_ACCESS_FLUSH_GLOBAL.0 } else { 0 };
        let changes = f::IBV_ACCESS_REMOTE_WRITE.0 | f::IBV_ACCESS_REMOTE_ATOMIC.0;
        let remote = match self {
            Rights::Local if caps.relaxed => f::IBV_ACCESS_RELAXED_ORDERING.0,
            Rights::Local => 0,
            Rights::Read => f::IBV_ACCESS_REMOTE_READ.0,
            Rights::Write => f::IBV_ACCESS_REMOTE_READ.0 | changes | flush,
        };
        f::IBV_ACCESS_LOCAL_WRITE.0 | remote
    }
}

/// A protection domain: keys of one are useless to the queue pairs of another.
#[derive(Debug)]
pub struct Domain {
    pub(super) device: Arc<Device>,
    pd: NonNull<ib::ibv_pd>,
}

// SAFETY: drivers lock for themselves.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// A new one. `LINK_DOWN` when the device has gone, `NO_RESOURCES`.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Domain>> {
        let fail = |e: Errno| {
            let attempt = format!("make a protection domain on {}", device.name());
            Error::new(words::status(e), attempt, words::why(Call::Other, e, mem::lock_limit()))
        };
        device.at_hand().map_err(fail)?;
        // SAFETY: an open context.
        let (pd, e) = around(|| unsafe { (device.lib.alloc_pd)(device.ctx()) });
        let pd = NonNull::new(pd).ok_or_else(|| fail(e))?;
        Ok(Arc::new(Domain { device: device.clone(), pd }))
    }

    pub(super) fn pd(&self) -> *mut ib::ibv_pd {
        self.pd.as_ptr()
    }

    /// The `struct ibv_pd`, which lives as long as this.
    pub fn raw(&self) -> *mut c_void {
        self.pd.as_ptr().cast()
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Registers memory. Pages are pinned; where too few can be (RLIMIT_MEMLOCK) and the device brings pages on demand, they
    /// are not. Blocks: about a millisecond per 4 MiB that was never touched.
    ///
    /// `NO_RESOURCES` names the limit, `INVALID_ARGUMENT` for memory that is not there or not writable, `LINK_DOWN` when the device has gone.
    ///
    /// # Safety
    /// `[ptr, ptr + len)` stays mapped to the same pages until the registration is dropped, and what the rights allow may be done to
    /// it meanwhile.
    pub unsafe fn register(self: &Arc<Domain>, ptr: *mut u8, len: usize, rights: Rights) -> Result<Registered> {
        let (device, caps) = (&self.device, self.device.caps());
        let fail = |e: Errno| {
            let attempt = format!("register {len} bytes with {}", device.name());
            let status = if e == Errno::FAULT { Status::INVALID_ARGUMENT } else { words::status(e) };
            let error = Error::new(status, attempt, words::why(Call::Register, e, mem::lock_limit()));
            if e == Errno::NOMEM { error.remedy("raise `ulimit -l` (LimitMEMLOCK= of a service)") } else { error }
        };
        device.at_hand().map_err(fail)?;
        let flags = rights.flags(caps);
        let attempt = |flags: u32| {
            // SAFETY: a live domain; the caller vouches for the memory.
            let (mr, e) = around(|| unsafe { (device.lib.reg_mr)(self.pd(), ptr.cast(), len, ptr as u64, flags) });
            NonNull::new(mr).ok_or(if e.0 == 0 { Errno::INVAL } else { e })
        };
        let mr = match attempt(flags) {
            Err(Errno::NOMEM) if caps.on_demand => {
                attempt(flags | ib::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0).map_err(|_| Errno::NOMEM)
            }
            r => r,
        };
        let mr = mr.map_err(fail)?;
        // SAFETY: a live registration; its keys never change.
        let keys = unsafe { mr.as_ref() };
        let (lkey, rkey) = (keys.lkey, keys.rkey);
        let flushes = flags & ib::ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0 != 0;
        Ok(Registered { domain: self.clone(), mr, base: ptr as usize, len, lkey, rkey, flushes })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let _ = self.device.at_hand();
        // SAFETY: what was made in the domain holds it, so all of that is gone.
        around(|| unsafe { (self.device.lib.dealloc_pd)(self.pd()) });
    }
}

/// Registered memory; the keys die when it is dropped, in hardware.
#[derive(Debug)]
pub struct Registered {
    domain: Arc<Domain>,
    mr: NonNull<ib::ibv_mr>,
    base: usize,
    len: usize,
    /// For requests of this process.
    pub lkey: u32,
    /// For the other side.
    pub rkey: u32,
    /// The other side may FLUSH it.
    pub flushes: bool,
}

// SAFETY: the driver locks for itself.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// Its first byte: the remote address of that byte, too.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// False: there is no empty registration.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let device = &self.domain.device;
        let _ = device.at_hand();
        // SAFETY: made by `register` and not given back yet.
        around(|| unsafe { (device.lib.dereg_mr)(self.mr.as_ptr()) });
    }
}
