//! Hooks of calls in which a thread may be cancelled.
//!
//! `pthread_cancel` unwinds the stack from inside the real function, and with panic=abort every Rust function on the way
//! ends the program, `extern "C-unwind"` or not. So these hooks are assembly: a frame that the unwinder can read and that has
//! nothing to do when it is passed. Rust is called before and after the real function, never around it.
//!
//! ```text
//! hook:  no region was ever opened?  -> jump to the real function        (not for calls that take a path)
//!        save the arguments; before(frame) = 1?  -> return frame.value   (the library has done the call)
//!  once: frame.value = real(arguments); copies of buffers?  -> finish them
//!        not the failure value?  -> return it
//!        after(frame) = 1?  -> once more
//!        return frame.value
//! ```

use crate::convert::set_errno;
use crate::table::Hook;
use libc::c_int;

/// What the assembly keeps on the stack.
#[repr(C)]
pub struct Frame {
    /// What the hook returns.
    pub value: usize,
    /// errno as the application had it.
    pub errno: u32,
    /// How often `after` has asked for one more call.
    pub tries: u32,
    /// Room for eight bytes that an argument may point at. It also keeps the stack aligned.
    pub spare: usize,
    /// Address and length of what [`crate::bounce`] has for this call; zeros for nothing.
    pub room: [usize; 2],
    /// r9, r8, rcx, rdx, rsi, rdi.
    args: [usize; 6],
}

/// What fits an argument register.
pub trait Register: Copy {
    /// The register's bits as this type.
    fn from(bits: usize) -> Self;
}

macro_rules! registers {
    ($($t:ty),*) => { $(impl Register for $t { #[inline(always)] fn from(bits: usize) -> $t { bits as $t } })* };
}
registers!(c_int, u32, usize, i64);

impl<T> Register for *const T {
    #[inline(always)]
    fn from(bits: usize) -> *const T {
        bits as *const T
    }
}

impl<T> Register for *mut T {
    #[inline(always)]
    fn from(bits: usize) -> *mut T {
        bits as *mut T
    }
}

impl Frame {
    /// Argument number `N`, from 0 to 5.
    #[inline(always)]
    pub fn arg<const N: usize, T: Register>(&self) -> T {
        const { assert!(N < 6) };
        T::from(self.args.get(5 - N).copied().unwrap_or(0))
    }

    /// r9, r8, rcx, rdx, rsi, rdi turned round: argument 0 first.
    pub fn all_args(&self) -> [usize; 6] {
        let mut args = self.args;
        args.reverse();
        args
    }

    /// Gives the real function other arguments, argument 0 first.
    pub fn set_args(&mut self, mut args: [usize; 6]) {
        args.reverse();
        self.args = args;
    }

    /// Makes argument number `N` point at `spare`. The frame stays where it is during the real call.
    pub fn point_at_spare<const N: usize>(&mut self) {
        const { assert!(N < 6) };
        let at = &raw const self.spare as usize;
        if let Some(a) = self.args.get_mut(5 - N) {
            *a = at;
        }
    }

    /// True after [`Frame::point_at_spare`].
    pub fn points_at_spare<const N: usize>(&self) -> bool {
        self.arg::<N, usize>() == &raw const self.spare as usize
    }
}

/// Looks a real function up and stores it in its slot.
pub extern "C" fn resolve(hook: &Hook) {
    if hook.passed() {
        return;
    }
    let p = hook.next();
    hook.set(if p.is_null() { absent as *mut _ } else { p });
}

/// Stands for a function that this libc does not have.
extern "C" fn absent() -> isize {
    set_errno(libc::ENOSYS);
    -1
}

/// Nothing to do before: the real function is called.
pub fn pass(_: &'static Hook, _: &mut Frame) -> Option<usize> {
    None
}

/// Nothing to do after a failure.
pub fn leave(_: &'static Hook, _: &mut Frame) -> bool {
    false
}

/// `blocking! { Family need name, gate, failure => before, after; }` defines the hook `name` and its table entry
/// `name::HOOK`. Gate: `active` jumps to the real function while no region was ever opened, `owned` while no signal is ours,
/// `stderr` as `active` unless the first argument is 2; `always` does not.
macro_rules! blocking {
    ($( $family:ident $need:ident $name:ident, $gate:ident, $failure:literal => $before:path, $after:path; )*) => {
        $(
            /// One hook.
            pub mod $name {
                #[allow(clippy::wildcard_imports)]
                use super::*;
                use crate::table::{Family, Hook};
                use std::arch::naked_asm;

                /// Its entry in the table.
                pub static HOOK: Hook = Hook::starting_at(concat!(stringify!($name), "\0"), Family::$family, crate::blocking::blocking!(@ $need), first);

                /// The hook.
                ///
                /// # Safety
                /// As for the libc function of that name.
                #[unsafe(naked)]
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name() {
                    naked_asm!(
                        ".cfi_startproc", "endbr64",
                        crate::blocking::blocking!(@gate $gate),
                        "push rdi", ".cfi_adjust_cfa_offset 8", "push rsi", ".cfi_adjust_cfa_offset 8",
                        "push rdx", ".cfi_adjust_cfa_offset 8", "push rcx", ".cfi_adjust_cfa_offset 8",
                        "push r8", ".cfi_adjust_cfa_offset 8", "push r9", ".cfi_adjust_cfa_offset 8",
                        "sub rsp, 40", ".cfi_adjust_cfa_offset 40",
                        "mov rdi, rsp", "call {before}", "test eax, eax", "jne 3f", "4:",
                        "mov r9, [rsp + 40]", "mov r8, [rsp + 48]", "mov rcx, [rsp + 56]",
                        "mov rdx, [rsp + 64]", "mov rsi, [rsp + 72]", "mov rdi, [rsp + 80]",
                        "call qword ptr [rip + {slot}]",
                        "mov [rsp], rax", "cmp qword ptr [rsp + 24], 0", "je 5f", "mov rdi, rsp", "call {finish}", "5:",
                        "cmp dword ptr [rsp], {failure}", "jne 3f",
                        "mov rdi, rsp", "call {after}", "test eax, eax", "jne 4b", "3:",
                        "mov rax, [rsp]", "add rsp, 88", ".cfi_adjust_cfa_offset -88", "ret", ".cfi_endproc",
                        active = sym smc_engine::base::active::ACTIVE, owned = sym smc_engine::base::active::OWNED, slot = sym HOOK, failure = const $failure,
                        before = sym before, after = sym after, finish = sym crate::bounce::finish)
                }

                /// The first call: fills the slot, then goes on as if nothing had been.
                #[unsafe(naked)]
                unsafe extern "C" fn first() {
                    naked_asm!(
                        ".cfi_startproc", "endbr64",
                        "push rdi", ".cfi_adjust_cfa_offset 8", "push rsi", ".cfi_adjust_cfa_offset 8",
                        "push rdx", ".cfi_adjust_cfa_offset 8", "push rcx", ".cfi_adjust_cfa_offset 8",
                        "push r8", ".cfi_adjust_cfa_offset 8", "push r9", ".cfi_adjust_cfa_offset 8",
                        "sub rsp, 8", ".cfi_adjust_cfa_offset 8",
                        "lea rdi, [rip + {slot}]", "call {resolve}",
                        "add rsp, 8", ".cfi_adjust_cfa_offset -8",
                        "pop r9", ".cfi_adjust_cfa_offset -8", "pop r8", ".cfi_adjust_cfa_offset -8",
                        "pop rcx", ".cfi_adjust_cfa_offset -8", "pop rdx", ".cfi_adjust_cfa_offset -8",
                        "pop rsi", ".cfi_adjust_cfa_offset -8", "pop rdi", ".cfi_adjust_cfa_offset -8",
                        "jmp qword ptr [rip + {slot}]", ".cfi_endproc",
                        resolve = sym crate::blocking::resolve, slot = sym HOOK)
                }

                extern "C" fn before(f: &mut crate::blocking::Frame) -> usize {
                    f.errno = crate::convert::errno().cast_unsigned();
                    f.tries = 0;
                    f.room = [0; 2];
                    let done: Option<usize> = $before(&HOOK, f);
                    f.value = done.unwrap_or(0);
                    usize::from(done.is_some())
                }

                extern "C" fn after(f: &mut crate::blocking::Frame) -> usize {
                    usize::from($after(&HOOK, f))
                }
            }
        )*

        /// The hooks above.
        pub static BLOCKING: &[&crate::table::Hook] = &[$(&$name::HOOK),*];
    };
    (@ required) => { true };
    (@ optional) => { false };
    (@gate active) => { "cmp dword ptr [rip + {active}], 0\njne 2f\njmp qword ptr [rip + {slot}]\n2: # {owned}" };
    (@gate owned) => { "cmp qword ptr [rip + {owned}], 0\njne 2f\njmp qword ptr [rip + {slot}]\n2: # {active}" };
    (@gate stderr) => { "cmp edi, 2\nje 2f\ncmp dword ptr [rip + {active}], 0\njne 2f\njmp qword ptr [rip + {slot}]\n2: # {owned}" };
    (@gate always) => { "# {active} {owned}" };
}
pub(crate) use blocking;
