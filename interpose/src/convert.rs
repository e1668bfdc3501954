//! Between C's world and the engine's: errno, statuses, C strings.

use libc::c_int;
use smc_engine::base::Status;

/// The calling thread's errno.
pub fn errno() -> c_int {
    // SAFETY: always answers a valid address of the calling thread.
    let p = unsafe { libc::__errno_location() };
    // SAFETY: see above.
    unsafe { *p }
}

/// Sets the calling thread's errno.
pub fn set_errno(e: c_int) {
    // SAFETY: always answers a valid address of the calling thread.
    let p = unsafe { libc::__errno_location() };
    // SAFETY: see above.
    unsafe { *p = e };
}

/// An errno value on its way to the application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CErr(pub c_int);

/// The one place where a status becomes an errno.
impl From<Status> for CErr {
    fn from(s: Status) -> CErr {
        CErr(match s {
            Status::INVALID_ARGUMENT | Status::OUT_OF_RANGE => libc::EINVAL,
            Status::NOT_SUPPORTED | Status::NO_BACKEND => libc::EOPNOTSUPP,
            Status::NO_RESOURCES => libc::ENOMEM,
            Status::NOT_FOUND => libc::ENOENT,
            Status::EXISTS => libc::EEXIST,
            Status::PERMISSION => libc::EACCES,
            Status::BUSY | Status::DIRTY => libc::EBUSY,
            Status::TIMED_OUT => libc::ETIMEDOUT,
            Status::REFUSED => libc::ECONNREFUSED,
            Status::PROTOCOL => libc::EPROTO,
            Status::STALE => libc::ESTALE,
            // LINK_DOWN, PEER_DEAD, REVOKED, POISONED, LOST, FORKED, SYSTEM, INTERNAL: the data cannot be had.
            _ => libc::EIO,
        })
    }
}

impl CErr {
    /// `Ok` for a good status.
    pub fn ok(s: Status) -> Result<(), CErr> {
        s.ok().map_err(CErr::from)
    }
}

impl From<smc_engine::sys::Errno> for CErr {
    fn from(e: smc_engine::sys::Errno) -> CErr {
        CErr(e.0)
    }
}

impl From<smc_engine::base::Error> for CErr {
    fn from(e: smc_engine::base::Error) -> CErr {
        e.status.into()
    }
}

/// What a C function returns when it fails.
pub trait Failure {
    /// -1 or NULL.
    const FAILED: Self;
}

macro_rules! failures {
    ($($t:ty => $v:expr),*) => { $(impl Failure for $t { const FAILED: $t = $v; })* };
}
failures!(c_int => -1, isize => -1, i64 => -1, usize => usize::MAX);

impl<T> Failure for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

/// Hands a result to C: the value with errno as it was, or the failure value with errno set.
///
/// `before` is the errno the application had when it called: on success it sees that one again.
pub fn answer<T: Failure>(before: c_int, r: Result<T, CErr>) -> T {
    match r {
        Ok(v) => {
            set_errno(before);
            v
        }
        Err(CErr(e)) => {
            set_errno(e);
            T::FAILED
        }
    }
}
