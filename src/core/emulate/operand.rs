//! Operands: effective addresses, registers, immediates, and memory in pieces the engine accepts.

use super::{Exec, Memory, Reason, is_general};
use crate::sys::sigframe::{Frame, fs_base, gs_base};
use iced_x86::{Instruction, OpKind, Register};

/// Largest operand of one store in bytes (a zmm register).
pub const MAX_OPERAND: usize = 64;

/// One instruction in execution.
pub struct Cx<'a, E> {
    pub frame: &'a mut Frame,
    pub mem: &'a mut E,
    pub ins: &'a Instruction,
}

/// True for ah, ch, dh and bh.
fn is_high_byte(reg: Register) -> bool {
    matches!(reg, Register::AH | Register::CH | Register::DH | Register::BH)
}

/// Number of the 64-bit register `reg` is a part of.
fn number(reg: Register) -> usize {
    reg.full_register().number()
}

/// Value of a register as part of an address: general registers at their width, segments by their base.
fn address_part(frame: &Frame, reg: Register) -> Option<u64> {
    match reg {
        // Flat in 64-bit mode.
        Register::ES | Register::CS | Register::SS | Register::DS => Some(0),
        Register::FS => fs_base(),
        Register::GS => gs_base(),
        r if is_general(r) => Some(frame.gpr_low(number(r), r.size())),
        _ => None,
    }
}

impl<E: Memory> Cx<'_, E> {
    /// Bytes of the memory operand.
    pub fn size(&self) -> usize {
        self.ins.memory_size().size()
    }

    /// Effective linear address of memory operand `op`.
    pub fn address(&self, op: u32) -> Exec<usize> {
        // A vector as index: a scatter.
        if self.ins.memory_index().is_vector_register() {
            return Err(Reason::NotCovered);
        }
        let part = |reg, _, _| address_part(self.frame, reg);
        self.ins.virtual_address(op, 0, part).map(|a| a as usize).ok_or(Reason::NotCovered)
    }

    /// Value of a general register, zero extended.
    pub fn reg(&self, reg: Register) -> Exec<u64> {
        if is_high_byte(reg) {
            return Ok(self.frame.gpr_high(number(reg)));
        }
        if !is_general(reg) {
            return Err(Reason::NotCovered);
        }
        Ok(self.frame.gpr_low(number(reg), reg.size()))
    }

    /// Writes a register that [`reg`](Cx::reg) has read before.
    pub fn set_reg(&mut self, reg: Register, v: u64) {
        if is_high_byte(reg) {
            self.frame.set_gpr_high(number(reg), v);
        } else if is_general(reg) {
            self.frame.set_gpr_low(number(reg), reg.size(), v);
        }
    }

    /// Value of operand `op`, a general register or an immediate (sign extended where the instruction does so).
    pub fn value(&self, op: u32) -> Exec<u64> {
        if op >= self.ins.op_count() {
            return Err(Reason::NotCovered);
        }
        match self.ins.op_kind(op) {
            OpKind::Register => self.reg(self.ins.op_register(op)),
            OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => Ok(self.ins.immediate(op)),
            _ => Err(Reason::NotCovered),
        }
    }

    /// Reads `size` (1 to 8) bytes of the destination.
    pub fn load_int(&mut self, addr: usize, size: usize) -> Exec<u64> {
        let mut bytes = [0u8; 8];
        let used = bytes.get_mut(..size).ok_or(Reason::NotCovered)?;
        if !self.mem.owns(addr, size) {
            return Err(Reason::NotOwned);
        }
        if !self.mem.read(addr, used) {
            return Err(Reason::Unreadable);
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stores the low `size` (1 to 8) bytes of `v`.
    pub fn store_int(&mut self, addr: usize, size: usize, v: u64) -> Exec {
        let bytes = v.to_le_bytes();
        self.store(addr, bytes.get(..size).ok_or(Reason::NotCovered)?)
    }

    /// Stores one operand of at most [`MAX_OPERAND`] bytes, all of it or nothing.
    pub fn store(&mut self, addr: usize, bytes: &[u8]) -> Exec {
        if !self.mem.owns(addr, bytes.len()) {
            return Err(Reason::NotOwned);
        }
        if bytes.len() <= self.mem.chunk(addr) {
            return if self.mem.store(addr, bytes) { Ok(()) } else { Err(Reason::Refused) };
        }
        self.store_across(addr, bytes)
    }

    /// A store over a boundary: when a later piece is refused, the earlier ones get their old content back.
    fn store_across(&mut self, addr: usize, bytes: &[u8]) -> Exec {
        let mut old = [0u8; MAX_OPERAND];
        let old = old.get_mut(..bytes.len()).ok_or(Reason::NotCovered)?;
        if !self.mem.read(addr, old) {
            return Err(Reason::Unreadable);
        }
        let done = self.store_pieces(addr, bytes);
        if done == bytes.len() {
            return Ok(());
        }
        self.store_pieces(addr, old.get(..done).unwrap_or_default());
        Err(Reason::Refused)
    }

    /// Stores piece by piece up to the first refusal; answers how many bytes are stored.
    fn store_pieces(&mut self, addr: usize, bytes: &[u8]) -> usize {
        let mut done = 0usize;
        while let Some(rest) = bytes.get(done..).filter(|r| !r.is_empty()) {
            let at = addr.wrapping_add(done);
            let n = self.mem.chunk(at).clamp(1, rest.len());
            if !self.mem.store(at, rest.get(..n).unwrap_or_default()) {
                break;
            }
            done = done.saturating_add(n);
        }
        done
    }
}
