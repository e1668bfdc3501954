//! The emulator on signal frames made here: for code, memory and engines that the real handler does not meet often.

use crate::Rng;
use crate::rig::{HOLE, counted};
use smc_engine::core::emulate::{Memory, Outcome, Reason, emulate, warm_up};
use smc_engine::sys::mem;
use smc_engine::sys::sigframe::Frame;
use std::collections::BTreeMap;

/// Memory that is everywhere, but may refuse; it remembers what differs from the beginning.
struct Anywhere {
    now: BTreeMap<usize, u8>,
    /// Refuses the store with this number, counting down.
    refuse: u64,
    chunk: usize,
    /// Own only addresses below.
    end: usize,
}

fn original(addr: usize) -> u8 {
    (addr.wrapping_mul(0x9e37_79b9) >> 7) as u8
}

impl Memory for Anywhere {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> bool {
        for (i, b) in out.iter_mut().enumerate() {
            let a = addr.wrapping_add(i);
            if a.wrapping_sub(HOLE) < 4096 {
                return false;
            }
            *b = self.now.get(&a).copied().unwrap_or_else(|| original(a));
        }
        true
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> bool {
        assert!(self.owns(addr, bytes.len()) && bytes.len() <= self.chunk(addr) && !bytes.is_empty());
        self.refuse = self.refuse.wrapping_sub(1);
        if self.refuse == 0 {
            return false;
        }
        for (i, &b) in bytes.iter().enumerate() {
            let a = addr.wrapping_add(i);
            if b == original(a) {
                self.now.remove(&a);
            } else {
                self.now.insert(a, b);
            }
        }
        true
    }

    fn owns(&self, addr: usize, len: usize) -> bool {
        addr.checked_add(len).is_some_and(|e| e <= self.end)
    }

    fn chunk(&self, addr: usize) -> usize {
        self.chunk - addr % self.chunk
    }
}

/// Executable-looking bytes followed by a page that does not exist.
struct Code(mem::Mapping);

impl Code {
    fn new() -> Code {
        let m = mem::Mapping::anonymous(2 * 4096, mem::RW).expect("mmap");
        m.protect(4096, 4096, mem::NONE).expect("mprotect");
        Code(m)
    }

    /// Puts `bytes` in front of the missing page.
    fn at_the_end(&self, bytes: &[u8]) -> u64 {
        let at = 4096 - bytes.len();
        // SAFETY: inside the first page.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.ptr().wrapping_add(at), bytes.len()) };
        (self.0.addr() + at) as u64
    }
}

fn context(fp: &mut [u8; 512]) -> libc::ucontext_t {
    // SAFETY: all zero is a valid ucontext_t.
    let mut uc: libc::ucontext_t = unsafe { std::mem::zeroed() };
    uc.uc_mcontext.fpregs = fp.as_mut_ptr().cast();
    uc
}

/// Emulates `code` with these registers on a frame of its own and expects a Step that changes nothing.
pub fn expect_step(code: &[u8], regs: &[(usize, u64)], why: Reason) {
    warm_up();
    let mut fp = [0u8; 512];
    let mut uc = context(&mut fp);
    // SAFETY: the context is ours and outlives the frame.
    let mut f = unsafe { Frame::new(&mut uc) };
    regs.iter().for_each(|&(n, v)| f.set_gpr(n, v));
    let place = Code::new();
    f.set_rip(place.at_the_end(code));
    let mut m = Anywhere { now: BTreeMap::new(), refuse: 0, chunk: 4096, end: usize::MAX };
    assert_eq!(emulate(&mut f, &mut m), Outcome::Step(why));
    regs.iter().for_each(|&(n, v)| assert_eq!(f.gpr(n), v));
    assert!(m.now.is_empty());
}

#[test]
fn reasons_for_a_step() {
    let far = (7, usize::MAX as u64 - 3);
    expect_step(&[0x48, 0x89, 0x07], &[far], Reason::NotOwned);
    expect_step(&[0x0f, 0x0b], &[], Reason::NotCovered);
    expect_step(&[0x06], &[], Reason::Undecodable);
    // movaps [rdi], xmm0
    expect_step(&[0x0f, 0x29, 0x07], &[(7, 0x1008)], Reason::Misaligned);
    // vmovups [rdi], ymm0: this frame has xmm only.
    expect_step(&[0xc5, 0xfc, 0x11, 0x07], &[(7, 0x1000)], Reason::NoRegister);
    // push rax; call [rdi]; add [edi...] of stos with a 32-bit address; the load mov rax, [rdi]
    for code in [&[0x50][..], &[0xff, 0x17], &[0x67, 0xaa], &[0x48, 0x8b, 0x07]] {
        expect_step(code, &[(7, 0x1000)], Reason::NotCovered);
    }
    expect_step(&[0xf3, 0xa4], &[(1, 10), (6, HOLE as u64), (7, 0x1000)], Reason::Unreadable);
}

#[test]
fn code_at_the_end_of_a_page_is_read_no_further() {
    warm_up();
    let mut fp = [0u8; 512];
    let mut uc = context(&mut fp);
    // SAFETY: the context is ours and outlives the frame.
    let mut f = unsafe { Frame::new(&mut uc) };
    let code = Code::new();
    let rip = code.at_the_end(&[0x88, 0x07]);
    f.set_rip(rip);
    f.set_gpr(7, 0x5000);
    f.set_gpr(0, 0x42);
    f.set_flags(0x1_0202);
    let mut m = Anywhere { now: BTreeMap::new(), refuse: 0, chunk: 4096, end: usize::MAX };
    assert_eq!(emulate(&mut f, &mut m), Outcome::Done);
    assert_eq!((f.rip(), f.flags()), (rip + 2, 0x202), "RIP behind it, resume flag clear");
    assert_eq!(m.now.get(&0x5000), Some(&0x42));
}

#[test]
fn long_repeats_come_back_in_turns() {
    warm_up();
    let mut fp = [0u8; 512];
    let mut uc = context(&mut fp);
    // SAFETY: the context is ours and outlives the frame.
    let mut f = unsafe { Frame::new(&mut uc) };
    let code = Code::new();
    let rip = code.at_the_end(&[0xf3, 0xaa]);
    f.set_rip(rip);
    [(0, 0x77), (1, 100_000), (7, 0x5001)].iter().for_each(|&(n, v)| f.set_gpr(n, v));
    let mut m = Anywhere { now: BTreeMap::new(), refuse: 0, chunk: 4096, end: 0x5001 + 60_000 };
    let mut turns = 0;
    let last = loop {
        let before = f.gpr(1);
        match emulate(&mut f, &mut m) {
            Outcome::Partial => assert!(f.gpr(1) < before && before - f.gpr(1) <= 16_384 && f.rip() == rip),
            o => break o,
        }
        turns += 1;
    };
    // The region ends first: all of it is stored, and the rest is somebody else's.
    assert_eq!((last, f.gpr(1), f.gpr(7)), (Outcome::Step(Reason::NotOwned), 40_000, 0x5001 + 60_000));
    assert!(turns >= 4);
    assert!((0x5001..0x5001 + 60_000).all(|a| m.now.get(&a).copied().unwrap_or_else(|| original(a)) == 0x77));
}

/// Any bytes as code, any registers, an engine that refuses: no panic, and a Step leaves no trace.
#[test]
fn random_code_never_breaks_it() {
    warm_up();
    let mut rng = Rng::new("random code");
    let code = Code::new();
    let mut fp = [0u8; 512];
    let mut uc = context(&mut fp);
    let (mut done, mut refused) = (0, 0);
    for _ in 0..400_000 {
        let seed = rng.0;
        let mut bytes = [0u8; 15];
        bytes.iter_mut().for_each(|b| *b = rng.bits() as u8);
        if rng.one_in(2) {
            // More of what stores.
            const LIKELY: [u8; 12] = [0xf0, 0x66, 0x48, 0x0f, 0x62, 0xc5, 0xf3, 0x00, 0x87, 0xd3, 0xaa, 0xa5];
            bytes[0] = LIKELY[rng.below(12) as usize];
        }
        let rip = code.at_the_end(&bytes);
        // SAFETY: the context is ours and outlives the frame.
        let mut f = unsafe { Frame::new(&mut uc) };
        (0..16).for_each(|n| f.set_gpr(n, rng.value()));
        f.set_gpr(1, rng.below(100));
        f.set_flags(0x202 | rng.bits() & 0xcd5);
        f.set_rip(rip);
        let before: Vec<u64> = (0..16).map(|n| f.gpr(n)).chain([f.rip(), f.flags()]).collect();
        let chunk = 1 << rng.below(13);
        let mut m = Anywhere { now: BTreeMap::new(), refuse: rng.below(4), chunk, end: usize::MAX };
        let outcome = emulate(&mut f, &mut m);
        let after: Vec<u64> = (0..16).map(|n| f.gpr(n)).chain([f.rip(), f.flags()]).collect();
        match outcome {
            Outcome::Done => {
                done += 1;
                assert!(f.rip().wrapping_sub(rip) <= 15 && f.rip() != rip);
            }
            Outcome::Partial => assert_eq!(f.rip(), rip),
            Outcome::Step(why) => {
                refused += u64::from(why == Reason::Refused);
                assert_eq!(before, after, "{bytes:02x?} SMC_TEST_SEED={seed}");
                let masked = bytes.windows(2).any(|w| w == [0x0f, 0xf7])
                    || bytes.contains(&0x62)
                    || bytes.contains(&0xc4)
                    || bytes.contains(&0xc5);
                assert!(m.now.is_empty() || masked, "{bytes:02x?} {why:?} SMC_TEST_SEED={seed}");
            }
        }
    }
    println!("{done} done, {refused} refused");
    assert!(done > 10_000 && refused > 1000);
}

/// Allocation would deadlock in a handler: the counter works, and decoding all kinds of things does not move it.
#[test]
fn nothing_allocates_after_the_warm_up() {
    // Keeps the tests that look at the counter away.
    let _turn = crate::rig::Rig::new();
    let before = crate::INSIDE.load(std::sync::atomic::Ordering::Relaxed);
    counted(|| drop(std::hint::black_box(Box::new(1))));
    let seen = crate::INSIDE.load(std::sync::atomic::Ordering::Relaxed) - before;
    assert_eq!(seen, 2, "the counter does not count");
    crate::INSIDE.store(before, std::sync::atomic::Ordering::Relaxed);
    struct Nothing;
    impl Memory for Nothing {
        fn read(&mut self, _: usize, out: &mut [u8]) -> bool {
            out.fill(3);
            true
        }
        fn store(&mut self, _: usize, _: &[u8]) -> bool {
            true
        }
        fn owns(&self, _: usize, _: usize) -> bool {
            true
        }
        fn chunk(&self, _: usize) -> usize {
            64
        }
    }
    let mut rng = Rng::new("allocations");
    let code = Code::new();
    let mut fp = [0u8; 512];
    let mut uc = context(&mut fp);
    for _ in 0..200_000 {
        let mut bytes = [0u8; 15];
        bytes.iter_mut().for_each(|b| *b = rng.bits() as u8);
        // SAFETY: the context is ours and outlives the frame.
        let mut f = unsafe { Frame::new(&mut uc) };
        f.set_gpr(1, 3);
        f.set_rip(code.at_the_end(&bytes));
        counted(|| emulate(&mut f, &mut Nothing));
    }
    assert_eq!(crate::INSIDE.load(std::sync::atomic::Ordering::Relaxed), before);
}
