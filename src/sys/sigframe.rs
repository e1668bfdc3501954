//! The register state of an interrupted thread, as the kernel saved it for a signal handler.
//!
//! The kernel writes this state when it delivers a signal and loads it back when the handler returns, so what a handler
//! writes here is what the thread goes on with. General registers, RIP and RFLAGS can be read and written; vector and
//! mask registers can be read. All of [`Frame`] is async-signal-safe and allocates nothing.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::errno::{Errno, syscall};
use std::sync::atomic::{AtomicU32, Ordering};

/// Longest x86 instruction in bytes.
pub const MAX_INSTRUCTION: usize = 15;
/// `gregs` index of each general register, in the order of the instruction encoding: rax, rcx, rdx, rbx, rsp, ...
const GPR: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];
/// Write bit of the page fault error code.
const ERR_WRITE: i64 = 2;

/// Offsets in the saved floating point state: the 512 bytes of FXSAVE, then the XSAVE header, then the components.
mod layout {
    /// xmm0..15, 16 bytes each.
    pub const XMM: usize = 160;
    /// `struct _fpx_sw_bytes`: magic1, extended_size, xfeatures (u64), xstate_size.
    pub const SW_RESERVED: usize = 464;
    pub const SW_XSTATE_SIZE: usize = SW_RESERVED + 16;
    /// Header: the bits of the components that are not in their initial state.
    pub const XSTATE_BV: usize = 512;
    /// First byte after the header.
    pub const EXTENDED: usize = 576;
    /// `FP_XSTATE_MAGIC1`: the frame goes on after the first 512 bytes.
    pub const MAGIC1: u32 = 0x4650_5853;

    const _: () = assert!(memoffset::offset_of!(libc::_libc_fpstate, _xmm) == XMM);
    const _: () = assert!(std::mem::size_of::<libc::_libc_fpstate>() == XSTATE_BV);
    const _: () = assert!(std::mem::size_of::<libc::_libc_xmmreg>() == 16);
    // What the kernel puts there (arch/x86/include/uapi/asm/sigcontext.h): gregs after flags, link and stack.
    const _: () = assert!(memoffset::offset_of!(libc::ucontext_t, uc_mcontext) == 40);
    const _: () = assert!(memoffset::offset_of!(libc::mcontext_t, fpregs) == 23 * 8);
}

/// One XSAVE component that holds register contents.
#[derive(Clone, Copy)]
enum Component {
    /// High halves of ymm0..15.
    YmmHigh = 2,
    /// k0..k7.
    Opmask = 5,
    /// High halves of zmm0..15.
    ZmmHigh = 6,
    /// zmm16..31.
    HighZmm = 7,
}

/// Where each component lies in the uncompacted XSAVE area; 0 while unknown or absent.
static OFFSETS: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// Asks the processor where it saves which register. To be called once, outside handlers (CPUID can be slow: virtual
/// machines trap it); until then registers beyond xmm0..15 cannot be read. Calling it again is harmless.
pub fn init() {
    // An unsafe function in older toolchains, a safe one in newer.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has CPUID.
    let leaf = |leaf, sub| unsafe { std::arch::x86_64::__cpuid_count(leaf, sub) };
    /// OSXSAVE: the system saves the extended state.
    const OSXSAVE: u32 = 1 << 27;
    if leaf(0, 0).eax < 0xd || leaf(1, 0).ecx & OSXSAVE == 0 {
        return;
    }
    for c in [Component::YmmHigh, Component::Opmask, Component::ZmmHigh, Component::HighZmm] {
        let at = leaf(0xd, c as u32);
        if at.eax != 0
            && let Some(slot) = OFFSETS.get(c as usize)
        {
            slot.store(at.ebx, Ordering::Relaxed);
        }
    }
}

/// A signal frame of the running handler.
#[derive(Debug)]
pub struct Frame {
    uc: *mut libc::ucontext_t,
}

impl Frame {
    /// Wraps the third argument of an SA_SIGINFO handler.
    ///
    /// # Safety
    /// `uc` must be the context the kernel passed to a signal handler that has not returned yet, or a copy of such a
    /// context (with its floating point state and `fpregs` pointing at it) that outlives the Frame; nobody else may use
    /// it meanwhile. [`code`](Frame::code) moreover needs RIP to be where the thread was interrupted by a fault.
    pub unsafe fn new(uc: *mut libc::ucontext_t) -> Frame {
        Frame { uc }
    }

    fn greg(&self, i: libc::c_int) -> i64 {
        // SAFETY: the pointer is a live context (contract of `new`).
        let regs = unsafe { &(*self.uc).uc_mcontext.gregs };
        regs.get(i as usize).copied().unwrap_or(0)
    }

    fn set_greg(&mut self, i: libc::c_int, v: i64) {
        // SAFETY: the pointer is a live context that nobody else uses (contract of `new`).
        let regs = unsafe { &mut (*self.uc).uc_mcontext.gregs };
        if let Some(r) = regs.get_mut(i as usize) {
            *r = v;
        }
    }

    /// The 64-bit register `n` in encoding order (0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi, 7 rdi, 8..15 r8..r15);
    /// only the low four bits of `n` count.
    pub fn gpr(&self, n: usize) -> u64 {
        GPR.get(n & 15).map_or(0, |&i| self.greg(i) as u64)
    }

    /// Sets the 64-bit register `n`.
    pub fn set_gpr(&mut self, n: usize, v: u64) {
        if let Some(&i) = GPR.get(n & 15) {
            self.set_greg(i, v as i64);
        }
    }

    /// The low `bytes` (1, 2, 4 or 8) of register `n`, zero extended.
    pub fn gpr_low(&self, n: usize, bytes: usize) -> u64 {
        self.gpr(n) & mask(bytes)
    }

    /// Writes the low `bytes` (1, 2, 4 or 8) of register `n` as the processor does: a write of 4 bytes clears the upper
    /// half, shorter ones leave the rest alone.
    pub fn set_gpr_low(&mut self, n: usize, bytes: usize, v: u64) {
        let m = mask(bytes);
        let keep = if bytes >= 4 { 0 } else { self.gpr(n) & !m };
        self.set_gpr(n, keep | (v & m));
    }

    /// ah, ch, dh or bh: bits 8 to 15 of register `n` (0..3).
    pub fn gpr_high(&self, n: usize) -> u64 {
        (self.gpr(n) >> 8) & 0xff
    }

    /// Writes ah, ch, dh or bh.
    pub fn set_gpr_high(&mut self, n: usize, v: u64) {
        let rest = self.gpr(n) & !0xff00;
        self.set_gpr(n, rest | ((v & 0xff) << 8));
    }

    /// Address of the interrupted instruction.
    pub fn rip(&self) -> u64 {
        self.greg(libc::REG_RIP) as u64
    }

    /// Sets where the thread goes on.
    pub fn set_rip(&mut self, v: u64) {
        self.set_greg(libc::REG_RIP, v as i64);
    }

    /// RFLAGS.
    pub fn flags(&self) -> u64 {
        self.greg(libc::REG_EFL) as u64
    }

    /// Sets RFLAGS. The kernel takes over the arithmetic flags, DF, TF, AC and RF and ignores the rest.
    pub fn set_flags(&mut self, v: u64) {
        self.set_greg(libc::REG_EFL, v as i64);
    }

    /// True when the fault was a write (bit 1 of the page fault error code). Read-modify-write instructions fault as
    /// writes. Meaningless for signals that are not page faults.
    pub fn is_write(&self) -> bool {
        self.greg(libc::REG_ERR) & ERR_WRITE != 0
    }

    /// Copies the code at RIP into `out` and answers how many bytes: 15, or fewer where the page ends. With `across` the
    /// copy goes on into the next page, if that can be read.
    ///
    /// Code that may be executed but not read (a protection key that denies access) faults here.
    pub fn code(&self, out: &mut [u8; MAX_INSTRUCTION], across: bool) -> usize {
        const PAGE: usize = 4096;
        let rip = self.rip() as usize;
        let left = PAGE.wrapping_sub(rip & PAGE.wrapping_sub(1));
        let whole = left >= MAX_INSTRUCTION || (across && is_readable(rip.wrapping_add(left)));
        let n = if whole { MAX_INSTRUCTION } else { left };
        // SAFETY: the thread was executing at RIP (contract of `new`), so its page is mapped; the next one is touched
        // only after the kernel could read it.
        unsafe { std::ptr::copy_nonoverlapping(rip as *const u8, out.as_mut_ptr(), n) };
        n
    }

    /// Reads a piece of the saved floating point state; None when the frame has no such state.
    fn fp<T: Copy>(&self, offset: usize) -> Option<T> {
        // SAFETY: the pointer is a live context (contract of `new`).
        let base = unsafe { (*self.uc).uc_mcontext.fpregs } as *const u8;
        if base.is_null() {
            return None;
        }
        // SAFETY: every caller passes an offset below 512, which every state has, or one it has checked against the
        // size the kernel states; T is an array or integer of plain bytes.
        Some(unsafe { base.wrapping_add(offset).cast::<T>().read_unaligned() })
    }

    /// Bytes of the saved state, and the components in it that are not in their initial state.
    fn extent(&self) -> Option<(usize, u64)> {
        if self.fp::<u32>(layout::SW_RESERVED)? != layout::MAGIC1 {
            // FXSAVE only: x87 and SSE, always written.
            return Some((layout::XSTATE_BV, 3));
        }
        let size = self.fp::<u32>(layout::SW_XSTATE_SIZE)? as usize;
        if size < layout::EXTENDED {
            return None;
        }
        Some((size, self.fp::<u64>(layout::XSTATE_BV)?))
    }

    /// `T` at `offset` of a component: zero when that is in its initial state, None when the frame does not have it.
    fn component<T: Copy>(&self, c: Component, offset: usize, zero: T) -> Option<T> {
        let (size, live) = self.extent()?;
        let base = OFFSETS.get(c as usize)?.load(Ordering::Relaxed) as usize;
        let end = base.checked_add(offset)?.checked_add(size_of::<T>())?;
        if base < layout::EXTENDED || end > size {
            return None;
        }
        if live & (1u64 << (c as u32)) == 0 {
            return Some(zero);
        }
        self.fp(base.checked_add(offset)?)
    }

    /// Vector register `n` (0..31), of which `bytes` (16, 32 or 64) are wanted; the rest of the answer is zero. None
    /// when the frame does not hold them.
    pub fn vector(&self, n: usize, bytes: usize) -> Option<[u8; 64]> {
        if n >= 16 {
            let n = n.checked_sub(16).filter(|&n| n < 16)?;
            return self.component(Component::HighZmm, n.checked_mul(64)?, [0u8; 64]);
        }
        let mut out = [0u8; 64];
        let (x, rest) = out.split_at_mut_checked(16)?;
        let (y, z) = rest.split_at_mut_checked(16)?;
        const SSE: u64 = 2;
        if self.extent()?.1 & SSE != 0 {
            x.copy_from_slice(&self.fp::<[u8; 16]>(layout::XMM.checked_add(n.checked_mul(16)?)?)?);
        }
        if bytes > 16 {
            y.copy_from_slice(&self.component(Component::YmmHigh, n.checked_mul(16)?, [0u8; 16])?);
        }
        if bytes > 32 {
            z.copy_from_slice(&self.component(Component::ZmmHigh, n.checked_mul(32)?, [0u8; 32])?);
        }
        Some(out)
    }

    /// Mask register k`n` (0..7); None when the frame does not hold it.
    pub fn opmask(&self, n: usize) -> Option<u64> {
        if n > 7 {
            return None;
        }
        self.component(Component::Opmask, n.checked_mul(8)?, 0u64)
    }
}

/// All bits of an operand of `bytes` bytes; every size from 8 up gives 64 bits.
fn mask(bytes: usize) -> u64 {
    match bytes {
        0 => 0,
        1..8 => (1u64 << (bytes as u32).wrapping_mul(8)).wrapping_sub(1),
        _ => u64::MAX,
    }
}

/// True when the 8 bytes at `addr` can be read. Async-signal-safe.
///
/// Asks the kernel to read a signal set there for an operation that does not exist: it looks at the memory first.
/// Unlike process_vm_readv this needs no privilege and passes every seccomp filter that lets programs handle signals.
fn is_readable(addr: usize) -> bool {
    const NO_SUCH_OPERATION: usize = usize::MAX;
    // SAFETY: the kernel checks the address itself and changes nothing.
    let r = unsafe { syscall(libc::SYS_rt_sigprocmask, [NO_SUCH_OPERATION, addr, 0, 8, 0, 0]) };
    r == Err(Errno(libc::EINVAL))
}

/// Base of the FS segment of the calling thread. Async-signal-safe.
pub fn fs_base() -> Option<u64> {
    const ARCH_GET_FS: usize = 0x1003;
    segment_base(ARCH_GET_FS)
}

/// Base of the GS segment of the calling thread. Async-signal-safe.
pub fn gs_base() -> Option<u64> {
    const ARCH_GET_GS: usize = 0x1004;
    segment_base(ARCH_GET_GS)
}

fn segment_base(what: usize) -> Option<u64> {
    let mut base = 0u64;
    // SAFETY: arch_prctl with ARCH_GET_FS or ARCH_GET_GS stores one u64 at the address given, which is ours.
    unsafe { syscall(libc::SYS_arch_prctl, [what, &raw mut base as usize, 0, 0, 0, 0]) }.ok()?;
    Some(base)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
mod tests {
    use super::*;

    #[test]
    fn writes_follow_the_width_rules() {
        // SAFETY: all zero is a valid ucontext_t.
        let mut uc: libc::ucontext_t = unsafe { std::mem::zeroed() };
        // SAFETY: uc is a context of ours that nothing else uses while the frame lives.
        let mut f = unsafe { Frame::new(&mut uc) };
        f.set_gpr(3, 0x1122_3344_5566_7788);
        f.set_gpr_high(3, 0xab);
        assert_eq!(f.gpr(3), 0x1122_3344_5566_ab88);
        f.set_gpr_low(3, 1, 0xfff);
        assert_eq!(f.gpr(3), 0x1122_3344_5566_abff);
        f.set_gpr_low(3, 2, 0x1_2345);
        assert_eq!(f.gpr(3), 0x1122_3344_5566_2345);
        assert_eq!(f.gpr_high(3), 0x23);
        f.set_gpr_low(3, 4, 0x9_8765_4321);
        assert_eq!(f.gpr(3), 0x8765_4321);
        assert_eq!(f.gpr_low(3, 2), 0x4321);
        assert!(f.vector(0, 16).is_none(), "no floating point state in this frame");
        assert!(!f.is_write());
    }

    #[test]
    fn fxsave_only_frames_have_xmm_and_nothing_more() {
        init();
        let mut state = [0u8; 512];
        state[layout::XMM + 5 * 16..layout::XMM + 6 * 16].copy_from_slice(&[7; 16]);
        // SAFETY: all zero is a valid ucontext_t.
        let mut uc: libc::ucontext_t = unsafe { std::mem::zeroed() };
        uc.uc_mcontext.fpregs = state.as_mut_ptr().cast();
        // SAFETY: uc is a context of ours with a 512 byte state, and nothing else uses it.
        let f = unsafe { Frame::new(&mut uc) };
        assert_eq!(f.vector(5, 16).map(|v| v[..16] == [7; 16]), Some(true));
        assert!(f.vector(5, 32).is_none());
        assert!(f.vector(16, 16).is_none());
        assert!(f.opmask(1).is_none());
    }

    #[test]
    fn components_in_their_initial_state_read_as_zero() {
        init();
        let ymm = OFFSETS[Component::YmmHigh as usize].load(Ordering::Relaxed) as usize;
        if ymm == 0 {
            return;
        }
        let mut state = [0xeeu8; 4096];
        let mut put = |at: usize, v: &[u8]| state[at..at + v.len()].copy_from_slice(v);
        put(layout::SW_RESERVED, &layout::MAGIC1.to_le_bytes());
        put(layout::SW_XSTATE_SIZE, &4096u32.to_le_bytes());
        let mut half = |live: u64, size: u32, bytes: usize| {
            state[layout::XSTATE_BV..layout::XSTATE_BV + 8].copy_from_slice(&live.to_le_bytes());
            state[layout::SW_XSTATE_SIZE..layout::SW_XSTATE_SIZE + 4].copy_from_slice(&size.to_le_bytes());
            // SAFETY: all zero is a valid ucontext_t.
            let mut uc: libc::ucontext_t = unsafe { std::mem::zeroed() };
            uc.uc_mcontext.fpregs = state.as_mut_ptr().cast();
            // SAFETY: uc is a context of ours with as large a state as it says, and nothing else uses it.
            unsafe { Frame::new(&mut uc) }.vector(1, bytes).map(|v| (v[0], v[16]))
        };
        assert_eq!(half(0b111, 4096, 32), Some((0xee, 0xee)));
        assert_eq!(half(0b011, 4096, 32), Some((0xee, 0)));
        assert_eq!(half(0b100, 4096, 32), Some((0, 0xee)));
        assert_eq!(half(0b011, 4096, 16), Some((0xee, 0)), "the rest is not asked for");
        assert_eq!(half(0b111, ymm as u32, 32), None, "the frame ends before it");
    }

    #[test]
    fn readable_memory_is_told_from_missing() {
        use crate::sys::mem;
        let m = mem::Mapping::anonymous(2 * 4096, mem::RW).unwrap();
        m.protect(4096, 4096, mem::NONE).unwrap();
        assert!(is_readable(m.addr()));
        assert!(!is_readable(m.addr() + 4096) && !is_readable(8));
    }

    #[test]
    fn segment_bases_are_those_of_this_thread() {
        let own: u64;
        // SAFETY: the x86-64 ABI keeps the thread pointer at fs:0.
        unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) own, options(nostack, readonly, preserves_flags)) };
        assert!(fs_base() == Some(own) && gs_base().is_some());
    }
}
