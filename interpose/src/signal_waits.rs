//! Waiting for signals, and masks for threads that are not there yet.
//!
//! A signal of ours that the program has blocked waits under the number of the mark (`smc_engine::core::sigmask`): whoever
//! waits for the one waits for the other as well, and is told the number it asked for.

use crate::blocking::Frame;
use crate::signals::{acts, bits, kernel_mask, put, set_of};
use crate::table::{Hook, hook, real};
use libc::{c_int, pthread_attr_t, siginfo_t, sigset_t};
use smc_engine::base::active::owned;
use smc_engine::core::delivery::waited_for;
use smc_engine::core::sigmask::{self, MARK};

crate::blocking::blocking! {
    Signals required sigsuspend, owned, -1 => suspends, suspended;
    Signals optional __sigsuspend, owned, -1 => suspends, suspended;
    // Here the "failures" are the answers that may need another look: 0, and the number of the mark.
    Signals required sigwait, owned, 0 => waits, told;
    Signals required sigwaitinfo, owned, 16 => waits, answered;
    Signals required sigtimedwait, owned, 16 => waits, answered;
}

const _: () = assert!(MARK == 16);

fn suspends(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    if opens::<0>(f) {
        hook.hits.hit();
    }
    None
}

fn suspended(_: &'static Hook, f: &mut Frame) -> bool {
    woken::<0>(f);
    false
}

/// Before a call that has argument `N` for its mask while it waits: gives the kernel what that means. True when it did.
pub fn opens<const N: usize>(f: &mut Frame) -> bool {
    let mask = f.arg::<N, *const sigset_t>();
    if sigmask::kept_open(owned()) == 0 || mask.is_null() {
        return false;
    }
    f.spare = sigmask::to_kernel(bits(mask), owned()) as usize;
    f.point_at_spare::<N>();
    true
}

/// After such a call was interrupted: a signal of ours that the mask let through has come under its own number and, since
/// the thread has it blocked otherwise, waits under the mark's. Its handler runs now, in that mask, as it would have run
/// in the call.
pub fn woken<const N: usize>(f: &Frame) {
    let (mark, inside) = (sigmask::blocked_bit(libc::SIGBUS), f.spare as u64);
    if !f.points_at_spare::<N>() || inside & mark != 0 {
        return;
    }
    let mut waiting = set_of(0);
    // SAFETY: a live set.
    if unsafe { real::sigpending(&raw mut waiting) } == 0
        && bits(&raw const waiting) & mark != 0
        && let Ok(outside) = kernel_mask(libc::SIG_SETMASK, Some(inside))
    {
        let _ = kernel_mask(libc::SIG_SETMASK, Some(outside));
    }
}

fn waits(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let set = f.arg::<0, *const sigset_t>();
    if sigmask::kept_open(owned()) != 0 && !set.is_null() {
        hook.hits.hit();
        f.spare = sigmask::to_wait_for(bits(set), owned()) as usize;
        f.point_at_spare::<0>();
    }
    None
}

/// sigwait has answered a signal.
fn told(_: &'static Hook, f: &mut Frame) -> bool {
    let sig = f.arg::<1, *mut c_int>();
    // SAFETY: libc has just written it.
    let got = unsafe { *sig };
    let asked = f.spare as u64 & sigmask::kept_open(owned());
    if got == MARK && asked != 0 {
        // SAFETY: as above.
        unsafe { *sig = asked.trailing_zeros() as c_int + 1 };
    }
    false
}

/// sigwaitinfo or sigtimedwait has answered the mark.
fn answered(_: &'static Hook, f: &mut Frame) -> bool {
    let info = f.arg::<1, *mut siginfo_t>();
    let asked = f.spare as u64 & sigmask::kept_open(owned());
    if asked == 0 {
        return false;
    }
    // SAFETY: null, or valid and just written by libc.
    let sig = unsafe { info.as_mut() }.map_or(asked.trailing_zeros() as c_int + 1, waited_for);
    f.value = sig as usize;
    false
}

/// sigpending(2).
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigpending(set: *mut sigset_t) -> c_int {
    // SAFETY: the argument is the caller's own.
    let r = unsafe { real::sigpending(set) };
    if owned() != 0 && r == 0 {
        acts(&hook::sigpending);
        put(set, sigmask::to_program(bits(set), owned()));
    }
    r
}

/// pthread_attr_setsigmask_np(3). Answers the error itself.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_setsigmask_np(attr: *mut pthread_attr_t, set: *const sigset_t) -> c_int {
    let open = (owned() != 0 && !set.is_null()).then(|| {
        acts(&hook::pthread_attr_setsigmask_np);
        set_of(sigmask::to_kernel(bits(set), owned()))
    });
    let set = open.as_ref().map_or(set, std::ptr::from_ref);
    // SAFETY: the set is the caller's own or a live copy.
    unsafe { real::pthread_attr_setsigmask_np(attr, set) }
}

/// pthread_attr_getsigmask_np(3). Answers the error itself.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_attr_getsigmask_np(attr: *const pthread_attr_t, set: *mut sigset_t) -> c_int {
    // SAFETY: the arguments are the caller's own.
    let r = unsafe { real::pthread_attr_getsigmask_np(attr, set) };
    if owned() != 0 && r == 0 {
        acts(&hook::pthread_attr_getsigmask_np);
        put(set, sigmask::to_program(bits(set), owned()));
    }
    r
}
