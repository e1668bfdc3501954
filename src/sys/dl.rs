//! Questions to the dynamic loader. It takes its own lock to answer.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

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

/// A library opened at run time. It is never closed: threads of the program may be inside it at any time.
#[derive(Debug)]
pub struct Object(NonNull<c_void>);

// SAFETY: the handle is only ever passed to the loader, which locks for itself.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Opens a library, with all it needs, for this library alone. What the loader says when it cannot. Allocates.
    pub fn open(name: &CStr) -> Result<Object, String> {
        // SAFETY: the name is NUL-terminated; the initialisers that may run are the library's own.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Object).ok_or_else(last_error)
    }

    /// Address of `name` in exactly this version, or 0.
    pub fn versioned(&self, name: &CStr, version: &CStr) -> usize {
        // SAFETY: a live handle and NUL-terminated names.
        unsafe { libc::dlvsym(self.0.as_ptr(), name.as_ptr(), version.as_ptr()) as usize }
    }
}

/// What the loader last complained about in this thread.
fn last_error() -> String {
    // SAFETY: the answer is null or the loader's own text, good until the next call of the loader in this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
