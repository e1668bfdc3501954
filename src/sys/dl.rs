//! Questions to the dynamic loader. It takes its own lock to answer.

use std::ffi::CStr;

/// What the loader knows of `addr`; `None` when no object holds it.
fn info(addr: usize) -> Option<libc::Dl_info> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: info is writable; the address is only looked up.
    let found = unsafe { libc::dladdr(addr as *const libc::c_void, info.as_mut_ptr()) } != 0;
    // SAFETY: zeroed, then perhaps filled in: all zeros is a value of it.
    let info = unsafe { info.assume_init() };
    found.then_some(info)
}

/// First address of the loaded object that holds `addr`; `None` when no object does.
pub fn object_of(addr: usize) -> Option<usize> {
    info(addr).map(|i| i.dli_fbase as usize)
}

/// True when one loaded object holds both.
pub fn same_object(a: usize, b: usize) -> bool {
    object_of(a).is_some_and(|o| object_of(b) == Some(o))
}

/// The definition of `name` that this process uses by default, or 0. Does not allocate when there is one.
pub fn definition(name: &CStr) -> usize {
    // SAFETY: the name is NUL-terminated; the answer is only looked up.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Hands the file name of the loaded object that holds `addr` to `f`, without its directories; empty when there is none.
pub fn with_object_name(addr: usize, f: impl FnOnce(&[u8])) {
    let path = info(addr).map_or(std::ptr::null(), |i| i.dli_fname);
    if path.is_null() {
        return f(b"");
    }
    // SAFETY: the loader's own string, which lives while the object is loaded: its code was just found.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    f(path.rsplit(|b| *b == b'/').next().unwrap_or(path));
}

/// True when the definition of `name` that this process uses by default lies in the same loaded object as `addr`.
pub fn is_beside(name: &CStr, addr: usize) -> bool {
    let symbol = definition(name);
    symbol != 0 && same_object(symbol, addr)
}
