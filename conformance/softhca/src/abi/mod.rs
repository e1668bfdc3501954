//! The ABI edge: the functions, structures and tables of `<infiniband/verbs.h>`.
//!
//! Pointers of the program become references to objects of this library here and nowhere else. An object that the
//! program holds is a leaked box which starts with the public structure; the box dies in the matching destroy call.
//! Functions that return `int` return a positive errno value, those that return a pointer set `errno`.

pub mod context;
pub mod cq;
pub mod cq_ex;
pub mod devices;
pub mod events;
pub mod memory;
pub mod post;
pub mod private;
pub mod qp;
pub mod srq;
pub mod strings;
pub mod sysfs;
pub mod window;
pub mod wr;

use std::ptr::null_mut;

/// Sets `errno`.
pub fn set_errno(e: i32) {
    // SAFETY: libc gives every thread a place of its own for it.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: that place is valid for as long as the thread.
    unsafe { *at = e };
}

/// The pointer of a result; `errno` and null for an error.
pub fn pointer<T>(result: Result<*mut T, i32>) -> *mut T {
    result.unwrap_or_else(|e| {
        set_errno(e);
        null_mut()
    })
}

/// 0 or the error of a result.
pub fn code(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

/// Gives the program an object of ours, as a pointer to the public structure it begins with.
pub fn hand_out<O, P>(object: O) -> *mut P {
    Box::into_raw(Box::new(object)).cast()
}

/// The object behind a public pointer.
///
/// # Safety
/// `pointer` must come from [`hand_out`] with the same `O`, which begins with a `P`, and not have been taken back.
pub unsafe fn object<'a, O, P>(pointer: *mut P) -> &'a O {
    // SAFETY: the caller vouches that this is the box handed out, and that it lives.
    unsafe { &*pointer.cast::<O>() }
}

/// Takes the object back.
///
/// # Safety
/// As for [`object`]; nobody may use it any more.
pub unsafe fn take_back<O, P>(pointer: *mut P) -> Box<O> {
    // SAFETY: the caller vouches that this is the box handed out and that it is used no more.
    unsafe { Box::from_raw(pointer.cast::<O>()) }
}

/// The structure a program's argument points at.
///
/// # Safety
/// `pointer` must point at a valid `T` which nobody changes meanwhile, as the called function's manual page asks.
pub unsafe fn argument<'a, T>(pointer: *const T) -> &'a T {
    // SAFETY: the caller vouches.
    unsafe { &*pointer }
}

/// Writes an answer to where the program wants it.
///
/// # Safety
/// `pointer` must be valid for writing a `T`.
pub unsafe fn answer<T>(pointer: *mut T, value: T) {
    // SAFETY: the caller vouches.
    unsafe { pointer.write_unaligned(value) };
}

/// Writes no more than the first `len` bytes of an answer, for programs whose header knows a shorter structure, and
/// zeroes what theirs has beyond ours.
///
/// # Safety
/// `pointer` must be valid for writing `len` bytes.
pub unsafe fn answer_prefix<T: Copy>(pointer: *mut T, value: &T, len: usize) {
    let own = size_of::<T>().min(len);
    // SAFETY: `own` is at most the size of both; the caller vouches for the target.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *value).cast::<u8>(), pointer.cast::<u8>(), own) };
    // SAFETY: the caller's structure goes on for `len - own` bytes.
    unsafe { std::ptr::write_bytes(pointer.cast::<u8>().wrapping_add(own), 0, len - own) };
}
