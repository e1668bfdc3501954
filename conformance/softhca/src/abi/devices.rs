//! The device list, and what can be asked about ports: GIDs and partition keys.

use super::context::core;
use super::{answer, set_errno};
use crate::device::{self, GIDS, Plan};
use ibverbs_sys as sys;
use std::ffi::c_char;
use std::sync::OnceLock;

/// A device as the program sees it, with its number behind.
#[repr(C)]
struct Device {
    public: sys::ibv_device,
    number: u32,
}

/// Number of a device of the list.
///
/// # Safety
/// `device` must come from the list.
pub unsafe fn number(device: *mut sys::ibv_device) -> u32 {
    // SAFETY: devices are made in `device` below only and live for ever.
    unsafe { super::object::<Device, _>(device) }.number
}

fn put(to: &mut [c_char], text: &str) {
    to.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as c_char);
}

fn make(number: u32) -> usize {
    let mut public =
        sys::ibv_device { node_type: sys::IBV_NODE_CA, transport_type: sys::IBV_TRANSPORT_IB, ..Default::default() };
    put(&mut public.name, &format!("softhca{number}"));
    put(&mut public.dev_name, &format!("uverbs-softhca{number}"));
    put(&mut public.dev_path, &format!("/sys/class/infiniband_verbs/uverbs-softhca{number}"));
    put(&mut public.ibdev_path, &format!("/sys/class/infiniband/softhca{number}"));
    let pointer: *mut sys::ibv_device = super::hand_out(Device { public, number });
    pointer as usize
}

/// The devices, made once: their addresses stay valid after the list is freed, as open contexts need.
fn devices() -> &'static [usize] {
    static ALL: OnceLock<Vec<usize>> = OnceLock::new();
    ALL.get_or_init(|| (0..Plan::of_host().devices).map(make).collect())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num: *mut i32) -> *mut *mut sys::ibv_device {
    let present = devices().iter().filter(|d| {
        // SAFETY: `devices` holds pointers that `make` has just handed out.
        crate::fault::present(unsafe { number(**d as *mut sys::ibv_device) })
    });
    let mut list: Vec<*mut sys::ibv_device> = present.map(|d| *d as *mut sys::ibv_device).collect();
    if !num.is_null() {
        // SAFETY: the program gives a place for the number.
        unsafe { answer(num, list.len() as i32) };
    }
    list.push(std::ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut sys::ibv_device) {
    let mut n = 0;
    // SAFETY: the list ends with a null pointer, and `n` has not passed it.
    while !unsafe { *list.wrapping_add(n) }.is_null() {
        n += 1;
    }
    // SAFETY: `ibv_get_device_list` made this box of n + 1 pointers.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, n + 1)) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut sys::ibv_device) -> *const c_char {
    // SAFETY: the program gives a device of the list.
    unsafe { super::object::<Device, _>(device) }.public.name.as_ptr()
}

/// Big-endian, as the interface has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut sys::ibv_device) -> u64 {
    // SAFETY: the program gives a device of the list.
    device::guid(unsafe { number(device) }).to_be()
}

/// The kernel has no index for it.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_device: *mut sys::ibv_device) -> i32 {
    -1
}

/// A GID of an open device.
///
/// # Safety
/// `context` must be open.
unsafe fn gid_of(context: *mut sys::ibv_context, port: u32, index: usize) -> Option<[u8; 16]> {
    // SAFETY: the caller vouches.
    let core = unsafe { core(context) };
    core.port(port).ok().and_then(|_| device::gid(core.place.device, port, index))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(context: *mut sys::ibv_context, port: u8, index: i32, to: *mut [u8; 16]) -> i32 {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    // SAFETY: the program gives an open context.
    let Some(gid) = (unsafe { gid_of(context, u32::from(port), index) }) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(to, gid) };
    0
}

/// 1 is RoCE v2 in the numbers of this private call.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(context: *mut sys::ibv_context, port: u8, index: u32, to: *mut i32) -> i32 {
    // SAFETY: the program gives an open context.
    if unsafe { gid_of(context, u32::from(port), index as usize) }.is_none() {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(to, 1) };
    0
}

fn entry(gid: [u8; 16], port: u32, index: usize) -> sys::ibv_gid_entry {
    let gid = sys::ibv_gid { raw: gid };
    let gid_type = sys::IBV_GID_TYPE_ROCE_V2;
    // 1 is the loopback interface of every network namespace.
    sys::ibv_gid_entry { gid, gid_index: index as u32, port_num: port, gid_type, ndev_ifindex: 1 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut sys::ibv_context,
    port: u32,
    index: u32,
    to: *mut sys::ibv_gid_entry,
    flags: u32,
    len: usize,
) -> i32 {
    if flags != 0 {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the program gives an open context.
    let Some(gid) = (unsafe { gid_of(context, port, index as usize) }) else { return libc::EINVAL };
    // SAFETY: the program gives `len` bytes.
    unsafe { super::answer_prefix(to, &entry(gid, port, index as usize), len) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut sys::ibv_context,
    to: *mut sys::ibv_gid_entry,
    max: usize,
    flags: u32,
    len: usize,
) -> isize {
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: the program gives an open context.
    let core = unsafe { core(context) };
    let all = (1..=Plan::of_host().ports).flat_map(|p| (0..GIDS).map(move |i| (p, i)));
    let all: Vec<_> = all.filter_map(|(p, i)| Some(entry(device::gid(core.place.device, p, i)?, p, i))).collect();
    if all.len() > max {
        return -(libc::EINVAL as isize);
    }
    for (n, entry) in all.iter().enumerate() {
        let at = to.cast::<u8>().wrapping_add(n * len).cast();
        // SAFETY: the program gives `max` entries of `len` bytes each.
        unsafe { super::answer_prefix(at, entry, len) };
    }
    all.len() as isize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(context: *mut sys::ibv_context, port: u8, index: i32, to: *mut u16) -> i32 {
    // SAFETY: the program gives an open context.
    if unsafe { core(context) }.port(u32::from(port)).is_err() || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the program gives a place for the answer.
    unsafe { answer(to, 0xffff) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(_context: *mut sys::ibv_context, _port: u8, pkey: u16) -> i32 {
    if pkey == 0xffff {
        return 0;
    }
    set_errno(libc::EINVAL);
    -1
}
