//! Completion channels and completion queues.

use super::context::core;
use super::{answer, argument, object, pointer, take_back};
use crate::context::Context;
use crate::cq::{Channel, Cq, Wc};
use crate::device::MAX_CQE;
use crate::events::lock;
use ibverbs_sys as sys;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

#[repr(C)]
struct CompChannel {
    public: sys::ibv_comp_channel,
    core: Arc<Channel>,
    users: AtomicU32,
}

/// A completion queue: `struct ibv_cq_ex` begins as `struct ibv_cq` does.
#[repr(C)]
pub struct CqObject {
    /// What the program sees.
    pub public: sys::ibv_cq_ex,
    /// The queue.
    pub core: Arc<Cq>,
    /// Its device.
    pub context: Arc<Context>,
    /// Completion that the extended interface looks at.
    pub current: Mutex<Wc>,
}

/// The queue behind a pointer.
///
/// # Safety
/// `cq` must be a completion queue of this library.
pub unsafe fn queue<'a>(cq: *mut sys::ibv_cq) -> &'a CqObject {
    // SAFETY: the caller vouches.
    unsafe { object(cq) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut sys::ibv_context) -> *mut sys::ibv_comp_channel {
    let core = match Channel::new() {
        Ok(channel) => Arc::new(channel),
        Err(e) => return pointer(Err(e)),
    };
    let public = sys::ibv_comp_channel { context, fd: core.fd(), refcnt: 0 };
    super::hand_out(CompChannel { public, core, users: AtomicU32::new(0) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut sys::ibv_comp_channel) -> i32 {
    // SAFETY: the program gives a channel.
    if unsafe { object::<CompChannel, _>(channel) }.users.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    // SAFETY: no queue uses it and the program has given it up.
    drop(unsafe { take_back::<CompChannel, _>(channel) });
    0
}

/// Makes a queue; also for the extended interface.
///
/// # Safety
/// `context` must be open and `channel` null or a channel of it.
pub unsafe fn create(
    context: *mut sys::ibv_context,
    cqe: i64,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    vector: u32,
) -> Result<*mut CqObject, i32> {
    if !(1..=i64::from(MAX_CQE)).contains(&cqe) || vector != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller vouches.
    let device = unsafe { core(context) };
    if device.faults.removed() {
        return Err(libc::EIO);
    }
    let events = if channel.is_null() {
        None
    } else {
        // SAFETY: the caller vouches for a channel that is not null.
        let channel = unsafe { object::<CompChannel, _>(channel) };
        channel.users.fetch_add(1, Ordering::Relaxed);
        Some(channel.core.clone())
    };
    let core = Cq::new(cqe as usize, events);
    let public = sys::ibv_cq_ex { context, channel, cq_context, cqe: cqe as i32, ..Default::default() };
    let current = Mutex::default();
    let cq: *mut CqObject = super::hand_out(CqObject { public, core: core.clone(), context: device.clone(), current });
    core.user.store(cq as usize, Ordering::Release);
    Ok(cq)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut sys::ibv_context,
    cqe: i32,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    vector: i32,
) -> *mut sys::ibv_cq {
    let vector = vector as u32;
    // SAFETY: the program's own arguments.
    pointer(unsafe { create(context, i64::from(cqe), cq_context, channel, vector) }).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut sys::ibv_cq, cqe: i32) -> i32 {
    if !(1..=MAX_CQE as i32).contains(&cqe) {
        return libc::EINVAL;
    }
    // SAFETY: the program gives a queue.
    if let Err(e) = unsafe { queue(cq) }.core.resize(cqe as usize) {
        return e;
    }
    // SAFETY: the program gives a queue, whose size only this call writes.
    unsafe { (*cq).cqe = cqe };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::ibv_cq) -> i32 {
    // SAFETY: the program gives a queue.
    let own = unsafe { queue(cq) };
    if own.core.users.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    }
    own.context.events.remove(|e| matches!(&e.element, crate::qp::Element::Cq(c) if Arc::ptr_eq(c, &own.core)));
    own.core.drain_events();
    // SAFETY: nothing uses it and the program has given it up.
    let own: Box<CqObject> = unsafe { take_back(cq) };
    if !own.public.channel.is_null() {
        // SAFETY: a queue's channel outlives it.
        unsafe { object::<CompChannel, _>(own.public.channel) }.users.fetch_sub(1, Ordering::Relaxed);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut sys::ibv_comp_channel,
    cq: *mut *mut sys::ibv_cq,
    cq_context: *mut *mut c_void,
) -> i32 {
    // SAFETY: the program gives a channel.
    let event = match unsafe { object::<CompChannel, _>(channel) }.core.pop(|cq| cq.comp_events.taken()) {
        Ok(event) => event,
        Err(e) => {
            super::set_errno(e);
            return -1;
        }
    };
    let user = event.user.load(Ordering::Acquire) as *mut sys::ibv_cq;
    // SAFETY: a queue whose events wait is not destroyed.
    let context = unsafe { queue(user) }.public.cq_context;
    // SAFETY: the program gives places for the answers.
    unsafe { answer(cq, user) };
    // SAFETY: as above.
    unsafe { answer(cq_context, context) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut sys::ibv_cq, n: u32) {
    // SAFETY: the program gives a queue.
    unsafe { queue(cq) }.core.comp_events.acked(n);
}

/// Takes completions, and works for the device when there are none.
pub fn take(cq: &CqObject, n: usize, mut to: impl FnMut(usize, &Wc)) -> usize {
    let got = cq.core.poll(n, &mut to);
    if got > 0 || n == 0 {
        return got;
    }
    cq.context.progress();
    let got = cq.core.poll(n, &mut to);
    if got > 0 {
        return got;
    }
    cq.core.rest();
    cq.core.poll(n, to)
}

/// `ops.poll_cq`.
///
/// # Safety
/// `cq` must be a queue of this library with room for `n` completions at `wc`.
pub unsafe extern "C" fn poll_cq(cq: *mut sys::ibv_cq, n: i32, wc: *mut sys::ibv_wc) -> i32 {
    // SAFETY: the caller vouches.
    let cq = unsafe { queue(cq) };
    let wc = wc.cast::<Wc>();
    let n = usize::try_from(n).unwrap_or(0);
    // SAFETY: `i` is below `n`.
    take(cq, n, |i, from| unsafe { answer(wc.wrapping_add(i), *from) }) as i32
}

/// `ops.req_notify_cq`.
///
/// # Safety
/// `cq` must be a queue of this library.
pub unsafe extern "C" fn req_notify_cq(cq: *mut sys::ibv_cq, solicited_only: i32) -> i32 {
    // SAFETY: the caller vouches.
    unsafe { queue(cq) }.core.arm(solicited_only != 0);
    0
}

/// `verbs_context.create_cq_ex`.
///
/// # Safety
/// `context` must be open, `attr` a valid attribute.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut sys::ibv_context,
    attr: *mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq_ex {
    // The completion's own fields; neither time stamps nor flow tags.
    const FIELDS: u64 = 0x7f;
    // SAFETY: the caller vouches.
    let attr = unsafe { argument(attr) };
    // Flags: "one thread only" costs nothing to know; nothing else.
    let flags = if attr.comp_mask & 1 != 0 { attr.flags } else { 0 };
    if attr.comp_mask & !1 != 0 || flags & !1 != 0 || attr.wc_flags & !FIELDS != 0 {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: the caller vouches.
    let made = unsafe { create(context, i64::from(attr.cqe), attr.cq_context, attr.channel, attr.comp_vector) };
    let Ok(cq) = made else { return pointer(made).cast() };
    // SAFETY: just made, and not known to anyone else.
    super::cq_ex::fill(unsafe { &mut (*cq).public });
    cq.cast()
}

/// Looks at one field of the current completion.
///
/// # Safety
/// `cq` must be a queue of this library.
pub unsafe fn current<T>(cq: *mut sys::ibv_cq_ex, field: impl FnOnce(&Wc) -> T) -> T {
    // SAFETY: the caller vouches.
    let cq: &CqObject = unsafe { object(cq) };
    field(&lock(&cq.current))
}
