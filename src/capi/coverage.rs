//! Which hooked functions are really reached, and what follows from that.

use super::call::{Call, outcome, with_text};
use super::types::{smc_stat_fn, smc_status};
use crate::core::coverage::{self, Off, Row, State};
use std::ffi::{c_char, c_void};

/// What the self-test has found for one hooked function; see smc_hooks_each().
#[repr(u32)]
pub enum smc_hook_state {
    /// It has not run.
    Untested = 0,
    /// The program's calls reach the hook: one was made, and the hook saw it.
    Fires = 1,
    /// The name leads to the hook; no call without effect exists, so none was made.
    Bound = 2,
    /// Another object has the name and passes the calls on to the hook.
    Forwarded = 3,
    /// Another object has the name, and the hook was not seen to get its calls. A name that cannot be tried counts as such.
    Shadowed = 4,
    /// This libc does not have the function.
    Absent = 5,
}

/// What is switched off because a hook is not reached: without it stores would be lost silently.
#[repr(u32)]
pub enum smc_hook_off {
    /// Nothing.
    Nothing = 0,
    /// open(), fopen() and their relatives of names under /smc/ fail with EOPNOTSUPP.
    Opening = 1,
    /// mmap() of files under /smc/ fails with EOPNOTSUPP; read() and write() work.
    Mapping = 2,
}

/// One hooked function; see smc_hooks_each(). Strings are valid during the callback.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_hook_info {
    /// Bytes that the library filled in; may exceed your sizeof(smc_hook_info).
    pub struct_size: usize,
    /// The function.
    pub name: *const c_char,
    /// What it belongs to: "heap", "paths", "files", "maps", "buffers", "stdio", "loader".
    pub family: *const c_char,
    /// What the hook tells the library's tables, and whether before or after the real call; NULL for nothing.
    pub announces: *const c_char,
    /// The object that has the name instead; NULL when none has.
    pub by: *const c_char,
    /// What the program loses, in words; NULL when the hook is reached.
    pub lost: *const c_char,
    /// Calls that the library acted on. Those that went straight to the real function are not counted.
    pub hits: u64,
    /// enum smc_hook_state.
    pub state: u32,
    /// enum smc_hook_off.
    pub off: u32,
    /// 1: every supported libc has the function.
    pub required: u32,
    /// 0.
    pub reserved: u32,
}

/// Called by smc_hooks_each() for each hooked function; another result than 0 ends the list.
pub type smc_hook_fn = Option<unsafe extern "C" fn(hook: *const smc_hook_info, user: *mut c_void) -> i32>;

fn state(s: State) -> smc_hook_state {
    match s {
        State::Untested => smc_hook_state::Untested,
        State::Fires => smc_hook_state::Fires,
        State::Bound => smc_hook_state::Bound,
        State::Forwarded => smc_hook_state::Forwarded,
        State::Shadowed => smc_hook_state::Shadowed,
        State::Absent => smc_hook_state::Absent,
    }
}

fn off(o: Off) -> smc_hook_off {
    match o {
        Off::Nothing => smc_hook_off::Nothing,
        Off::Opening => smc_hook_off::Opening,
        Off::Mapping => smc_hook_off::Mapping,
    }
}

/// Text, or NULL for none, during a call.
fn with_optional<R>(s: &str, f: impl FnOnce(*const c_char) -> R) -> R {
    if s.is_empty() { f(std::ptr::null()) } else { with_text(s, f) }
}

/// Hands one row to C.
fn tell(row: &Row, f: &dyn Fn(&smc_hook_info) -> i32) -> i32 {
    let lost = if row.covered() { "" } else { row.family.lost() };
    with_text(row.name, |name| {
        with_text(row.family.name(), |family| {
            with_optional(row.announces, |announces| {
                with_optional(row.by, |by| {
                    with_optional(lost, |lost| {
                        f(&smc_hook_info {
                            struct_size: size_of::<smc_hook_info>(),
                            name,
                            family,
                            announces,
                            by,
                            lost,
                            hits: row.hits,
                            state: state(row.state) as u32,
                            off: off(row.off()) as u32,
                            required: u32::from(row.required),
                            reserved: 0,
                        })
                    })
                })
            })
        })
    })
}

/// Calls `each` for every libc function that the library hooks, and says whether this program's calls reach the hook.
///
/// The first call tests the hooks, if the first region has not done so: each name is resolved as the program resolves it,
/// and a call without effect (close(-1), stat("")) is made through it. That takes about 0.3 ms and the loader's lock, does not
/// use the heap of the program, and keeps errno. Without the preloaded library (smc_is_active() = SMC_ACTIVE_NO) every name
/// is libc's, and is reported so. Needs no context. Any thread, also in a fork child; not in a signal handler. Errors:
/// INVALID_ARGUMENT when `each` is NULL; NOT_SUPPORTED where the engine is linked without the hooks.
///
/// # Safety
/// `each` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_hooks_each(each: smc_hook_fn, user: *mut c_void) -> smc_status {
    let c = Call("smc_hooks_each");
    let list = || {
        let each = each.ok_or_else(|| c.bad("`each` is NULL"))?;
        if !coverage::present() {
            return Err(crate::base::Error::of(crate::base::Status::NOT_SUPPORTED, "call smc_hooks_each"));
        }
        coverage::test();
        // SAFETY: the caller vouches for the function; the structure and its strings live during the call.
        let call = |info: &smc_hook_info| unsafe { each(info, user) };
        let mut stop = false;
        coverage::rows(&mut |row| stop = stop || tell(row, &call) != 0);
        Ok(())
    };
    outcome(list())
}

/// Calls `each` for every reason for which hooked calls were passed to the real function unchanged: name, meaning, number of
/// calls. Only calls that a hook had to look at are counted; those of a process that has no region are not.
///
/// Needs no context. Any thread, also in a fork child; not in a signal handler. Errors: INVALID_ARGUMENT when `each` is NULL.
///
/// # Safety
/// `each` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_pass_through_each(each: smc_stat_fn, user: *mut c_void) -> smc_status {
    let c = Call("smc_pass_through_each");
    let list = || {
        let each = each.ok_or_else(|| c.bad("`each` is NULL"))?;
        let mut stop = false;
        coverage::reasons(&mut |name, count| {
            // SAFETY: the caller vouches for the function; the strings live during the call.
            let call = |n, t| unsafe { each(n, t, count, user) };
            stop = stop || with_text(name, |n| with_text("calls passed to the real function", |t| call(n, t))) != 0;
        });
        Ok(())
    };
    outcome(list())
}
