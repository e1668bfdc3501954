//! Executes a store for the thread that faulted on it.
//!
//! Pages of a write-through region stay write-protected. A store to one faults; the engine's handler calls [`emulate`],
//! which decodes the instruction, computes the bytes it stores, hands them to the engine ([`Memory`]) and leaves
//! registers, flags and RIP as the processor would have. When the handler returns, the store is done, and it is done at
//! the home as well: that is what makes write-through exact.
//!
//! What is not in the tables (x87, state saves, scatters, pushes and calls onto the region) is answered with
//! [`Outcome::Step`]: nothing has changed, and the engine single-steps the instruction with the page open.
//!
//! Everything here except [`warm_up`] is async-signal-safe: no allocation, no locks, no panics, about 2 KiB of stack in an
//! optimised build (5 to 6 KiB without optimisation).
//!
//! Two limits. Code that may be executed but not read cannot be decoded. And a repeated copy whose source and destination
//! are the same memory at different addresses is done in blocks, so an overlap that only exists there is not seen.
//!
//! Atomicity: `emulate` reads and stores through separate calls of [`Memory`]. The caller must serialise the emulations
//! that can reach the same bytes, for example by a lock held over the call; then locked instructions of all threads whose
//! stores are emulated are atomic towards each other.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic
)]

mod alu;
mod operand;
mod rmw;
mod string;
mod vector;

use crate::sys::sigframe::{self, Frame, MAX_INSTRUCTION};
use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic as M, OpKind, Register};
use operand::Cx;

/// Memory of the interrupted program as the engine shows it to the emulator. Implementations are called in the signal
/// handler and must keep to its rules.
pub trait Memory {
    /// Copies `out.len()` bytes at application address `addr`; false when they cannot be had. The address may be
    /// anywhere: the source of a copying instruction need not lie in a region, nor exist.
    fn read(&mut self, addr: usize, out: &mut [u8]) -> bool;
    /// Stores `bytes` at `addr` locally and at the home; false when that is impossible (nothing was stored). Called
    /// only for ranges that [`owns`](Memory::owns) and that do not go beyond [`chunk`](Memory::chunk).
    fn store(&mut self, addr: usize, bytes: &[u8]) -> bool;
    /// True when `[addr, addr + len)` is memory whose stores must be emulated (lies in a write-through region). False
    /// also when the range wraps around the end of the address space.
    fn owns(&self, addr: usize, len: usize) -> bool;
    /// How many bytes from `addr` on may be stored in one call before a boundary the engine cares about, such as the
    /// end of the page; at least 1.
    fn chunk(&self, addr: usize) -> usize;
}

/// Why an instruction was left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The bytes at RIP are no instruction the decoder knows.
    Undecodable,
    /// The instruction, or this form of it, is not in the tables.
    NotCovered,
    /// (A part of) the destination lies outside the region.
    NotOwned,
    /// Memory the instruction reads could not be had.
    Unreadable,
    /// The engine refused the store.
    Refused,
    /// A register the instruction reads is not in the signal frame.
    NoRegister,
    /// The operand is not aligned as the instruction demands: the processor raises #GP.
    Misaligned,
}

/// What became of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Executed; RIP is behind it.
    Done,
    /// A repeated string instruction that made progress: its registers are up to date and RIP still points at it.
    /// Returning from the handler runs it again; it faults again as long as a page in its way is protected.
    Partial,
    /// Registers, flags and RIP are as they were, and so is memory, with this exception: when the engine refused one
    /// part of a vector store, other parts may be stored. Single-stepping stores the same bytes again.
    Step(Reason),
}

/// Result of one instruction handler: an error means nothing has changed.
type Exec<T = ()> = Result<T, Reason>;

/// Resume flag: set in the frame of every fault, to be clear after the instruction.
const RF: u64 = 1 << 16;

/// Builds the decoder's tables (about 1 ms, allocates) and learns the layout of signal frames. Must have been called
/// before the first handler can run. Calling it again is harmless.
pub fn warm_up() {
    sigframe::init();
    // One instruction of each table: legacy, VEX, EVEX.
    for code in [&[0x89, 0x07][..], &[0xc5, 0xfe, 0x7f, 0x07], &[0x62, 0xf1, 0xfe, 0x48, 0x7f, 0x07]] {
        let _ = std::hint::black_box(decode_bytes(code, 0).map(|i| i.memory_size().size()));
    }
}

/// Executes the instruction at the frame's RIP against `mem`. [`warm_up`] must have run. Async-signal-safe; see the
/// module text for what the caller must serialise.
pub fn emulate(frame: &mut Frame, mem: &mut impl Memory) -> Outcome {
    let Some(ins) = decode(frame) else {
        return Outcome::Step(Reason::Undecodable);
    };
    let mut cx = Cx { frame, mem, ins: &ins };
    match cx.execute() {
        Ok(Progress::Done) => {
            let flags = cx.frame.flags() & !RF;
            cx.frame.set_flags(flags);
            cx.frame.set_rip(ins.next_ip());
            Outcome::Done
        }
        Ok(Progress::Again) => Outcome::Partial,
        Err(why) => Outcome::Step(why),
    }
}

/// What a handler that changed something reports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Done,
    Again,
}

fn decode(frame: &Frame) -> Option<Instruction> {
    let mut code = [0u8; MAX_INSTRUCTION];
    let n = frame.code(&mut code, false);
    match decode_bytes(code.get(..n)?, frame.rip()) {
        Ok(ins) => Some(ins),
        // The instruction goes on in the next page, so the processor has read that as well.
        Err(DecoderError::NoMoreBytes) if n < MAX_INSTRUCTION => {
            let n = frame.code(&mut code, true);
            decode_bytes(code.get(..n)?, frame.rip()).ok()
        }
        Err(_) => None,
    }
}

fn decode_bytes(code: &[u8], rip: u64) -> Result<Instruction, DecoderError> {
    let mut decoder =
        Decoder::try_with_ip(64, code, rip, DecoderOptions::NONE).map_err(|_| DecoderError::InvalidInstruction)?;
    let mut ins = Instruction::default();
    decoder.decode_out(&mut ins);
    match decoder.last_error() {
        DecoderError::None => Ok(ins),
        e => Err(e),
    }
}

impl<E: Memory> Cx<'_, E> {
    fn execute(&mut self) -> Exec<Progress> {
        match self.ins.op0_kind() {
            OpKind::Memory => self.plain().map(|()| Progress::Done),
            OpKind::MemoryESRDI => self.string(),
            OpKind::MemorySegRDI => self.byte_masked().map(|()| Progress::Done),
            // Of the forms whose first operand is a register only these store: xchg r, m is the same as xchg m, r, and
            // the decoder gives the memory operand first in all others.
            OpKind::Register if self.ins.mnemonic() == M::Xchg => self.exchange(1, 0).map(|()| Progress::Done),
            _ => Err(Reason::NotCovered),
        }
    }

    /// Instructions whose first operand is memory.
    fn plain(&mut self) -> Exec {
        if self.ins.op_count() > 1
            && self.ins.op1_kind() == OpKind::Register
            && self.ins.op1_register().is_vector_register()
        {
            return self.vector();
        }
        match self.ins.mnemonic() {
            M::Mov | M::Movnti | M::Movdiri => self.mov(),
            M::Movbe => self.mov_swapped(),
            M::Kmovb | M::Kmovw | M::Kmovd | M::Kmovq => self.mov_opmask(),
            M::Xchg => self.exchange(0, 1),
            M::Xadd => self.exchange_add(),
            M::Cmpxchg => self.compare_exchange(),
            M::Cmpxchg8b => self.compare_exchange_pair(4),
            M::Cmpxchg16b => self.compare_exchange_pair(8),
            M::Bts | M::Btr | M::Btc => self.bit(),
            _ => match alu::condition(self.ins.mnemonic()) {
                Some(holds) => self.set_condition(holds),
                None => self.modify(),
            },
        }
    }

    fn mov(&mut self) -> Exec {
        let v = self.value(1)?;
        let size = self.size();
        let addr = self.address(0)?;
        self.store_int(addr, size, v)
    }

    fn mov_swapped(&mut self) -> Exec {
        let size = self.size();
        let mut bytes = self.value(1)?.to_le_bytes();
        let used = bytes.get_mut(..size).ok_or(Reason::NotCovered)?;
        used.reverse();
        let addr = self.address(0)?;
        self.store_int(addr, size, u64::from_le_bytes(bytes))
    }

    fn mov_opmask(&mut self) -> Exec {
        let reg = self.ins.op1_register();
        if !reg.is_k() {
            return Err(Reason::NotCovered);
        }
        let v = self.frame.opmask(reg.number()).ok_or(Reason::NoRegister)?;
        let size = self.size();
        let addr = self.address(0)?;
        self.store_int(addr, size, v)
    }

    fn set_condition(&mut self, holds: fn(u64) -> bool) -> Exec {
        let v = u64::from(holds(self.frame.flags()));
        let addr = self.address(0)?;
        self.store_int(addr, 1, v)
    }
}

/// True for the registers `emulate` can read as integers.
fn is_general(reg: Register) -> bool {
    reg.is_gpr()
}
