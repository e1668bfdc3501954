//! Calls that name a file: open and its relatives, stat, access, truncate. Extended attributes are not supported there.
//!
//! The real function goes first, and a name is ours only when the file system does not know it. So a name that exists is
//! never hidden, and a path pointer is read here only after the kernel has read it.
//!
//! O_CREAT and O_TRUNC on a region that exists are accepted and change nothing: a region's name and size belong to its
//! exporter. O_CREAT|O_EXCL answers EEXIST. A name nobody exports answers ENOENT, with O_CREAT too.

use crate::blocking::{Frame, pass};
use crate::convert::{CErr, Failure, answer, errno, set_errno};
use crate::table::{Hook, handled, hook, real};
use crate::touch::{self, Argument, PATH, Use, tried};
use crate::{ctor, files, meta, report};
use libc::{c_char, c_int, c_void, off_t, size_t, ssize_t};
use smc_engine::base::{Status, active};
use smc_engine::core::coverage::Off;
use smc_engine::core::engine::Engine;
use smc_engine::core::options::PeerName;
use smc_engine::core::region::Region;
use smc_engine::policy::path::{self, SmcPath};
use smc_engine::policy::posix;
use smc_engine::sys::{errno::syscall, mem};
use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// If `r` is the failure of a call on a path the file system does not know, and the path is ours, does `f` instead.
/// `before` is errno as it was before the call.
///
/// # Safety
/// `path` is the pointer the real function was called with.
#[inline(always)]
pub unsafe fn otherwise<T: Failure + PartialEq>(
    hook: &Hook,
    path: *const c_char,
    before: c_int,
    r: T,
    f: impl FnOnce(&CStr) -> Result<T, CErr>,
) -> T {
    if r != T::FAILED {
        return r;
    }
    // SAFETY: the caller's own promise.
    match unsafe { ours(hook, path) } {
        Some(path) => answer(before, f(path)),
        None => r,
    }
}

/// After a failed call: the path, if the file system does not know it and it is ours.
///
/// # Safety
/// As for [`otherwise`].
#[cold]
#[inline(never)]
unsafe fn ours<'a>(hook: &Hook, path: *const c_char) -> Option<&'a CStr> {
    if path.is_null() || !matches!(errno(), libc::ENOENT | libc::ENOTDIR) {
        return None;
    }
    // SAFETY: the kernel answered that nothing has this name, so it has read it to its NUL.
    let path = unsafe { CStr::from_ptr(path) };
    // Names nothing; the self-test calls with it, and is not to be counted.
    if path.is_empty() {
        return None;
    }
    if !handled(posix::path_call(ctor::disabled(), path.to_bytes())) {
        return None;
    }
    hook.hits.hit();
    Some(path)
}

/// The region of a name, opened with the access of `flags`.
pub fn region_of(path: &CStr, flags: c_int) -> Result<(SmcPath, Arc<Region>), CErr> {
    let mut p = path::parse(path.to_bytes()).map_err(|e| refused(path, e.status(), &e))?;
    p.options.access = files::mode_of(flags).access();
    let open = || Engine::get(ctor::config)?.open(&p.peer, &p.name, &p.options);
    let region = open().map_err(|e| refused(path, e.status, &e))?;
    active::mark();
    Ok((p, region))
}

/// errno says little, so stderr says why. That a name does not exist is an ordinary answer and only said on request.
fn refused(path: &CStr, status: Status, why: &dyn std::fmt::Display) -> CErr {
    let wanted = if status == Status::NOT_FOUND { report::Level::Info } else { report::Level::Error };
    report::log(wanted, format_args!("{}: {why}", path.to_string_lossy()));
    status.into()
}

/// open of a `/smc/` name.
pub fn open_region(path: &CStr, flags: c_int) -> Result<c_int, CErr> {
    if flags & libc::O_DIRECTORY != 0 {
        return Err(CErr(libc::ENOTDIR));
    }
    let (name, region) = region_of(path, flags)?;
    crate::selftest::permit(Off::Opening)?;
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Err(CErr(libc::EEXIST));
    }
    CErr::ok(region.acquire(0, region.len()))?;
    let fd = handle(&name, region.len(), flags)?;
    let kept =
        flags & (libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_SYNC | libc::O_DIRECT | libc::O_NOATIME);
    if !files::fits(fd) {
        close_raw(fd);
        return Err(CErr(libc::EMFILE));
    }
    files::insert(fd, region, kept).inspect_err(|_| close_raw(fd))?;
    Ok(fd)
}

/// A descriptor that shows a regular file of `len` bytes and refuses all input and output.
fn handle(name: &SmcPath, len: u64, flags: c_int) -> Result<c_int, CErr> {
    within_file_size_limit(len)?;
    let place = match &name.peer {
        PeerName::Local => "local".to_owned(),
        PeerName::Net { host, port } => format!("{host}:{port}"),
    };
    // memfd names are at most 249 bytes; it is only what /proc/PID/fd shows.
    let label: String = format!("smc/{place}/{}", name.name).chars().take(240).collect();
    let label = std::ffi::CString::new(label).map_err(|_| CErr(libc::ENOENT))?;
    let file = mem::memfd(&label, len)?;
    let link = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| CErr(libc::EIO))?;
    let how = libc::O_PATH | flags & libc::O_CLOEXEC;
    // SAFETY: link is NUL-terminated and outlives the call.
    let fd =
        unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, link.as_ptr() as usize, how as usize, 0, 0, 0]) }?;
    // Given back by system call: the close hook has nothing to do with it.
    close_raw(std::os::fd::IntoRawFd::into_raw_fd(file));
    Ok(lowest(fd as c_int, flags))
}

/// The memory file has had the lowest free number, which is what open answers: moves the handle there.
fn lowest(fd: c_int, flags: c_int) -> c_int {
    let how = if flags & libc::O_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    // SAFETY: an integer argument; touches no memory.
    match unsafe { syscall(libc::SYS_fcntl, [fd as usize, how as usize, 0, 0, 0, 0]) } {
        Ok(low) if (low as c_int) < fd => {
            close_raw(fd);
            low as c_int
        }
        Ok(high) => {
            close_raw(high as c_int);
            fd
        }
        Err(_) => fd,
    }
}

/// EFBIG where sizing the memory file would raise SIGXFSZ.
fn within_file_size_limit(len: u64) -> Result<(), CErr> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let at = &raw mut limit as usize;
    // SAFETY: limit is a valid out buffer; no new limit is given.
    unsafe { syscall(libc::SYS_prlimit64, [0, libc::RLIMIT_FSIZE as usize, 0, at, 0, 0]) }?;
    if len > limit.rlim_cur { Err(CErr(libc::EFBIG)) } else { Ok(()) }
}

/// Closes a descriptor of the library's own.
pub fn close_raw(fd: c_int) {
    // SAFETY: the callers own the number.
    let _ = unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// access of a `/smc/` name: it must be exported with the access asked for; nothing there can be executed.
fn access_region(path: &CStr, how: c_int) -> Result<c_int, CErr> {
    let flags = if how & libc::W_OK != 0 { libc::O_RDWR } else { libc::O_RDONLY };
    region_of(path, flags)?;
    if how & libc::X_OK != 0 { Err(CErr(libc::EACCES)) } else { Ok(0) }
}

/// truncate to any other size than the region's is refused.
fn truncate_region(path: &CStr, len: off_t) -> Result<c_int, CErr> {
    let (_, region) = region_of(path, libc::O_RDWR)?;
    if u64::try_from(len) == Ok(region.len()) { Ok(0) } else { Err(Status::INVALID_ARGUMENT.into()) }
}

macro_rules! path_hooks {
    ([$path:ident] $( fn $name:ident($($a:ident: $t:ty),*) -> $r:ty = |$p:ident| $do:expr; )*) => { $(
        /// The libc function of that name, extended to `/smc/`.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> $r {
            let before = errno();
            // SAFETY: the arguments are the caller's own.
            let r = tried(before, &[$($a.buffer()),*], || unsafe { real::$name($($a),*) });
            // SAFETY: the real function was just called with this path.
            unsafe { otherwise(&hook::$name, $path, before, r, |$p| $do) }
        }
    )* };
}

const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

path_hooks! {
    [path]
    fn access(path: *const c_char, how: c_int) -> c_int = |p| access_region(p, how);
    fn faccessat(dir: c_int, path: *const c_char, how: c_int, flags: c_int) -> c_int = |p| access_region(p, how);
    fn euidaccess(path: *const c_char, how: c_int) -> c_int = |p| access_region(p, how);
    fn eaccess(path: *const c_char, how: c_int) -> c_int = |p| access_region(p, how);
    fn truncate(path: *const c_char, len: off_t) -> c_int = |p| truncate_region(p, len);
    fn truncate64(path: *const c_char, len: off_t) -> c_int = |p| truncate_region(p, len);
    fn getxattr(path: *const c_char, name: *const c_char, out: *mut c_void, room: size_t) -> ssize_t = |_p| Err(CErr(libc::EOPNOTSUPP));
    fn lgetxattr(path: *const c_char, name: *const c_char, out: *mut c_void, room: size_t) -> ssize_t = |_p| Err(CErr(libc::EOPNOTSUPP));
    fn listxattr(path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t = |_p| Err(CErr(libc::EOPNOTSUPP));
    fn llistxattr(path: *const c_char, out: *mut c_char, room: size_t) -> ssize_t = |_p| Err(CErr(libc::EOPNOTSUPP));
    fn stat(path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
    fn stat64(path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
    fn lstat(path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
    fn lstat64(path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
    fn __xstat(ver: c_int, path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
    fn __xstat64(ver: c_int, path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
    fn __lxstat(ver: c_int, path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
    fn __lxstat64(ver: c_int, path: *const c_char, out: *mut libc::stat) -> c_int = |p| meta::fill_path(p, out);
}

/// After a failed open: the path is argument `PATH`, its flags follow it.
fn opened<const NAME: usize, const FLAGS: usize>(hook: &'static Hook, f: &mut Frame) -> bool {
    after_path::<NAME, _>(hook, f, |f, p| open_region(p, f.arg::<FLAGS, c_int>()).map(|fd| fd as usize))
}

fn created(hook: &'static Hook, f: &mut Frame) -> bool {
    after_path::<0, _>(hook, f, |_, p| open_region(p, CREAT).map(|fd| fd as usize))
}

/// After a failure of a call with a path: does `act` instead when the path is ours.
pub fn after_path<const N: usize, F>(hook: &'static Hook, f: &mut Frame, act: F) -> bool
where
    F: FnOnce(&Frame, &CStr) -> Result<usize, CErr>,
{
    let (before, r) = (f.errno as c_int, f.value);
    let path = f.arg::<N, *const c_char>();
    if errno() == libc::EFAULT {
        return touch::again(f, |_, each| each(path as usize, PATH, Use::Source));
    }
    // SAFETY: the real function was just called with this path.
    if let Some(p) = unsafe { ours(hook, path) } {
        f.value = match act(f, p) {
            Ok(v) => {
                set_errno(before);
                v
            }
            Err(CErr(e)) => {
                set_errno(e);
                r
            }
        };
    }
    false
}

crate::blocking::blocking! {
    Paths required open, always, -1 => pass, opened::<0, 1>;
    Paths required open64, always, -1 => pass, opened::<0, 1>;
    Paths required openat, always, -1 => pass, opened::<1, 2>;
    Paths required openat64, always, -1 => pass, opened::<1, 2>;
    Paths optional __open_2, always, -1 => pass, opened::<0, 1>;
    Paths optional __open64_2, always, -1 => pass, opened::<0, 1>;
    Paths optional __openat_2, always, -1 => pass, opened::<1, 2>;
    Paths optional __openat64_2, always, -1 => pass, opened::<1, 2>;
    Paths required creat, always, -1 => pass, created;
    Paths required creat64, always, -1 => pass, created;
}
