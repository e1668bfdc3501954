//! Calls on sockets, processes and the like, whose buffers may lie in a view: see [`crate::touch`].
//!
//! Many of these give something away with the call that fails (a datagram, a connection, an exit status, a pending error):
//! they get copies of the buffers ([`crate::bounce`]). Those that do not are made a second time: sending, streams, and questions
//! that can be asked again.

use crate::blocking::Frame;
use crate::bounce::Nested;
use crate::convert::{errno, set_errno};
use crate::table::Hook;
use crate::touch::{self, Each, LIST, PATH, Use, copied, vector};
use Use::{Source, Target};
use libc::{c_int, mmsghdr, msghdr};

macro_rules! calls {
    ($( $need:ident $name:ident ($then:expr) => $list:expr; )*) => {
        /// What each call does before and after the real one.
        mod of {
            $(
                pub mod $name {
                    #[allow(clippy::wildcard_imports)]
                    use super::super::*;
                    pub fn before(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
                        $then.before(hook, f, $list);
                        None
                    }
                    pub fn after(_: &'static Hook, f: &mut Frame) -> bool {
                        $then.after(f, $list)
                    }
                }
            )*
        }
        crate::blocking::blocking! {
            $( Buffers $need $name, active, -1 => of::$name::before, of::$name::after; )*
        }
    };
}

/// What becomes of a call that meets a page that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Nothing is given away: it is made once more.
    Again,
    /// Receives: as `Again` from a stream, whose bytes stay where they are, else as `Once`.
    Receive(Nested),
    /// What it takes is gone if it fails: it never meets one.
    Once,
}
use Then::{Again, Once, Receive};

impl Then {
    fn before(self, hook: &'static Hook, f: &mut Frame, list: impl Fn(&Frame, Each)) {
        match self {
            Once => touch::before_once(hook, f, Nested::Nothing, |_| true, list),
            Receive(nested) => touch::before_once(hook, f, nested, |f| !touch::keeps(f.arg::<0, c_int>()), list),
            Again => touch::before(hook, f, list),
        }
    }

    fn after(self, f: &mut Frame, list: impl Fn(&Frame, Each)) -> bool {
        if errno() != libc::EFAULT || self == Once {
            return false;
        }
        if self != Again && !touch::keeps(f.arg::<0, c_int>()) {
            set_errno(libc::EFAULT);
            return false;
        }
        touch::again(f, list)
    }
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
    required send (Again) => |f, each| each(f.arg::<1, _>(), f.arg::<2, _>(), Source);
    required sendto (Again) => |f, each| {
        each(f.arg::<1, _>(), f.arg::<2, _>(), Source);
        each(f.arg::<4, _>(), f.arg::<5, u32>() as usize, Source);
    };
    required sendmsg (Again) => |f, each| message(f.arg::<1, _>(), Source, each);
    required sendmmsg (Again) => |f, each| messages(f.arg::<1, _>(), f.arg::<2, _>(), Source, each);
    required recv (Receive(Nested::Nothing)) => |f, each| each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
    required recvfrom (Receive(Nested::Nothing)) => |f, each| {
        each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
        answered(f.arg::<4, _>(), f.arg::<5, _>(), each);
    };
    optional __recv_chk (Receive(Nested::Nothing)) => |f, each| each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
    required recvmsg (Receive(Nested::Message)) => |f, each| message(f.arg::<1, _>(), Target, each);
    required recvmmsg (Receive(Nested::Messages)) => |f, each| {
        messages(f.arg::<1, _>(), f.arg::<2, _>(), Target, each);
        each(f.arg::<4, _>(), 16, Target);
    };
    required connect (Again) => |f, each| each(f.arg::<1, _>(), f.arg::<2, u32>() as usize, Source);
    required bind (Again) => |f, each| each(f.arg::<1, _>(), f.arg::<2, u32>() as usize, Source);
    required accept (Once) => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required accept4 (Once) => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required getsockname (Again) => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required getpeername (Again) => |f, each| answered(f.arg::<1, _>(), f.arg::<2, _>(), each);
    required getsockopt (Once) => |f, each| answered(f.arg::<3, _>(), f.arg::<4, _>(), each);
    required setsockopt (Again) => |f, each| each(f.arg::<3, _>(), f.arg::<4, u32>() as usize, Source);
    required socketpair (Again) => |f, each| each(f.arg::<3, _>(), 8, Target);
    required pipe (Again) => |f, each| each(f.arg::<0, _>(), 8, Target);
    required pipe2 (Again) => |f, each| each(f.arg::<0, _>(), 8, Target);
    required getrandom (Again) => |f, each| each(f.arg::<0, _>(), f.arg::<1, _>(), Target);
    required getentropy (Again) => |f, each| each(f.arg::<0, _>(), f.arg::<1, _>(), Target);
    required readlink (Again) => |f, each| {
        each(f.arg::<0, _>(), PATH, Source);
        each(f.arg::<1, _>(), f.arg::<2, _>(), Target);
    };
    required readlinkat (Again) => |f, each| {
        each(f.arg::<1, _>(), PATH, Source);
        each(f.arg::<2, _>(), f.arg::<3, _>(), Target);
    };
    required process_vm_readv (Again) => |f, each| own_side(f, Target, each);
    required process_vm_writev (Again) => |f, each| own_side(f, Source, each);
    required vmsplice (Again) => |f, each| vector(f.arg::<1, _>(), f.arg::<2, _>(), Source, each);
    required wait (Once) => |f, each| each(f.arg::<0, _>(), 4, Target);
    required waitpid (Once) => |f, each| each(f.arg::<1, _>(), 4, Target);
    required wait3 (Once) => |f, each| {
        each(f.arg::<0, _>(), 4, Target);
        each(f.arg::<2, _>(), size_of::<libc::rusage>(), Target);
    };
    required wait4 (Once) => |f, each| {
        each(f.arg::<1, _>(), 4, Target);
        each(f.arg::<3, _>(), size_of::<libc::rusage>(), Target);
    };
    required waitid (Once) => |f, each| each(f.arg::<2, _>(), size_of::<libc::siginfo_t>(), Target);
    required msgsnd (Again) => |f, each| each(f.arg::<1, _>(), f.arg::<2, usize>().saturating_add(8), Source);
    required msgrcv (Once) => |f, each| each(f.arg::<1, _>(), f.arg::<2, usize>().saturating_add(8), Target);
    required fread (Once) => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Use::Filled);
    required fread_unlocked (Once) => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Use::Filled);
    optional __fread_chk (Once) => |f, each| each(f.arg::<0, _>(), f.arg::<2, usize>().saturating_mul(f.arg::<3, _>()), Use::Filled);
    optional __fread_unlocked_chk (Once) => |f, each| each(f.arg::<0, _>(), f.arg::<2, usize>().saturating_mul(f.arg::<3, _>()), Use::Filled);
    required fwrite (Once) => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Source);
    required fwrite_unlocked (Once) => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(f.arg::<2, _>()), Source);
}
