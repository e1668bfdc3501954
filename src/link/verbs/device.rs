//! An open device.

use super::library::Library;
use super::words::{self, Call};
use crate::base::{Error, Result, Status};
use crate::sys::errno::around;
use crate::sys::kept::KeptFd;
use crate::sys::{Errno, borrow, mem, thread};
use ibverbs_sys as ib;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// Whose descriptor table the device's descriptors live in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// The program's: any thread may use the device. They get high numbers there and are kept from the program ([`KeptFd`]). The calling
    /// thread must use that table.
    Program,
    /// The calling thread's own: only that thread may use the device.
    Own,
}

/// What a device can do, as far as the library makes use of it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Caps {
    /// Longest send queue.
    pub depth: u32,
    /// Longest completion queue.
    pub completions: u32,
    /// READs and atomics that a queue pair answers at a time.
    pub answers: u8,
    /// READs and atomics that a queue pair can have under way.
    pub asks: u8,
    /// It performs atomics.
    pub atomics: bool,
    /// It takes registrations with relaxed ordering.
    pub relaxed: bool,
    /// It takes registrations that pin no pages.
    pub on_demand: bool,
    /// It takes registrations that may be flushed from afar.
    pub flush: bool,
}

/// An open device. Calls that make or change something may be made by one thread at a time or by many: drivers lock. All of
/// them may block; only [`Device::at_hand`] may be called in a signal handler.
#[derive(Debug)]
pub struct Device {
    pub(super) lib: &'static Library,
    ctx: NonNull<ib::ibv_context>,
    name: String,
    ports: u8,
    guid: u64,
    caps: Caps,
    /// cmd_fd and async_fd, in the program's table.
    kept: Option<[KeptFd; 2]>,
}

// SAFETY: libibverbs and its drivers lock for themselves; the descriptor table is seen to by `at_hand`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Calls `f` for every device there is. `NOT_FOUND` when there is none at all.
fn each<R>(lib: &Library, mut f: impl FnMut(*mut ib::ibv_device, &str) -> Option<R>) -> Result<Option<R>> {
    let mut count = 0;
    // SAFETY: count is writable.
    let (list, e) = around(|| unsafe { (lib.device_list)(&raw mut count) });
    if list.is_null() {
        let none = matches!(e, Errno::NOSYS | Errno::NOENT);
        let status = if none { Status::NOT_FOUND } else { Status::SYSTEM };
        let why = if none { "the kernel has no RDMA support".into() } else { format!("ibv_get_device_list: {e}") };
        return Err(Error::new(status, "list RDMA devices", why).remedy("`smc doctor` tells what is missing"));
    }
    let mut found = None;
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let device = unsafe { list.wrapping_add(i).read() };
        // SAFETY: a device of a list that is not freed yet.
        let name = unsafe { (lib.device_name)(device) };
        // SAFETY: its name, which lives as long.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        found = f(device, &name);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list of above; open devices outlive it.
    around(|| unsafe { (lib.free_list)(list) });
    Ok(found)
}

/// True for the address of a device's description.
pub(super) fn is_listed(lib: &Library, device: usize) -> bool {
    each(lib, |d, _| (d as usize == device).then_some(())).is_ok_and(|found| found.is_some())
}

impl Device {
    /// The names of all devices, in the kernel's order.
    pub fn names() -> Result<Vec<String>> {
        let mut names = Vec::new();
        each(Library::get()?, |_, name| {
            names.push(name.to_owned());
            None::<()>
        })?;
        Ok(names)
    }

    /// Opens a device by name. `NOT_FOUND`, `PERMISSION` (/dev/infiniband), `SYSTEM`.
    pub fn open(name: &str, table: Table) -> Result<Arc<Device>> {
        let lib = Library::get()?;
        let attempt = || format!("open RDMA device {name}");
        let opened = each(lib, |d, n| {
            // SAFETY: a device of a live list.
            (n == name).then(|| around(|| unsafe { (lib.open_device)(d) }))
        })?;
        let Some((ctx, e)) = opened else {
            return Err(Error::new(Status::NOT_FOUND, attempt(), "there is no such device"));
        };
        let Some(ctx) = NonNull::new(ctx) else {
            return Err(Error::new(words::status(e), attempt(), words::why(Call::Other, e, None)));
        };
        let kept = (table == Table::Program).then(|| keep(ctx));
        let mut device = Device { lib, ctx, name: name.to_owned(), ports: 0, guid: 0, caps: Caps::default(), kept };
        device.learn().map_err(|e| Error::new(words::status(e), attempt(), words::why(Call::Other, e, None)))?;
        Ok(Arc::new(device))
    }

    fn learn(&mut self) -> std::result::Result<(), Errno> {
        let mut attr = MaybeUninit::<ib::ibv_device_attr>::zeroed();
        // SAFETY: an open context and a writable attribute.
        number(around(|| unsafe { (self.lib.query_device)(self.ctx(), attr.as_mut_ptr()) }))?;
        // SAFETY: zeroed, then filled in; plain numbers and text.
        let a = unsafe { attr.assume_init() };
        self.ports = a.phys_port_cnt;
        self.guid = a.node_guid;
        self.caps = Caps {
            depth: a.max_qp_wr.max(1) as u32,
            completions: a.max_cqe.max(1) as u32,
            answers: a.max_qp_rd_atom.clamp(0, 255) as u8,
            asks: a.max_qp_init_rd_atom.clamp(0, 255) as u8,
            atomics: a.atomic_cap != ib::IBV_ATOMIC_NONE,
            relaxed: self.takes(ib::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING),
            on_demand: self.takes(ib::ibv_access_flags::IBV_ACCESS_ON_DEMAND),
            flush: self.takes(ib::ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL),
        };
        Ok(())
    }

    /// Whether a page can be registered with `flag`: what a device claims and what its driver takes are two things.
    fn takes(&self, flag: ib::ibv_access_flags) -> bool {
        let Ok(page) = mem::Mapping::anonymous(crate::base::PAGE, mem::RW) else { return false };
        // SAFETY: an open context.
        let (pd, _) = around(|| unsafe { (self.lib.alloc_pd)(self.ctx()) });
        if pd.is_null() {
            return false;
        }
        let rights = flag.0 | ib::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        // SAFETY: the domain is live and the page stays mapped until the registration is gone.
        let (mr, _) =
            around(|| unsafe { (self.lib.reg_mr)(pd, page.ptr().cast(), page.len(), page.addr() as u64, rights) });
        if !mr.is_null() {
            // SAFETY: made above, and nobody else knows it.
            around(|| unsafe { (self.lib.dereg_mr)(mr) });
        }
        // SAFETY: as above.
        around(|| unsafe { (self.lib.dealloc_pd)(pd) });
        !mr.is_null()
    }

    pub(super) fn ctx(&self) -> *mut ib::ibv_context {
        self.ctx.as_ptr()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its ports are 1 to this.
    pub fn ports(&self) -> u8 {
        self.ports
    }

    /// The number by which the kernel's connection manager knows it.
    pub(super) fn guid(&self) -> u64 {
        self.guid
    }

    /// What it can do.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// False when the device has gone since it was opened: nothing can be made of it any more.
    pub fn is_there(&self) -> bool {
        if self.at_hand().is_err() {
            return false;
        }
        let mut attr = MaybeUninit::<ib::ibv_port_attr>::zeroed();
        // SAFETY: an open context and a writable attribute.
        let asked = number(around(|| unsafe { (self.lib.query_port)(self.ctx(), 1, attr.as_mut_ptr()) }));
        // SAFETY: an open context.
        let (pd, _) = around(|| unsafe { (self.lib.alloc_pd)(self.ctx()) });
        if !pd.is_null() {
            // SAFETY: made above, and nobody else knows it.
            around(|| unsafe { (self.lib.dealloc_pd)(pd) });
        }
        asked.is_ok() && !pd.is_null()
    }

    /// Makes the device usable in the calling thread, which may have a descriptor table of its own: some drivers (rxe) post by a
    /// system call. To be called before every call of the driver but polling. Async-signal-safe.
    pub fn at_hand(&self) -> std::result::Result<(), Errno> {
        match &self.kept {
            Some(kept) if thread::is_own() => kept.iter().try_for_each(|k| borrow::take(k.as_raw_fd())),
            _ => Ok(()),
        }
    }
}

/// Moves a fresh context's descriptors out of the program's way.
fn keep(ctx: NonNull<ib::ibv_context>) -> [KeptFd; 2] {
    let put = |fd: &mut i32| {
        // SAFETY: the context's own descriptor, which the context does not use while this runs.
        let kept = KeptFd::numbered(unsafe { OwnedFd::from_raw_fd(*fd) });
        *fd = kept.as_raw_fd();
        kept
    };
    // SAFETY: nobody else has the fresh context yet.
    let ctx = unsafe { &mut *ctx.as_ptr() };
    [put(&mut ctx.cmd_fd), put(&mut ctx.async_fd)]
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.at_hand();
        // SAFETY: everything made from the context holds the device, so all of that is gone. It closes its two descriptors; a hook of
        // ours may leave them to `kept`, which looks before it closes.
        around(|| unsafe { (self.lib.close_device)(self.ctx()) });
    }
}

/// The error number that a call of the library returned, or left in `errno` when it returned -1.
pub(super) fn number((returned, left): (i32, Errno)) -> std::result::Result<(), Errno> {
    match returned {
        0 => Ok(()),
        n if n > 0 => Err(Errno(n)),
        _ => Err(if left.0 == 0 { Errno::IO } else { left }),
    }
}
