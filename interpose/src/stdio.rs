//! stdio on `/smc/` files.
//!
//! libc's own FILE reads by internal calls that no hook sees, so fopen and fdopen give a stream whose input and output
//! come here (`fopencookie`). Such a stream has no descriptor in libc's eyes, so `fileno` is answered here too.

use crate::blocking::{Frame, pass};
use crate::convert::{CErr, Failure, answer, errno, set_errno};
use crate::io::Way;
use crate::paths::{after_path, open_region};
use crate::table::{Hook, hook, real};
use crate::transfer::{Buffers, serve};
use crate::{descriptors, files, transfer};
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering::*};

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

// The cookie is the descriptor's number.

/// The number was closed under the stream.
fn gone<T: Failure>() -> T {
    set_errno(libc::EBADF);
    T::FAILED
}

unsafe extern "C" fn read(cookie: *mut c_void, buf: *mut c_char, n: size_t) -> ssize_t {
    // SAFETY: libc passes a buffer of n bytes.
    unsafe { serve(&transfer::read::HOOK, cookie as usize as c_int, Way::Read, Buffers::One(buf.cast(), n), None) }
        .unwrap_or_else(gone)
}

unsafe extern "C" fn write(cookie: *mut c_void, buf: *const c_char, n: size_t) -> ssize_t {
    // SAFETY: libc passes n bytes.
    let done = unsafe {
        serve(&transfer::write::HOOK, cookie as usize as c_int, Way::Write, Buffers::One(buf.cast(), n), None)
    }
    .unwrap_or_else(gone);
    // A stream's write function says 0 for an error.
    done.max(0)
}

unsafe extern "C" fn seek(cookie: *mut c_void, off: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: libc passes a valid offset.
    let by = unsafe { *off };
    // SAFETY: touches no memory of the caller.
    let to = unsafe { descriptors::lseek64(cookie as usize as c_int, by, whence) };
    if to < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { *off = to };
    0
}

/// Streams made here: at most this many answer to `fileno`.
const MOST: usize = 256;
static STREAMS: [(AtomicPtr<FILE>, AtomicI32); MOST] =
    [const { (AtomicPtr::new(std::ptr::null_mut()), AtomicI32::new(-1)) }; MOST];

fn remember(f: *mut FILE, fd: c_int) {
    let free =
        |e: &&(AtomicPtr<FILE>, AtomicI32)| e.0.compare_exchange(std::ptr::null_mut(), f, AcqRel, Relaxed).is_ok();
    if let Some(e) = STREAMS.iter().find(free) {
        e.1.store(fd, Release);
    }
}

fn forget(fd: c_int) {
    if let Some(e) = STREAMS.iter().find(|e| e.1.compare_exchange(fd, -1, AcqRel, Relaxed).is_ok()) {
        e.0.store(std::ptr::null_mut(), Release);
    }
}

fn number_of(f: *mut FILE) -> Option<c_int> {
    let e = STREAMS.iter().find(|e| e.0.load(Acquire) == f)?;
    Some(e.1.load(Acquire)).filter(|fd| *fd >= 0)
}

/// Writes out what is buffered in streams on `/smc/` files.
pub fn flush_all() {
    for (f, _) in &STREAMS {
        let f = f.load(Acquire);
        if !f.is_null() {
            // SAFETY: a stream is in the list from its creation to its close; at exit nobody closes it any more.
            unsafe { libc::fflush(f) };
        }
    }
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    forget(cookie as usize as c_int);
    descriptors::close_ours(&descriptors::close::HOOK, cookie as usize as c_int).unwrap_or_else(gone)
}

/// A stream on a descriptor of ours.
fn stream(fd: c_int, mode: &CStr) -> Result<*mut FILE, CErr> {
    let functions = Functions { read, write, seek, close };
    // SAFETY: mode is NUL-terminated; the functions have the types that libc's header gives them.
    let f = unsafe { fopencookie(fd as usize as *mut c_void, mode.as_ptr(), functions) };
    if f.is_null() {
        return Err(CErr(errno()));
    }
    remember(f, fd);
    Ok(f)
}

/// O_* flags of a stream mode: `r`, `w` or `a`, then `+`, `b`, `e`, `x`, `m`, `c` in any order.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    let (first, rest) = mode.split_first()?;
    let rest = rest.split(|b| *b == b',').next().unwrap_or(&[]);
    let access = match (first, rest.contains(&b'+')) {
        (_, true) => libc::O_RDWR,
        (b'r', false) => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let more = match first {
        b'r' => 0,
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    let excl = if rest.contains(&b'x') { libc::O_EXCL } else { 0 };
    let cloexec = if rest.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Some(access | more | excl | cloexec)
}

/// fopen of a `/smc/` name.
///
/// # Safety
/// `mode` is NUL-terminated.
unsafe fn open_stream(path: &CStr, mode: *const c_char) -> Result<*mut FILE, CErr> {
    // SAFETY: the caller vouches for mode.
    let mode = unsafe { CStr::from_ptr(mode) };
    let flags = flags_of(mode.to_bytes()).ok_or(CErr(libc::EINVAL))?;
    let fd = open_region(path, flags)?;
    stream(fd, mode).inspect_err(|_| {
        let _ = descriptors::close_ours(&descriptors::close::HOOK, fd);
    })
}

fn opened(hook: &'static Hook, f: &mut Frame) -> bool {
    let mode = f.arg::<1, *const c_char>();
    // The low half of the value looked like a failure; a whole pointer is none.
    // SAFETY: the real function was just called with this mode.
    f.value == 0 && after_path::<0, _>(hook, f, |_, p| unsafe { open_stream(p, mode) }.map(|f| f as usize))
}

crate::blocking::blocking! {
    Stdio required fopen, always, 0 => pass, opened;
    Stdio required fopen64, always, 0 => pass, opened;
}

macro_rules! filenos {
    ($($name:ident),*) => { $(
        /// fileno(3), extended to streams on `/smc/` files.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(f: *mut FILE) -> c_int {
            let before = errno();
            // SAFETY: the arguments are the caller's own.
            let fd = unsafe { real::$name(f) };
            match (fd < 0 && files::any()).then(|| number_of(f)).flatten() {
                Some(fd) => {
                    hook::$name.hits.hit();
                    answer(before, Ok(fd))
                }
                None => fd,
            }
        }
    )* };
}
filenos!(fileno, fileno_unlocked);

/// fdopen(3), extended to `/smc/`.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if files::any() && files::get(fd).is_some() && !mode.is_null() {
        hook::fdopen.hits.hit();
        let before = errno();
        // SAFETY: the caller's mode is NUL-terminated.
        let mode = unsafe { CStr::from_ptr(mode) };
        return answer(before, stream(fd, mode));
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { real::fdopen(fd, mode) }
}
