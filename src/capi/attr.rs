//! Structures whose first field is their size: how old and new programs and libraries understand each other.

use super::call::Call;
use super::types::{smc_config, smc_export_attr, smc_map_attr, smc_stats};
use crate::base::Result;
use memoffset::offset_of;

/// A structure of the API that begins with its size.
///
/// # Safety
/// The type is `repr(C)`, begins with a `usize` and consists of integers and raw pointers: all zeros is a value.
pub(super) unsafe trait Versioned: Copy {
    /// Its size in version 0.1, the smallest that is understood.
    const FIRST: usize;
}

// SAFETY: see types.rs: integers only.
unsafe impl Versioned for smc_config {
    const FIRST: usize = 32;
}
// SAFETY: integers and raw pointers.
unsafe impl Versioned for smc_export_attr {
    const FIRST: usize = 56;
}
// SAFETY: integers and raw pointers.
unsafe impl Versioned for smc_map_attr {
    const FIRST: usize = 104;
}
// SAFETY: integers only.
unsafe impl Versioned for smc_stats {
    const FIRST: usize = 168;
}

// The layout is a promise: fields are only ever added at the end.
const _: () = {
    assert!(size_of::<smc_config>() >= smc_config::FIRST && offset_of!(smc_config, resident_limit) == 24);
    assert!(size_of::<smc_export_attr>() >= smc_export_attr::FIRST && offset_of!(smc_export_attr, allow_uids) == 48);
    assert!(size_of::<smc_map_attr>() >= smc_map_attr::FIRST && offset_of!(smc_map_attr, error_byte) == 100);
    assert!(size_of::<smc_stats>() >= smc_stats::FIRST && offset_of!(smc_stats, local_limit) == 160);
    assert!(offset_of!(smc_map_attr, access) == 8 && offset_of!(smc_map_attr, page_unit) == 48);
};

/// No structure of ours will ever be longer: a larger number is not a size.
const MOST: usize = 4096;

/// The structure as this version knows it. One of an older version is filled up with zeros; one of a newer version is
/// accepted when what we do not know is zero.
///
/// # Safety
/// `p` is NULL, or points to a readable `usize` n and n readable bytes in all.
pub(super) unsafe fn read<T: Versioned>(c: Call, p: *const T, what: &str) -> Result<T> {
    if p.is_null() {
        return Err(c.bad(format_args!("`{what}` is NULL")));
    }
    if !p.is_aligned() {
        return Err(c.bad(format_args!("`{what}` is not aligned")));
    }
    // SAFETY: T begins with a usize.
    let size = unsafe { p.cast::<usize>().read() };
    if size < T::FIRST || size > MOST {
        return Err(c.bad(format_args!("`{what}.struct_size` is {size}, not {} or more", T::FIRST)));
    }
    // SAFETY: the caller vouches for `size` readable bytes.
    let given = unsafe { std::slice::from_raw_parts(p.cast::<u8>(), size) };
    let (known, unknown) = given.split_at_checked(size_of::<T>()).unwrap_or((given, &[]));
    if unknown.iter().any(|b| *b != 0) {
        return Err(c.bad(format_args!("`{what}` uses a field that this version of libsmc does not know")));
    }
    // SAFETY: all zeros is a value of T.
    let mut value = unsafe { std::mem::zeroed::<T>() };
    // SAFETY: `known` is no longer than T, and value is ours.
    unsafe { std::ptr::copy_nonoverlapping(known.as_ptr(), (&raw mut value).cast::<u8>(), known.len()) };
    Ok(value)
}

/// Writes a result into the caller's structure, as far as his version knows it; the rest of a longer one becomes zero. His
/// `struct_size` stays.
///
/// # Safety
/// As for [`read`], and the bytes are writable.
pub(super) unsafe fn write<T: Versioned>(c: Call, p: *mut T, what: &str, value: T) -> Result<()> {
    if p.is_null() {
        return Err(c.bad(format_args!("`{what}` is NULL")));
    }
    if !p.is_aligned() {
        return Err(c.bad(format_args!("`{what}` is not aligned")));
    }
    // SAFETY: T begins with a usize.
    let size = unsafe { p.cast::<usize>().read() };
    if size < T::FIRST || size > MOST {
        return Err(c.bad(format_args!("`{what}.struct_size` is {size}, not {} or more", T::FIRST)));
    }
    let head = size_of::<usize>();
    let known = size.min(size_of::<T>());
    // SAFETY: both are at least `known` bytes long.
    let (from, to) = unsafe { ((&raw const value).cast::<u8>().add(head), p.cast::<u8>().add(head)) };
    // SAFETY: as above; the local value and the caller's memory do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from, to, known - head) };
    // SAFETY: bytes from `known` to `size` are the caller's, see above.
    let tail = unsafe { std::slice::from_raw_parts_mut(p.cast::<u8>().wrapping_add(known), size - known) };
    tail.fill(0);
    Ok(())
}
