//! Queue pairs.

use super::context::core;
use super::cq::queue;
use super::memory::domain;
use super::{answer, argument, code, object, pointer, take_back};
use crate::context::Context;
use crate::device;
use crate::device::{MAX_INLINE, MAX_SGE, MAX_WR};
use crate::modify;
use crate::qp::{Element, Kind, Parts, Qp};
use crate::wqe::{RecvCaps, RecvQueue, SendWqe};
use ibverbs_sys as sys;
use ibverbs_sys::ibv_qp_type as qpt;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A queue pair: `struct ibv_qp_ex` begins as `struct ibv_qp` does.
#[repr(C)]
pub struct QpObject {
    /// What the program sees.
    pub public: sys::ibv_qp_ex,
    /// The queue pair.
    pub core: Arc<Qp>,
    /// Its device.
    pub context: Arc<Context>,
    /// Whether it was made for the ibv_wr_ interface.
    pub extended: bool,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`.
    pub building: Mutex<Building>,
}

/// Requests that are being made.
#[derive(Default)]
pub struct Building {
    /// Them.
    pub wqes: Vec<SendWqe>,
    /// First error, for the end.
    pub error: i32,
}

/// The queue pair behind a pointer.
///
/// # Safety
/// `qp` must be a queue pair of this library.
pub unsafe fn pair<'a>(qp: *mut sys::ibv_qp) -> &'a QpObject {
    // SAFETY: the caller vouches.
    unsafe { object(qp) }
}

fn kind(number: u32) -> Result<Kind, i32> {
    match number {
        qpt::IBV_QPT_RC => Ok(Kind::Rc),
        qpt::IBV_QPT_UC => Ok(Kind::Uc),
        qpt::IBV_QPT_UD => Ok(Kind::Ud),
        _ => Err(libc::EOPNOTSUPP),
    }
}

fn fits(cap: &sys::ibv_qp_cap) -> bool {
    cap.max_send_wr <= MAX_WR
        && cap.max_recv_wr <= MAX_WR
        && cap.max_send_sge <= MAX_SGE
        && cap.max_recv_sge <= MAX_SGE
        && cap.max_inline_data <= MAX_INLINE
}

/// Makes a queue pair of checked parts.
///
/// # Safety
/// The pointers of `init` must be null or objects of this library, and `pd` a domain.
unsafe fn create(pd: *mut sys::ibv_pd, init: &sys::ibv_qp_init_attr_ex, extended: bool) -> Result<*mut QpObject, i32> {
    let kind = kind(init.qp_type)?;
    if pd.is_null() || init.send_cq.is_null() || init.recv_cq.is_null() || !fits(&init.cap) {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller vouches.
    let own = unsafe { domain(pd) };
    let (number, context) = own.place();
    // SAFETY: a domain's context is open.
    let device = unsafe { core(context) };
    if device.faults.removed() {
        return Err(libc::EIO);
    }
    let cap = init.cap;
    let recv = if init.srq.is_null() {
        let caps = RecvCaps { wr: cap.max_recv_wr, sge: cap.max_recv_sge };
        Arc::new(RecvQueue::new(number, false, caps))
    } else {
        // SAFETY: the caller vouches.
        unsafe { super::srq::shared(init.srq) }.core.clone()
    };
    let core = Qp::new(Parts {
        number: device.free_qpn()?,
        kind,
        pd: number,
        // SAFETY: the caller vouches.
        send_cq: unsafe { queue(init.send_cq) }.core.clone(),
        // SAFETY: the caller vouches.
        recv_cq: unsafe { queue(init.recv_cq) }.core.clone(),
        recv,
        caps: cap,
        signal_all: init.sq_sig_all != 0,
        events: device.events.clone(),
    });
    let base = sys::ibv_qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        handle: core.number,
        qp_num: core.number,
        qp_type: init.qp_type,
        ..Default::default()
    };
    let mut public = sys::ibv_qp_ex { qp_base: base, ..Default::default() };
    super::wr::fill(&mut public);
    own.users.fetch_add(1, Ordering::Relaxed);
    let building = Mutex::default();
    let made = QpObject { public, core: core.clone(), context: device.clone(), extended, building };
    let qp: *mut QpObject = super::hand_out(made);
    core.user.store(qp as usize, Ordering::Release);
    device.add_qp(core);
    Ok(qp)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(pd: *mut sys::ibv_pd, init: *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp {
    // SAFETY: the program gives an attribute.
    let init = unsafe { argument(init) };
    let init = sys::ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        ..Default::default()
    };
    // SAFETY: the program's own arguments. What was asked for is what there is, so nothing is written back.
    pointer(unsafe { create(pd, &init, false) }).cast()
}

/// `verbs_context.create_qp_ex`.
///
/// # Safety
/// `init` must be a valid attribute of this library's objects.
pub unsafe extern "C" fn create_qp_ex(
    _context: *mut sys::ibv_context,
    init: *mut sys::ibv_qp_init_attr_ex,
) -> *mut sys::ibv_qp {
    const PD: u32 = 1;
    const CREATE_FLAGS: u32 = 1 << 2;
    const SEND_OPS: u32 = 1 << 6;
    // SEND, WRITE, READ, the atomics, and what concerns windows.
    const OPS: u64 = 0x3ff;
    const FLUSH: u64 = 1 << 11;
    let known = if device::flushes() { OPS | FLUSH } else { OPS };
    // SAFETY: the caller vouches for the fields that the mask names, and those of the old structure.
    let mask = unsafe { (*init).comp_mask };
    // SAFETY: as above.
    let flags = if mask & CREATE_FLAGS != 0 { unsafe { (*init).create_flags } } else { 0 };
    // SAFETY: as above.
    let ops = if mask & SEND_OPS != 0 { unsafe { (*init).send_ops_flags } } else { 0 };
    if mask & PD == 0 {
        return pointer(Err(libc::EINVAL));
    }
    if mask & !(PD | CREATE_FLAGS | SEND_OPS) != 0 || flags != 0 || ops & !known != 0 {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: as above.
    let pd = unsafe { (*init).pd };
    // SAFETY: `create` looks at no more than the fields of the old structure.
    let init = unsafe { argument(init) };
    // SAFETY: the program's own arguments.
    pointer(unsafe { create(pd, init, mask & SEND_OPS != 0) }).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut sys::ibv_qp) -> *mut sys::ibv_qp_ex {
    // SAFETY: the program gives a queue pair.
    if unsafe { pair(qp) }.extended { qp.cast() } else { std::ptr::null_mut() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(qp: *mut sys::ibv_qp, attr: *mut sys::ibv_qp_attr, mask: i32) -> i32 {
    // SAFETY: the program gives a queue pair.
    let own = unsafe { pair(qp) };
    if own.context.faults.removed() {
        return libc::EIO;
    }
    own.context.faults.refresh(&own.context, false);
    own.core.mute.store(own.context.faults.swallows_flushes(), Ordering::Relaxed);
    // SAFETY: the program gives an attribute.
    match modify::modify(&own.core, unsafe { argument(attr) }, mask as u32) {
        Ok(state) => {
            // SAFETY: the program's structure, whose state only this call writes.
            unsafe { (*qp).state = state };
            own.context.kick(own.core.number);
            0
        }
        Err(e) => e,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    _mask: i32,
    init: *mut sys::ibv_qp_init_attr,
) -> i32 {
    // SAFETY: the program gives a queue pair.
    let own = unsafe { pair(qp) };
    let cap = own.core.caps;
    let mut now = {
        let inner = own.core.lock();
        let mut now = inner.attr;
        now.qp_state = inner.state;
        now.cur_qp_state = inner.state;
        now.rq_psn = inner.expected;
        now.sq_psn = inner.next_seq;
        now.sq_draining = u8::from(inner.next > 0 || inner.begun);
        now
    };
    now.cap = cap;
    // SAFETY: the program's structure, whose state only verbs write.
    unsafe { (*qp).state = now.qp_state };
    let base = &own.public.qp_base;
    let made = sys::ibv_qp_init_attr {
        qp_context: base.qp_context,
        send_cq: base.send_cq,
        recv_cq: base.recv_cq,
        srq: base.srq,
        cap,
        qp_type: base.qp_type,
        sq_sig_all: i32::from(own.core.signal_all),
    };
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(attr, now) };
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(init, made) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::ibv_qp) -> i32 {
    // SAFETY: the program gives a queue pair.
    let own = unsafe { pair(qp) };
    own.context.remove_qp(own.core.number);
    own.core.reset(&mut own.core.lock());
    own.context.events.remove(|e| matches!(&e.element, Element::Qp(q) if Arc::ptr_eq(q, &own.core)));
    own.core.async_events.wait();
    own.core.release();
    // SAFETY: the engine does not know it any more and the program has given it up.
    let own: Box<QpObject> = unsafe { take_back(qp) };
    // SAFETY: a queue pair's domain outlives it.
    unsafe { domain(own.public.qp_base.pd) }.users.fetch_sub(1, Ordering::Relaxed);
    0
}

/// Bytes of one message become visible in any order but the last, which comes last.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(_qp: *mut sys::ibv_qp, _op: u32, _flags: u32) -> i32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_qp: *mut sys::ibv_qp, _ece: *mut c_void) -> i32 {
    code(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_qp: *mut sys::ibv_qp, _ece: *mut c_void) -> i32 {
    code(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_attach_mcast(_qp: *mut sys::ibv_qp, _gid: *const c_void, _lid: u16) -> i32 {
    code(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_detach_mcast(_qp: *mut sys::ibv_qp, _gid: *const c_void, _lid: u16) -> i32 {
    code(Err(libc::EOPNOTSUPP))
}
