//! `ibv_context` with its two tables of operations.

use super::{code, object, pointer};
use crate::context::Context;
use crate::device;
use crate::raw::{self, Fd};
use ibverbs_sys as sys;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::Arc;

/// A slot that the soft HCA leaves empty: verbs.h answers EOPNOTSUPP for it.
type Empty = Option<unsafe extern "C" fn()>;

/// `struct verbs_context`, which is not in the bindings.
#[repr(C)]
#[derive(Default)]
pub struct VerbsContext {
    query_port: Option<unsafe extern "C" fn(*mut sys::ibv_context, u8, *mut sys::ibv_port_attr, usize) -> i32>,
    advise_mr: Empty,
    alloc_null_mr: Empty,
    read_counters: Empty,
    attach_counters_point_flow: Empty,
    create_counters: Empty,
    destroy_counters: Empty,
    reg_dm_mr: Empty,
    alloc_dm: Empty,
    free_dm: Empty,
    modify_flow_action_esp: Empty,
    destroy_flow_action: Empty,
    create_flow_action_esp: Empty,
    modify_qp_rate_limit: Empty,
    alloc_parent_domain: Empty,
    dealloc_td: Empty,
    alloc_td: Empty,
    modify_cq: Empty,
    post_srq_ops: Empty,
    destroy_rwq_ind_table: Empty,
    create_rwq_ind_table: Empty,
    destroy_wq: Empty,
    modify_wq: Empty,
    create_wq: Empty,
    query_rt_values: Empty,
    create_cq_ex:
        Option<unsafe extern "C" fn(*mut sys::ibv_context, *mut sys::ibv_cq_init_attr_ex) -> *mut sys::ibv_cq_ex>,
    private: usize,
    query_device_ex:
        Option<unsafe extern "C" fn(*mut sys::ibv_context, *const c_void, *mut sys::ibv_device_attr_ex, usize) -> i32>,
    destroy_flow: Empty,
    placeholder2: usize,
    create_flow: Empty,
    placeholder1: usize,
    open_qp: Empty,
    create_qp_ex:
        Option<unsafe extern "C" fn(*mut sys::ibv_context, *mut sys::ibv_qp_init_attr_ex) -> *mut sys::ibv_qp>,
    get_srq_num: Empty,
    create_srq_ex: Empty,
    open_xrcd: Empty,
    close_xrcd: Empty,
    placeholder3: u64,
    size: usize,
    context: sys::ibv_context,
}

// Where verbs.h has them.
const _: () = assert!(size_of::<VerbsContext>() == 648);
const _: () = assert!(offset_of!(VerbsContext, context) == 320);
const _: () = assert!(offset_of!(VerbsContext, create_qp_ex) == 264);
const _: () = assert!(offset_of!(VerbsContext, query_device_ex) == 216);

/// An open device as the program holds it: a pointer to `table.context`.
#[repr(C)]
struct Opened {
    table: VerbsContext,
    core: Arc<Context>,
}

/// The object behind a context pointer.
///
/// # Safety
/// `context` must be what [`open`] gave and not closed.
unsafe fn opened<'a>(context: *mut sys::ibv_context) -> &'a Opened {
    let start = context.cast::<u8>().wrapping_sub(offset_of!(VerbsContext, context));
    // SAFETY: `open` hands out the address of this field; the caller vouches for the rest.
    unsafe { object::<Opened, u8>(start) }
}

/// The device context behind a pointer.
///
/// # Safety
/// `context` must be an open context of this library.
pub unsafe fn core<'a>(context: *mut sys::ibv_context) -> &'a Arc<Context> {
    // SAFETY: the caller vouches.
    unsafe { &opened(context).core }
}

fn open(device: *mut sys::ibv_device, number: u32) -> Result<*mut sys::ibv_context, i32> {
    let core = Context::open(number)?;
    // The program may give the two other numbers, as long as the context has them: they are copies.
    let (command, events) = (raw::copy(core.bell())?, raw::copy(core.events.fd())?);
    let table = VerbsContext {
        query_port: Some(query_port),
        query_device_ex: Some(query_device_ex),
        create_cq_ex: Some(super::cq::create_cq_ex),
        create_qp_ex: Some(super::qp::create_qp_ex),
        size: size_of::<VerbsContext>(),
        context: sys::ibv_context {
            device,
            ops: sys::ibv_context_ops {
                alloc_mw: Some(super::window::alloc_mw),
                dealloc_mw: Some(super::window::dealloc_mw),
                bind_mw: Some(super::window::bind_mw),
                poll_cq: Some(super::cq::poll_cq),
                req_notify_cq: Some(super::cq::req_notify_cq),
                post_send: Some(super::post::post_send),
                post_recv: Some(super::post::post_recv),
                post_srq_recv: Some(super::post::post_srq_recv),
                ..Default::default()
            },
            cmd_fd: command.keep(),
            async_fd: events.keep(),
            num_comp_vectors: 1,
            // What verbs.h takes for "has a verbs_context".
            abi_compat: usize::MAX as *mut c_void,
            ..Default::default()
        },
        ..Default::default()
    };
    let own = core.clone();
    let start: *mut u8 = super::hand_out(Opened { table, core });
    let context: *mut sys::ibv_context = start.wrapping_add(offset_of!(VerbsContext, context)).cast();
    own.set_doorbell(context.cast::<u8>().wrapping_add(offset_of!(sys::ibv_context, cmd_fd)).cast());
    Ok(context)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context {
    // SAFETY: the program gives a device of our list.
    let number = unsafe { super::devices::number(device) };
    pointer(open(device, number))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut sys::ibv_context) -> i32 {
    let start = context.cast::<u8>().wrapping_sub(offset_of!(VerbsContext, context));
    // SAFETY: the program gives an open context and uses it no more.
    let opened: Box<Opened> = unsafe { super::take_back(start) };
    opened.core.close();
    let public = &opened.table.context;
    drop([Fd::own(public.cmd_fd as usize), Fd::own(public.async_fd as usize)]);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_fd: i32) -> *mut sys::ibv_context {
    pointer(Err(libc::EOPNOTSUPP))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(context: *mut sys::ibv_context, to: *mut sys::ibv_device_attr) -> i32 {
    // SAFETY: the program gives an open context.
    let core = unsafe { core(context) };
    // SAFETY: the program gives a place for the answer.
    unsafe { super::answer(to, device::attributes(core.place.device)) };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut sys::ibv_context,
    input: *const c_void,
    to: *mut sys::ibv_device_attr_ex,
    len: usize,
) -> i32 {
    if !input.is_null() {
        // SAFETY: the structure is one mask of 32 bits, and it must be 0.
        let mask = unsafe { super::argument(input.cast::<u32>()) };
        if *mask != 0 {
            return libc::EINVAL;
        }
    }
    if len < size_of::<sys::ibv_device_attr>() {
        return libc::EINVAL;
    }
    // SAFETY: the program gives an open context.
    let core = unsafe { core(context) };
    let attr = sys::ibv_device_attr_ex {
        orig_attr: device::attributes(core.place.device),
        phys_port_cnt_ex: device::Plan::of_host().ports,
        ..Default::default()
    };
    // SAFETY: the program gives `len` bytes.
    unsafe { super::answer_prefix(to, &attr, len) };
    0
}

/// Bytes of `ibv_port_attr` that every version of the structure has.
const OLD_PORT_ATTR: usize = 48;

unsafe extern "C" fn query_port(
    context: *mut sys::ibv_context,
    port: u8,
    to: *mut sys::ibv_port_attr,
    len: usize,
) -> i32 {
    // SAFETY: the program gives an open context.
    let core = unsafe { core(context) };
    match core.port(u32::from(port)) {
        // SAFETY: the program gives `len` bytes.
        Ok(up) => unsafe { super::answer_prefix(to, &device::port(up), len) },
        Err(e) => return code(Err(e)),
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(context: *mut sys::ibv_context, port: u8, to: *mut sys::ibv_port_attr) -> i32 {
    // SAFETY: the same arguments; the structure of old programs ends after `flags`.
    unsafe { query_port(context, port, to, OLD_PORT_ATTR) }
}
