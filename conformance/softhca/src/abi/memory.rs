//! Protection domains, memory regions, address handles.

use super::context::core;
use super::{answer, argument, code, object, pointer, take_back};
use crate::charge::Charge;
use crate::context::Context;
use crate::keys::{Region, access};
use crate::memory::Pinned;
use crate::{device, modify, raw};
use ibverbs_sys as sys;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A protection domain.
#[repr(C)]
pub struct Domain {
    public: sys::ibv_pd,
    /// Its number in the open device.
    pub number: u32,
    /// Objects that belong to it.
    pub users: AtomicU32,
}

#[repr(C)]
struct Mr {
    public: sys::ibv_mr,
    context: Arc<Context>,
}

/// An address handle.
#[repr(C)]
pub struct Handle {
    public: sys::ibv_ah,
    /// Where it leads.
    pub gid: [u8; 16],
}

impl Domain {
    /// Its number and its open device.
    pub fn place(&self) -> (u32, *mut sys::ibv_context) {
        (self.number, self.public.context)
    }
}

/// The domain behind a pointer.
///
/// # Safety
/// `pd` must be a domain of this library.
pub unsafe fn domain<'a>(pd: *mut sys::ibv_pd) -> &'a Domain {
    // SAFETY: the caller vouches.
    unsafe { object(pd) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd {
    // SAFETY: the program gives an open context.
    let core = unsafe { core(context) };
    if core.faults.removed() {
        return pointer(Err(libc::EIO));
    }
    let number = core.domains.fetch_add(1, Ordering::Relaxed) + 1;
    super::hand_out(Domain { public: sys::ibv_pd { context, handle: number }, number, users: AtomicU32::new(0) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> i32 {
    // SAFETY: the program gives a domain.
    if unsafe { domain(pd) }.users.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: nothing uses it and the program has given it up.
    drop(unsafe { take_back::<Domain, _>(pd) });
    0
}

/// The rights of a registration, if the device can give them.
fn rights(flags: u32) -> Result<u32, i32> {
    let flags = flags & !access::OPTIONAL;
    let known = if device::flushes() { access::KNOWN | access::FLUSH_GLOBAL } else { access::KNOWN };
    if flags & !known != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    // What writes for others writes locally.
    let writes = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    if writes && flags & access::LOCAL_WRITE == 0 { Err(libc::EINVAL) } else { Ok(flags) }
}

fn pin(context: &Context, pd: u32, addr: usize, len: usize, iova: u64, flags: u32) -> Result<Region, i32> {
    const PAGE: u64 = 4096;
    let start = raw::now();
    let access = rights(flags)?;
    context.faults.refresh(context, true);
    context.faults.registration()?;
    // As the kernel wants it: the same offset in a page.
    if len == 0 || !(addr as u64 ^ iova).is_multiple_of(PAGE) || iova.checked_add(len as u64).is_none() {
        return Err(libc::EINVAL);
    }
    let pages = (addr as u64 % PAGE + len as u64).div_ceil(PAGE);
    let _charge = if context.faults.counts_locked() { Charge::of(pages)? } else { Charge::default() };
    let memory = Pinned::new(addr, len, access & access::LOCAL_WRITE != 0)?;
    context.model.registration(pages, start);
    let (revoked, windows) = (AtomicBool::new(false), AtomicU32::new(0));
    Ok(Region { pd, iova, len: len as u64, access, memory, _charge, revoked, windows })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut sys::ibv_mr {
    // SAFETY: the program gives a domain.
    let own = unsafe { domain(pd) };
    let context = own.public.context;
    // SAFETY: a domain's context is open.
    let core = unsafe { core(context) };
    let key = match pin(core, own.number, addr as usize, length, iova, flags) {
        Ok(region) => core.keys.add(region),
        Err(e) => return pointer(Err(e)),
    };
    own.users.fetch_add(1, Ordering::Relaxed);
    let public = sys::ibv_mr { context, pd, addr, length, handle: key, lkey: key, rkey: key };
    super::hand_out(Mr { public, context: core.clone() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags: i32,
) -> *mut sys::ibv_mr {
    // SAFETY: the program's own arguments.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr as u64, flags as u32) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: i32,
) -> *mut sys::ibv_mr {
    // SAFETY: the program's own arguments.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, flags as u32) }
}

/// `EINVAL` while windows are bound to it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut sys::ibv_mr) -> i32 {
    // SAFETY: the program gives a region.
    let own: &Mr = unsafe { object(mr) };
    if let Err(e) = own.context.keys.remove(own.public.lkey) {
        return e;
    }
    own.context.settle();
    // SAFETY: the device does not know it any more and the program has given it up.
    let own: Box<Mr> = unsafe { take_back(mr) };
    // SAFETY: a region's domain outlives it: `ibv_dealloc_pd` refuses before.
    unsafe { domain(own.public.pd) }.users.fetch_sub(1, Ordering::Relaxed);
    0
}

/// IBV_REREG_MR_ERR_INPUT: the arguments make no sense, the region is as it was.
const REREG_INPUT: i32 = -1;
/// IBV_REREG_MR_ERR_CMD: the device refused, and the region is not valid any more.
const REREG_REFUSED: i32 = -4;

/// Pins anew with what changes. The key stays; a region under which windows are bound does not change.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut sys::ibv_mr,
    flags: i32,
    pd: *mut sys::ibv_pd,
    addr: *mut c_void,
    length: usize,
    rights: i32,
) -> i32 {
    let (translation, other_pd, other_rights) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
    let nothing = translation && (addr.is_null() || length == 0) || rights != 0 && !other_rights;
    if flags & !7 != 0 || nothing || other_pd && pd.is_null() {
        super::set_errno(libc::EINVAL);
        return REREG_INPUT;
    }
    // SAFETY: the program gives a region.
    let own: &Mr = unsafe { object(mr) };
    let was = &own.public;
    let pd = if other_pd { pd } else { was.pd };
    // SAFETY: the program gives a domain, or the region's own.
    let domain_now = unsafe { domain(pd) };
    let (addr, length) = if translation { (addr, length) } else { (was.addr, was.length) };
    let old = own.context.keys.get(was.lkey);
    let access = if other_rights { rights as u32 } else { old.as_ref().map_or(0, |r| r.access) };
    let iova = if translation { addr as u64 } else { old.as_ref().map_or(0, |r| r.iova) };
    let pinned = pin(&own.context, domain_now.number, addr as usize, length, iova, access);
    if let Err(e) = pinned.and_then(|region| own.context.keys.replace(was.lkey, region)) {
        super::set_errno(e);
        return REREG_REFUSED;
    }
    own.context.settle();
    domain_now.users.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the region's domain until now, which outlives it.
    unsafe { domain(was.pd) }.users.fetch_sub(1, Ordering::Relaxed);
    let now = sys::ibv_mr { pd, addr, length, ..*was };
    // SAFETY: the program's own structure, which only verbs write.
    unsafe { answer(mr, now) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut sys::ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: i32,
    _access: i32,
) -> *mut sys::ibv_mr {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut sys::ibv_context, _handle: u32) -> *mut sys::ibv_pd {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut sys::ibv_pd) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(_pd: *mut sys::ibv_pd, _handle: u32) -> *mut sys::ibv_mr {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut sys::ibv_mr) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut sys::ibv_context, _handle: u32) -> *mut c_void {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut c_void) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut sys::ibv_pd, attr: *mut sys::ibv_ah_attr) -> *mut sys::ibv_ah {
    // SAFETY: the program gives an attribute.
    let attr = unsafe { argument(attr) };
    if !modify::address_is_sensible(attr) {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: the program gives a domain.
    let own = unsafe { domain(pd) };
    own.users.fetch_add(1, Ordering::Relaxed);
    let public = sys::ibv_ah { context: own.public.context, pd, handle: 0 };
    super::hand_out(Handle { public, gid: modify::gid_bytes(&attr.grh.dgid) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut sys::ibv_ah) -> i32 {
    // SAFETY: the program gives a handle and uses it no more.
    let ah: Box<Handle> = unsafe { take_back(ah) };
    // SAFETY: a handle's domain outlives it.
    unsafe { domain(ah.public.pd) }.users.fetch_sub(1, Ordering::Relaxed);
    0
}

/// Address of the sender of a datagram: its GID stands in the header before the message.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut sys::ibv_context,
    port: u8,
    wc: *mut crate::cq::Wc,
    grh: *mut sys::ibv_grh,
    to: *mut sys::ibv_ah_attr,
) -> i32 {
    // SAFETY: the program gives a completion.
    let wc = unsafe { argument(wc) };
    // SAFETY: the program gives an open context.
    let core = unsafe { core(context) };
    if wc.wc_flags & sys::ibv_wc_flags::IBV_WC_GRH.0 == 0 || core.port(u32::from(port)).is_err() {
        super::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the program gives the 40 bytes before the message, at any address.
    let grh = unsafe { grh.read_unaligned() };
    let dgid = modify::gid_bytes(&grh.dgid);
    let own = (0..device::GIDS).find(|&i| device::gid(core.place.device, u32::from(port), i) == Some(dgid));
    let route = sys::ibv_global_route {
        dgid: grh.sgid,
        flow_label: 0,
        sgid_index: own.unwrap_or(1) as u8,
        hop_limit: 64,
        traffic_class: 0,
    };
    let attr = sys::ibv_ah_attr { grh: route, is_global: 1, port_num: port, ..Default::default() };
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(to, attr) };
    code(Ok(()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut sys::ibv_pd,
    wc: *mut crate::cq::Wc,
    grh: *mut sys::ibv_grh,
    port: u8,
) -> *mut sys::ibv_ah {
    let mut attr = sys::ibv_ah_attr::default();
    // SAFETY: the program gives a domain.
    let context = unsafe { domain(pd) }.public.context;
    // SAFETY: the program's own arguments, and an attribute of ours.
    if unsafe { ibv_init_ah_from_wc(context, port, wc, grh, &mut attr) } != 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the program's domain, and an attribute of ours.
    unsafe { ibv_create_ah(pd, &mut attr) }
}
