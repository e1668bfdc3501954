//! Waiting for events, whose buffers may lie in a view ([`crate::touch`]) and whose mask may name a signal of ours
//! ([`crate::signal_waits`]). A wait that fails is not made a second time, since its
//! time has passed: it works on copies ([`crate::bounce`]).

use crate::blocking::Frame;
use crate::bounce::Nested;
use crate::convert::{errno, set_errno};
use crate::signal_waits::{opens, woken};
use crate::table::Hook;
use crate::touch::{self, Each, Use::*};
use libc::c_int;

macro_rules! waits {
    ($( $need:ident $name:ident $(mask $mask:literal)? => $list:expr; )*) => {
        /// What each call does before and after the real one.
        mod of {
            $(
                pub mod $name {
                    #[allow(clippy::wildcard_imports)]
                    use super::super::*;
                    pub fn before(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
                        $( if opens::<$mask>(f) {
                            hook.hits.hit();
                        } )?
                        touch::before_once(hook, f, Nested::Nothing, |_| true, $list);
                        None
                    }
                    pub fn after(_: &'static Hook, _f: &mut Frame) -> bool {
                        $( interrupted::<$mask>(_f); )?
                        false
                    }
                }
            )*
        }
        crate::blocking::blocking! {
            $( Buffers $need $name, active, -1 => of::$name::before, of::$name::after; )*
        }
    };
}

/// A handler may have to run in the mask that the call had.
fn interrupted<const N: usize>(f: &Frame) {
    let why = errno();
    if why == libc::EINTR {
        woken::<N>(f);
        set_errno(why);
    }
}

/// A number of entries of so many bytes.
fn entries(n: c_int, size: usize) -> usize {
    usize::try_from(n).unwrap_or(0).saturating_mul(size)
}

fn sets(f: &Frame, each: Each) {
    let bytes = usize::try_from(f.arg::<0, c_int>()).unwrap_or(0).div_ceil(64) * 8;
    [f.arg::<1, usize>(), f.arg::<2, usize>(), f.arg::<3, usize>()].into_iter().for_each(|s| each(s, bytes, Target));
    each(f.arg::<4, usize>(), 16, Target);
}

fn polled(f: &Frame, each: Each) {
    each(f.arg::<0, usize>(), f.arg::<1, usize>().saturating_mul(8), Target);
    each(f.arg::<2, usize>(), 16, Source);
    each(f.arg::<3, usize>(), 8, Source);
}

fn events(f: &Frame, each: Each) {
    each(f.arg::<1, usize>(), entries(f.arg::<2, _>(), 12), Target);
    each(f.arg::<4, usize>(), 8, Source);
}

waits! {
    required poll => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(8), Target);
    optional __poll_chk => |f, each| each(f.arg::<0, _>(), f.arg::<1, usize>().saturating_mul(8), Target);
    required ppoll mask 3 => polled;
    optional __ppoll_chk mask 3 => polled;
    required select => sets;
    required pselect mask 5 => |f, each| {
        sets(f, each);
        each(f.arg::<5, _>(), 8, Source);
    };
    required epoll_ctl => |f, each| each(f.arg::<3, _>(), 12, Source);
    required epoll_wait => |f, each| each(f.arg::<1, _>(), entries(f.arg::<2, _>(), 12), Target);
    required epoll_pwait mask 4 => events;
    optional epoll_pwait2 mask 4 => |f, each| {
        events(f, each);
        each(f.arg::<3, _>(), 16, Source);
    };
}
