//! Who has an export open, and taking it away.

use super::call::call;
use super::error::c_text;
use super::export;
use super::peer::access_number;
use super::types::{SMC_REVOKE_QUIESCED, smc_export_t, smc_status};
use std::ffi::{CString, c_char, c_void};

/// A client of an export.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_client {
    /// Bytes that the library filled in; may exceed your sizeof(smc_client).
    pub struct_size: usize,
    /// Names it for smc_export_revoke(); never 0, never used twice in one process.
    pub id: u64,
    /// When it opened, nanoseconds of CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// Its process; 0 when it lives in another pid namespace or on another host.
    pub pid: u32,
    /// Its user; 0xffffffff on another host.
    pub uid: u32,
    /// enum smc_access.
    pub access: u32,
    /// 0.
    pub reserved: u32,
    /// The name in its key; NULL on this host and for a key without a name. This and the next two are valid during the callback.
    pub name: *const c_char,
    /// Where it calls from, as "ADDRESS:PORT"; NULL on this host.
    pub address: *const c_char,
    /// The RDMA device of this host by which it reaches the memory; NULL on this host and until it has connected.
    pub device: *const c_char,
}

/// Called by smc_export_clients() for each client; another result than 0 ends the list.
pub type smc_client_fn = Option<unsafe extern "C" fn(client: *const smc_client, user: *mut c_void) -> i32>;

/// Calls `each` for every client that has the export open now, in the calling thread. The list is complete before the first
/// call: `each` may use the library. Errors: INVALID_ARGUMENT, FORKED. Any thread.
///
/// # Safety
/// `each` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_export_clients(
    exported: *mut smc_export_t,
    each: smc_client_fn,
    user: *mut c_void,
) -> smc_status {
    call("smc_export_clients", |c| {
        let f = each.ok_or_else(|| c.bad("`each` is NULL"))?;
        // The export is not held during the calls: smc_unexport waits for who holds it.
        let clients = export::find(c, exported)?.export.clients();
        for k in clients {
            let text = |t: Option<String>| t.map(|t| c_text(&t));
            let remote = k.remote.as_ref();
            let name = text(remote.and_then(|r| r.client.clone()));
            let address = text(remote.map(|r| r.address.to_string()));
            let device = text(remote.and_then(|r| r.device.clone()));
            let at = |t: &Option<CString>| t.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
            let client = smc_client {
                struct_size: size_of::<smc_client>(),
                id: k.id,
                since_ns: k.since,
                pid: k.pid,
                uid: k.uid,
                access: access_number(k.access),
                reserved: 0,
                name: at(&name),
                address: at(&address),
                device: at(&device),
            };
            // SAFETY: the caller vouches for the function; the entry and its texts live during the call.
            if unsafe { f(&raw const client, user) } != 0 {
                break;
            }
        }
        Ok(())
    })
}

/// Takes the memory away from one client, or from all (`client_id` 0). When it returns OK, nothing that a revoked client
/// holds reads or writes the exported bytes. For a client of this host they have moved to other pages, at the same address here, and the old ones are
/// zero; for one of another host his key is good for nothing any more. Other clients go on.
///
/// `reason` is shown to the client; NULL: none. `flags`: SMC_REVOKE_QUIESCED says that no thread of this process stores into the
/// memory during the call; needed only where userfaultfd is not available, and then BUSY without it. Takes about a second per 4 GB of
/// touched memory, and twice that memory for the time.
///
/// Errors: INVALID_ARGUMENT, NOT_FOUND (no such client any more), BUSY, NO_RESOURCES (the client keeps his access), FORKED.
///
/// # Safety
/// `reason` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_export_revoke(
    exported: *mut smc_export_t,
    client_id: u64,
    reason: *const c_char,
    flags: u32,
) -> smc_status {
    call("smc_export_revoke", |c| {
        let e = export::find(c, exported)?;
        // SAFETY: the caller vouches for it.
        let reason = unsafe { c.optional_text(reason, "reason") }?.unwrap_or("");
        c.flags(flags, SMC_REVOKE_QUIESCED)?;
        let quiesced = flags & SMC_REVOKE_QUIESCED != 0;
        e.moving(|export| match client_id {
            0 => export.revoke_all(reason, quiesced),
            id => export.revoke(id, reason, quiesced),
        })
    })
}
