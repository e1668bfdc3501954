//! What every function of the API does: check arguments, answer a code, keep the text of a failure.

use super::context;
use super::error::{c_text, remember, rust_text};
use super::types::smc_status;
use crate::base::{Error, Result, Status};
use std::ffi::{CStr, c_char};
use std::ptr::NonNull;

/// One call in progress.
#[derive(Clone, Copy)]
pub(super) struct Call(pub &'static str);

/// Runs the body of function `name` and turns its outcome into a code. The body runs only in the process that called
/// smc_init.
pub(super) fn call(name: &'static str, body: impl FnOnce(Call) -> Result<()>) -> smc_status {
    let c = Call(name);
    outcome(context::alive(c).and_then(|()| body(c)))
}

/// A code, and the text kept.
pub(super) fn outcome(r: Result<()>) -> smc_status {
    match r {
        Ok(()) => smc_status::Ok,
        Err(e) => {
            remember(&e);
            e.status.into()
        }
    }
}

impl Call {
    /// An argument that cannot be.
    pub fn bad(self, why: impl std::fmt::Display) -> Error {
        Error::new(Status::INVALID_ARGUMENT, format!("call {}", self.0), why.to_string())
    }

    /// A bare status of the engine as a result; `subject` is what the call was about.
    pub fn done(self, s: Status, subject: impl FnOnce() -> String) -> Result<()> {
        if s.is_ok() { Ok(()) } else { Err(Error::of(s, format!("{} {}", self.0, subject()))) }
    }

    /// Text that must be there.
    ///
    /// # Safety
    /// `p` is NULL or a NUL-terminated string that lives for `'a`.
    pub unsafe fn text<'a>(self, p: *const c_char, what: &str) -> Result<&'a str> {
        // SAFETY: as the caller vouches.
        unsafe { self.optional_text(p, what) }?.ok_or_else(|| self.bad(format_args!("`{what}` is NULL")))
    }

    /// Text that may be NULL.
    ///
    /// # Safety
    /// As for [`Call::text`].
    pub unsafe fn optional_text<'a>(self, p: *const c_char, what: &str) -> Result<Option<&'a str>> {
        if p.is_null() {
            return Ok(None);
        }
        // SAFETY: not NULL, and as the caller vouches.
        let text = rust_text(unsafe { CStr::from_ptr(p) });
        text.map(Some).ok_or_else(|| self.bad(format_args!("`{what}` is not UTF-8")))
    }

    /// A place for a result.
    pub fn out<T>(self, p: *mut T, what: &str) -> Result<Out<T>> {
        let p = NonNull::new(p).ok_or_else(|| self.bad(format_args!("`{what}` is NULL")))?;
        if p.is_aligned() { Ok(Out(p)) } else { Err(self.bad(format_args!("`{what}` is not aligned"))) }
    }

    /// A number of an enumeration; `None` for 0.
    pub fn choice<T: Copy>(self, n: u32, what: &str, table: &[(u32, T)]) -> Result<Option<T>> {
        let found = table.iter().find(|(k, _)| *k == n).map(|(_, v)| *v);
        if n == 0 || found.is_some() {
            Ok(found)
        } else {
            Err(self.bad(format_args!("`{what}` is {n}, which is none of its values")))
        }
    }

    /// Flags of which only `known` exist.
    pub fn flags(self, flags: u32, known: u32) -> Result<()> {
        if flags & !known == 0 {
            Ok(())
        } else {
            Err(self.bad(format_args!("`flags` has unknown bits {:#x}", flags & !known)))
        }
    }

    /// A number within bounds; 0 stands for the default.
    pub fn within(self, n: u64, what: &str, least: u64, most: u64) -> Result<u64> {
        if n == 0 || (least..=most).contains(&n) {
            Ok(n)
        } else {
            Err(self.bad(format_args!("`{what}` is {n}, not {least} to {most}")))
        }
    }
}

/// A checked place for a result: written on success only.
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Writes it.
    ///
    /// # Safety
    /// The caller of the API has given a writable place.
    pub unsafe fn set(self, value: T) {
        // SAFETY: as the caller vouches; not NULL and aligned by construction.
        unsafe { self.0.as_ptr().write(value) };
    }
}

/// Copies `text`, cut to fit, and a NUL to `[buf, buf + len)`.
///
/// # Safety
/// `buf` is NULL or writable for `len` bytes.
pub(super) unsafe fn copy_text(text: &[u8], buf: *mut c_char, len: usize) {
    if buf.is_null() || len == 0 {
        return;
    }
    let n = text.len().min(len - 1);
    // SAFETY: n < len bytes fit, as the caller vouches; the source is a Rust slice elsewhere.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), n) };
    // SAFETY: n < len.
    let end = unsafe { buf.add(n) };
    // SAFETY: as above.
    unsafe { end.write(0) };
}

/// Strings for the duration of a callback.
pub(super) fn with_text<R>(s: &str, f: impl FnOnce(*const c_char) -> R) -> R {
    let c = c_text(s);
    f(c.as_ptr())
}
