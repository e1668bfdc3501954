//! Dispositions and masks of the signals that a back end uses.
//!
//! From the first region whose faults arrive by a signal, the kernel keeps our handler for it and never blocks it. The
//! program sees what it set itself, and its handler gets what is not ours (`smc_engine::core::disposition`, `sigmask`).
//! Until then each hook costs one relaxed load.

use crate::convert::{CErr, answer, errno, set_errno};
use crate::table::{Hook, hook, real};
use libc::{c_int, sighandler_t, sigset_t};
use smc_engine::base::active::owned;
use smc_engine::core::disposition::{self, Disposition, is_owned};
use smc_engine::core::sigmask;
use smc_engine::sys::Errno;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Owned signals for which siginterrupt was asked for.
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

const FAILED: sighandler_t = libc::SIG_ERR;
/// sigset(3): the signal is blocked.
const SIG_HOLD: sighandler_t = 2;

/// A call that the library acts on. The slot is looked at for the self-test: most of these calls go another way.
pub fn acts(hook: &Hook) {
    hook.hits.hit();
    let _ = hook.real();
}

/// The kernel's part of a C signal set, which is valid by the contract of the hook that was given it.
pub fn bits(set: *const sigset_t) -> u64 {
    // SAFETY: a valid set, whose first eight bytes are the kernel's.
    unsafe { set.cast::<u64>().read_unaligned() }
}

/// Writes the kernel's part of a C signal set; libc leaves the rest alone too.
pub fn put(set: *mut sigset_t, bits: u64) {
    // SAFETY: as in `bits`, and the caller may write it.
    unsafe { set.cast::<u64>().write_unaligned(bits) };
}

pub fn set_of(bits: u64) -> sigset_t {
    // SAFETY: zeros are a valid set.
    let mut set: sigset_t = unsafe { std::mem::zeroed() };
    put(&raw mut set, bits);
    set
}

/// The kernel's mask bit of a signal.
fn bit(sig: c_int) -> u64 {
    1 << ((sig - 1) & 63)
}

fn from_c(a: &libc::sigaction) -> Disposition {
    Disposition { handler: a.sa_sigaction, flags: a.sa_flags, mask: bits(&raw const a.sa_mask) }
}

/// Writes a disposition as libc does.
///
/// # Safety
/// `to` is null or valid for writes.
unsafe fn to_c(d: Disposition, to: *mut libc::sigaction) {
    let (handler, flags, mask) = (d.handler, d.flags, set_of(d.mask));
    let a = libc::sigaction { sa_sigaction: handler, sa_mask: mask, sa_flags: flags, sa_restorer: None };
    if !to.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { to.write(a) };
    }
}

macro_rules! sigactions {
    ($($name:ident),*) => {
        $(
            /// sigaction(2).
            ///
            /// # Safety
            /// As for the libc function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(sig: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
                if owned() == 0 {
                    // SAFETY: the arguments are the caller's own.
                    return unsafe { real::$name(sig, new, old) };
                }
                // SAFETY: null, or valid by the caller's contract. Read first: it may lie in a view.
                let wanted = unsafe { new.as_ref() }.copied();
                if is_owned(sig) {
                    acts(&hook::$name);
                    let before = errno();
                    let was = disposition::change(sig, wanted.as_ref().map(from_c));
                    if let Ok(was) = was {
                        // SAFETY: null, or valid by the caller's contract.
                        unsafe { to_c(was, old) };
                    }
                    return answer(before, was.map(|_| 0).map_err(CErr::from));
                }
                let open = wanted.map(opened);
                let new = open.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                // SAFETY: `new` is null or a live copy; `old` is the caller's own.
                let r = unsafe { real::$name(sig, new, old) };
                if r == 0 && !old.is_null() {
                    // SAFETY: libc has just written it.
                    let mask = unsafe { &raw mut (*old).sa_mask };
                    put(mask, sigmask::to_program(bits(mask), owned()));
                }
                r
            }
        )*
    };
}
sigactions!(sigaction, __sigaction);

/// The action of a signal that is not ours: its handler must not block ours.
fn opened(mut a: libc::sigaction) -> libc::sigaction {
    let mask = &raw mut a.sa_mask;
    put(mask, sigmask::to_kernel(bits(mask), owned()));
    a
}

/// The signal functions of old, for a signal of ours: answers the handler before, or SIG_ERR with errno.
fn install(sig: c_int, handler: sighandler_t, flags: c_int, mask: u64) -> sighandler_t {
    match disposition::change(sig, Some(Disposition { handler, flags, mask })) {
        Ok(was) => was.handler,
        Err(Errno(e)) => {
            set_errno(e);
            FAILED
        }
    }
}

fn bsd(sig: c_int, handler: sighandler_t) -> sighandler_t {
    let restart = if INTERRUPTS.load(Relaxed) & bit(sig) == 0 { libc::SA_RESTART } else { 0 };
    install(sig, handler, restart, bit(sig))
}

fn sysv(sig: c_int, handler: sighandler_t) -> sighandler_t {
    install(sig, handler, libc::SA_RESETHAND | libc::SA_NODEFER, 0)
}

/// sigset(3): SIG_HOLD blocks the signal, anything else installs the handler and unblocks it.
fn set_or_hold(sig: c_int, handler: sighandler_t) -> sighandler_t {
    let hold = handler == SIG_HOLD;
    let before = match hold {
        true => disposition::change(sig, None).map_or(FAILED, |d| d.handler),
        false => install(sig, handler, 0, 0),
    };
    let how = if hold { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    match change_mask(how, Some(bit(sig))) {
        Ok(was) if was & bit(sig) != 0 => SIG_HOLD,
        Ok(_) => before,
        Err(_) => FAILED,
    }
}

macro_rules! handlers {
    ($($name:ident => $ours:path;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`(3).")]
            ///
            /// # Safety
            /// As for the libc function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(sig: c_int, handler: sighandler_t) -> sighandler_t {
                if is_owned(sig) && handler != FAILED {
                    acts(&hook::$name);
                    return $ours(sig, handler);
                }
                // SAFETY: the arguments are the caller's own.
                unsafe { real::$name(sig, handler) }
            }
        )*
    };
}

handlers! {
    signal => bsd;
    bsd_signal => bsd;
    ssignal => bsd;
    sysv_signal => sysv;
    __sysv_signal => sysv;
    sigset => set_or_hold;
}

macro_rules! of_one_signal {
    ($($name:ident => $ours:path;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`(3).")]
            ///
            /// # Safety
            /// As for the libc function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(sig: c_int) -> c_int {
                if is_owned(sig) {
                    acts(&hook::$name);
                    return answer(errno(), $ours(sig).map(|_| 0).map_err(CErr::from));
                }
                // SAFETY: the argument is the caller's own.
                unsafe { real::$name(sig) }
            }
        )*
    };
}

of_one_signal! {
    sighold => hold;
    sigrelse => open;
    sigignore => ignore;
}

fn hold(sig: c_int) -> Result<u64, Errno> {
    change_mask(libc::SIG_BLOCK, Some(bit(sig)))
}

fn open(sig: c_int) -> Result<u64, Errno> {
    change_mask(libc::SIG_UNBLOCK, Some(bit(sig)))
}

fn ignore(sig: c_int) -> Result<Disposition, Errno> {
    disposition::change(sig, Some(Disposition { handler: libc::SIG_IGN, flags: 0, mask: 0 }))
}

/// siginterrupt(3).
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(sig: c_int, on: c_int) -> c_int {
    if !is_owned(sig) {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real::siginterrupt(sig, on) };
    }
    acts(&hook::siginterrupt);
    let changed = disposition::change(sig, None).and_then(|was| {
        let flags = if on != 0 {
            INTERRUPTS.fetch_or(bit(sig), Relaxed);
            was.flags & !libc::SA_RESTART
        } else {
            INTERRUPTS.fetch_and(!bit(sig), Relaxed);
            was.flags | libc::SA_RESTART
        };
        disposition::change(sig, Some(Disposition { flags, ..was }))
    });
    answer(errno(), changed.map(|_| 0).map_err(CErr::from))
}

/// The calling thread's mask by libc, in the kernel's terms: the mask before.
pub fn kernel_mask(how: c_int, set: Option<u64>) -> Result<u64, Errno> {
    let set = set.map(set_of);
    let mut was = set_of(0);
    let new = set.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both sets are live.
    match unsafe { real::pthread_sigmask(how, new, &raw mut was) } {
        0 => Ok(bits(&raw const was)),
        e => Err(Errno(e)),
    }
}

/// A change of what the calling thread blocks, in the program's terms: the mask before.
fn change_mask(how: c_int, set: Option<u64>) -> Result<u64, Errno> {
    let owned = owned();
    let wanted = set.map(|s| match how {
        libc::SIG_UNBLOCK => sigmask::to_unblock(s, owned),
        _ => sigmask::to_kernel(s, owned),
    });
    let was = kernel_mask(how, wanted)?;
    if was & sigmask::kept_open(owned) != 0 {
        // Blocked before it was ours: from here on the mark says so.
        let now = kernel_mask(libc::SIG_BLOCK, None)?;
        kernel_mask(libc::SIG_SETMASK, Some(sigmask::to_kernel(now, owned)))?;
    }
    Ok(sigmask::to_program(was, owned))
}

/// The same with C's sets.
fn change_c_mask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> Result<(), Errno> {
    let was = change_mask(how, (!set.is_null()).then(|| bits(set)))?;
    if !old.is_null() {
        put(old, was);
    }
    Ok(())
}

/// sigprocmask(2).
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    if owned() == 0 {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real::sigprocmask(how, set, old) };
    }
    acts(&hook::sigprocmask);
    answer(errno(), change_c_mask(how, set, old).map(|()| 0).map_err(CErr::from))
}

/// pthread_sigmask(3). Answers the error itself.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    if owned() == 0 {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real::pthread_sigmask(how, set, old) };
    }
    acts(&hook::pthread_sigmask);
    change_c_mask(how, set, old).map_or_else(|Errno(e)| e, |()| 0)
}

/// sigblock(3) and its relatives know the first 32 signals.
fn change_short_mask(how: c_int, set: Option<c_int>) -> c_int {
    let r = change_mask(how, set.map(|s| u64::from(s as u32)));
    answer(errno(), r.map(|was| was as c_int).map_err(CErr::from))
}

macro_rules! short_masks {
    ($($name:ident, $how:path;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`(3).")]
            ///
            /// # Safety
            /// As for the libc function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(set: c_int) -> c_int {
                if owned() == 0 {
                    // SAFETY: the argument is the caller's own.
                    return unsafe { real::$name(set) };
                }
                acts(&hook::$name);
                change_short_mask($how, Some(set))
            }
        )*
    };
}

short_masks! {
    sigblock, libc::SIG_BLOCK;
    sigsetmask, libc::SIG_SETMASK;
}

/// siggetmask(3).
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siggetmask() -> c_int {
    if owned() == 0 {
        // SAFETY: no arguments.
        return unsafe { real::siggetmask() };
    }
    acts(&hook::siggetmask);
    change_short_mask(libc::SIG_BLOCK, None)
}
