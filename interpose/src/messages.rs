//! Calls on sockets, processes and the like, whose buffers may lie in a view: see [`crate::touch`].
//!
//! Most of these give something away with the call that fails (a datagram, a connection, an exit status, a pending error),
//! so they are not made a second time. Those that are: sending, streams, and questions that can be asked again.

use crate::blocking::Frame;
use crate::convert::{errno, set_errno};
use crate::table::Hook;
use crate::touch::{self, Each, LIST, PATH, Use, copied, vector};
use Use::{Source, Target};
use libc::{c_int, mmsghdr, msghdr};

macro_rules! calls {
    ($( $need:ident $name:ident $then:ident => $list:expr; )*) => {
        /// What each call does before and after the real one.
        mod of {
            $(
                pub mod $name {
                    #[allow(clippy::wildcard_imports)]
                    use super::super::*;
                    pub fn before(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
                        touch::before(hook, f, $list);
                        None
                    }
                    pub fn after(_: &'static Hook, f: &mut Frame) -> bool {
                        super::super::$then(f, $list)
                    }
                }
            )*
        }
        crate::blocking::blocking! {
            $( Buffers $need $name, active, -1 => of::$name::before, of::$name::after; )*
        }
    };
}

/// Nothing was given away: the call is made once more.
fn again(f: &mut Frame, list: impl Fn(&Frame, Each)) -> bool {
    touch::again(f, list)
}

/// As [`again`] on a stream, whose bytes stay where they are.
fn stream(f: &mut Frame, list: impl Fn(&Frame, Each)) -> bool {
    if errno() == libc::EFAULT && !touch::keeps(f.arg::<0, c_int>()) {
        set_errno(libc::EFAULT);
        return false;
    }
    touch::again(f, list)
}

/// What the call has taken is gone: it fails.
fn once(_: &mut Frame, _: impl Fn(&Frame, Each)) -> bool {
    false
}

/// A message, its parts, and the structure itself.
fn message(at: usize, how: Use, each: Each) {
    each(at, size_of::<msghdr>(), how);
    let Some(m) = copied::<msghdr>(at) else { return };
    each(m.msg_name as usize, m.msg_namelen as usize, how);
    each(m.msg_control as usize, m.msg_controllen, how);
    vector(m.msg_iov as usize, m.msg_iovlen, how, each);
}

/// Each gets its length.
fn messages(at: usize, n: u32, how: Use, each: Each) {
    let n = (n as usize).min(LIST);
    each(at, n * size_of::<mmsghdr>(), Target);
    for i in 0..n {
        message(at.wrapping_add(i * size_of::<mmsghdr>()), how, each);
    }
}

/// An answer of variable length, and the length itself, which is written too.
fn answered(value: usize, len: usize, each: Each) {
    each(len, size_of::<u32>(), Target);
    if value != 0 {
        each(value, copied::<u32>(len).unwrap_or(0) as usize, Target);
    }
}

/// The caller's own side of a copy between processes.
fn own_side(f: &Frame, how: Use, each: Each) {
    vector(f.arg::<1, _>(), f.arg::<2, _>(), how, each);
    each(f.arg::<3, _>(), f.arg::<4, usize>().min(LIST) * 16, Source);
}

calls! {
    required send again => |f, each| each(f.arg::<1, _>(), f.arg::<2, _>(), Source);
    required sendto again => |f, each| {
        each(f.arg::<1, _>(), f.arg::<2, _>(), Source);
        each(f.arg::<4, _>(), f.arg::<5, u32>() as usize, Source);
    };
    required sendmsg again => |f, each| message(f.arg::<1, _>(), Source, each);
    required sendmmsg once => |f, each| messages(f.arg::<1, _>(), f.arg::<2, _>(), Source, each);
    required recv stream => |f, each| each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
    required recvfrom stream => |f, each| {
        each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
        answered(f.arg::<4, _>(), f.arg::<5, _>(), each);
    };
    optional __recv_chk stream => |f, each| each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
    required recvmsg stream => |f, each| message(f.arg::<1, _>(), Target, each);
    required recvmmsg once => |f, each| {
        messages(f.arg::<1, _>(), f.arg::<2, _>(), Target, each);
        each(f.arg::<4, _>(), 16, Target);
    };
    required connect again => |f, each| each(f.arg::<1, _>(), f.arg::<2, u32>() as usize, Source);
    required bind again => |f, each| each(f.arg::<1, _>(), f.arg::<2, u32>() as usize, Source);
    required accept once => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required accept4 once => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required getsockname again => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required getpeername again => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required getsockopt once => |f, each| answered(f.arg::<3, _>(), f.arg::<4, _>(), each);
    required setsockopt again => |f, each| each(f.arg::<3, _>(), f.arg::<4, u32>() as usize, Source);
    required socketpair again => |f, each| each(f.arg::<3, _>(), 8, Target);
    required pipe again => |f, each| each(f.arg::<0, _>(), 8, Target);
    required pipe2 again => |f, each| each(f.arg::<0, _>(), 8, Target);
    required getrandom again => |f, each| each(f.arg::<0, _>(), f.arg::<1, _>(), Target);
    required getentropy again => |f, each| each(f.arg::<0, _>(), f.arg::<1, _>(), Target);
    required readlink again => |f, each| {
        each(f.arg::<0, _>(), PATH, Source);
        each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
    };
    required readlinkat again => |f, each| {
        each(f.arg::<1, _>(), PATH, Source);
        each(f.arg::<2, _>(), f.arg::<3, _>(), Target);
    };
    required process_vm_readv again => |f, each| own_side(f, Target, each);
    required process_vm_writev again => |f, each| own_side(f, Source, each);
    required vmsplice again => |f, each| vector(f.arg::<1, _>(), f.arg::<2, _>(), Source, each);
    required wait once => |f, each| each(f.arg::<0, _>(), 4, Target);
    required waitpid once => |f, each| each(f.arg::<1, _>(), 4, Target);
    required wait3 once => |f, each| {
        each(f.arg::<0, _>(), 4, Target);
        each(f.arg::<2, _>(), size_of::<libc::rusage>(), Target);
    };
    required wait4 once => |f, each| {
        each(f.arg::<1, _>(), 4, Target);
        each(f.arg::<3, _>(), size_of::<libc::rusage>(), Target);
    };
    required waitid once => |f, each| each(f.arg::<2, _>(), size_of::<libc::siginfo_t>(), Target);
    required msgsnd again => |f, each| each(f.arg::<1, _>(), f.arg::<2, usize>().saturating_add(8), Source);
    required msgrcv once => |f, each| each(f.arg::<1, _>(), f.arg::<2, usize>().saturating_add(8), Target);
    required fread once => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Use::Filled);
    required fread_unlocked once => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Use::Filled);
    optional __fread_chk once => |f, each| each(f.arg::<0, _>(), f.arg::<2, usize>().saturating_mul(f.arg::<3, _>()), Use::Filled);
    optional __fread_unlocked_chk once => |f, each| each(f.arg::<0, _>(), f.arg::<2, usize>().saturating_mul(f.arg::<3, _>()), Use::Filled);
    required fwrite once => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Source);
    required fwrite_unlocked once => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Source);
}
