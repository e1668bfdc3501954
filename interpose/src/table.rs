//! The table of hooked names, as data, and the way to the real functions.
//!
//! A real function is looked up on the first call (`dlsym(RTLD_NEXT)`, which does not allocate on success with the glibc
//! versions this library loads on) and cached in an atomic: two threads that race store the same value.

use crate::convert::{Failure, set_errno};
use libc::{c_char, c_int, c_void};
use smc_engine::base::stats::Counter;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// What a hooked name belongs to; what is missing switches the features of its family off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// The heap: passed through, seen only.
    Heap,
    /// Names under `/smc/`.
    Paths,
    /// Descriptors of `/smc/` files.
    Files,
    /// Mappings.
    Maps,
    /// System calls that may meet an absent page of a view in their buffers.
    Buffers,
    /// stdio on `/smc/` files.
    Stdio,
}

/// One hooked name.
#[repr(C)]
pub struct Hook {
    /// The real function; null until it was looked up. First, because assembly jumps through it.
    real: AtomicPtr<c_void>,
    name: &'static str,
    /// What it belongs to.
    pub family: Family,
    /// Every supported libc has it. An optional name may be absent: its hook then fails with ENOSYS.
    pub required: bool,
    /// Calls that the library acted on. Calls that went straight to the real function are not counted: that would
    /// cost them a write to shared memory.
    pub hits: Counter,
}

impl Hook {
    /// A hook whose real function is looked up on the first call. `name` ends in NUL.
    pub const fn new(name: &'static str, family: Family, required: bool) -> Hook {
        Hook { real: AtomicPtr::new(std::ptr::null_mut()), name, family, required, hits: Counter::new() }
    }

    /// A hook that jumps to `first` until [`Hook::set`] was called.
    pub const fn starting_at(name: &'static str, family: Family, first: unsafe extern "C" fn()) -> Hook {
        Hook { real: AtomicPtr::new(first as *mut c_void), name, family, required: true, hits: Counter::new() }
    }

    /// Name of the hooked function.
    pub fn name(&self) -> &'static str {
        self.name.trim_end_matches('\0')
    }

    /// The real function or null.
    #[inline(always)]
    pub fn real(&self) -> *mut c_void {
        let p = self.real.load(Relaxed);
        if p.is_null() { self.look_up() } else { p }
    }

    /// Stores the real function.
    pub fn set(&self, p: *mut c_void) {
        self.real.store(p, Relaxed);
    }

    /// The next definition of the name after this library, or null.
    pub fn next(&self) -> *mut c_void {
        // SAFETY: name is NUL-terminated (every constructor's caller writes it so) and static.
        unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) }
    }

    #[cold]
    #[inline(never)]
    fn look_up(&self) -> *mut c_void {
        let p = self.next();
        self.set(p);
        p
    }
}

/// The failure of a name that this libc does not have.
#[cold]
pub fn absent<T: Failure>() -> T {
    set_errno(libc::ENOSYS);
    T::FAILED
}

macro_rules! hooks {
    ($( $family:ident $need:ident: fn $name:ident($($a:ident: $t:ty),*) -> $r:ty; )*) => {
        /// The hooks of this table by name.
        #[allow(non_upper_case_globals, missing_docs)]
        pub mod hook {
            use super::{Family, Hook};
            $( pub static $name: Hook = Hook::new(concat!(stringify!($name), "\0"), Family::$family, hooks!(@ $need)); )*
        }

        /// The real functions by name. Each has the contract of the function it is named after. They may be left by an
        /// exception or a cancelled thread, hence no destructor may be pending in a caller.
        #[allow(clippy::missing_safety_doc, missing_docs)]
        pub mod real {
            use super::{absent, hook, c_char, c_int, c_void};
            use libc::{iovec, mode_t, off_t, size_t, ssize_t, sockaddr, socklen_t, FILE};
            $(
                #[inline(always)]
                pub unsafe fn $name($($a: $t),*) -> $r {
                    let p = hook::$name.real();
                    if p.is_null() { return absent(); }
                    // SAFETY: the name's definition has this C signature, which the table took from its header.
                    let f: unsafe extern "C-unwind" fn($($t),*) -> $r = unsafe { std::mem::transmute(p) };
                    // SAFETY: the caller keeps the contract of the function of that name.
                    unsafe { f($($a),*) }
                }
            )*
        }

        /// Every hook of this table.
        static TABLE: &[&Hook] = &[$(&hook::$name),*];
    };
    (@ required) => { true };
    (@ optional) => { false };
}

hooks! {
    Paths required: fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
}
