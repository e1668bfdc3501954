//! stos and movs, single and repeated.
//!
//! A repeated instruction goes in blocks: as many elements as fit the buffer, stay within one piece the engine stores
//! at once, and do not overlap in a way that would tell a block from element by element.

use super::alu::DF;
use super::operand::Cx;
use super::{Exec, Memory, Progress, Reason};
use iced_x86::{Mnemonic as M, OpKind};

const RAX: usize = 0;
const RCX: usize = 1;
const RSI: usize = 6;
const RDI: usize = 7;
/// Bytes stored at once at most. On the stack of a signal handler, which can be small.
const BLOCK: usize = 1024;
/// Bytes after which a repeated instruction goes back to the application, so that signals get through.
const TURN: usize = 8192;

/// Where the next elements go, and from where.
struct Run {
    size: usize,
    back: bool,
    dst: usize,
    /// Source address without segment base, and the base; None for stos.
    src: Option<(usize, usize)>,
}

impl Run {
    /// Elements of the next block, at most `want`.
    fn block(&self, mem: &impl Memory, want: usize) -> usize {
        let size = self.size.max(1);
        let mut n = want.min(BLOCK.checked_div(size).unwrap_or(1)).max(1);
        if let Some((src, base)) = self.src {
            let src = src.wrapping_add(base);
            let ahead = if self.back { src.wrapping_sub(self.dst) } else { self.dst.wrapping_sub(src) };
            // Elements stored by this block are read again by it: keep to those that are not.
            if ahead != 0 {
                n = n.min(ahead.checked_div(size).unwrap_or(1).max(1));
            }
        }
        while n > 1 && !mem.owns(self.low(self.dst, n), n.wrapping_mul(size)) {
            n >>= 1;
        }
        while n > 1 {
            let (len, fit) = (n.wrapping_mul(size), mem.chunk(self.low(self.dst, n)));
            if fit >= len {
                break;
            }
            // Forward: what lies below the boundary. Backward: what lies wholly above it.
            let room = if self.back { len.saturating_sub(fit) } else { fit };
            n = room.checked_div(size).unwrap_or(1).clamp(1, n.wrapping_sub(1));
        }
        n
    }

    /// Lowest address of `n` elements, the first of which is at `at`.
    fn low(&self, at: usize, n: usize) -> usize {
        if self.back { at.wrapping_sub(n.wrapping_sub(1).wrapping_mul(self.size)) } else { at }
    }

    /// `at` after `n` elements.
    fn past(&self, at: usize, n: usize) -> usize {
        let len = n.wrapping_mul(self.size);
        if self.back { at.wrapping_sub(len) } else { at.wrapping_add(len) }
    }
}

impl<E: Memory> Cx<'_, E> {
    /// Instructions that store at rdi.
    pub fn string(&mut self) -> Exec<Progress> {
        let copies = match self.ins.mnemonic() {
            M::Stosb | M::Stosw | M::Stosd | M::Stosq => false,
            M::Movsb | M::Movsw | M::Movsd | M::Movsq if self.ins.op1_kind() == OpKind::MemorySegRSI => true,
            _ => return Err(Reason::NotCovered),
        };
        let rsi = self.frame.gpr(RSI) as usize;
        // The segment of the source can be overridden.
        let src = if copies { Some((rsi, self.address(1)?.wrapping_sub(rsi))) } else { None };
        let back = self.frame.flags() & DF != 0;
        let mut run = Run { size: self.size(), back, dst: self.frame.gpr(RDI) as usize, src };
        if !self.ins.has_rep_prefix() && !self.ins.has_repne_prefix() {
            self.elements(&mut run, 1)?;
            return Ok(Progress::Done);
        }
        self.repeat(&mut run)
    }

    fn repeat(&mut self, run: &mut Run) -> Exec<Progress> {
        let mut moved = 0usize;
        loop {
            let left = self.frame.gpr(RCX) as usize;
            if left == 0 {
                return Ok(Progress::Done);
            }
            if moved >= TURN {
                return Ok(Progress::Again);
            }
            match self.elements(run, left) {
                Ok(n) => {
                    self.frame.set_gpr(RCX, left.wrapping_sub(n) as u64);
                    moved = moved.saturating_add(n.wrapping_mul(run.size));
                }
                // What is done is done; the next try reports the obstacle.
                Err(_) if moved > 0 => return Ok(Progress::Again),
                Err(why) => return Err(why),
            }
        }
    }

    /// Executes up to `want` elements and answers how many.
    fn elements(&mut self, run: &mut Run, want: usize) -> Exec<usize> {
        let mut buffer = [0u8; BLOCK];
        let n = run.block(self.mem, want);
        let bytes = buffer.get_mut(..n.wrapping_mul(run.size)).ok_or(Reason::NotCovered)?;
        let to = run.low(run.dst, n);
        if !self.mem.owns(to, bytes.len()) {
            return Err(Reason::NotOwned);
        }
        if let Some((src, base)) = run.src {
            if !self.mem.read(run.low(src.wrapping_add(base), n), bytes) {
                return Err(Reason::Unreadable);
            }
        } else {
            let pattern = self.frame.gpr(RAX).to_le_bytes();
            for element in bytes.chunks_exact_mut(run.size.max(1)) {
                element.copy_from_slice(pattern.get(..element.len()).ok_or(Reason::NotCovered)?);
            }
        }
        self.store(to, bytes)?;
        run.dst = run.past(run.dst, n);
        self.frame.set_gpr(RDI, run.dst as u64);
        if let Some((src, base)) = run.src {
            let src = run.past(src, n);
            run.src = Some((src, base));
            self.frame.set_gpr(RSI, src as u64);
        }
        Ok(n)
    }
}
