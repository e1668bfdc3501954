//! Random operands for every form of an instruction.

use crate::Rng;
use crate::rig::{AREA, Rig, State};
use iced_x86::{Code, Encoder, Instruction, Mnemonic as M, OpCodeOperandKind as K, OpKind, Register};

/// An assembled instruction and the registers to run it with.
pub struct Case {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The same, decoded.
    pub ins: Instruction,
    /// Registers before.
    pub state: State,
}

/// Base of the GS segment during the tests.
pub const GS_BASE: u64 = 0x1111_2222_3000;

fn general(rng: &mut Rng, first: Register, n: u64) -> Register {
    Register::try_from(first as usize + rng.below(n) as usize).expect("register")
}

/// Fills operand `op` and answers whether this kind of operand can be made.
fn operand(rng: &mut Rng, ins: &mut Instruction, op: u32, kind: K, memory: bool, wide: bool) -> bool {
    let vectors = if wide { 32 } else { 16 };
    let mut reg = |ins: &mut Instruction, first, n| {
        let r = general(rng, first, n);
        ins.set_op_kind(op, OpKind::Register);
        ins.set_op_register(op, r);
    };
    match kind {
        K::mem
        | K::mem_offs
        | K::r8_or_mem
        | K::r16_or_mem
        | K::r32_or_mem
        | K::r64_or_mem
        | K::xmm_or_mem
        | K::ymm_or_mem
        | K::zmm_or_mem
        | K::k_or_mem
            if memory =>
        {
            ins.set_op_kind(op, OpKind::Memory)
        }
        K::seg_rDI if memory => ins.set_op_kind(op, OpKind::MemorySegRDI),
        // al..r15b with ah..bh in between.
        K::r8_reg | K::r8_opcode => reg(ins, Register::AL, 20),
        K::r16_reg | K::r16_opcode => reg(ins, Register::AX, 16),
        K::r32_reg | K::r32_opcode => reg(ins, Register::EAX, 16),
        K::r64_reg | K::r64_opcode => reg(ins, Register::RAX, 16),
        K::al => reg(ins, Register::AL, 1),
        K::cl => reg(ins, Register::CL, 1),
        K::ax => reg(ins, Register::AX, 1),
        K::eax => reg(ins, Register::EAX, 1),
        K::rax => reg(ins, Register::RAX, 1),
        K::xmm_reg | K::xmm_vvvv | K::xmm_rm => reg(ins, Register::XMM0, vectors),
        K::ymm_reg | K::ymm_vvvv => reg(ins, Register::YMM0, vectors),
        K::zmm_reg => reg(ins, Register::ZMM0, vectors),
        K::k_reg => reg(ins, Register::K0, 8),
        _ => return immediate(rng, ins, op, kind),
    }
    true
}

fn immediate(rng: &mut Rng, ins: &mut Instruction, op: u32, kind: K) -> bool {
    let v = rng.value();
    let kind = match kind {
        K::imm8 => OpKind::Immediate8,
        K::imm8_const_1 => {
            ins.set_op_kind(op, OpKind::Immediate8);
            ins.set_immediate8(1);
            return true;
        }
        K::imm8sex16 => OpKind::Immediate8to16,
        K::imm8sex32 => OpKind::Immediate8to32,
        K::imm8sex64 => OpKind::Immediate8to64,
        K::imm16 => OpKind::Immediate16,
        K::imm32 => OpKind::Immediate32,
        K::imm32sex64 => OpKind::Immediate32to64,
        K::imm64 => OpKind::Immediate64,
        _ => return false,
    };
    ins.set_op_kind(op, kind);
    match kind {
        OpKind::Immediate8 => ins.set_immediate8(v as u8),
        OpKind::Immediate8to16 => ins.set_immediate8to16(v as i8 as i16),
        OpKind::Immediate8to32 => ins.set_immediate8to32(v as i8 as i32),
        OpKind::Immediate8to64 => ins.set_immediate8to64(v as i8 as i64),
        OpKind::Immediate16 => ins.set_immediate16(v as u16),
        OpKind::Immediate32 => ins.set_immediate32(v as u32),
        OpKind::Immediate32to64 => ins.set_immediate32to64(v as i32 as i64),
        _ => ins.set_immediate64(v),
    }
    true
}

/// True for instructions that fault on misaligned operands.
fn must_align(m: M) -> bool {
    let name = format!("{m:?}");
    name.contains("ovaps")
        || name.contains("ovapd")
        || name.contains("ovdqa")
        || name.contains("ovnt")
        || m == M::Cmpxchg16b
}

/// Picks the address the instruction stores to.
fn target(rng: &mut Rng, rig: &Rig, ins: &Instruction, locks: bool) -> u64 {
    let (low, high) = (3 * 4096, AREA as u64 - 3 * 4096);
    let at = if rng.one_in(3) { 5 * 4096 - 70 + rng.below(80) } else { low + rng.below(high - low) };
    let at = at + rig.base() as u64;
    if must_align(ins.mnemonic()) && !matches!(ins.mnemonic(), M::Movnti) {
        return at & !63;
    }
    // Locked operations across cache lines are slow, and some systems slow them down further.
    if locks && !rng.one_in(64) { at & !15 } else { at }
}

/// Chooses the form of the address and the registers that make it `to`. False when this choice does not work out.
fn address(rng: &mut Rng, ins: &mut Instruction, state: &mut State, to: u64, absolute: bool) -> bool {
    if absolute {
        ins.set_memory_displ_size(8);
        ins.set_memory_displacement64(to);
        return true;
    }
    let short = rng.one_in(8);
    let segment = if short { 15 } else { rng.below(16) };
    let mut rest = to;
    if segment < 2 {
        ins.set_segment_prefix([Register::FS, Register::GS][segment as usize]);
        rest = rest.wrapping_sub([smc_engine::sys::sigframe::fs_base().expect("fs"), GS_BASE][segment as usize]);
    }
    let first = if short { Register::EAX } else { Register::RAX };
    let scale = 1u32 << rng.below(4);
    let form = rng.below(10);
    if form == 0 && segment >= 2 && !short {
        ins.set_memory_base(Register::RIP);
        ins.set_memory_displ_size(8);
        ins.set_memory_displacement64(to);
        return true;
    }
    if form == 1 && segment >= 2 && !short {
        ins.set_memory_displ_size(8);
        ins.set_memory_displacement64(to);
        return true;
    }
    let displacement = match rng.below(4) {
        0 => 0,
        1 => rng.bits() as i8 as i64,
        2 => (rng.bits() as i8 as i64) * 16,
        _ => rng.bits() as i32 as i64,
    };
    if form < 4 {
        // Index only: the rest must be a multiple of the scale.
        let d = (rest % u64::from(scale)) as i64 + i64::from(scale) * rng.below(1000) as i64;
        let i = general(rng, first, 16);
        ins.set_memory_index(i);
        ins.set_memory_index_scale(scale);
        ins.set_memory_displ_size(if short { 4 } else { 8 });
        ins.set_memory_displacement64(d as u64);
        let value = (rest.wrapping_sub(d as u64) as i64 / i64::from(scale)) as u64;
        if value.wrapping_mul(u64::from(scale)).wrapping_add(d as u64) != rest {
            return false;
        }
        set(state, i, value, short, rng);
        return number(i) != 4;
    }
    let base = general(rng, first, 16);
    ins.set_memory_base(base);
    rest = rest.wrapping_sub(displacement as u64);
    if form >= 7 {
        let i = general(rng, first, 16);
        if i == base || number(i) == 4 {
            return false;
        }
        ins.set_memory_index(i);
        ins.set_memory_index_scale(scale);
        rest = rest.wrapping_sub(state.gpr[number(i)].wrapping_mul(u64::from(scale)));
    }
    ins.set_memory_displ_size(if displacement == 0 && number(base) & 7 != 5 { 0 } else { 1 });
    ins.set_memory_displacement64(displacement as u64);
    set(state, base, rest, short, rng);
    true
}

fn number(r: Register) -> usize {
    r.full_register().number()
}

fn set(state: &mut State, r: Register, v: u64, short: bool, rng: &mut Rng) {
    state.gpr[number(r)] = if short { v & 0xffff_ffff | rng.bits() << 32 } else { v };
}

/// Random registers.
pub fn state(rng: &mut Rng, level: u64) -> State {
    let mut s = State::new();
    s.gpr.iter_mut().for_each(|r| *r = rng.value());
    s.flags = 0x202 | rng.bits() & 0x8d5;
    s.level = level;
    s.k.iter_mut().for_each(|k| *k = if rng.one_in(4) { rng.bits() & rng.bits() & rng.bits() } else { rng.value() });
    for lane in s.zmm.iter_mut().flatten().collect::<Vec<_>>().chunks_exact_mut(8) {
        // Values that fit a narrower element, and such that do not.
        lane.iter_mut().zip(rng.value().to_le_bytes()).for_each(|(b, v)| **b = v);
    }
    s
}

/// Chooses where register operand 1 of bts, btr and btc points in the bit string; false when its register is in use.
fn bit_offset(rng: &mut Rng, ins: &Instruction, state: &mut State) -> bool {
    let r = ins.op1_register();
    let used = [ins.memory_base(), ins.memory_index()].iter().any(|&m| m != Register::None && number(m) == number(r));
    // With 32-bit addressing the offset is not covered.
    if used || ins.memory_base().size() == 4 || ins.memory_index().size() == 4 {
        return false;
    }
    let offset = rng.below(40_000) as i64 - 20_000;
    let m = if r.size() == 8 { u64::MAX } else { (1 << (r.size() * 8)) - 1 };
    let slot = &mut state.gpr[number(r)];
    *slot = *slot & !m | offset as u64 & m;
    true
}

/// Makes the comparison of cmpxchg succeed half the time, where the accumulator is free.
fn match_accumulator(rng: &mut Rng, rig: &Rig, ins: &Instruction, state: &mut State, to: u64) {
    let free =
        |n: usize| [ins.memory_base(), ins.memory_index()].iter().all(|&m| m == Register::None || number(m) != n);
    let at = (to as usize) - rig.base();
    let size = ins.memory_size().size();
    let half = if ins.mnemonic() == M::Cmpxchg { size } else { size / 2 };
    let mut take = |n: usize, from: usize| {
        let mut b = state.gpr[n].to_le_bytes();
        b[..half].copy_from_slice(&rig.bytes(from, half));
        state.gpr[n] = u64::from_le_bytes(b);
    };
    if rng.one_in(2) && free(0) && free(2) {
        take(0, at);
        if ins.mnemonic() != M::Cmpxchg {
            take(2, at + half);
        }
    }
}

/// Which operand of `code` is the memory it stores to, if any.
pub fn memory_operand(code: Code) -> Option<u32> {
    let info = code.op_code();
    let mem = |op: u32| {
        op < info.op_count()
            && matches!(
                info.op_kind(op),
                K::mem
                    | K::mem_offs
                    | K::r8_or_mem
                    | K::r16_or_mem
                    | K::r32_or_mem
                    | K::r64_or_mem
                    | K::xmm_or_mem
                    | K::ymm_or_mem
                    | K::zmm_or_mem
                    | K::k_or_mem
                    | K::seg_rDI
            )
    };
    (0..2).find(|&op| mem(op))
}

/// One random case of `code`, to run `at` bytes into the code pages. None when the choices did not fit together.
pub fn case(rng: &mut Rng, rig: &Rig, code: Code, at: usize, level: u64) -> Option<Case> {
    let info = code.op_code();
    let wide = code.encoding() == iced_x86::EncodingKind::EVEX;
    let loaded = if wide { level } else { rng.below(level + 1) };
    let mut state = state(rng, loaded);
    let mut ins = Instruction::new();
    ins.set_code(code);
    let memory = memory_operand(code)?;
    for op in 0..info.op_count() {
        if !operand(rng, &mut ins, op, info.op_kind(op), op == memory, wide) {
            return None;
        }
    }
    if info.can_use_op_mask_register() && !rng.one_in(3) {
        ins.set_op_mask(general(rng, Register::K1, 7));
    }
    if info.can_use_lock_prefix() && rng.one_in(2) {
        ins.set_has_lock_prefix(true);
    }
    if info.op_kind(0) == K::k_or_mem || info.op_kind(1) == K::k_reg {
        state.level = level;
    }
    let locks = ins.has_lock_prefix() || matches!(ins.mnemonic(), M::Xchg);
    let to = target(rng, rig, &ins, locks);
    if ins.op0_kind() == OpKind::MemorySegRDI {
        state.gpr[7] = to;
    } else if !address(rng, &mut ins, &mut state, to, info.op_kind(memory) == K::mem_offs) {
        return None;
    }
    match ins.mnemonic() {
        M::Bts | M::Btr | M::Btc if ins.op1_kind() != OpKind::Register => {}
        M::Bts | M::Btr | M::Btc => bit_offset(rng, &ins, &mut state).then_some(())?,
        M::Cmpxchg | M::Cmpxchg8b | M::Cmpxchg16b => match_accumulator(rng, rig, &ins, &mut state, to),
        _ => {}
    }
    let mut encoder = Encoder::new(64);
    encoder.encode(&ins, rig.code_address(at)).ok()?;
    Some(Case { bytes: encoder.take_buffer(), ins, state })
}
