//! What `/smc/` files look like: regular files of the region's size, by name and by descriptor alike.

use crate::convert::{CErr, answer, errno};
use crate::files;
use crate::paths::{otherwise, region_of};
use crate::table::{hook, real};
use crate::touch::{Argument, tried};
use libc::{c_char, c_int};
use smc_engine::core::options::Access;
use smc_engine::core::region::Region;
use std::ffi::CStr;

/// Device number of `/smc/`: no block device has it.
const DEVICE: u64 = 0x5_3c3d;

/// What stat and statx tell.
struct Meta {
    inode: u64,
    mode: u32,
    len: u64,
}

impl Meta {
    fn of(region: &Region, writable: bool) -> Meta {
        // FNV-1a of the name: the same file keeps its number in every process.
        let hash = region
            .name()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Meta { inode: hash.max(1), mode: libc::S_IFREG | if writable { 0o600 } else { 0o400 }, len: region.len() }
    }

    fn stat(&self) -> libc::stat {
        // SAFETY: stat is made of integers only.
        let mut st: libc::stat = unsafe { std::mem::zeroed() };
        st.st_dev = DEVICE;
        st.st_ino = self.inode;
        st.st_mode = self.mode;
        st.st_nlink = 1;
        st.st_uid = user();
        st.st_gid = group();
        st.st_size = self.len as i64;
        st.st_blksize = smc_engine::base::PAGE as i64;
        st.st_blocks = (self.len / 512) as i64;
        st
    }

    fn statx(&self) -> libc::statx {
        // SAFETY: statx is made of integers only.
        let mut st: libc::statx = unsafe { std::mem::zeroed() };
        st.stx_mask = libc::STATX_BASIC_STATS;
        st.stx_blksize = smc_engine::base::PAGE as u32;
        st.stx_nlink = 1;
        st.stx_uid = user();
        st.stx_gid = group();
        st.stx_mode = self.mode as u16;
        st.stx_ino = self.inode;
        st.stx_size = self.len;
        st.stx_blocks = self.len / 512;
        st.stx_dev_major = libc::major(DEVICE);
        st.stx_dev_minor = libc::minor(DEVICE);
        st
    }
}

fn user() -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

fn group() -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::getegid() }
}

fn meta_of_path(path: &CStr) -> Result<Meta, CErr> {
    let (_, region) = region_of(path, libc::O_RDONLY)?;
    Ok(Meta::of(&region, true))
}

fn meta_of_fd(fd: c_int) -> Option<Meta> {
    let file = files::get(fd)?;
    let region = file.region().ok()?;
    Some(Meta::of(region, region.options().access == Access::ReadWrite || !file.mode().write))
}

/// stat of a `/smc/` name.
pub fn fill_path(path: &CStr, out: *mut libc::stat) -> Result<c_int, CErr> {
    let st = meta_of_path(path)?.stat();
    if out.is_null() {
        return Err(CErr(libc::EFAULT));
    }
    // SAFETY: the caller of stat gave a buffer for the answer.
    unsafe { out.write(st) };
    Ok(0)
}

fn fill_path_x(path: &CStr, out: *mut libc::statx) -> Result<c_int, CErr> {
    let st = meta_of_path(path)?.statx();
    if out.is_null() {
        return Err(CErr(libc::EFAULT));
    }
    // SAFETY: the caller of statx gave a buffer for the answer.
    unsafe { out.write(st) };
    Ok(0)
}

/// True when (dir, path, flags) of a successful call names the descriptor itself.
///
/// # Safety
/// The real function was called with this path and succeeded.
unsafe fn names_descriptor(path: *const c_char, flags: c_int) -> bool {
    if flags & libc::AT_EMPTY_PATH == 0 {
        return false;
    }
    // SAFETY: the kernel has read the path, or took NULL for an empty one.
    path.is_null() || unsafe { *path } == 0
}

macro_rules! fd_hooks {
    ([$fd:ident $out:ident] $( fn $name:ident($($a:ident: $t:ty),*); )*) => { $(
        /// The libc function of that name, extended to `/smc/`.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            if let Some(m) = files::any().then(|| meta_of_fd($fd)).flatten() {
                hook::$name.hits.hit();
                // SAFETY: the caller gave a buffer for the answer.
                unsafe { $out.write(m.stat()) };
                return 0;
            }
            // SAFETY: the arguments are the caller's own.
            tried(errno(), &[$($a.buffer()),*], || unsafe { real::$name($($a),*) })
        }
    )* };
}

fd_hooks! {
    [fd out]
    fn fstat(fd: c_int, out: *mut libc::stat);
    fn fstat64(fd: c_int, out: *mut libc::stat);
    fn __fxstat(ver: c_int, fd: c_int, out: *mut libc::stat);
    fn __fxstat64(ver: c_int, fd: c_int, out: *mut libc::stat);
}

macro_rules! at_hooks {
    ([$dir:ident $path:ident $out:ident $flags:ident] $( fn $name:ident($($a:ident: $t:ty),*) = $fill:ident, $kind:ident; )*) => { $(
        /// The libc function of that name, extended to `/smc/`.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($a: $t),*) -> c_int {
            let before = errno();
            // SAFETY: the arguments are the caller's own.
            let r = tried(before, &[$($a.buffer()),*], || unsafe { real::$name($($a),*) });
            // SAFETY: the real function was just called with this path and succeeded.
            if r == 0 && files::any() && unsafe { names_descriptor($path, $flags) } {
                if let Some(m) = meta_of_fd($dir) {
                    hook::$name.hits.hit();
                    // SAFETY: the real function has just filled this buffer.
                    unsafe { $out.write(m.$kind()) };
                }
                return answer(before, Ok(0));
            }
            // SAFETY: the real function was just called with this path.
            unsafe { otherwise(&hook::$name, $path, before, r, |p| $fill(p, $out)) }
        }
    )* };
}

at_hooks! {
    [dir path out flags]
    fn fstatat(dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) = fill_path, stat;
    fn fstatat64(dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) = fill_path, stat;
    fn __fxstatat(ver: c_int, dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) = fill_path, stat;
    fn __fxstatat64(ver: c_int, dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) = fill_path, stat;
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: u32, out: *mut libc::statx) = fill_path_x, statx;
}
