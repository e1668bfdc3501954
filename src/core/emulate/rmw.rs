//! Read-modify-write instructions, with and without lock prefix.

use super::alu::{self, CF, Width, ZF};
use super::operand::Cx;
use super::{Exec, Memory, Reason};
use iced_x86::{Mnemonic as M, OpKind};

/// rax, rcx, rdx, rbx by encoding number.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;

impl<E: Memory> Cx<'_, E> {
    /// Address, width and present value of the destination.
    fn destination(&mut self) -> Exec<(usize, usize, Width, u64)> {
        let size = self.size();
        let w = Width::of(size).ok_or(Reason::NotCovered)?;
        let addr = self.address(0)?;
        Ok((addr, size, w, self.load_int(addr, size)?))
    }

    /// Arithmetic, logic, shifts.
    pub fn modify(&mut self) -> Exec {
        let (m, flags) = (self.ins.mnemonic(), self.frame.flags());
        // Before the destination is read: an instruction that is not covered must cause no traffic.
        if !is_modify(m) {
            return Err(Reason::NotCovered);
        }
        let src = if self.ins.op_count() > 1 { self.value(1)? } else { 0 };
        let third = if self.ins.op_count() > 2 { self.value(2)? } else { 0 };
        let (addr, size, w, old) = self.destination()?;
        let answer = match self.ins.op_count() {
            1 => alu::unary(m, w, flags, old),
            2 => alu::binary(m, w, flags, old, src).or_else(|| alu::shift(m, w, flags, old, src)),
            3 => alu::double_shift(m, w, flags, old, src, third),
            _ => None,
        };
        let (new, flags) = answer.ok_or(Reason::NotCovered)?;
        self.store_int(addr, size, new)?;
        self.frame.set_flags(flags);
        Ok(())
    }

    /// bts, btr, btc. A register operand addresses a bit string: its upper bits, signed, move the address.
    pub fn bit(&mut self) -> Exec {
        let size = self.size();
        let w = Width::of(size).ok_or(Reason::NotCovered)?;
        let offset = self.value(1)?;
        let mut addr = self.address(0)?;
        if self.ins.op1_kind() == OpKind::Register {
            // The address would wrap at 32 bits.
            if self.ins.memory_base().size() == 4 || self.ins.memory_index().size() == 4 {
                return Err(Reason::NotCovered);
            }
            let unused = 64u32.wrapping_sub(w.bits);
            let signed = (offset.wrapping_shl(unused) as i64).wrapping_shr(unused);
            let units = signed.wrapping_shr(w.bits.trailing_zeros());
            addr = addr.wrapping_add_signed((units as isize).wrapping_mul(size as isize));
        }
        let bit = 1u64.wrapping_shl((offset as u32) & w.bits.wrapping_sub(1));
        let old = self.load_int(addr, size)?;
        let new = match self.ins.mnemonic() {
            M::Bts => old | bit,
            M::Btr => old & !bit,
            _ => old ^ bit,
        };
        self.store_int(addr, size, new)?;
        let carry = if old & bit != 0 { CF } else { 0 };
        self.frame.set_flags(self.frame.flags() & !CF | carry);
        Ok(())
    }

    /// xchg with the memory operand `mem` and the register operand `reg`.
    pub fn exchange(&mut self, mem: u32, reg: u32) -> Exec {
        if self.ins.op_kind(mem) != OpKind::Memory || self.ins.op_kind(reg) != OpKind::Register {
            return Err(Reason::NotCovered);
        }
        let reg = self.ins.op_register(reg);
        let new = self.reg(reg)?;
        let (addr, size) = (self.address(mem)?, self.size());
        let old = self.load_int(addr, size)?;
        self.store_int(addr, size, new)?;
        self.set_reg(reg, old);
        Ok(())
    }

    /// xadd.
    pub fn exchange_add(&mut self) -> Exec {
        let reg = self.ins.op1_register();
        let addend = self.reg(reg)?;
        let (addr, size, w, old) = self.destination()?;
        let (sum, flags) = alu::add(w, self.frame.flags(), old, addend, false);
        self.store_int(addr, size, sum)?;
        self.set_reg(reg, old);
        self.frame.set_flags(flags);
        Ok(())
    }

    /// cmpxchg. A failed comparison stores nothing: the processor would write the old value back, which nobody can
    /// tell from no store. The accumulator is written on failure only.
    pub fn compare_exchange(&mut self) -> Exec {
        let new = self.value(1)?;
        let (addr, size, w, old) = self.destination()?;
        let expected = self.frame.gpr_low(RAX, size);
        let (_, flags) = alu::sub(w, self.frame.flags(), expected, old, false);
        if expected == old {
            self.store_int(addr, size, new)?;
        } else {
            self.frame.set_gpr_low(RAX, size, old);
        }
        self.frame.set_flags(flags);
        Ok(())
    }

    /// cmpxchg8b (`half` 4) and cmpxchg16b (`half` 8): dx:ax against memory, cx:bx into it.
    pub fn compare_exchange_pair(&mut self, half: usize) -> Exec {
        let addr = self.address(0)?;
        let mut bytes = [0u8; 16];
        let size = half.wrapping_mul(2);
        if half == 8 && addr & 15 != 0 {
            return Err(Reason::Misaligned);
        }
        if !self.mem.owns(addr, size) {
            return Err(Reason::NotOwned);
        }
        let used = bytes.get_mut(..size).ok_or(Reason::NotCovered)?;
        if !self.mem.read(addr, used) {
            return Err(Reason::Unreadable);
        }
        let old = u128::from_le_bytes(bytes);
        let shift = (half as u32).wrapping_mul(8);
        let pair = |low: u64, high: u64| u128::from(low) | u128::from(high).wrapping_shl(shift);
        let expected = pair(self.frame.gpr_low(RAX, half), self.frame.gpr_low(RDX, half));
        let mut flags = self.frame.flags() & !ZF;
        if old == expected {
            let new = pair(self.frame.gpr_low(RBX, half), self.frame.gpr_low(RCX, half)).to_le_bytes();
            self.store(addr, new.get(..size).ok_or(Reason::NotCovered)?)?;
            flags |= ZF;
        } else {
            self.frame.set_gpr_low(RAX, half, old as u64);
            self.frame.set_gpr_low(RDX, half, old.wrapping_shr(shift) as u64);
        }
        self.frame.set_flags(flags);
        Ok(())
    }
}

fn is_modify(m: M) -> bool {
    matches!(
        m,
        M::Add
            | M::Adc
            | M::Sub
            | M::Sbb
            | M::And
            | M::Or
            | M::Xor
            | M::Inc
            | M::Dec
            | M::Not
            | M::Neg
            | M::Shl
            | M::Sal
            | M::Shr
            | M::Sar
            | M::Rol
            | M::Ror
            | M::Rcl
            | M::Rcr
            | M::Shld
            | M::Shrd
    )
}
