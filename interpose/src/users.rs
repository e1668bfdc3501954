//! Calls that change the program's user, groups or capabilities: the library's own threads change with it.
//!
//! Nothing else happens here; see `smc_engine::sys::follow` for why anything must. A process without a region makes the real
//! call after a load.

use crate::table::{hook, real};
use libc::{c_char, c_int, c_void, gid_t, size_t, uid_t};
use smc_engine::sys::follow;

macro_rules! changes {
    ($( fn $name:ident($($a:ident: $t:ty),*); )*) => { $(
        /// The libc function of that name; own threads follow.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            // Not counted while nobody has to follow.
            follow::together(|acting| {
                if acting {
                    hook::$name.hits.hit();
                }
                // SAFETY: the arguments are the caller's own.
                unsafe { real::$name($($a),*) }
            })
        }
    )* };
}

changes! {
    fn setuid(user: uid_t);
    fn seteuid(user: uid_t);
    fn setreuid(real: uid_t, effective: uid_t);
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    fn setgid(group: gid_t);
    fn setegid(group: gid_t);
    fn setregid(real: gid_t, effective: gid_t);
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t);
    fn setgroups(n: size_t, groups: *const gid_t);
    fn initgroups(user: *const c_char, group: gid_t);
}

/// capset(2); own threads follow.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    // SAFETY: the arguments are the caller's own.
    let r = unsafe { real::capset(header, data) };
    if r == 0 && follow::pass_on() {
        hook::capset.hits.hit();
    }
    r
}
