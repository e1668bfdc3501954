//! Signal dispositions by system call, and the words a fault handler needs.

use super::errno::{Errno, syscall};

/// The kernel's sigaction on x86-64.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// Stack fault on a coprocessor: raised by nobody on x86-64.
pub const SIGSTKFLT: i32 = libc::SIGSTKFLT;

/// File size limit.
pub const SIGXFSZ: i32 = libc::SIGXFSZ;
/// Power failure.
pub const SIGPWR: i32 = libc::SIGPWR;

/// SA_ONSTACK and SA_RESTART: the flags that the kernel needs before a handler runs.
pub const SA_EARLY: i32 = libc::SA_ONSTACK | libc::SA_RESTART;
/// The handler is called once.
pub const SA_RESETHAND: i32 = libc::SA_RESETHAND;
/// The handler does not block its own signal.
pub const SA_NODEFER: i32 = libc::SA_NODEFER;
/// The flags that a kernel keeps; it clears the others.
pub const SA_KEPT: i32 = libc::SA_NOCLDSTOP
    | libc::SA_NOCLDWAIT
    | libc::SA_SIGINFO
    | libc::SA_ONSTACK
    | libc::SA_RESTART
    | libc::SA_NODEFER
    | libc::SA_RESETHAND
    | SA_RESTORER
    | 0x800;
/// Signals that nobody can block.
pub const UNBLOCKABLE: u64 = bit(libc::SIGKILL) | bit(libc::SIGSTOP);

/// The kernel's mask bit of a signal from 1 to 64.
pub const fn bit(sig: i32) -> u64 {
    1 << ((sig - 1) & 63)
}

/// The handler is given a restorer; the C library sets it in every action.
pub const SA_RESTORER: i32 = 0x0400_0000;

/// What rt_sigreturn needs: a handler returns to the byte after the first. These are the bytes by which libgcc and gdb
/// recognise a signal frame. The `nop` is for unwinders that look up the byte before a return address: without it they
/// would find the function that happens to lie before this one.
#[unsafe(naked)]
extern "C" fn restorer() {
    std::arch::naked_asm!("nop", "mov rax, 15", "syscall")
}

/// Where handlers return to: the restorer of every action that is made here.
pub fn returns_to() -> usize {
    restorer as *const () as usize + 1
}

impl Action {
    /// A handler that runs with every signal blocked, on the alternative stack where the program has one.
    pub fn handle(h: Handler) -> Action {
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        Action::of(h as usize, flags, u64::MAX)
    }

    /// An action from handler address (or SIG_DFL, SIG_IGN), flags and mask, with a restorer.
    pub fn of(handler: usize, flags: i32, mask: u64) -> Action {
        Action { handler, flags: u64::from((flags | SA_RESTORER) as u32), restorer: returns_to(), mask }
    }

    /// Flag of a handler that is given the signal's info and context.
    pub const INFO: i32 = libc::SA_SIGINFO;

    /// The default disposition.
    pub const DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// This action with another handler, which runs with every signal blocked.
    pub fn with_handler(self, h: Handler) -> Action {
        Action { handler: h as usize, flags: self.flags | libc::SA_SIGINFO as u64, mask: u64::MAX, ..self }
    }

    /// Handler address, SIG_DFL or SIG_IGN.
    pub fn handler(&self) -> usize {
        self.handler
    }

    /// SA_* flags.
    pub fn flags(&self) -> i32 {
        self.flags as i32
    }

    /// Signals blocked while the handler runs.
    pub fn mask(&self) -> u64 {
        self.mask
    }

    /// The same with another mask.
    pub fn with_mask(self, mask: u64) -> Action {
        Action { mask, ..self }
    }

    /// True for a function.
    pub fn is_handler(&self) -> bool {
        self.handler != libc::SIG_DFL && self.handler != libc::SIG_IGN
    }

    /// True when `h` is its handler.
    pub fn is(&self, h: Handler) -> bool {
        self.handler == h as usize
    }

    /// Calls this handler as the kernel would; does nothing for SIG_DFL and SIG_IGN.
    ///
    /// # Safety
    /// Called from inside a handler, with the arguments the kernel gave it.
    pub unsafe fn chain(&self, sig: i32, info: *mut Info, ctx: *mut Context) {
        if self.is_handler() && self.flags() & Action::INFO != 0 {
            // SAFETY: who installed this address said that it takes three arguments.
            let f: Handler = unsafe { std::mem::transmute(self.handler) };
            f(sig, info, ctx);
        } else if self.is_handler() {
            // SAFETY: who installed this address said that it takes one argument.
            let f: extern "C" fn(i32) = unsafe { std::mem::transmute(self.handler) };
            f(sig);
        }
    }

    /// True for SIG_IGN.
    pub fn is_ignored(&self) -> bool {
        self.handler == libc::SIG_IGN
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

/// The calling thread's mask. Async-signal-safe.
pub fn mask() -> Result<u64, Errno> {
    let mut old = 0u64;
    // SAFETY: old is eight writable bytes, the kernel's sigset on x86-64.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [0, 0, &raw mut old as usize, 8, 0, 0]) }?;
    Ok(old)
}

/// Replaces the calling thread's mask. Async-signal-safe.
pub fn set_mask(new: u64) -> Result<(), Errno> {
    let args = [libc::SIG_SETMASK as usize, &raw const new as usize, 0, 8, 0, 0];
    // SAFETY: new is eight readable bytes, the kernel's sigset on x86-64.
    unsafe { syscall(libc::SYS_rt_sigprocmask, args) }.map(drop)
}

fn mask_in(ctx: *mut Context) -> *mut u64 {
    ctx.wrapping_byte_add(std::mem::offset_of!(libc::ucontext_t, uc_sigmask)).cast()
}

/// The mask that the interrupted thread gets back.
///
/// # Safety
/// `ctx` is the context the kernel gave a handler that has not returned.
pub unsafe fn interrupted_mask(ctx: *const Context) -> u64 {
    // SAFETY: the caller vouches for ctx; the kernel's part of the mask is its first eight bytes.
    unsafe { mask_in(ctx.cast_mut()).read() }
}

/// Changes the mask that the interrupted thread gets back.
///
/// # Safety
/// As for [`interrupted_mask`], and nobody else uses the context.
pub unsafe fn set_interrupted_mask(ctx: *mut Context, mask: u64) {
    // SAFETY: the caller vouches for ctx.
    unsafe { mask_in(ctx).write(mask) };
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
    let info = unsafe { &*info };
    // A page that the hardware has lost is announced before anybody touches it: that is sent, and not a fault.
    info.si_code > 0 && !(info.si_signo == SIGBUS && info.si_code == libc::BUS_MCEERR_AO)
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

/// Turns the info of a SIGSEGV into that of a SIGBUS for the same address.
pub fn make_bus(info: &mut Info) {
    info.si_signo = SIGBUS;
    info.si_code = libc::BUS_ADRERR;
}

/// Makes the thread get `sig` with `info` when its handler returns, before it executes anything, though it may have
/// blocked the signal. Async-signal-safe.
///
/// # Safety
/// Called from inside a handler, with the context the kernel gave it.
pub unsafe fn raise_at_return(sig: i32, info: &Info, ctx: *mut Context) {
    // SAFETY: the caller vouches for ctx.
    let open = unsafe { interrupted_mask(ctx) } & !bit(sig);
    // SAFETY: as above.
    unsafe { set_interrupted_mask(ctx, open) };
    if queue_here(sig, info).is_err() {
        let (pid, tid) = (super::process::pid(), super::process::tid());
        // SAFETY: takes integers; the signal goes to this very thread.
        let _ = unsafe { syscall(libc::SYS_tgkill, [pid as usize, tid as usize, sig as usize, 0, 0, 0]) };
    }
}

/// Sends `sig` with `info` to the calling thread. Async-signal-safe.
pub fn queue_here(sig: i32, info: &Info) -> Result<(), Errno> {
    let (pid, tid) = (super::process::pid(), super::process::tid());
    let args = [pid as usize, tid as usize, sig as usize, std::ptr::from_ref(info) as usize, 0, 0];
    // SAFETY: info is live for the call, and the signal goes to this very thread.
    unsafe { syscall(libc::SYS_rt_tgsigqueueinfo, args) }.map(drop)
}

/// Takes a signal that waits for the calling thread, if one does. Async-signal-safe.
pub fn take_waiting(sig: i32) -> Option<Info> {
    let (set, now) = (bit(sig), [0u64; 2]);
    // SAFETY: zeros are a valid siginfo.
    let mut info: Info = unsafe { std::mem::zeroed() };
    let args = [&raw const set as usize, &raw mut info as usize, &raw const now as usize, 8, 0, 0];
    // SAFETY: all three are live; the set has eight bytes and the time two words.
    unsafe { syscall(libc::SYS_rt_sigtimedwait, args) }.ok()?;
    Some(info)
}

/// Offset in a siginfo of eight bytes that the kernel keeps and that no signal sent by a program uses.
const NOTE: usize = 40;

/// The eight bytes of `info` that nobody uses.
pub fn note(info: &Info) -> u64 {
    let at = std::ptr::from_ref(info).cast::<u8>().wrapping_add(NOTE).cast::<u64>();
    // SAFETY: a siginfo has 128 bytes and is aligned to eight.
    unsafe { at.read() }
}

/// Writes the eight bytes of `info` that nobody uses.
pub fn set_note(info: &mut Info, note: u64) {
    let at = std::ptr::from_mut(info).cast::<u8>().wrapping_add(NOTE).cast::<u64>();
    // SAFETY: as in `note`, and the borrow is exclusive.
    unsafe { at.write(note) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn unwinders_and_debuggers_know_the_restorer() {
        let at = returns_to() as *const [u8; 9];
        // SAFETY: the code of `restorer`, which is ten bytes.
        assert_eq!(unsafe { *at }, [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]);
    }

    #[test]
    fn only_faults_are_faults() {
        // SAFETY: zeros are a valid siginfo.
        let mut info: Info = unsafe { std::mem::zeroed() };
        info.si_signo = SIGBUS;
        let mut fault = |code| {
            info.si_code = code;
            // SAFETY: a live siginfo.
            unsafe { is_fault(&raw const info) }
        };
        assert!(fault(libc::BUS_ADRERR) && fault(libc::BUS_MCEERR_AR));
        assert!(
            !fault(libc::BUS_MCEERR_AO) && !fault(libc::SI_USER) && !fault(libc::SI_QUEUE) && !fault(libc::SI_TKILL)
        );
    }

    #[test]
    fn a_note_survives_the_kernel() {
        // SAFETY: zeros are a valid siginfo.
        let mut info: Info = unsafe { std::mem::zeroed() };
        info.si_code = libc::SI_QUEUE;
        set_note(&mut info, 0x1234_5678_9abc);
        let old = mask().unwrap();
        set_mask(old | bit(SIGSTKFLT)).unwrap();
        queue_here(SIGSTKFLT, &info).unwrap();
        let got = take_waiting(SIGSTKFLT).unwrap();
        let more = take_waiting(SIGSTKFLT).is_some();
        set_mask(old).unwrap();
        assert_eq!((more, note(&got), got.si_code), (false, 0x1234_5678_9abc, libc::SI_QUEUE));
    }
}
