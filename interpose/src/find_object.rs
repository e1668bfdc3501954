//! `_dl_find_object` for the unwinder that is linked into the library.
//!
//! libgcc_eh asks glibc 2.35 for it. The library must load on 2.34, so the unwinder gets this hidden one: the object that
//! holds a code address, found with `dl_iterate_phdr`. It is needed for backtraces in messages about libsmc's own bugs.

use libc::{c_int, c_void, dl_phdr_info, size_t};

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

struct Search {
    pc: usize,
    found: Option<(usize, usize, usize)>,
}

extern "C" fn visit(info: *mut dl_phdr_info, _size: size_t, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid info for the duration of this call.
    let info = unsafe { &*info };
    // SAFETY: data is the Search that `_dl_find_object` passed, borrowed by nobody else.
    let search = unsafe { &mut *data.cast::<Search>() };
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader's table has dlpi_phnum entries.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let here = headers.iter().find(|h| {
        let start = base.wrapping_add(h.p_vaddr as usize);
        h.p_type == libc::PT_LOAD && search.pc.wrapping_sub(start) < h.p_memsz as usize
    });
    let Some(load) = here else { return 0 };
    let Some(eh) = headers.iter().find(|h| h.p_type == libc::PT_GNU_EH_FRAME) else { return 1 };
    let start = base.wrapping_add(load.p_vaddr as usize);
    search.found = Some((start, start.wrapping_add(load.p_memsz as usize), base.wrapping_add(eh.p_vaddr as usize)));
    1
}

/// Finds the object that holds `pc`: 0 and `*out` filled, or -1.
///
/// # Safety
/// `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _dl_find_object(pc: *mut c_void, out: *mut DlFindObject) -> c_int {
    let mut search = Search { pc: pc as usize, found: None };
    // SAFETY: visit matches the callback's type and search outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    let Some((start, end, eh)) = search.found else { return -1 };
    let result = DlFindObject {
        flags: 0,
        map_start: start as *mut c_void,
        map_end: end as *mut c_void,
        link_map: std::ptr::null_mut(),
        eh_frame: eh as *mut c_void,
        reserved: [0; 7],
    };
    // SAFETY: the caller vouches for out.
    unsafe { out.write(result) };
    0
}
