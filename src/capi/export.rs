//! Offering this process's memory to others.

use super::attr;
use super::call::{Call, call};
use super::context::{self, Child};
use super::handle::Table;
use super::map::ACCESSES;
use super::types::*;
use crate::base::{Error, Result, Status};
use crate::core::export::own::Own;
use crate::core::export::{Export, ExportOptions, Exporter, Memory, Reach};
use crate::link::{Access, MemoryKind};
use crate::sys::clock::nap;
use crate::sys::mem;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// What smc_export or smc_register_region made.
pub(super) struct Exported {
    pub export: Export,
    /// We have locked the caller's memory: it is unlocked afterwards.
    pinned: Option<(usize, usize)>,
    /// Its registration in a domain of the caller's.
    pub own: Mutex<Option<Own>>,
    _child: Child,
}

impl Exported {
    /// Ends it.
    pub fn end(self) {
        drop(self.own);
        drop(self.export);
        if let Some((addr, len)) = self.pinned {
            let _ = mem::unlock(addr, len);
        }
    }
}

static EXPORTS: Table<Exported> = Table::new(4);

pub(super) const KINDS: [(u32, MemoryKind); 3] =
    [(1, MemoryKind::System), (2, MemoryKind::Pinned), (3, MemoryKind::Device)];

pub(super) fn find(c: Call, export: *const smc_export_t) -> Result<Arc<Exported>> {
    EXPORTS.get(export).ok_or_else(|| c.bad("`exported` is not an open export"))
}

/// What is to be exported, checked.
pub(super) struct Wanted<'a> {
    pub name: &'a str,
    pub addr: usize,
    pub len: usize,
    pub kind: Option<MemoryKind>,
    pub pin: bool,
    pub options: ExportOptions,
}

/// # Safety
/// As for [`Memory::at`] when `addr` is not 0.
pub(super) unsafe fn offer(w: Wanted<'_>, child: Child) -> Result<Exported> {
    let attempt = || format!("export \"{}\"", w.name);
    if w.kind == Some(MemoryKind::Device) {
        let e = Error::new(
            Status::NOT_SUPPORTED,
            attempt(),
            "this version exports system memory only, no accelerator memory",
        );
        return Err(e.remedy("copy to system memory and export that"));
    }
    let pinned = w.pin.then(|| pin(&w)).transpose()?;
    let memory = match w.addr {
        0 => Memory::New(w.len),
        // SAFETY: the caller vouches for it.
        at => unsafe { Memory::at(std::ptr::with_exposed_provenance_mut(at), w.len) },
    };
    let unpin = |e| {
        let _ = pinned.map(|(a, n)| mem::unlock(a, n));
        e
    };
    let export = Exporter::get().and_then(|x| x.export(w.name, memory, w.options)).map_err(unpin)?;
    if w.kind == Some(MemoryKind::Pinned) && export.kind() != MemoryKind::Pinned {
        drop(export);
        let e = Error::new(Status::INVALID_ARGUMENT, attempt(), "the memory is not page-locked, or could not stay so");
        return Err(unpin(e.remedy("lock it with mlock, or pass SMC_EXPORT_PIN to smc_register_region")));
    }
    if w.pin && export.kind() != MemoryKind::Pinned {
        drop(export);
        return Err(unpin(too_little(w.name, w.len, "the pages that clients share could not be locked")));
    }
    Ok(Exported { export, pinned, own: Mutex::default(), _child: child })
}

fn too_little(name: &str, len: usize, why: &str) -> Error {
    let limit = match mem::lock_limit() {
        Some(n) => format!("RLIMIT_MEMLOCK is {n} bytes"),
        None => "RLIMIT_MEMLOCK is not the cause".to_owned(),
    };
    let e = Error::new(
        Status::NO_RESOURCES,
        format!("lock {len} bytes of \"{name}\" into memory"),
        format!("{why}; {limit}"),
    );
    e.remedy("raise it (ulimit -l, LimitMEMLOCK=) or do not pin")
}

fn pin(w: &Wanted<'_>) -> Result<(usize, usize)> {
    let e = match mem::lock(w.addr, w.len) {
        Ok(()) => return Ok((w.addr, w.len)),
        Err(e) => e,
    };
    if e.0 == libc::EINVAL {
        return Err(Error::new(
            Status::INVALID_ARGUMENT,
            format!("lock the memory of \"{}\"", w.name),
            format!("mlock: {e}"),
        ));
    }
    Err(too_little(w.name, w.len, &format!("mlock: {e}")))
}

pub(super) fn keep(e: Exported, name: &str) -> Result<*mut smc_export_t> {
    EXPORTS.insert(Arc::new(e)).ok_or_else(|| Error::of(Status::NO_RESOURCES, format!("export \"{name}\"")))
}

/// # Safety
/// As for [`smc_export`].
unsafe fn wanted<'a>(c: Call, attr: *const smc_export_attr) -> Result<Wanted<'a>> {
    // SAFETY: the caller vouches for it.
    let a = unsafe { attr::read(c, attr, "attr") }?;
    // SAFETY: the caller vouches for it.
    let name = unsafe { c.text(a.name, "attr.name") }?;
    c.flags(a.flags, SMC_EXPORT_ANY_USER | SMC_EXPORT_HOST_ONLY)?;
    let access = c.choice(a.access, "attr.access", &ACCESSES)?.unwrap_or(Access::ReadWrite);
    let kind = c.choice(a.kind, "attr.kind", &KINDS)?;
    if a.allow_uid_count > 1024 {
        return Err(c.bad(format_args!("`attr.allow_uid_count` is {}, more than 1024", a.allow_uid_count)));
    }
    if a.allow_uid_count > 0 && (a.allow_uids.is_null() || !a.allow_uids.is_aligned()) {
        return Err(c.bad("`attr.allow_uids` is NULL or not aligned, and the count is not 0"));
    }
    let allow_uids = match a.allow_uid_count {
        0 => Vec::new(),
        // SAFETY: not NULL, aligned, and the caller vouches for the length.
        n => unsafe { std::slice::from_raw_parts(a.allow_uids, n as usize) }.to_vec(),
    };
    let allow_any = a.flags & SMC_EXPORT_ANY_USER != 0;
    if a.reserved != 0 {
        return Err(c.bad("`attr.reserved` is not 0"));
    }
    // SAFETY: the caller vouches for it.
    let reach = unsafe { reach(c, &a) }?;
    let options = ExportOptions { access, allow_uids, allow_any, incarnation: a.incarnation, reach, port: None };
    Ok(Wanted { name, addr: a.address.expose_provenance(), len: a.length, kind, pin: false, options })
}

/// # Safety
/// `allow_clients` is NULL or holds so many NUL-terminated texts.
unsafe fn reach(c: Call, a: &smc_export_attr) -> Result<Reach> {
    let count = a.allow_client_count;
    if count > 1024 {
        return Err(c.bad(format_args!("`attr.allow_client_count` is {count}, more than 1024")));
    }
    if count > 0 && (a.allow_clients.is_null() || !a.allow_clients.is_aligned()) {
        return Err(c.bad("`attr.allow_clients` is NULL or not aligned, and the count is not 0"));
    }
    if a.flags & SMC_EXPORT_HOST_ONLY != 0 {
        let both = "`attr.allow_clients` names clients of other hosts, and SMC_EXPORT_HOST_ONLY shuts them out";
        return if a.allow_clients.is_null() { Ok(Reach::Host) } else { Err(c.bad(both)) };
    }
    if a.allow_clients.is_null() {
        return Ok(Reach::Members);
    }
    let named = (0..count as usize).map(|i| {
        // SAFETY: the caller vouches for the array.
        let entry = unsafe { a.allow_clients.wrapping_add(i).read() };
        // SAFETY: and for its texts.
        let text = unsafe { c.text(entry, "attr.allow_clients[]") }?;
        Reach::parse(text)
            .ok_or_else(|| c.bad(format_args!("`attr.allow_clients` has \"{text}\", not NAME, NAME:ro or NAME:rw")))
    });
    named.collect::<Result<_>>().map(Reach::Clients)
}

/// Offers memory to other processes under a name.
///
/// `attr->address` NULL: the library allocates `length` bytes of zeroed memory, rounded up to whole pages. Otherwise the memory is
/// yours: whole pages of private anonymous memory (malloc, mmap). It is moved in place onto memory that can be shared: address
/// and content stay; it is private again after smc_unexport(). Until then do not unmap, remap, mprotect or register it with a
/// device; other processes change it at any moment. Threads that store into it sleep during the move; where userfaultfd is
/// not available none may store into it during smc_export() and smc_unexport().
///
/// Clients on this host map it by name at once. Admitted are this process's user and root, and who `allow_uids` and
/// SMC_EXPORT_ANY_USER name. Clients of other hosts open it when the process listens (smc_listen), as far as `allow_clients` and
/// SMC_EXPORT_HOST_ONLY let them; the memory is registered with the RDMA device for each of them, and pinned.
///
/// Errors: INVALID_ARGUMENT, EXISTS (the name is taken on this host), NOT_SUPPORTED (memory of another kind; accelerator
/// memory), NO_RESOURCES, SYSTEM, TIMED_OUT, FORKED. Any thread; takes about a second per 4 GB of touched memory. The first
/// export starts one thread. A fork child must not use the memory. The export is yours until smc_unexport(); after its end, or that
/// of the process, clients get PEER_DEAD, and go on if the name comes back with the same `incarnation`.
///
/// # Safety
/// `attr` holds `struct_size` readable bytes and valid pointers; `exported` is writable; the memory is as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_export(
    ctx: *mut smc_context,
    attr: *const smc_export_attr,
    exported: *mut *mut smc_export_t,
) -> smc_status {
    call("smc_export", |c| {
        let context = context::find(c, ctx)?;
        let out = c.out(exported, "exported")?;
        // SAFETY: the caller vouches for it.
        let w = unsafe { wanted(c, attr) }?;
        let name = w.name;
        // SAFETY: the caller vouches for it.
        let handle = keep(unsafe { offer(w, Child::of(&context)) }?, name)?;
        // SAFETY: the caller vouches for it.
        unsafe { out.set(handle) };
        Ok(())
    })
}

/// First byte of exported memory; NULL when `exported` is not open (or this is a fork child). Constant until smc_unexport().
#[unsafe(no_mangle)]
pub extern "C" fn smc_export_address(exported: *mut smc_export_t) -> *mut c_void {
    let mut at = std::ptr::null_mut();
    let _ = call("smc_export_address", |c| {
        at = find(c, exported)?.export.base().cast();
        Ok(())
    });
    at
}

/// Bytes of exported memory, whole pages; 0 when `exported` is not open (or this is a fork child).
#[unsafe(no_mangle)]
pub extern "C" fn smc_export_length(exported: *mut smc_export_t) -> usize {
    let mut len = 0;
    let _ = call("smc_export_length", |c| {
        len = find(c, exported)?.export.len();
        Ok(())
    });
    len
}

/// Ends an export: no client reaches the memory any more (PEER_DEAD), the name is free, memory of the caller is private again and keeps its content, memory of
/// the library is unmapped. Waits for calls of other threads with it. INVALID_ARGUMENT when it is not open, FORKED in a fork
/// child.
#[unsafe(no_mangle)]
pub extern "C" fn smc_unexport(exported: *mut smc_export_t) -> smc_status {
    call("smc_unexport", |c| {
        let mut gone = EXPORTS.remove(exported).ok_or_else(|| c.bad("`exported` is not an open export"))?;
        // The handle is stale, so the users only get fewer, and each is inside one call.
        let last = loop {
            match Arc::try_unwrap(gone) {
                Ok(last) => break last,
                Err(shared) => gone = shared,
            }
            nap(100_000);
        };
        last.end();
        Ok(())
    })
}
