//! A signal that is not for us: what the program gets instead, as the kernel would have given it.
//!
//! The answer is the address of the program's handler. The entry code jumps there on the kernel's own frame: the handler
//! returns where it would return without us, and unwinders see the program's frames and the kernel's, none of ours.

use super::disposition::{self, Disposition};
use super::sigmask::{self, MARK};
use crate::base::active;
use crate::sys::signal::{self, Action, Context, Info, bit};
use crate::sys::sync::SignalsBlocked;

/// In the note of a signal of number [`MARK`] that waits in place of another; the low byte is that other's number.
const HELD: u64 = 0x6c69_6273_6d63_0000;

/// The handler of the program's that is to be called now, or 0 when there is nothing to call: the signal is ignored,
/// waits, or ends the process when our handler returns. `info.si_signo` becomes the signal that the program gets.
///
/// # Safety
/// `info` and `ctx` are what the kernel gave our handler, which is about to return or to jump to the answer.
pub(super) unsafe fn to_program(signals: &SignalsBlocked, info: *mut Info, ctx: *mut Context) -> usize {
    // SAFETY: the caller vouches for it, and nobody else uses it.
    let info = unsafe { &mut *info };
    // SAFETY: as above.
    let mask = unsafe { signal::interrupted_mask(ctx) };
    let waited = take_held(info);
    let sig = info.si_signo;
    // SAFETY: info is live.
    let fault = unsafe { signal::is_fault(info) };
    if fault && sigmask::fault_is_blocked(sig, mask, active::owned()) {
        return end(sig, info, ctx);
    }
    if !fault && !waited && mask & sigmask::blocked_bit(sig) & bit(MARK) != 0 && sig != MARK {
        hold(sig, *info);
        return 0;
    }
    let theirs = disposition::for_delivery(signals, sig);
    if theirs.is_handler() {
        enter(sig, &theirs, mask);
        return theirs.handler;
    }
    if theirs.is_ignored() && !fault { 0 } else { end(sig, info, ctx) }
}

/// The mask in which the program's handler runs: the interrupted one, its own, and its signal.
fn enter(sig: i32, theirs: &Disposition, mask: u64) {
    let own = if theirs.has(signal::SA_NODEFER) { 0 } else { sigmask::blocked_bit(sig) };
    let _ = signal::set_mask(mask | sigmask::to_kernel(theirs.mask, active::owned()) | own);
}

/// The program has the signal blocked: it waits as one of the mark's number, which is blocked in its place. It waits in this
/// thread, also when it was sent to the process: own threads take what waits for the process under this number.
fn hold(sig: i32, mut info: Info) {
    signal::set_note(&mut info, HELD | sig as u64);
    let _ = signal::queue_here(MARK, &info);
}

/// Turns a signal that has waited into what it was.
fn take_held(info: &mut Info) -> bool {
    let note = signal::note(info);
    if info.si_signo != MARK || note & !0xff != HELD {
        return false;
    }
    info.si_signo = (note & 0xff) as i32;
    signal::set_note(info, 0);
    true
}

/// Sends a signal that has waited under the mark's number to this thread again, under its own.
pub(super) fn send_on(mut info: Info) {
    take_held(&mut info);
    let _ = signal::queue_here(info.si_signo, &info);
}

/// The number that a program is told of a signal it has waited for; `info` is made to say the same.
pub fn waited_for(info: &mut Info) -> i32 {
    take_held(info);
    info.si_signo
}

/// Ends the process by this very signal as soon as our handler returns. The kernel then finds the registers and the info of
/// the first time, and they are in the core file.
fn end(sig: i32, info: &Info, ctx: *mut Context) -> usize {
    let _ = signal::set(sig, &Action::DEFAULT);
    // SAFETY: `to_program` was given the context of a handler that returns after this.
    unsafe { signal::raise_at_return(sig, info, ctx) };
    0
}

/// From a SIGSEGV handler: the thread gets SIGBUS for the same address instead, as for an access that the kernel cannot
/// serve, which nobody can block or ignore.
///
/// # Safety
/// As for [`to_program`].
pub(super) unsafe fn as_bus(info: *const Info, ctx: *mut Context) {
    // SAFETY: the caller vouches for info.
    let mut info = unsafe { *info };
    // SAFETY: the caller vouches for ctx.
    let mask = unsafe { signal::interrupted_mask(ctx) };
    signal::make_bus(&mut info);
    let ignored = || signal::get(signal::SIGBUS).is_ok_and(|a| a.is_ignored());
    if mask & bit(signal::SIGBUS) != 0 || ignored() {
        end(signal::SIGBUS, &info, ctx);
    } else {
        // SAFETY: the caller vouches for ctx.
        unsafe { signal::raise_at_return(signal::SIGBUS, &info, ctx) };
    }
}
