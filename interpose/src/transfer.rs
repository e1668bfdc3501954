//! Hooks of the calls that move bytes between a descriptor and memory.
//!
//! For a process without regions each is one test and a jump. Otherwise a `/smc/` descriptor is served here ([`crate::io`]),
//! and on every other one a buffer may lie in a view ([`crate::touch`]).

use crate::convert::{CErr, answer, errno};
use crate::files;
use crate::io::{self, Way};
use crate::table::{handled, hook, real};
use crate::touch::{Use, touch, touch_all};
use libc::{c_int, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use smc_engine::core::engine::Engine;
use smc_engine::policy::posix;

/// True while the process has no region: no descriptor and no view can be ours.
#[inline(always)]
pub fn idle() -> bool {
    !files::any() && Engine::running().is_none()
}

/// Serves a call on a `/smc/` descriptor, or makes the real one and repeats it when absent pages were in its way.
macro_rules! buffer_hooks {
    ([$fd:ident] $( fn $name:ident($($a:ident: $t:ty),*) = $way:ident, $bufs:expr, $at:expr; )*) => { $(
        /// The libc function of that name, extended to `/smc/` files and to buffers in views.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($a: $t),*) -> ssize_t {
            if idle() {
                // SAFETY: the arguments are the caller's own.
                return unsafe { real::$name($($a),*) };
            }
            let file = files::get($fd);
            if handled(posix::file_call(file.is_some())) && let Some(file) = &file {
                hook::$name.hits.hit();
                let before = errno();
                // SAFETY: the caller's list of buffers, as the function's contract has it.
                let bufs: Result<_, CErr> = unsafe { $bufs };
                // SAFETY: the caller vouches for the buffers.
                return answer(before, bufs.and_then(|b| unsafe { io::transfer(file, Way::$way, b.as_ref(), $at) }));
            }
            let before = errno();
            // SAFETY: the arguments are the caller's own.
            let r = unsafe { real::$name($($a),*) };
            if r != -1 || errno() != libc::EFAULT {
                return r;
            }
            // SAFETY: as above; the kernel has read the list itself.
            let bufs: Result<_, CErr> = unsafe { $bufs };
            let how = if Way::$way == Way::Read { Use::Target } else { Use::Source };
            if !bufs.is_ok_and(|b| touch_all(b.as_ref(), how)) {
                crate::convert::set_errno(libc::EFAULT);
                return r;
            }
            crate::convert::set_errno(before);
            // SAFETY: the same call once more.
            unsafe { real::$name($($a),*) }
        }
    )* };
}

/// One buffer, in the shape of the fallible list.
unsafe fn one(buf: *const c_void, n: size_t) -> Result<[iovec; 1], CErr> {
    Ok(io::one(buf, n))
}

buffer_hooks! {
    [fd]
    fn read(fd: c_int, buf: *mut c_void, n: size_t) = Read, one(buf, n), None;
    fn write(fd: c_int, buf: *const c_void, n: size_t) = Write, one(buf, n), None;
    fn pread(fd: c_int, buf: *mut c_void, n: size_t, off: off_t) = Read, one(buf, n), Some(off);
    fn pread64(fd: c_int, buf: *mut c_void, n: size_t, off: off_t) = Read, one(buf, n), Some(off);
    fn pwrite(fd: c_int, buf: *const c_void, n: size_t, off: off_t) = Write, one(buf, n), Some(off);
    fn pwrite64(fd: c_int, buf: *const c_void, n: size_t, off: off_t) = Write, one(buf, n), Some(off);
    fn readv(fd: c_int, iov: *const iovec, n: c_int) = Read, io::list(iov, n), None;
    fn writev(fd: c_int, iov: *const iovec, n: c_int) = Write, io::list(iov, n), None;
    fn preadv(fd: c_int, iov: *const iovec, n: c_int, off: off_t) = Read, io::list(iov, n), Some(off);
    fn preadv64(fd: c_int, iov: *const iovec, n: c_int, off: off_t) = Read, io::list(iov, n), Some(off);
    fn pwritev(fd: c_int, iov: *const iovec, n: c_int, off: off_t) = Write, io::list(iov, n), Some(off);
    fn pwritev64(fd: c_int, iov: *const iovec, n: c_int, off: off_t) = Write, io::list(iov, n), Some(off);
}

/// The fortified reads: libc itself checks the room and ends the program when there is too little.
macro_rules! checked_hooks {
    ([$n:ident $room:ident] $( fn $name:ident($($a:ident: $t:ty),*) = $plain:ident($($b:ident),*); )*) => { $(
        /// The libc function of that name, extended to `/smc/` files and to buffers in views.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($a: $t),*) -> ssize_t {
            if idle() || $n > $room {
                // SAFETY: the arguments are the caller's own.
                return unsafe { real::$name($($a),*) };
            }
            // SAFETY: the arguments are the caller's own, and the buffer has room for n bytes.
            unsafe { $plain($($b),*) }
        }
    )* };
}

checked_hooks! {
    [n room]
    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) = read(fd, buf, n);
    fn __pread_chk(fd: c_int, buf: *mut c_void, n: size_t, off: off_t, room: size_t) = pread(fd, buf, n, off);
    fn __pread64_chk(fd: c_int, buf: *mut c_void, n: size_t, off: off_t, room: size_t) = pread64(fd, buf, n, off);
}

/// Sockets: never ours, but their buffers may lie in a view.
macro_rules! socket_hooks {
    ([$buf:ident $n:ident] $( fn $name:ident($($a:ident: $t:ty),*) = $way:ident; )*) => { $(
        /// The libc function of that name, extended to buffers in views.
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($a: $t),*) -> ssize_t {
            if !idle() && touch($buf as usize, $n, Use::$way) {
                hook::$name.hits.hit();
            }
            // SAFETY: the arguments are the caller's own.
            unsafe { real::$name($($a),*) }
        }
    )* };
}

socket_hooks! {
    [buf n]
    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) = Source;
    fn sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, len: socklen_t) = Source;
    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) = Target;
    fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, len: *mut socklen_t) = Target;
}
