//! Stores from vector registers: whole, partial, extracted, masked, compressed and narrowed.

use super::operand::{Cx, MAX_OPERAND};
use super::{Exec, Memory, Reason};
use iced_x86::{Mnemonic as M, OpKind, Register};

/// What an instruction stores of its register.
enum Shape {
    /// The low bytes.
    Low,
    /// The low bytes, at an address that is a multiple of the operand's size.
    Aligned,
    /// Bytes 8 to 15.
    High,
    /// The part an immediate selects.
    Part,
    /// Elements chosen by the sign bits of the second operand; the third holds the data.
    SignMasked,
    /// The elements of the mask, packed.
    Packed,
    /// Every element of `.0` bytes as one of `.1` bytes.
    Narrow(usize, usize, Fit),
}

/// How a narrowing store treats values that do not fit.
#[derive(Clone, Copy)]
enum Fit {
    /// Drops their upper bytes.
    Truncate,
    /// Stores the nearest value, of signed integers.
    Signed,
    /// The same of unsigned integers.
    Unsigned,
}

/// The shape of an instruction, and the bytes of the element one mask bit stands for.
fn shape(m: M) -> Option<(Shape, usize)> {
    Some(match m {
        M::Movups
        | M::Movupd
        | M::Movdqu
        | M::Movss
        | M::Movd
        | M::Movq
        | M::Movlps
        | M::Movlpd
        | M::Movntss
        | M::Movntsd
        | M::Vmovdqu
        | M::Vmovd
        | M::Vmovq
        | M::Vmovlps
        | M::Vmovlpd
        | M::Movsd => (Shape::Low, 1),
        M::Vmovdqu8 => (Shape::Low, 1),
        M::Vmovdqu16 | M::Vmovsh | M::Vmovw => (Shape::Low, 2),
        M::Vmovups | M::Vmovdqu32 | M::Vmovss => (Shape::Low, 4),
        M::Vmovupd | M::Vmovdqu64 | M::Vmovsd => (Shape::Low, 8),
        M::Movaps
        | M::Movapd
        | M::Movdqa
        | M::Movntps
        | M::Movntpd
        | M::Movntdq
        | M::Vmovdqa
        | M::Vmovntps
        | M::Vmovntpd
        | M::Vmovntdq => (Shape::Aligned, 1),
        M::Vmovaps | M::Vmovdqa32 => (Shape::Aligned, 4),
        M::Vmovapd | M::Vmovdqa64 => (Shape::Aligned, 8),
        M::Movhps | M::Movhpd | M::Vmovhps | M::Vmovhpd => (Shape::High, 1),
        M::Pextrb
        | M::Pextrw
        | M::Pextrd
        | M::Pextrq
        | M::Extractps
        | M::Vpextrb
        | M::Vpextrw
        | M::Vpextrd
        | M::Vpextrq
        | M::Vextractps
        | M::Vextractf128
        | M::Vextracti128 => (Shape::Part, 1),
        M::Vextractf32x4 | M::Vextracti32x4 | M::Vextractf32x8 | M::Vextracti32x8 => (Shape::Part, 4),
        M::Vextractf64x2 | M::Vextracti64x2 | M::Vextractf64x4 | M::Vextracti64x4 => (Shape::Part, 8),
        M::Vmaskmovps | M::Vpmaskmovd => (Shape::SignMasked, 4),
        M::Vmaskmovpd | M::Vpmaskmovq => (Shape::SignMasked, 8),
        M::Vpcompressb => (Shape::Packed, 1),
        M::Vpcompressw => (Shape::Packed, 2),
        M::Vpcompressd | M::Vcompressps => (Shape::Packed, 4),
        M::Vpcompressq | M::Vcompresspd => (Shape::Packed, 8),
        _ => return narrowing(m),
    })
}

/// The vpmov family: the width of an element before and after, and what happens to values that do not fit.
fn narrowing(m: M) -> Option<(Shape, usize)> {
    let (wide, narrow, fit) = match m {
        M::Vpmovwb => (2, 1, Fit::Truncate),
        M::Vpmovdb => (4, 1, Fit::Truncate),
        M::Vpmovqb => (8, 1, Fit::Truncate),
        M::Vpmovdw => (4, 2, Fit::Truncate),
        M::Vpmovqw => (8, 2, Fit::Truncate),
        M::Vpmovqd => (8, 4, Fit::Truncate),
        M::Vpmovswb => (2, 1, Fit::Signed),
        M::Vpmovsdb => (4, 1, Fit::Signed),
        M::Vpmovsqb => (8, 1, Fit::Signed),
        M::Vpmovsdw => (4, 2, Fit::Signed),
        M::Vpmovsqw => (8, 2, Fit::Signed),
        M::Vpmovsqd => (8, 4, Fit::Signed),
        M::Vpmovuswb => (2, 1, Fit::Unsigned),
        M::Vpmovusdb => (4, 1, Fit::Unsigned),
        M::Vpmovusqb => (8, 1, Fit::Unsigned),
        M::Vpmovusdw => (4, 2, Fit::Unsigned),
        M::Vpmovusqw => (8, 2, Fit::Unsigned),
        M::Vpmovusqd => (8, 4, Fit::Unsigned),
        _ => return None,
    };
    Some((Shape::Narrow(wide, narrow, fit), narrow))
}

impl<E: Memory> Cx<'_, E> {
    /// Content of the xmm, ymm or zmm register in operand `op`.
    fn vector_register(&self, op: u32) -> Exec<[u8; MAX_OPERAND]> {
        if op >= self.ins.op_count() || self.ins.op_kind(op) != OpKind::Register {
            return Err(Reason::NotCovered);
        }
        let reg = self.ins.op_register(op);
        if !reg.is_vector_register() {
            return Err(Reason::NotCovered);
        }
        self.frame.vector(reg.number(), reg.size()).ok_or(Reason::NoRegister)
    }

    /// Bits of the elements to store: all without a mask register.
    fn write_mask(&self) -> Exec<u64> {
        match self.ins.op_mask() {
            Register::None => Ok(u64::MAX),
            k => self.frame.opmask(k.number()).ok_or(Reason::NoRegister),
        }
    }

    /// Stores of an xmm, ymm or zmm register.
    pub fn vector(&mut self) -> Exec {
        let (shape, element) = shape(self.ins.mnemonic()).ok_or(Reason::NotCovered)?;
        let (addr, size) = (self.address(0)?, self.size());
        let reg = self.vector_register(1)?;
        let mask = self.write_mask()?;
        let (mut from, mut out) = (0usize, reg);
        match shape {
            Shape::Low => {}
            Shape::Aligned if addr & size.wrapping_sub(1) != 0 => return Err(Reason::Misaligned),
            Shape::Aligned => {}
            Shape::High => from = 8,
            Shape::Part => from = self.part(size)?,
            Shape::SignMasked => {
                let data = self.vector_register(2)?;
                let bytes = data.get(..size).ok_or(Reason::NotCovered)?;
                return self.store_masked(addr, bytes, element, signs(&reg, element));
            }
            Shape::Packed => {
                let n = compress(&reg, size, element, mask, &mut out);
                return if n == 0 { Ok(()) } else { self.store(addr, out.get(..n).ok_or(Reason::NotCovered)?) };
            }
            Shape::Narrow(wide, narrow, fit) => shorten(&reg, wide, narrow, fit, &mut out),
        }
        let bytes = out.get(from..from.wrapping_add(size)).ok_or(Reason::NotCovered)?;
        self.store_masked(addr, bytes, element, mask)
    }

    /// Offset of the part of `size` bytes that the immediate selects; its surplus bits are ignored.
    fn part(&self, size: usize) -> Exec<usize> {
        let parts = self.ins.op1_register().size().checked_div(size).ok_or(Reason::NotCovered)?;
        let i = (self.value(2)? as usize) & parts.wrapping_sub(1);
        Ok(i.wrapping_mul(size))
    }

    /// maskmovdqu: the bytes of operand 1 whose sign bit in operand 2 is set, at rdi.
    pub fn byte_masked(&mut self) -> Exec {
        if !matches!(self.ins.mnemonic(), M::Maskmovdqu | M::Vmaskmovdqu) {
            return Err(Reason::NotCovered);
        }
        let addr = self.address(0)?;
        let data = self.vector_register(1)?;
        let mask = signs(&self.vector_register(2)?, 1);
        self.store_masked(addr, data.get(..16).ok_or(Reason::NotCovered)?, 1, mask)
    }

    /// Stores the elements of `bytes` whose bit in `mask` is set, run by run. Memory between them is not touched: another
    /// thread or node may be writing it, and it may not exist.
    fn store_masked(&mut self, addr: usize, bytes: &[u8], element: usize, mask: u64) -> Exec {
        let count = bytes.len().checked_div(element).unwrap_or(0).min(64) as u32;
        let wanted = mask & u64::MAX.checked_shr(64u32.wrapping_sub(count)).unwrap_or(0);
        self.each_run(wanted, element, |cx, at, len| {
            if cx.mem.owns(addr.wrapping_add(at), len) { Ok(()) } else { Err(Reason::NotOwned) }
        })?;
        self.each_run(wanted, element, |cx, at, len| {
            let run = bytes.get(at..at.wrapping_add(len)).ok_or(Reason::NotCovered)?;
            cx.store(addr.wrapping_add(at), run)
        })
    }

    /// Calls `f` with offset and length in bytes of every run of set bits.
    fn each_run(&mut self, mut mask: u64, element: usize, mut f: impl FnMut(&mut Self, usize, usize) -> Exec) -> Exec {
        while mask != 0 {
            let first = mask.trailing_zeros();
            let n = mask.wrapping_shr(first).trailing_ones();
            f(self, (first as usize).wrapping_mul(element), (n as usize).wrapping_mul(element))?;
            let end = first.saturating_add(n);
            mask &= u64::MAX.checked_shl(end).unwrap_or(0);
        }
        Ok(())
    }
}

/// The sign bits of the elements of `v`, the first in bit 0.
fn signs(v: &[u8; MAX_OPERAND], element: usize) -> u64 {
    let mut mask = 0u64;
    for (i, e) in v.chunks_exact(element.max(1)).enumerate() {
        if e.last().is_some_and(|b| b & 0x80 != 0) {
            mask |= 1u64.wrapping_shl(i as u32);
        }
    }
    mask
}

/// Packs the elements of `v[..size]` whose bit is set to the front of `out` and answers how many bytes they are.
fn compress(v: &[u8; MAX_OPERAND], size: usize, element: usize, mask: u64, out: &mut [u8; MAX_OPERAND]) -> usize {
    let mut slots = out.chunks_exact_mut(element.max(1));
    let mut n = 0usize;
    for (i, e) in v.get(..size).unwrap_or_default().chunks_exact(element.max(1)).enumerate() {
        if mask & 1u64.wrapping_shl(i as u32) != 0
            && let Some(slot) = slots.next()
        {
            slot.copy_from_slice(e);
            n = n.saturating_add(element);
        }
    }
    n
}

/// Converts every element of `wide` bytes to one of `narrow` bytes.
fn shorten(v: &[u8; MAX_OPERAND], wide: usize, narrow: usize, fit: Fit, out: &mut [u8; MAX_OPERAND]) {
    let bits = (narrow as u32).wrapping_mul(8);
    let largest = u64::MAX.wrapping_shr(64u32.wrapping_sub(bits));
    for (e, slot) in v.chunks_exact(wide.max(1)).zip(out.chunks_exact_mut(narrow.max(1))) {
        let mut raw = [0u8; 8];
        if let Some(low) = raw.get_mut(..e.len()) {
            low.copy_from_slice(e);
        }
        let value = u64::from_le_bytes(raw);
        let fitted = match fit {
            Fit::Truncate => value,
            Fit::Unsigned => value.min(largest),
            Fit::Signed => {
                let unused = 64u32.wrapping_sub((wide as u32).wrapping_mul(8));
                let signed = (value.wrapping_shl(unused) as i64).wrapping_shr(unused);
                let top = (largest >> 1) as i64;
                signed.clamp(!top, top) as u64
            }
        };
        if let Some(low) = fitted.to_le_bytes().get(..slot.len()) {
            slot.copy_from_slice(low);
        }
    }
}
