//! The loader's own calls: dlsym, dlvsym, dlopen, dlmopen.
//!
//! The loader takes the return address for its caller: for RTLD_NEXT, for the caller's RUNPATH, for its namespace. So the
//! hooks are assembly that jumps, and never calls, for everything that is the caller's business:
//!
//! ```text
//! dlsym(RTLD_NEXT or RTLD_DEFAULT, ..)  jump to the real one
//! dlsym(handle, name)                   ours(handle, name)? return it : jump to the real one
//! dlopen(file, flags)                   count RTLD_DEEPBIND, jump to the real one
//! dlmopen(..)                           count, jump to the real one
//! ```
//!
//! A name asked of a handle is answered with the hook when the real answer is the very function that the hook forwards to.
//! A failed lookup fails in the real function, by the jump, so `dlerror` says what it always says. What is exported by
//! this library is the table: another hook needs no line here.
//!
//! Not covered: a namespace made by dlmopen has a libc of its own, which no hook reaches; an object opened with
//! RTLD_DEEPBIND finds libc's names before the hooks. Both are counted. The flag stays: taking it out would change which
//! definitions such an object uses, and nothing the library hands out goes to the heap's functions yet.

use crate::elf::{Object, inside};
use crate::table::{Family, Hook};
use libc::{RTLD_NEXT, c_char, c_void};
use std::arch::naked_asm;
use std::ffi::CStr;
use std::mem::offset_of;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The hook that stands for what the loader would answer, or null when the loader is to answer. `version` null: dlsym.
extern "C" fn ours(handle: *mut c_void, name: *const c_char, version: *const c_char, caller: usize) -> *mut c_void {
    hook_of(handle, name, version, caller).unwrap_or(std::ptr::null_mut())
}

fn hook_of(handle: *mut c_void, name: *const c_char, version: *const c_char, caller: usize) -> Option<*mut c_void> {
    if name.is_null() || inside(caller) || crate::ctor::disabled() {
        return None;
    }
    // SAFETY: the caller of dlsym passes a NUL-terminated name.
    let text = unsafe { CStr::from_ptr(name) };
    if text.to_bytes().starts_with(b"smc_") {
        return None;
    }
    let hook = Object::own()?.find(text)?;
    // SAFETY: the slot holds libc's dlsym or the stand-in of that type; a slot of the first call is not asked here.
    let dlsym: Dlsym = unsafe { std::mem::transmute(real(&DLSYM)) };
    let answer = if version.is_null() {
        // SAFETY: the arguments are the caller's own.
        unsafe { dlsym(handle, name) }
    } else {
        // SAFETY: as above, for dlvsym.
        let dlvsym: Dlvsym = unsafe { std::mem::transmute(real(&DLVSYM)) };
        // SAFETY: the arguments are the caller's own.
        unsafe { dlvsym(handle, name, version) }
    };
    if answer.is_null() {
        return None;
    }
    // SAFETY: the name is NUL-terminated; the real function takes this library for the caller.
    let next = unsafe { dlsym(RTLD_NEXT, name) };
    if answer != next {
        return None;
    }
    if version.is_null() {
        DLSYM.hits.hit()
    } else {
        DLVSYM.hits.hit()
    }
    Some(hook as *mut c_void)
}

/// The real function of a hook whose slot may not be filled yet.
fn real(hook: &Hook) -> *mut c_void {
    resolve();
    hook.real()
}

/// Stands for a function that this libc does not have.
extern "C" fn nothing() -> *mut c_void {
    std::ptr::null_mut()
}

/// Fills all four slots; threads that race store the same values.
pub extern "C" fn resolve() {
    static DONE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    if DONE.load(std::sync::atomic::Ordering::Acquire) {
        // At the stub again: the self-test has armed a hook.
        TABLE.iter().filter(|h| h.filled().is_null()).for_each(|h| {
            h.passed();
        });
        return;
    }
    let libc = Object::libc();
    for (hook, name) in [(&DLSYM, c"dlsym"), (&DLVSYM, c"dlvsym"), (&DLOPEN, c"dlopen"), (&DLMOPEN, c"dlmopen")] {
        let p = libc.and_then(|o| o.find(name)).unwrap_or(nothing as *const () as usize);
        hook.set(p as *mut c_void);
    }
    DONE.store(true, std::sync::atomic::Ordering::Release);
}

macro_rules! loader {
    ($($name:ident, $slot:ident, $first:ident, [$($code:tt)*];)*) => {
        $(
            static $slot: Hook = Hook::starting_at(concat!(stringify!($name), "\0"), Family::Loader, true, $first);

            /// The loader's function of that name; see the module.
            ///
            /// # Safety
            /// As for the function of that name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name() {
                naked_asm!(
                    ".cfi_startproc", "endbr64",
                    $($code)*
                    "2:", "jmp qword ptr [rip + {slot}]", ".cfi_endproc",
                    "# {ours} {disabled} {hits}",
                    slot = sym $slot, ours = sym ours, disabled = sym crate::ctor::DISABLED,
                    hits = const offset_of!(Hook, hits))
            }

            crate::slot::first_call!($first, $slot, resolve);
        )*

        /// The family, for reports.
        pub static TABLE: &[&Hook] = &[$(&$slot),*];
    };
}

loader! {
    dlsym, DLSYM, first_dlsym, [
        "lea rax, [rdi + 1]", "cmp rax, 1", "jbe 2f",
        "push rdi", ".cfi_adjust_cfa_offset 8", "push rsi", ".cfi_adjust_cfa_offset 8",
        "push rdx", ".cfi_adjust_cfa_offset 8",
        "xor edx, edx", "mov rcx, [rsp + 24]", "call {ours}",
        "pop rdx", ".cfi_adjust_cfa_offset -8", "pop rsi", ".cfi_adjust_cfa_offset -8",
        "pop rdi", ".cfi_adjust_cfa_offset -8",
        "test rax, rax", "je 2f", "ret",
    ];
    dlvsym, DLVSYM, first_dlvsym, [
        "lea rax, [rdi + 1]", "cmp rax, 1", "jbe 2f", "test rdx, rdx", "je 2f",
        "push rdi", ".cfi_adjust_cfa_offset 8", "push rsi", ".cfi_adjust_cfa_offset 8",
        "push rdx", ".cfi_adjust_cfa_offset 8",
        "mov rcx, [rsp + 24]", "call {ours}",
        "pop rdx", ".cfi_adjust_cfa_offset -8", "pop rsi", ".cfi_adjust_cfa_offset -8",
        "pop rdi", ".cfi_adjust_cfa_offset -8",
        "test rax, rax", "je 2f", "ret",
    ];
    dlopen, DLOPEN, first_dlopen, [
        "test esi, 8", "je 2f", "cmp byte ptr [rip + {disabled}], 0", "jne 2f",
        "lock inc qword ptr [rip + {slot} + {hits}]",
    ];
    dlmopen, DLMOPEN, first_dlmopen, [
        "lock inc qword ptr [rip + {slot} + {hits}]",
    ];
}
