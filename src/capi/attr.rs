//! Structures whose first field is their size: how old and new programs and libraries understand each other.

use super::call::Call;
use super::listen::smc_listen_attr;
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
unsafe impl Versioned for smc_listen_attr {
    const FIRST: usize = 32;
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
    assert!(size_of::<smc_listen_attr>() >= smc_listen_attr::FIRST && offset_of!(smc_listen_attr, device) == 24);
    assert!(size_of::<smc_map_attr>() >= smc_map_attr::FIRST && offset_of!(smc_map_attr, error_byte) == 100);
    assert!(size_of::<smc_stats>() >= smc_stats::FIRST && offset_of!(smc_stats, local_limit) == 160);
    assert!(offset_of!(smc_map_attr, access) == 8 && offset_of!(smc_map_attr, page_unit) == 48);
};

/// No structure of ours will ever be longer: a larger number is not a size.
const MOST: usize = 4096;

/// The `struct_size` that the caller gave.
///
/// # Safety
/// `p` is NULL or points to a readable `usize`.
unsafe fn size<T: Versioned>(c: Call, p: *const T, what: &str) -> Result<usize> {
    if p.is_null() {
        return Err(c.bad(format_args!("`{what}` is NULL")));
    }
    if !p.is_aligned() {
        return Err(c.bad(format_args!("`{what}` is not aligned")));
    }
    // SAFETY: T begins with a usize, and the caller vouches for it.
    let size = unsafe { p.cast::<usize>().read() };
    if (T::FIRST..=MOST).contains(&size) {
        return Ok(size);
    }
    Err(c.bad(format_args!("`{what}.struct_size` is {size}, not {} or more", T::FIRST)))
}

/// The structure as this version knows it. One of an older version is filled up with zeros; one of a newer version is
/// accepted when what we do not know is zero.
///
/// # Safety
/// `p` is NULL, or points to a readable `usize` n and n readable bytes in all.
pub(super) unsafe fn read<T: Versioned>(c: Call, p: *const T, what: &str) -> Result<T> {
    // SAFETY: as the caller vouches.
    let size = unsafe { size(c, p, what) }?;
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
/// `struct_size` stays: it is the first field of `value` that is replaced by it.
///
/// # Safety
/// As for [`read`], and the bytes are writable.
pub(super) unsafe fn write<T: Versioned>(c: Call, p: *mut T, what: &str, mut value: T) -> Result<()> {
    // SAFETY: as the caller vouches.
    let size = unsafe { size(c, p.cast_const(), what) }?;
    // SAFETY: T begins with a usize, and value is ours.
    unsafe { (&raw mut value).cast::<usize>().write(size) };
    let known = size.min(size_of::<T>());
    // SAFETY: both are at least `known` bytes long; our value and the caller's memory do not overlap.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), p.cast::<u8>(), known) };
    // SAFETY: bytes from `known` to `size` are the caller's.
    let tail = unsafe { std::slice::from_raw_parts_mut(p.cast::<u8>().wrapping_add(known), size - known) };
    tail.fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As smc_config of some later version.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Later {
        old: smc_config,
        more: u64,
    }

    // SAFETY: integers only, begins with a usize.
    unsafe impl Versioned for Later {
        const FIRST: usize = smc_config::FIRST;
    }

    #[test]
    fn old_and_new_structures_are_understood() {
        let c = Call("test");
        let old = smc_config { struct_size: size_of::<smc_config>(), fault: 1, log: 2, wait_ms: 3, resident_limit: 4 };
        // A later library reads an older program's structure: what that did not know is zero.
        // SAFETY: as many bytes as struct_size says are there, and no more are read.
        let seen = unsafe { read::<Later>(c, (&raw const old).cast(), "x") }.unwrap();
        assert_eq!((seen.old.resident_limit, seen.more), (4, 0));
        // An older library reads a newer program's structure.
        let mut new = Later { old: smc_config { struct_size: size_of::<Later>(), ..old }, more: 0 };
        // SAFETY: as above.
        assert_eq!(unsafe { read::<smc_config>(c, (&raw const new).cast(), "x") }.unwrap().wait_ms, 3);
        new.more = 1;
        // SAFETY: as above.
        assert!(unsafe { read::<smc_config>(c, (&raw const new).cast(), "x") }.is_err());
        // An older library answers a newer program.
        // SAFETY: new is as long as it says.
        unsafe { write::<smc_config>(c, (&raw mut new).cast(), "x", smc_config { wait_ms: 9, ..old }) }.unwrap();
        assert_eq!((new.old.struct_size, new.old.wait_ms, new.more), (size_of::<Later>(), 9, 0));
        // A later library answers an older program: it writes no byte too many.
        let mut pair = [old, smc_config { wait_ms: 77, ..old }];
        let full = Later { old: smc_config { wait_ms: 8, ..old }, more: 5 };
        // SAFETY: the first entry is as long as it says.
        unsafe { write::<Later>(c, (&raw mut pair[0]).cast(), "x", full) }.unwrap();
        assert_eq!((pair[0].wait_ms, pair[0].struct_size, pair[1].wait_ms), (8, 32, 77));
    }
}
