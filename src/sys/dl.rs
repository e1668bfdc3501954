//! Questions to the dynamic loader. It takes its own lock to answer.

use std::ffi::CStr;

/// First address of the loaded object that holds `addr`; `None` when no object does.
fn object_of(addr: usize) -> Option<usize> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: info is writable; the address is only looked up.
    let found = unsafe { libc::dladdr(addr as *const libc::c_void, info.as_mut_ptr()) } != 0;
    // SAFETY: zeroed, then perhaps filled in: all zeros is a value of it.
    let info = unsafe { info.assume_init() };
    found.then_some(info.dli_fbase as usize)
}

/// True when the definition of `name` that this process uses by default lies in the same loaded object as `addr`.
pub fn is_beside(name: &CStr, addr: usize) -> bool {
    // SAFETY: the name is NUL-terminated; the answer is only looked up.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
    symbol != 0 && object_of(symbol).is_some_and(|o| object_of(addr) == Some(o))
}
