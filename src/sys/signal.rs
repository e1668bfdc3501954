//! Signal dispositions by system call, and the words a fault handler needs.

use super::errno::{Errno, syscall};

/// The kernel's sigaction on x86-64.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// What the kernel says about a signal.
pub type Info = libc::siginfo_t;
/// The interrupted thread's context (a ucontext_t).
pub type Context = libc::c_void;
/// A handler as the kernel calls it.
pub type Handler = extern "C" fn(i32, *mut Info, *mut Context);
/// Bus error.
pub const SIGBUS: i32 = libc::SIGBUS;
/// Trap: a single step ended.
pub const SIGTRAP: i32 = libc::SIGTRAP;
/// Segmentation fault.
pub const SIGSEGV: i32 = libc::SIGSEGV;

const SA_RESTORER: u64 = 0x0400_0000;

/// What rt_sigreturn needs: the kernel jumps here when a handler returns.
#[unsafe(naked)]
extern "C" fn restorer() {
    std::arch::naked_asm!("mov eax, 15", "syscall")
}

impl Action {
    /// A handler that runs with every signal blocked, on the alternative stack where the program has one.
    pub fn handle(h: Handler) -> Action {
        let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64 | SA_RESTORER;
        Action { handler: h as usize, flags, restorer: restorer as *const () as usize, mask: u64::MAX }
    }

    /// The default disposition.
    pub const DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// This action with another handler, which runs with every signal blocked.
    pub fn with_handler(self, h: Handler) -> Action {
        Action { handler: h as usize, flags: self.flags | libc::SA_SIGINFO as u64, mask: u64::MAX, ..self }
    }

    /// True when a handler is set.
    pub fn is_handler(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }

    /// True for SIG_IGN.
    pub fn is_ignored(&self) -> bool {
        self.handler == libc::SIG_IGN
    }

    /// Calls this action as the kernel would. False when it is SIG_DFL or SIG_IGN: the caller decides then.
    ///
    /// # Safety
    /// Called from inside a handler, with the arguments the kernel gave it.
    pub unsafe fn chain(&self, sig: i32, info: *mut libc::siginfo_t, ctx: *mut libc::c_void) -> bool {
        if self.handler == libc::SIG_DFL || self.handler == libc::SIG_IGN {
            return false;
        }
        if self.flags & libc::SA_SIGINFO as u64 != 0 {
            // SAFETY: the program installed this address as a three-argument handler.
            let f: Handler = unsafe { std::mem::transmute(self.handler) };
            f(sig, info, ctx);
        } else {
            // SAFETY: the program installed this address as a one-argument handler.
            let f: extern "C" fn(i32) = unsafe { std::mem::transmute(self.handler) };
            f(sig);
        }
        true
    }
}

/// Sets the disposition of `sig` and answers the previous one. Async-signal-safe.
pub fn set(sig: i32, action: &Action) -> Result<Action, Errno> {
    let mut old = Action::DEFAULT;
    // SAFETY: both structures are live and have the kernel's layout; handler and restorer are static functions.
    unsafe {
        syscall(
            libc::SYS_rt_sigaction,
            [sig as usize, std::ptr::from_ref(action) as usize, &raw mut old as usize, 8, 0, 0],
        )
    }?;
    Ok(old)
}

/// Reads the disposition of `sig`. Async-signal-safe.
pub fn get(sig: i32) -> Result<Action, Errno> {
    let mut old = Action::DEFAULT;
    // SAFETY: old is live and has the kernel's layout.
    unsafe { syscall(libc::SYS_rt_sigaction, [sig as usize, 0, &raw mut old as usize, 8, 0, 0]) }?;
    Ok(old)
}

/// The faulting address of a SIGBUS or SIGSEGV.
///
/// # Safety
/// `info` is what the kernel gave a handler of one of these signals.
pub unsafe fn fault_addr(info: *const libc::siginfo_t) -> usize {
    // SAFETY: the caller vouches for info.
    let info = unsafe { &*info };
    // SAFETY: a SIGBUS or SIGSEGV carries an address.
    (unsafe { info.si_addr() }) as usize
}

/// True when the kernel raised the signal for an access of this thread, false when somebody sent it.
///
/// # Safety
/// As for [`fault_addr`].
pub unsafe fn is_fault(info: *const Info) -> bool {
    // SAFETY: the caller vouches for info.
    (unsafe { (*info).si_code }) > 0
}

/// True when the access was a write: bit 1 of the page fault's error code.
///
/// # Safety
/// `ctx` is the context the kernel gave a handler of a page fault.
pub unsafe fn is_write(ctx: *const Context) -> bool {
    let ctx = ctx.cast::<libc::ucontext_t>();
    // SAFETY: the caller vouches for ctx.
    let err = unsafe { (*ctx).uc_mcontext.gregs[libc::REG_ERR as usize] };
    err & 2 != 0
}

/// From a SIGSEGV handler: makes the thread get SIGBUS for the same address when the handler returns, as the kernel would
/// for an access it cannot serve. Async-signal-safe.
///
/// # Safety
/// Called from inside the handler, with the arguments the kernel gave it.
pub unsafe fn turn_into_bus(info: *const Info, ctx: *mut Context) {
    // SAFETY: the caller vouches for info.
    let mut info = unsafe { *info };
    info.si_signo = SIGBUS;
    info.si_code = libc::BUS_ADRERR;
    let ctx = ctx.cast::<libc::ucontext_t>();
    // A SIGBUS of the kernel's cannot be blocked away; this one must not be either.
    let mask = ctx.wrapping_byte_add(std::mem::offset_of!(libc::ucontext_t, uc_sigmask)).cast::<libc::sigset_t>();
    // SAFETY: the caller vouches for ctx; the mask is a live sigset inside it.
    unsafe { libc::sigdelset(mask, SIGBUS) };
    let (pid, tid) = (super::process::pid(), super::process::tid());
    let args = [pid as usize, tid as usize, SIGBUS as usize, &raw const info as usize, 0, 0];
    // SAFETY: info is live for the call, and the signal goes to this very thread.
    let _ = unsafe { syscall(libc::SYS_rt_tgsigqueueinfo, args) };
}

/// Sends `sig` to the calling thread. Async-signal-safe.
pub fn raise(sig: i32) {
    let (pid, tid) = (super::process::pid(), super::process::tid());
    // SAFETY: takes integers; the signal goes to this very thread.
    let _ = unsafe { syscall(libc::SYS_tgkill, [pid as usize, tid as usize, sig as usize, 0, 0, 0]) };
}
