//! Asynchronous events.

use super::context::core;
use super::{answer, argument, object, set_errno};
use crate::qp::Element;
use ibverbs_sys as sys;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

fn taken(element: &Element) {
    match element {
        Element::Cq(cq) => cq.async_events.taken(),
        Element::Qp(qp) => qp.async_events.taken(),
        Element::Srq(srq) => srq.async_events.taken(),
        Element::Port(_) | Element::Device => {}
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut sys::ibv_context, to: *mut sys::ibv_async_event) -> i32 {
    // SAFETY: the program gives an open context.
    let event = match unsafe { core(context) }.events.pop(|e| taken(&e.element)) {
        Ok(event) => event,
        Err(e) => {
            set_errno(e);
            return -1;
        }
    };
    let mut element = sys::ibv_async_event__bindgen_ty_1::default();
    match &event.element {
        Element::Cq(cq) => {
            element.cq = cq.user.load(Ordering::Acquire) as *mut sys::ibv_cq;
        }
        Element::Qp(qp) => {
            element.qp = qp.user.load(Ordering::Acquire) as *mut sys::ibv_qp;
        }
        Element::Srq(srq) => {
            element.srq = srq.user.load(Ordering::Acquire) as *mut sys::ibv_srq;
        }
        Element::Port(port) => element.port_num = *port as i32,
        Element::Device => {}
    }
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(to, sys::ibv_async_event { element, event_type: event.kind }) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut sys::ibv_async_event) {
    // SAFETY: the program gives back an event it has taken.
    let event = unsafe { argument(event) };
    // SAFETY: all forms of the union are plain addresses or numbers.
    let at: *mut c_void = unsafe { event.element.cq }.cast();
    match event.event_type {
        sys::IBV_EVENT_CQ_ERR => {
            // SAFETY: the kind says that it is a completion queue, which waits for this before it goes.
            unsafe { object::<super::cq::CqObject, _>(at) }.core.async_events.acked(1);
        }
        sys::IBV_EVENT_SRQ_ERR | sys::IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: likewise a shared receive queue.
            unsafe { object::<super::srq::SrqObject, _>(at) }.core.async_events.acked(1);
        }
        sys::IBV_EVENT_QP_FATAL
        | sys::IBV_EVENT_QP_REQ_ERR
        | sys::IBV_EVENT_QP_ACCESS_ERR
        | sys::IBV_EVENT_COMM_EST
        | sys::IBV_EVENT_SQ_DRAINED
        | sys::IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: likewise a queue pair.
            unsafe { object::<super::qp::QpObject, _>(at) }.core.async_events.acked(1);
        }
        _ => {}
    }
}
