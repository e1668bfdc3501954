//! Every covered form, with random operands.

use crate::Rng;
use crate::generate::{Case, GS_BASE, case, memory_operand, state};
use crate::rig::{AREA, HOLE, Rig, State};
use iced_x86::{Code, CpuidFeature as F, Instruction, Mnemonic as M, OpKind};
use smc_engine::core::emulate::Reason;

/// What the emulator promises to cover.
const COVERED: &[M] = &[
    M::Mov,
    M::Movnti,
    M::Movdiri,
    M::Movbe,
    M::Kmovb,
    M::Kmovw,
    M::Kmovd,
    M::Kmovq,
    M::Seto,
    M::Setno,
    M::Setb,
    M::Setae,
    M::Sete,
    M::Setne,
    M::Setbe,
    M::Seta,
    M::Sets,
    M::Setns,
    M::Setp,
    M::Setnp,
    M::Setl,
    M::Setge,
    M::Setle,
    M::Setg,
    M::Xchg,
    M::Xadd,
    M::Cmpxchg,
    M::Cmpxchg8b,
    M::Cmpxchg16b,
    M::Bts,
    M::Btr,
    M::Btc,
    M::Add,
    M::Adc,
    M::Sub,
    M::Sbb,
    M::And,
    M::Or,
    M::Xor,
    M::Inc,
    M::Dec,
    M::Not,
    M::Neg,
    M::Shl,
    M::Sal,
    M::Shr,
    M::Sar,
    M::Rol,
    M::Ror,
    M::Rcl,
    M::Rcr,
    M::Shld,
    M::Shrd,
    M::Movups,
    M::Movupd,
    M::Movaps,
    M::Movapd,
    M::Movdqa,
    M::Movdqu,
    M::Movntps,
    M::Movntpd,
    M::Movntdq,
    M::Movss,
    M::Movsd,
    M::Movd,
    M::Movq,
    M::Movlps,
    M::Movlpd,
    M::Movhps,
    M::Movhpd,
    M::Movntss,
    M::Movntsd,
    M::Vmovups,
    M::Vmovupd,
    M::Vmovaps,
    M::Vmovapd,
    M::Vmovdqa,
    M::Vmovdqu,
    M::Vmovntps,
    M::Vmovntpd,
    M::Vmovntdq,
    M::Vmovdqa32,
    M::Vmovdqa64,
    M::Vmovdqu8,
    M::Vmovdqu16,
    M::Vmovdqu32,
    M::Vmovdqu64,
    M::Vmovss,
    M::Vmovsd,
    M::Vmovd,
    M::Vmovq,
    M::Vmovlps,
    M::Vmovlpd,
    M::Vmovhps,
    M::Vmovhpd,
    M::Vmovsh,
    M::Vmovw,
    M::Pextrb,
    M::Pextrw,
    M::Pextrd,
    M::Pextrq,
    M::Extractps,
    M::Vpextrb,
    M::Vpextrw,
    M::Vpextrd,
    M::Vpextrq,
    M::Vextractps,
    M::Vextractf128,
    M::Vextracti128,
    M::Vextractf32x4,
    M::Vextractf64x2,
    M::Vextractf32x8,
    M::Vextractf64x4,
    M::Vextracti32x4,
    M::Vextracti64x2,
    M::Vextracti32x8,
    M::Vextracti64x4,
    M::Vmaskmovps,
    M::Vmaskmovpd,
    M::Vpmaskmovd,
    M::Vpmaskmovq,
    M::Maskmovdqu,
    M::Vmaskmovdqu,
    M::Vpcompressb,
    M::Vpcompressw,
    M::Vpcompressd,
    M::Vpcompressq,
    M::Vcompressps,
    M::Vcompresspd,
    M::Vpmovswb,
    M::Vpmovsdb,
    M::Vpmovsqb,
    M::Vpmovsdw,
    M::Vpmovsqw,
    M::Vpmovsqd,
    M::Vpmovuswb,
    M::Vpmovusdb,
    M::Vpmovusqb,
    M::Vpmovusdw,
    M::Vpmovusqw,
    M::Vpmovusqd,
    M::Vpmovwb,
    M::Vpmovdb,
    M::Vpmovqb,
    M::Vpmovdw,
    M::Vpmovqw,
    M::Vpmovqd,
];

/// True when this machine has what `code` needs.
fn available(code: Code) -> bool {
    code.cpuid_features().iter().all(|f| match f {
        F::INTEL8086 | F::INTEL186 | F::INTEL286 | F::INTEL386 | F::INTEL486 | F::X64 | F::SSE | F::SSE2 | F::CX8 => {
            true
        }
        F::SSE4_1 => is_x86_feature_detected!("sse4.1"),
        F::SSE4A => is_x86_feature_detected!("sse4a"),
        F::AVX => is_x86_feature_detected!("avx"),
        F::AVX2 => is_x86_feature_detected!("avx2"),
        F::AVX512F => is_x86_feature_detected!("avx512f"),
        F::AVX512BW => is_x86_feature_detected!("avx512bw"),
        F::AVX512DQ => is_x86_feature_detected!("avx512dq"),
        F::AVX512VL => is_x86_feature_detected!("avx512vl"),
        F::AVX512_VBMI2 => is_x86_feature_detected!("avx512vbmi2"),
        F::CMPXCHG16B => is_x86_feature_detected!("cmpxchg16b"),
        F::MOVBE => is_x86_feature_detected!("movbe"),
        F::MOVDIRI => {
            #[allow(unused_unsafe)]
            // SAFETY: every x86-64 processor has CPUID.
            let leaf = unsafe { std::arch::x86_64::__cpuid_count(7, 0) };
            leaf.ecx & 1 << 27 != 0
        }
        _ => false,
    })
}

/// The widest registers that can be loaded: 0 xmm, 1 ymm, 2 zmm and masks.
fn level() -> u64 {
    match (is_x86_feature_detected!("avx512bw"), is_x86_feature_detected!("avx2")) {
        (true, _) => 2,
        (_, true) => 1,
        _ => 0,
    }
}

/// Forms of the covered instructions whose destination is memory.
fn forms() -> Vec<Code> {
    Code::values()
        .filter(|c| COVERED.contains(&c.mnemonic()) && c.op_code().mode64() && c.op_code().is_instruction())
        .filter(|&c| available(c))
        .filter(|&c| memory_operand(c) == Some(0))
        .filter(|c| !format!("{c:?}").contains("Sreg"))
        .collect()
}

/// Arithmetic flags the manual leaves undefined after `ins` from `state`.
fn undefined(ins: &Instruction, before: &State) -> u64 {
    const CF: u64 = 1;
    const AF: u64 = 1 << 4;
    const OF: u64 = 1 << 11;
    let (bits, last) = (ins.memory_size().size() as u64 * 8, ins.op_count() - 1);
    let count = |ins: &Instruction| {
        let n = if ins.op_kind(last) == OpKind::Register { before.gpr[1] } else { ins.immediate(last) };
        n & if bits == 64 { 63 } else { 31 }
    };
    match ins.mnemonic() {
        M::Rol | M::Ror | M::Rcl | M::Rcr if count(ins) > 1 => OF,
        M::Rol | M::Ror | M::Rcl | M::Rcr => 0,
        M::Shl | M::Sal | M::Shr | M::Sar | M::Shld | M::Shrd => match count(ins) {
            0 => 0,
            1 => AF,
            n if n >= bits && ins.mnemonic() != M::Sar => AF | OF | CF,
            _ => AF | OF,
        },
        _ => {
            let u = u64::from(ins.rflags_undefined());
            use iced_x86::RflagsBits as R;
            [(R::OF, OF), (R::SF, 1 << 7), (R::ZF, 1 << 6), (R::AF, AF), (R::CF, CF), (R::PF, 1 << 2)]
                .iter()
                .filter(|(bit, _)| u & u64::from(*bit) != 0)
                .fold(0, |all, (_, flag)| all | flag)
        }
    }
}

const FLAGS: u64 = 0xcd5;

/// Runs a case both ways and compares; answers the faults taken.
pub fn check(rig: &Rig, at: usize, c: &Case, content: &[u8], unclear: u64, seed: u64) -> u64 {
    rig.assemble(at, &c.bytes);
    rig.fill(content);
    if std::env::var_os("SMC_TEST_TRACE").is_some() {
        eprintln!("{:?} {:02x?} SMC_TEST_SEED={seed} {:x?}", c.ins.code(), c.bytes, c.state.gpr);
    }
    let (native, _) = rig.run(at, &c.state, false);
    let expected = rig.content();
    rig.fill(content);
    let (emulated, tally) = rig.run(at, &c.state, true);
    let got = rig.content();
    let what = || {
        format!(
            "{:?} {:02x?} SMC_TEST_SEED={seed}\nbefore {:x?} flags {:x} k {:x?}\nnative {:x?} {:x}\nours   {:x?} {:x}\n{tally:?}",
            c.ins.code(),
            c.bytes,
            c.state.gpr,
            c.state.flags,
            c.state.k,
            native.gpr,
            native.flags,
            emulated.gpr,
            emulated.flags,
        )
    };
    assert_eq!(tally.steps, 0, "not emulated: {}", what());
    assert_eq!(native.gpr, emulated.gpr, "registers: {}", what());
    let keep = FLAGS & !unclear;
    assert_eq!(native.flags & keep, emulated.flags & keep, "flags: {}", what());
    if expected != got {
        let i = (0..AREA).find(|&i| expected[i] != got[i]).unwrap_or(0);
        panic!(
            "memory at +{i:#x}: {:02x?} natively, {:02x?} emulated: {}",
            &expected[i..AREA.min(i + 16)],
            &got[i..AREA.min(i + 16)],
            what()
        );
    }
    tally.faults
}

/// Sets the GS base of this thread while it lives.
pub struct Gs;

impl Gs {
    pub fn set() -> Gs {
        set_gs(GS_BASE);
        Gs
    }
}

impl Drop for Gs {
    fn drop(&mut self) {
        set_gs(0);
    }
}

fn set_gs(base: u64) {
    const ARCH_SET_GS: usize = 0x1001;
    // SAFETY: neither Rust nor the C library uses GS on x86-64 Linux.
    let r = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(r, 0);
}

#[test]
fn every_form_agrees_with_the_processor() {
    let rig = Rig::new();
    let _gs = Gs::set();
    let mut rng = Rng::new("forms");
    let (rounds, level) = (std::env::var("SMC_TEST_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(100), level());
    // To repeat a failure: the seed it printed, and the name of its form.
    let only = std::env::var("SMC_TEST_FORM").ok();
    let forms = forms();
    let mut cases = 0u64;
    for &code in forms.iter().filter(|c| only.as_ref().is_none_or(|o| *o == format!("{c:?}"))) {
        let (mut done, mut faults, mut tries) = (0, 0, 0);
        while done < rounds {
            tries += 1;
            assert!(tries < rounds * 200, "{code:?}: no operands found");
            let seed = rng.0;
            let content = content(&mut rng);
            rig.fill(content);
            // Now and then across the end of the first code page.
            let at = if rng.one_in(8) { 4096 - rng.below(16) as usize } else { 64 };
            let Some(c) = case(&mut rng, &rig, code, at, level) else { continue };
            let unclear = undefined(&c.ins, &c.state);
            let beyond = matches!(c.ins.mnemonic(), M::Shld | M::Shrd) && c.ins.memory_size().size() == 2;
            if beyond && c.state.gpr[1] & 31 > 16 && c.ins.op2_kind() == OpKind::Register
                || beyond && c.ins.op2_kind() != OpKind::Register && c.ins.immediate8() & 31 > 16
            {
                continue;
            }
            faults += check(&rig, at, &c, content, unclear, seed);
            done += 1;
        }
        assert!(faults >= rounds / 3, "{code:?} hardly ever faulted: {faults}");
        cases += done;
    }
    println!("{} forms, {cases} cases", forms.len());
    assert!(forms.len() > 200, "the list of forms is broken");
}

/// One of a few contents of the area, chosen by `rng`.
pub fn content(rng: &mut Rng) -> &'static [u8] {
    static ALL: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    let one = |i| {
        let mut r = Rng(i);
        (0..AREA / 8).flat_map(|_| r.bits().to_le_bytes()).collect()
    };
    let all = ALL.get_or_init(|| (0..16).map(one).collect());
    &all[rng.below(16) as usize]
}

/// What must be left to single-stepping, with nothing changed before it.
#[test]
fn what_is_not_covered_is_stepped() {
    let rig = Rig::new();
    let mut rng = Rng::new("steps");
    let to = rig.base() as u64 + 5 * 4096;
    let mut expect = |bytes: &[u8], to: u64, why: Reason| {
        let mut s = state(&mut rng, 0);
        s.gpr[7] = to;
        s.gpr[6] = to;
        rig.assemble(0, bytes);
        let (after, tally) = rig.run(0, &s, true);
        assert_eq!((tally.steps, tally.why), (1, Some(why)), "{bytes:02x?}");
        (s, after)
    };
    // fst qword [rdi]; fxsave64 [rdi]; mov [rdi], ds
    expect(&[0xdd, 0x17], to, Reason::NotCovered);
    expect(&[0x48, 0x0f, 0xae, 0x07], to, Reason::NotCovered);
    expect(&[0x8c, 0x1f], to, Reason::NotCovered);
    let end = rig.base() + AREA;
    // Half of the operand beyond the area: mov [rdi], rax over its end (the next page is not ours, but may exist).
    let neighbour = smc_engine::sys::mem::READ | libc::PROT_WRITE;
    // SAFETY: MAP_FIXED_NOREPLACE does not replace anything.
    let next = unsafe {
        smc_engine::sys::mem::mmap(
            end,
            4096,
            neighbour,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
            -1,
            0,
        )
    };
    expect(&[0x48, 0x89, 0x07], end as u64 - 3, Reason::NotOwned);
    if next.is_ok() {
        // SAFETY: mapped above, by us.
        let _ = unsafe { smc_engine::sys::mem::munmap(end, 4096) };
    }
}

/// A source that cannot be read: the processor will raise the fault when stepped, so nothing may have changed.
#[test]
fn unreadable_sources_are_left_to_the_processor() {
    let rig = Rig::new();
    let to = rig.base() + 4096;
    crate::crafted::expect_step(&[0xf3, 0xa4], &[(1, 100), (6, HOLE as u64), (7, to as u64)], Reason::Unreadable);
    drop(rig);
}
