//! What a new program image inherits: ignored signals, the mask, signals that wait. Before the real call the kernel is told
//! what the program believes; where the call fails, it is taken back.
//!
//! `execl` and its relatives find their arguments on the stack, so their hooks jump to the real function and take nothing
//! back: a thread in which they have failed has blocked what it believes blocked until it changes its mask.
//!
//! The spawning functions do not hand down an ignored SIGBUS or SIGSEGV: they work while other threads run.

use crate::signals::acts;
use crate::table::{hook, real};
use libc::{c_char, c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use smc_engine::base::active::owned;
use smc_engine::core::inherit;

type Strings = *const *mut c_char;

macro_rules! replacing {
    ($($ignored:literal $name:ident($($a:ident: $t:ty),*);)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`(3).")]
            ///
            /// # Safety
            /// As for the libc function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
                if owned() == 0 {
                    // SAFETY: the arguments are the caller's own.
                    return unsafe { real::$name($($a),*) };
                }
                acts(&hook::$name);
                let handed = inherit::hand_down($ignored);
                // SAFETY: the arguments are the caller's own.
                let r = unsafe { real::$name($($a),*) };
                inherit::take_back(handed);
                r
            }
        )*
    };
}

replacing! {
    true execve(path: *const c_char, args: Strings, env: Strings);
    true execv(path: *const c_char, args: Strings);
    true execvp(file: *const c_char, args: Strings);
    true execvpe(file: *const c_char, args: Strings, env: Strings);
    true fexecve(fd: c_int, args: Strings, env: Strings);
    true execveat(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int);
    false posix_spawn(pid: *mut pid_t, path: *const c_char, todo: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, args: Strings, env: Strings);
    false posix_spawnp(pid: *mut pid_t, file: *const c_char, todo: *const posix_spawn_file_actions_t, attr: *const posix_spawnattr_t, args: Strings, env: Strings);
}

macro_rules! with_a_list {
    ($($name:ident)*) => {
        $(
            /// One hook.
            pub mod $name {
                use crate::table::{Family, Hook};
                use std::arch::naked_asm;

                /// Its entry in the table.
                pub static HOOK: Hook = Hook::starting_at(concat!(stringify!($name), "\0"), Family::Signals, true, first);

                /// The hook.
                ///
                /// # Safety
                /// As for the libc function of that name.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name() {
                    naked_asm!(
                        ".cfi_startproc", "endbr64",
                        "cmp qword ptr [rip + {owned}], 0", "je 2f", "lea r11, [rip + {before}]", "call {around}",
                        "2:", "jmp qword ptr [rip + {slot}]", ".cfi_endproc",
                        owned = sym smc_engine::base::active::OWNED, before = sym before,
                        around = sym super::keeping_arguments, slot = sym HOOK)
                }

                /// The first call: fills the slot, then goes on as if nothing had been.
                #[unsafe(naked)]
                unsafe extern "C" fn first() {
                    naked_asm!(
                        ".cfi_startproc", "endbr64", "lea r11, [rip + {resolve}]", "call {around}",
                        "jmp qword ptr [rip + {slot}]", ".cfi_endproc",
                        resolve = sym resolve, around = sym super::keeping_arguments, slot = sym HOOK)
                }

                extern "C" fn before() {
                    HOOK.hits.hit();
                    let _ = smc_engine::core::inherit::hand_down(true);
                }

                extern "C" fn resolve() {
                    crate::blocking::resolve(&HOOK);
                }
            }
        )*

        /// The hooks above.
        pub static LISTS: &[&crate::table::Hook] = &[$(&$name::HOOK),*];
    };
}
with_a_list!(execl execlp execle);

/// Calls the function in r11 and keeps what a caller of a function with any number of arguments has put into registers, but
/// for vector registers, which none of these functions looks at. The stack is aligned where this is called from.
#[unsafe(naked)]
unsafe extern "C" fn keeping_arguments() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "call r11",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "xor eax, eax",
        "ret",
        ".cfi_endproc"
    )
}
