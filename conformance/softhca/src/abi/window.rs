//! Memory windows.

use super::memory::domain;
use super::post::post_one;
use super::qp::pair;
use super::{argument, context, object, pointer, take_back};
use crate::context::Context;
use crate::post;
use crate::window::{Bind, Window};
use ibverbs_sys as sys;
use ibverbs_sys::ibv_wr_opcode::IBV_WR_BIND_MW;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[repr(C)]
struct Mw {
    public: sys::ibv_mw,
    context: Arc<Context>,
}

/// `ops.alloc_mw`.
///
/// # Safety
/// `pd` must be a domain of this library.
pub unsafe extern "C" fn alloc_mw(pd: *mut sys::ibv_pd, kind: sys::ibv_mw_type) -> *mut sys::ibv_mw {
    if kind != sys::IBV_MW_TYPE_1 && kind != sys::IBV_MW_TYPE_2 {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: the caller vouches.
    let own = unsafe { domain(pd) };
    let (number, context) = own.place();
    // SAFETY: a domain's context is open.
    let core = unsafe { context::core(context) };
    if core.faults.removed() {
        return pointer(Err(libc::EIO));
    }
    let key = core.keys.add_window(Window::new(number, kind == sys::IBV_MW_TYPE_2));
    own.users.fetch_add(1, Ordering::Relaxed);
    let public = sys::ibv_mw { context, pd, rkey: key, handle: key, type_: kind };
    super::hand_out(Mw { public, context: core.clone() })
}

/// `ops.dealloc_mw`.
///
/// # Safety
/// `mw` must be a window of this library, used no more.
pub unsafe extern "C" fn dealloc_mw(mw: *mut sys::ibv_mw) -> i32 {
    // SAFETY: the caller vouches.
    let own: Box<Mw> = unsafe { take_back(mw) };
    own.context.keys.remove_window(own.public.rkey);
    own.context.settle();
    // SAFETY: a window's domain outlives it.
    unsafe { domain(own.public.pd) }.users.fetch_sub(1, Ordering::Relaxed);
    0
}

/// What a request binds: `EINVAL` when a window of that type is not bound this way.
///
/// # Safety
/// `mw` must be a window and `info` valid, with a region or none.
pub unsafe fn binding(mw: *mut sys::ibv_mw, key: u32, info: &sys::ibv_mw_bind_info, two: bool) -> Result<Bind, i32> {
    // SAFETY: the caller vouches.
    let own: &Mw = unsafe { object(mw) };
    let is_two = own.context.keys.with_window(own.public.rkey, |w, _| w.is_two());
    // SAFETY: the caller vouches.
    let region = unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey);
    if is_two != Some(two) || key >> 8 != own.public.rkey >> 8 {
        return Err(libc::EINVAL);
    }
    Ok(Bind { key, region, addr: info.addr, len: info.length, access: info.mw_access_flags })
}

/// `ops.bind_mw`: the window gets its next key at once, valid when the request completes.
///
/// # Safety
/// As the manual page of `ibv_bind_mw` asks.
pub unsafe extern "C" fn bind_mw(qp: *mut sys::ibv_qp, mw: *mut sys::ibv_mw, bind: *mut sys::ibv_mw_bind) -> i32 {
    // SAFETY: the caller vouches.
    let own = unsafe { pair(qp) };
    // SAFETY: the caller vouches.
    let bind = unsafe { argument(bind) };
    // SAFETY: the caller vouches.
    let key = unsafe { argument(mw) }.rkey;
    let next = key & !0xff | (key + 1) & 0xff;
    // SAFETY: the caller vouches.
    let posted = unsafe { binding(mw, next, &bind.bind_info, false) }.and_then(|b| {
        let mut wqe = post::request(&own.core, bind.wr_id, IBV_WR_BIND_MW, bind.send_flags)?;
        wqe.bind = Some(b);
        post_one(own, wqe)
    });
    own.context.kick(own.core.number);
    if let Err(e) = posted {
        return e;
    }
    // SAFETY: the program's own structure, which only this call writes.
    unsafe { (*mw).rkey = next };
    0
}
