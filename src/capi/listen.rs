//! Letting clients of other hosts in.

use super::attr;
use super::call::{call, copy_text};
use super::context::{self, Child};
use super::handle::Table;
use super::types::{smc_context, smc_listener, smc_status};
use crate::base::config::DeviceWish;
use crate::base::{Error, Result, Status};
use crate::core::export::Exporter;
use crate::core::export::net::{Keyring, ListenOptions, Network};
use crate::sys::clock::nap;
use std::ffi::c_char;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Attributes of smc_listen().
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_listen_attr {
    /// sizeof(smc_listen_attr).
    pub struct_size: usize,
    /// Address of this host and port, in numbers: "10.0.0.7:7471", "0.0.0.0:7471", or of IPv6 in brackets. With port 0 any free one.
    pub address: *const c_char,
    /// File with the keys of the clients, one in each line, or a folder of such files; `smc keygen` makes them. It must belong to this process's
    /// user or root, and nobody else may have a right to it (mode 0600).
    pub keys: *const c_char,
    /// RDMA device by which clients reach the memory: "NAME", "NAME:PORT", "NAME:PORT+PORT". NULL: LIBSMC_DEVICE, or else the device
    /// of the address that a client calls.
    pub device: *const c_char,
}

/// What smc_listen made.
struct Listener {
    network: Network,
    keys: PathBuf,
    _child: Child,
}

static LISTENERS: Table<Listener> = Table::new(5);

fn device(c: super::call::Call, text: Option<&str>) -> Result<DeviceWish> {
    let set = context::engine(c)?.config().device.clone();
    let Some(text) = text else { return Ok(set) };
    let bad = || c.bad(format_args!("`attr.device` is \"{text}\", not NAME, NAME:PORT or NAME:PORT+PORT"));
    let wish = DeviceWish::parse(text).ok_or_else(bad)?;
    Ok(DeviceWish { gid_index: set.gid_index, ..wish })
}

/// Lets clients of other hosts list, open and reach what this process exports, now and later, as far as each export's `allow_clients` and SMC_EXPORT_HOST_ONLY
/// let them. Who has no key learns nothing, not even what is exported; everything that is said is encrypted. Bytes go by
/// RDMA, and are not encrypted: each client has a protection domain and a key of his own for each region, good on his connection only.
///
/// The exports' own lists of users (`allow_uids`) are of no meaning to clients of other hosts: they are known by their keys. Where no RDMA device
/// is found, regions can be listed and opened, and clients are told what is missing when they connect.
///
/// Starts one thread. Errors: INVALID_ARGUMENT, NOT_FOUND and PERMISSION (the keys), EXISTS (somebody listens there), SYSTEM,
/// NO_RESOURCES, FORKED. Any thread; may block. The listener is yours until smc_unlisten().
///
/// # Safety
/// `attr` holds `struct_size` readable bytes and valid texts; `listener` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_listen(
    ctx: *mut smc_context,
    attr: *const smc_listen_attr,
    listener: *mut *mut smc_listener,
) -> smc_status {
    call("smc_listen", |c| {
        let context = context::find(c, ctx)?;
        let out = c.out(listener, "listener")?;
        // SAFETY: the caller vouches for it.
        let a = unsafe { attr::read(c, attr, "attr") }?;
        // SAFETY: the caller vouches for it.
        let address = unsafe { c.text(a.address, "attr.address") }?;
        // SAFETY: the caller vouches for it.
        let keys = unsafe { c.text(a.keys, "attr.keys") }?;
        // SAFETY: the caller vouches for it.
        let named = unsafe { c.optional_text(a.device, "attr.device") }?;
        let at: SocketAddr = address.parse().map_err(|_| {
            c.bad(format_args!("`attr.address` is \"{address}\", not an address in numbers and a port"))
        })?;
        let options = ListenOptions { device: device(c, named)?, ..ListenOptions::default() };
        let network = Exporter::get()?.listen_with(at, Keyring::load(Path::new(keys))?, options)?;
        let made = Listener { network, keys: keys.into(), _child: Child::of(&context) };
        let handle = LISTENERS.insert(Arc::new(made));
        let handle = handle.ok_or_else(|| Error::of(Status::NO_RESOURCES, "listen"))?;
        // SAFETY: the caller vouches for it.
        unsafe { out.set(handle) };
        Ok(())
    })
}

fn find(c: super::call::Call, listener: *const smc_listener) -> Result<Arc<Listener>> {
    LISTENERS.get(listener).ok_or_else(|| c.bad("`listener` is not open"))
}

/// Writes where it listens into `[buffer, buffer + length)`, as "ADDRESS:PORT" and a NUL, cut if it does not fit; 64 bytes are enough. It
/// tells the port when any free one was asked for. INVALID_ARGUMENT, FORKED. Any thread.
///
/// # Safety
/// `buffer` is NULL or writable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_listener_address(
    listener: *mut smc_listener,
    buffer: *mut c_char,
    length: usize,
) -> smc_status {
    call("smc_listener_address", |c| {
        let address = find(c, listener)?.network.address().to_string();
        if buffer.is_null() {
            return Err(c.bad("`buffer` is NULL"));
        }
        // SAFETY: the caller vouches for it.
        unsafe { copy_text(address.as_bytes(), buffer, length) };
        Ok(())
    })
}

/// Reads the keys anew: those that were added are good from now on; clients whose key has gone have lost their access when it returns,
/// as by smc_export_revoke(). When the keys cannot be used nothing changes.
///
/// Errors: INVALID_ARGUMENT, NOT_FOUND, PERMISSION, SYSTEM, TIMED_OUT, FORKED. Any thread; may block.
#[unsafe(no_mangle)]
pub extern "C" fn smc_listener_reload(listener: *mut smc_listener) -> smc_status {
    call("smc_listener_reload", |c| {
        let l = find(c, listener)?;
        l.network.take_keys(Keyring::load(&l.keys)?)
    })
}

/// Ends it: clients of other hosts that came by it reach nothing any more when it returns, and the port is free. The exports stay.
/// Waits for calls of other threads with it. INVALID_ARGUMENT when it is not open, FORKED in a fork child.
#[unsafe(no_mangle)]
pub extern "C" fn smc_unlisten(listener: *mut smc_listener) -> smc_status {
    call("smc_unlisten", |c| {
        let mut gone = LISTENERS.remove(listener).ok_or_else(|| c.bad("`listener` is not open"))?;
        // The handle is stale, so the users only get fewer, and each is inside one call.
        while let Err(shared) = Arc::try_unwrap(gone).map(drop) {
            gone = shared;
            nap(100_000);
        }
        Ok(())
    })
}
