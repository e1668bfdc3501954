//! Memory of the program's, bound to a port, and registered in a protection domain of its own.

use super::call::{Call, call};
use super::context::{self, Child};
use super::export::{Exported, KINDS, Wanted, find, keep, offer};
use super::types::*;
use crate::base::config::DeviceWish;
use crate::base::{Error, Result, Status};
use crate::core::export::own::{Own, can_bind};
use crate::core::export::{Export, ExportOptions, Reach};
use crate::link::Access;
use std::ffi::{c_char, c_void};
use std::sync::{MutexGuard, PoisonError};

impl Exported {
    fn own(&self) -> MutexGuard<'_, Option<Own>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs what may move the memory.
    pub fn moving(&self, f: impl FnOnce(&Export) -> Result<()>) -> Result<()> {
        match &mut *self.own() {
            Some(own) => own.moving(&self.export, || f(&self.export)),
            None => f(&self.export),
        }
    }
}

/// The port that "DEVICE:PORT" or "DEVICE:PORT:GIDINDEX" names, if it can be used now.
fn port(c: Call, text: &str) -> Result<DeviceWish> {
    let mut parts = text.split(':');
    let parsed = (|| {
        let (device, port) = (parts.next()?, parts.next()?);
        let gid_index = parts.next().map(|n| n.parse().ok()).map_or(Some(None), |n| n.map(Some))?;
        let port = port.parse().ok().filter(|p| *p != 0u8)?;
        (!device.is_empty() && parts.next().is_none()).then(|| DeviceWish {
            name: Some(device.to_owned()),
            ports: vec![port],
            gid_index,
        })
    })();
    let wish = parsed
        .ok_or_else(|| c.bad(format_args!("`endpoint` is \"{text}\", not DEVICE:PORT or DEVICE:PORT:GIDINDEX")))?;
    can_bind(&wish)?;
    Ok(wish)
}

/// Registers memory of this process as a region that peers can map: classifies it, pins it when asked, binds it to a port,
/// and from then on describes it to every client that connects.
///
/// `address`, `length`: whole pages, as for smc_export(). `kind`: enum smc_memory, checked against what the memory is; 0: find
/// out. `endpoint`: the port of an RDMA device, as "DEVICE:PORT" or "DEVICE:PORT:GIDINDEX", by which clients of other hosts reach the
/// memory once the process listens (smc_listen()); NULL: the process's (LIBSMC_DEVICE, or the one that fits the client's way).
/// `protection_domain`: a struct ibv_pd of the program's, in which the memory is registered as well, so that the program's own queue pairs
/// can use it: see smc_region_keys(). It must stay until smc_unexport(). Clients get a domain each all the same. NULL: none. `flags`:
/// SMC_EXPORT_PIN locks the memory into RAM for the life of the registration (and unlocks it then), SMC_EXPORT_READ_ONLY,
/// SMC_EXPORT_ANY_USER, SMC_EXPORT_HOST_ONLY. Undone with smc_unexport(), which returns when no client reaches the memory any more.
///
/// Errors: as for smc_export(); NOT_FOUND when there is no such device or its port has no link, NOT_SUPPORTED without libibverbs;
/// INVALID_ARGUMENT for a domain that is none; NO_RESOURCES when RLIMIT_MEMLOCK is too small to pin or register (the text names the limit).
///
/// # Safety
/// Texts are NUL-terminated; `exported` is writable; the memory is as described for smc_export().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_register_region(
    ctx: *mut smc_context,
    address: *mut c_void,
    length: usize,
    kind: u32,
    endpoint: *const c_char,
    protection_domain: *mut c_void,
    name: *const c_char,
    flags: u32,
    exported: *mut *mut smc_export_t,
) -> smc_status {
    call("smc_register_region", |c| {
        let context = context::find(c, ctx)?;
        let out = c.out(exported, "exported")?;
        // SAFETY: the caller vouches for it.
        let name = unsafe { c.text(name, "name") }?;
        // SAFETY: the caller vouches for it.
        let endpoint = unsafe { c.optional_text(endpoint, "endpoint") }?;
        c.flags(flags, SMC_EXPORT_PIN | SMC_EXPORT_READ_ONLY | SMC_EXPORT_ANY_USER | SMC_EXPORT_HOST_ONLY)?;
        let kind = c.choice(kind, "kind", &KINDS)?;
        if address.is_null() {
            return Err(c.bad("`address` is NULL; smc_export allocates memory"));
        }
        let port = endpoint.map(|text| port(c, text)).transpose()?;
        let access = if flags & SMC_EXPORT_READ_ONLY != 0 { Access::ReadOnly } else { Access::ReadWrite };
        let allow_any = flags & SMC_EXPORT_ANY_USER != 0;
        let reach = if flags & SMC_EXPORT_HOST_ONLY != 0 { Reach::Host } else { Reach::Members };
        let options = ExportOptions { access, allow_any, reach, port, ..ExportOptions::default() };
        let w = Wanted {
            name,
            addr: address.expose_provenance(),
            len: length,
            kind,
            pin: flags & SMC_EXPORT_PIN != 0,
            options,
        };
        // SAFETY: the caller vouches for it.
        let made = unsafe { offer(w, Child::of(&context)) }?;
        if !protection_domain.is_null() {
            // SAFETY: the caller vouches for it; smc_unexport drops it before the export.
            match unsafe { Own::new(&made.export, protection_domain, access) } {
                Ok(own) => *made.own() = Some(own),
                Err(e) => {
                    made.end();
                    return Err(e);
                }
            }
        }
        let handle = keep(made, name)?;
        // SAFETY: the caller vouches for it.
        unsafe { out.set(handle) };
        Ok(())
    })
}

/// The keys under which memory is registered in the protection domain that smc_register_region() was given: `lkey` for requests of
/// the program's own queue pairs of that domain, `rkey` for those of their other sides, who may write unless the region is read-only. The
/// address is smc_export_address(). smc_export_revoke() changes both: ask again after it; requests under way meanwhile fail.
///
/// Errors: INVALID_ARGUMENT, NOT_FOUND when it is registered in no domain of the program's, FORKED. Any thread.
///
/// # Safety
/// `lkey` and `rkey` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_region_keys(exported: *mut smc_export_t, lkey: *mut u32, rkey: *mut u32) -> smc_status {
    call("smc_region_keys", |c| {
        let e = find(c, exported)?;
        let (lkey, rkey) = (c.out(lkey, "lkey")?, c.out(rkey, "rkey")?);
        let own = e.own();
        let keys = own.as_ref().and_then(Own::keys);
        let (local, remote) = keys.ok_or_else(|| {
            let why = "the memory is registered in no protection domain of the program's";
            Error::new(Status::NOT_FOUND, "tell the keys of a region", why).remedy("pass one to smc_register_region()")
        })?;
        // SAFETY: the caller vouches for it.
        unsafe { lkey.set(local) };
        // SAFETY: the caller vouches for it.
        unsafe { rkey.set(remote) };
        Ok(())
    })
}
