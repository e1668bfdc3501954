//! Runs machine code from a given register state, on open or on write-protected memory.

use smc_engine::core::emulate::{Memory, Outcome, Reason, emulate, warm_up};
use smc_engine::sys::mem;
use smc_engine::sys::sigframe::Frame;
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of the area whose stores are emulated.
pub const AREA: usize = 10 * 4096;
const PAGE: usize = 4096;

/// Registers before and after a run.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct State {
    /// By encoding number.
    pub gpr: [u64; 16],
    /// RFLAGS.
    pub flags: u64,
    code: u64,
    saved_rsp: u64,
    /// Vector registers to load: 0 xmm, 1 ymm, 2 zmm and masks.
    pub level: u64,
    /// k0..k7.
    pub k: [u64; 8],
    _pad: [u64; 4],
    /// zmm0..31.
    pub zmm: [[u8; 64]; 32],
}

impl State {
    /// All zero.
    pub const fn new() -> State {
        State {
            gpr: [0; 16],
            flags: 0x202,
            code: 0,
            saved_rsp: 0,
            level: 0,
            k: [0; 8],
            _pad: [0; 4],
            zmm: [[0; 64]; 32],
        }
    }
}

static mut STATE: State = State::new();

std::arch::global_asm!(
    r"
    .globl smc_rig_run
    smc_rig_run:
        push rbx
        push rbp
        push r12
        push r13
        push r14
        push r15
        lea rax, [rip + {s}]
        mov [rax + 144], rsp
        mov [rax + 136], rdi
        cmp qword ptr [rax + 152], 1
        jb 30f
        je 20f
        .irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
        vmovdqu64 zmm\i, [rax + 256 + 64*\i]
        .endr
        .irp i, 0,1,2,3,4,5,6,7
        kmovq k\i, [rax + 160 + 8*\i]
        .endr
        jmp 40f
    20:
        .irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        vmovdqu ymm\i, [rax + 256 + 64*\i]
        .endr
        jmp 40f
    30:
        .irp i, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
        movdqu xmm\i, [rax + 256 + 64*\i]
        .endr
    40:
        push qword ptr [rax + 128]
        popfq
        mov rcx, [rax + 8]
        mov rdx, [rax + 16]
        mov rbx, [rax + 24]
        mov rsp, [rax + 32]
        mov rbp, [rax + 40]
        mov rsi, [rax + 48]
        mov rdi, [rax + 56]
        mov r8, [rax + 64]
        mov r9, [rax + 72]
        mov r10, [rax + 80]
        mov r11, [rax + 88]
        mov r12, [rax + 96]
        mov r13, [rax + 104]
        mov r14, [rax + 112]
        mov r15, [rax + 120]
        mov rax, [rax]
        jmp qword ptr [rip + {s} + 136]
    .globl smc_rig_back
    smc_rig_back:
        mov [rip + {s}], rax
        lea rax, [rip + {s}]
        mov [rax + 8], rcx
        mov [rax + 16], rdx
        mov [rax + 24], rbx
        mov [rax + 32], rsp
        mov [rax + 40], rbp
        mov [rax + 48], rsi
        mov [rax + 56], rdi
        mov [rax + 64], r8
        mov [rax + 72], r9
        mov [rax + 80], r10
        mov [rax + 88], r11
        mov [rax + 96], r12
        mov [rax + 104], r13
        mov [rax + 112], r14
        mov [rax + 120], r15
        mov rsp, [rax + 144]
        pushfq
        pop qword ptr [rax + 128]
        cld
        cmp qword ptr [rax + 152], 0
        je 50f
        vzeroupper
    50:
        pop r15
        pop r14
        pop r13
        pop r12
        pop rbp
        pop rbx
        ret
    ",
    s = sym STATE,
);

unsafe extern "C" {
    fn smc_rig_run(code: *const u8);
    fn smc_rig_back();
}

thread_local! {
    static EMULATING: Cell<bool> = const { Cell::new(false) };
}

/// True while this thread is inside the emulator.
pub fn emulating() -> bool {
    EMULATING.try_with(Cell::get).unwrap_or(false)
}

/// Runs `f` with allocations counted.
pub fn counted<T>(f: impl FnOnce() -> T) -> T {
    EMULATING.with(|e| e.set(true));
    let r = f();
    EMULATING.with(|e| e.set(false));
    r
}

/// Where the area and its writable alias lie, for the handler.
static BASE: AtomicUsize = AtomicUsize::new(0);
static ALIAS: AtomicUsize = AtomicUsize::new(0);
/// Faults taken, and those the emulator did not want.
static FAULTS: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);
static LAST: Mutex<Option<Reason>> = Mutex::new(None);

/// The area as the emulator sees it; reads elsewhere go straight to memory, except in the page at `HOLE`.
struct View {
    base: usize,
    alias: usize,
}

/// An address no test maps.
pub const HOLE: usize = 0x6000_0000_0000;

impl Memory for View {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> bool {
        if addr.wrapping_sub(HOLE) < PAGE {
            return false;
        }
        let from = if self.owns(addr, out.len()) { addr - self.base + self.alias } else { addr };
        // SAFETY: either inside the alias, or ordinary memory of the running test.
        unsafe { std::ptr::copy(from as *const u8, out.as_mut_ptr(), out.len()) };
        true
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> bool {
        assert!(self.owns(addr, bytes.len()) && bytes.len() <= self.chunk(addr), "store outside of what was asked for");
        // SAFETY: inside the alias.
        unsafe { std::ptr::copy(bytes.as_ptr(), (addr - self.base + self.alias) as *mut u8, bytes.len()) };
        true
    }

    fn owns(&self, addr: usize, len: usize) -> bool {
        addr >= self.base && addr.checked_add(len).is_some_and(|end| end <= self.base + AREA)
    }

    fn chunk(&self, addr: usize) -> usize {
        PAGE - addr % PAGE
    }
}

extern "C" fn on_fault(sig: i32, info: *mut libc::siginfo_t, uc: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, which stays while the handler runs.
    let info = unsafe { &*info };
    // SAFETY: SIGSEGV comes with an address.
    let addr = unsafe { info.si_addr() } as usize;
    let (base, alias) = (BASE.load(Relaxed), ALIAS.load(Relaxed));
    // SAFETY: the context the kernel passed to this handler, used by nobody else.
    let mut frame = unsafe { Frame::new(uc.cast()) };
    // Anything but a store to the area is a bug: let the process die of it.
    if addr.wrapping_sub(base) >= AREA || !frame.is_write() {
        // SAFETY: restores the default action, for this process to end at the same instruction.
        unsafe { libc::signal(sig, libc::SIG_DFL) };
        return;
    }
    FAULTS.fetch_add(1, Relaxed);
    let outcome = counted(|| emulate(&mut frame, &mut View { base, alias }));
    if let Outcome::Step(why) = outcome {
        STEPS.fetch_add(1, Relaxed);
        if let Ok(mut last) = LAST.try_lock() {
            *last = Some(why);
        }
        protect(mem::RW);
    }
}

fn protect(prot: i32) {
    // SAFETY: the area belongs to the rig and stays readable.
    let r = unsafe { libc::mprotect(BASE.load(Relaxed) as *mut libc::c_void, AREA, prot) };
    assert_eq!(r, 0);
}

/// What the emulator did in a run.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// Faults taken.
    pub faults: u64,
    /// Faults answered with Step.
    pub steps: u64,
    /// The last reason for a Step.
    pub why: Option<Reason>,
}

/// Seconds a test may take: an instruction that faults for ever would hang it.
const TIME_LIMIT: u32 = 600;

/// Ends the process after `seconds`; 0 calls that off.
fn alarm(seconds: u32) {
    // SAFETY: alarm touches no memory; the default action of SIGALRM needs no stack.
    unsafe { libc::alarm(seconds) };
}

/// One at a time: the area, the code page and the state are shared.
pub struct Rig {
    area: mem::Mapping,
    alias: mem::Mapping,
    code: mem::Mapping,
    stack: Vec<u8>,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    /// Sets everything up for this thread.
    pub fn new() -> Rig {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        alarm(TIME_LIMIT);
        warm_up();
        let fd = mem::memfd(c"emulate", AREA as u64).expect("memfd");
        let alias = mem::Mapping::shared(fd.as_fd(), 0, AREA, mem::RW).expect("alias");
        // Low addresses: rip-relative, 32-bit and absolute operands must reach the area.
        let low = |len: usize, prot: i32, flags: i32, fd: i32| {
            // SAFETY: no MAP_FIXED, nothing existing is replaced.
            let at = unsafe { mem::mmap(0, len, prot, flags | libc::MAP_32BIT, fd, 0) }.expect("mmap below 2 GiB");
            // SAFETY: mapped just now, by us.
            unsafe { mem::Mapping::adopt(at as *mut u8, len) }
        };
        let area = low(AREA, mem::RW, libc::MAP_SHARED, std::os::fd::AsRawFd::as_raw_fd(&fd));
        let code = low(2 * PAGE, mem::RW | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        BASE.store(area.addr(), Relaxed);
        ALIAS.store(alias.addr(), Relaxed);
        let mut rig = Rig { area, alias, code, stack: vec![0; 256 << 10], _turn: turn };
        rig.install();
        rig
    }

    fn install(&mut self) {
        let stack = libc::stack_t { ss_sp: self.stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: self.stack.len() };
        // SAFETY: the stack lives as long as the rig, which takes it down again.
        assert_eq!(unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) }, 0);
        // SAFETY: all zero is a valid sigaction.
        let mut act: libc::sigaction = unsafe { std::mem::zeroed() };
        act.sa_sigaction = on_fault as *const () as usize;
        act.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: a valid action with a handler of the right type.
        assert_eq!(unsafe { libc::sigaction(libc::SIGSEGV, &act, std::ptr::null_mut()) }, 0);
    }

    /// First address of the area.
    pub fn base(&self) -> usize {
        self.area.addr()
    }

    /// Where code runs: `at` bytes into the two code pages.
    pub fn code_address(&self, at: usize) -> u64 {
        (self.code.addr() + at) as u64
    }

    /// The area's bytes now.
    pub fn content(&self) -> Vec<u8> {
        self.bytes(0, AREA)
    }

    /// `len` of the area's bytes from `at` on.
    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= AREA);
        let mut v = vec![0; len];
        // SAFETY: inside the alias, and nobody writes it now.
        unsafe { std::ptr::copy_nonoverlapping(self.alias.ptr().wrapping_add(at), v.as_mut_ptr(), len) };
        v
    }

    /// Fills the area.
    pub fn fill(&self, content: &[u8]) {
        assert_eq!(content.len(), AREA);
        // SAFETY: the alias is AREA bytes.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), self.alias.ptr(), AREA) };
    }

    /// Puts an instruction `at` bytes into the code pages, with a way back behind it.
    pub fn assemble(&self, at: usize, instruction: &[u8]) {
        let mut all = instruction.to_vec();
        // jmp [rip + 0]
        all.extend([0xff, 0x25, 0, 0, 0, 0]);
        all.extend((smc_rig_back as *const () as u64).to_le_bytes());
        assert!(at + all.len() <= 2 * PAGE);
        // SAFETY: inside the code pages.
        unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), self.code.ptr().wrapping_add(at), all.len()) };
    }

    /// Runs the code `at` bytes into the code pages; answers the registers after it.
    pub fn run(&self, at: usize, state: &State, protected: bool) -> (State, Tally) {
        let code = self.code_address(at) as *const u8;
        let slot = &raw mut STATE;
        // SAFETY: the rig is the only user of STATE.
        unsafe { slot.write(state.clone()) };
        let tally = self.under(protected, || {
            // SAFETY: the code was assembled by the test and ends with the way back; the state is in place.
            unsafe { smc_rig_run(code) }
        });
        // SAFETY: as above.
        let after = unsafe { slot.read() };
        (after, tally)
    }

    /// Runs `f` with the area open or protected.
    pub fn under(&self, protected: bool, f: impl FnOnce()) -> Tally {
        FAULTS.store(0, Relaxed);
        STEPS.store(0, Relaxed);
        if protected {
            protect(mem::READ);
        }
        f();
        if protected {
            protect(mem::RW);
        }
        let why = LAST.lock().unwrap_or_else(PoisonError::into_inner).take();
        Tally { faults: FAULTS.load(Relaxed), steps: STEPS.load(Relaxed), why }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        assert_eq!(crate::INSIDE.load(Relaxed), 0, "the emulator allocated");
        let used = self.stack.iter().position(|&b| b != 0).map_or(0, |i| self.stack.len() - i);
        alarm(0);
        println!("signal stack used at most: {used} bytes");
        // SAFETY: all zero but the flags is a valid stack_t; the stack is not in use.
        unsafe {
            libc::sigaltstack(
                &libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 },
                std::ptr::null_mut(),
            )
        };
        // SAFETY: restores the default action.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    }
}
