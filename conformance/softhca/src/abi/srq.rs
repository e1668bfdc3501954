//! Shared receive queues.

use super::context::core;
use super::memory::domain;
use super::{answer, argument, object, pointer, take_back};
use crate::context::Context;
use crate::device::{MAX_SGE, MAX_WR};
use crate::qp::Element;
use crate::wqe::{RecvCaps, RecvQueue};
use ibverbs_sys as sys;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A shared receive queue.
#[repr(C)]
pub struct SrqObject {
    /// What the program sees.
    pub public: sys::ibv_srq,
    /// The queue.
    pub core: Arc<RecvQueue>,
    /// Its device.
    pub context: Arc<Context>,
}

/// The queue behind a pointer.
///
/// # Safety
/// `srq` must be a shared receive queue of this library.
pub unsafe fn shared<'a>(srq: *mut sys::ibv_srq) -> &'a SrqObject {
    // SAFETY: the caller vouches.
    unsafe { object(srq) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut sys::ibv_pd, init: *mut sys::ibv_srq_init_attr) -> *mut sys::ibv_srq {
    // SAFETY: the program gives an attribute.
    let init = unsafe { argument(init) };
    if !(1..=MAX_WR).contains(&init.attr.max_wr) || init.attr.max_sge > MAX_SGE {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: the program gives a domain.
    let own = unsafe { domain(pd) };
    let (number, context) = own.place();
    // SAFETY: a domain's context is open.
    let device = unsafe { core(context) };
    if device.faults.removed() {
        return pointer(Err(libc::EIO));
    }
    own.users.fetch_add(1, Ordering::Relaxed);
    let caps = RecvCaps { wr: init.attr.max_wr, sge: init.attr.max_sge };
    let core = Arc::new(RecvQueue::new(number, true, caps));
    let public = sys::ibv_srq { context, srq_context: init.srq_context, pd, ..Default::default() };
    let made = SrqObject { public, core: core.clone(), context: device.clone() };
    let srq: *mut sys::ibv_srq = super::hand_out(made);
    core.user.store(srq as usize, Ordering::Release);
    srq
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut sys::ibv_srq, attr: *mut sys::ibv_srq_attr, mask: i32) -> i32 {
    const MAX: i32 = 1;
    const LIMIT: i32 = 2;
    // SAFETY: the program gives a queue.
    let own = unsafe { shared(srq) };
    // SAFETY: the program gives an attribute.
    let attr = unsafe { argument(attr) };
    let wr = if mask & MAX != 0 { attr.max_wr } else { own.core.caps().wr };
    let limit_fits = mask & LIMIT == 0 || attr.srq_limit <= wr;
    if mask & !(MAX | LIMIT) != 0 || !(1..=MAX_WR).contains(&wr) || !limit_fits {
        return libc::EINVAL;
    }
    if let Err(e) = own.core.resize(wr) {
        return e;
    }
    if mask & LIMIT != 0 {
        own.core.limit.store(attr.srq_limit, Ordering::Relaxed);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut sys::ibv_srq, to: *mut sys::ibv_srq_attr) -> i32 {
    // SAFETY: the program gives a queue.
    let core = &unsafe { shared(srq) }.core;
    let (caps, srq_limit) = (core.caps(), core.limit.load(Ordering::Relaxed));
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(to, sys::ibv_srq_attr { max_wr: caps.wr, max_sge: caps.sge, srq_limit }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut sys::ibv_srq) -> i32 {
    // SAFETY: the program gives a queue.
    let own = unsafe { shared(srq) };
    if own.core.users.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    own.context.events.remove(|e| matches!(&e.element, Element::Srq(q) if Arc::ptr_eq(q, &own.core)));
    own.core.async_events.wait();
    // SAFETY: nothing uses it and the program has given it up.
    let own: Box<SrqObject> = unsafe { take_back(srq) };
    // SAFETY: a queue's domain outlives it.
    unsafe { domain(own.public.pd) }.users.fetch_sub(1, Ordering::Relaxed);
    0
}
