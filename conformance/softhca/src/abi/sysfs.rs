//! What programs read about devices beside the verbs: sysfs, fork support, marshalling.

use super::{argument, code, set_errno};
use crate::raw;
use ibverbs_sys as sys;
use std::ffi::{CStr, CString, c_char, c_void};

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a small file, without its last newline; -1 when it is not there. No file describes a soft device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> i32 {
    // SAFETY: the program gives a string.
    let dir = unsafe { CStr::from_ptr(dir) };
    // SAFETY: the program gives a string.
    let file = unsafe { CStr::from_ptr(file) };
    let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
    let Ok(fd) = CString::new(path).map_err(drop).and_then(|p| raw::open(&p, libc::O_RDONLY).map_err(set_errno)) else {
        return -1;
    };
    // SAFETY: the program gives `size` bytes at `buf`.
    let to = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), size) };
    let Ok(got) = raw::read(fd.raw(), to).map_err(set_errno) else { return -1 };
    let got = if got > 0 && to[got - 1] == b'\n' { got - 1 } else { got };
    if got < size {
        to[got] = 0;
    }
    got as i32
}

/// Registered memory is reached through its address or an alias, so a fork changes nothing for the parent.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> i32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> sys::ibv_fork_status {
    sys::IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> i32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> i32 {
    0
}

/// GID to MAC address: RoCE v2 addresses of the soft HCA are loopback addresses and have none but zeroes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut sys::ibv_context,
    attr: *mut sys::ibv_ah_attr,
    mac: *mut [u8; 6],
    vid: *mut u16,
) -> i32 {
    // SAFETY: the program gives an address attribute.
    let gid = unsafe { argument(attr) }.grh.dgid;
    // SAFETY: the raw bytes are always there.
    let bytes = unsafe { gid.raw };
    if crate::device::find_gid(&bytes).is_none() {
        return code(Err(libc::EHOSTUNREACH));
    }
    if !mac.is_null() {
        // SAFETY: the program gives 6 bytes.
        unsafe { super::answer(mac, [0; 6]) };
    }
    if !vid.is_null() {
        // SAFETY: the program gives 2 bytes; 0xffff is "no VLAN".
        unsafe { super::answer(vid, 0xffff) };
    }
    0
}

// The four below serve librdmacm's exchange with a kernel that knows the device. There is none, so they are bound by
// the loader and never reached; what they are given stays as it is.

#[unsafe(no_mangle)]
extern "C" fn ibv_copy_qp_attr_from_kern(_to: *mut c_void, _from: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_copy_ah_attr_from_kern(_to: *mut c_void, _from: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_copy_path_rec_from_kern(_to: *mut c_void, _from: *mut c_void) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_copy_path_rec_to_kern(_to: *mut c_void, _from: *mut c_void) {}
