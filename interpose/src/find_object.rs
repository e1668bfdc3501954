//! `_dl_find_object` for the unwinder that is linked into the library.
//!
//! libgcc_eh asks glibc 2.35 for it. The library must load on 2.34, so the unwinder gets this hidden one: the object that
//! holds a code address, found with `dl_iterate_phdr`. It is needed for backtraces in messages about libsmc's own bugs.

use crate::elf::walk;
use libc::{c_int, c_void};

/// glibc's `struct dl_find_object` on x86-64.
#[repr(C)]
pub struct DlFindObject {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

/// Finds the object that holds `pc`: 0 and `*out` filled, or -1.
///
/// # Safety
/// `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _dl_find_object(pc: *mut c_void, out: *mut DlFindObject) -> c_int {
    let pc = pc as usize;
    let mut found = None;
    walk(&mut |loaded| {
        let Some(segment) = loaded.segment(pc) else { return false };
        found = loaded.header(libc::PT_GNU_EH_FRAME).map(|eh| (segment, eh));
        true
    });
    let Some(((start, len), eh)) = found else { return -1 };
    let result = DlFindObject {
        flags: 0,
        map_start: start as *mut c_void,
        map_end: start.wrapping_add(len) as *mut c_void,
        link_map: std::ptr::null_mut(),
        eh_frame: eh as *mut c_void,
        reserved: [0; 7],
    };
    // SAFETY: the caller vouches for out.
    unsafe { out.write(result) };
    0
}
