//! Integer arithmetic with the flags it leaves, on operands of 1 to 8 bytes.
//!
//! All functions take operands whose upper bits are clear and answer such a result. Flags that the processor leaves
//! undefined are kept as they were.

use iced_x86::Mnemonic as M;

pub const CF: u64 = 1;
pub const PF: u64 = 1 << 2;
pub const AF: u64 = 1 << 4;
pub const ZF: u64 = 1 << 6;
pub const SF: u64 = 1 << 7;
pub const DF: u64 = 1 << 10;
pub const OF: u64 = 1 << 11;
const RESULT: u64 = PF | ZF | SF;
const STATUS: u64 = RESULT | CF | AF | OF;

/// Width of an operand.
#[derive(Clone, Copy)]
pub struct Width {
    /// 8, 16, 32 or 64.
    pub bits: u32,
    /// The bits of the operand.
    pub mask: u64,
}

impl Width {
    /// Width of `bytes` bytes: 1, 2, 4 or 8.
    pub fn of(bytes: usize) -> Option<Width> {
        match bytes {
            1 => Some(Width { bits: 8, mask: 0xff }),
            2 => Some(Width { bits: 16, mask: 0xffff }),
            4 => Some(Width { bits: 32, mask: 0xffff_ffff }),
            8 => Some(Width { bits: 64, mask: u64::MAX }),
            _ => None,
        }
    }

    fn top(self) -> u64 {
        self.mask ^ (self.mask >> 1)
    }

    fn sign(self, v: u64) -> bool {
        v & self.top() != 0
    }
}

/// A result and RFLAGS after it.
pub type Answer = (u64, u64);

fn flag(bit: u64, on: bool) -> u64 {
    if on { bit } else { 0 }
}

/// ZF, SF and PF of a result.
fn of_result(w: Width, r: u64) -> u64 {
    let even = (r as u8).count_ones() & 1 == 0;
    flag(ZF, r & w.mask == 0) | flag(SF, w.sign(r)) | flag(PF, even)
}

/// dst + src + carry.
pub fn add(w: Width, flags: u64, a: u64, b: u64, carry: bool) -> Answer {
    let b = b & w.mask;
    let r = a.wrapping_add(b).wrapping_add(u64::from(carry)) & w.mask;
    let out = (a & b) | ((a | b) & !r);
    let f = of_result(w, r)
        | flag(CF, w.sign(out))
        | flag(AF, (a ^ b ^ r) & 0x10 != 0)
        | flag(OF, w.sign((a ^ r) & (b ^ r)));
    (r, flags & !STATUS | f)
}

/// dst - src - borrow.
pub fn sub(w: Width, flags: u64, a: u64, b: u64, borrow: bool) -> Answer {
    let b = b & w.mask;
    let r = a.wrapping_sub(b).wrapping_sub(u64::from(borrow)) & w.mask;
    let out = (!a & b) | ((!a | b) & r);
    let f = of_result(w, r)
        | flag(CF, w.sign(out))
        | flag(AF, (a ^ b ^ r) & 0x10 != 0)
        | flag(OF, w.sign((a ^ b) & (a ^ r)));
    (r, flags & !STATUS | f)
}

/// Flags of and, or, xor with this result.
fn logic(w: Width, flags: u64, r: u64) -> Answer {
    let r = r & w.mask;
    (r, flags & !(RESULT | CF | OF) | of_result(w, r))
}

/// `answer` with the carry flag it had before: inc and dec.
fn keep_carry(before: u64, (r, f): Answer) -> Answer {
    (r, f & !CF | before & CF)
}

/// Instructions with one operand.
pub fn unary(m: M, w: Width, flags: u64, a: u64) -> Option<Answer> {
    Some(match m {
        M::Inc => keep_carry(flags, add(w, flags, a, 1, false)),
        M::Dec => keep_carry(flags, sub(w, flags, a, 1, false)),
        M::Not => (!a & w.mask, flags),
        M::Neg => sub(w, flags, 0, a, false),
        _ => return None,
    })
}

/// Instructions with two operands of the same width.
pub fn binary(m: M, w: Width, flags: u64, a: u64, b: u64) -> Option<Answer> {
    let carry = flags & CF != 0;
    Some(match m {
        M::Add => add(w, flags, a, b, false),
        M::Adc => add(w, flags, a, b, carry),
        M::Sub => sub(w, flags, a, b, false),
        M::Sbb => sub(w, flags, a, b, carry),
        M::And => logic(w, flags, a & b),
        M::Or => logic(w, flags, a | b),
        M::Xor => logic(w, flags, a ^ b),
        _ => return None,
    })
}

/// The processor's reading of a shift count.
fn count(w: Width, n: u64) -> u32 {
    (n as u32) & if w.bits == 64 { 63 } else { 31 }
}

fn shl(v: u64, n: u32) -> u64 {
    v.checked_shl(n).unwrap_or(0)
}

fn shr(v: u64, n: u32) -> u64 {
    v.checked_shr(n).unwrap_or(0)
}

/// Shifts and rotates by `n`, the raw count.
pub fn shift(m: M, w: Width, flags: u64, a: u64, n: u64) -> Option<Answer> {
    let n = count(w, n);
    match m {
        M::Shl | M::Sal | M::Shr | M::Sar | M::Rol | M::Ror | M::Rcl | M::Rcr if n == 0 => Some((a, flags)),
        M::Shl | M::Sal => Some(left(w, flags, a, n)),
        M::Shr => {
            let (r, last) = (shr(a, n), shr(a, n.wrapping_sub(1)) & 1 != 0);
            Some(shifted(w, flags, r, last, w.sign(a)))
        }
        M::Sar => {
            let wide = if w.sign(a) { a | !w.mask } else { a } as i64;
            let last = wide.wrapping_shr(n.wrapping_sub(1)) & 1 != 0;
            Some(shifted(w, flags, wide.wrapping_shr(n) as u64 & w.mask, last, false))
        }
        M::Rol | M::Ror => Some(rotate(m, w, flags, a, n)),
        M::Rcl | M::Rcr => Some(rotate_carry(m, w, flags, a, n)),
        _ => None,
    }
}

fn left(w: Width, flags: u64, a: u64, n: u32) -> Answer {
    let r = shl(a, n) & w.mask;
    // The last bit shifted out is the top bit after one shift less.
    let last = w.sign(shl(a, n.wrapping_sub(1)));
    shifted(w, flags, r, last, w.sign(r) != last)
}

/// Flags of a shift: the carry, and the overflow that is defined for counts of one only.
fn shifted(w: Width, flags: u64, r: u64, carry: bool, overflow: bool) -> Answer {
    (r, flags & !(RESULT | CF | OF) | of_result(w, r) | flag(CF, carry) | flag(OF, overflow))
}

fn rotate(m: M, w: Width, flags: u64, a: u64, n: u32) -> Answer {
    let n = n & w.bits.wrapping_sub(1);
    let back = w.bits.wrapping_sub(n);
    let top = w.top();
    let (r, carry, overflow);
    if m == M::Rol {
        r = (shl(a, n) | shr(a, back)) & w.mask;
        carry = r & 1 != 0;
        overflow = (r & top != 0) != carry;
    } else {
        r = (shr(a, n) | shl(a, back)) & w.mask;
        carry = r & top != 0;
        overflow = carry != (r & (top >> 1) != 0);
    }
    (r, flags & !(CF | OF) | flag(CF, carry) | flag(OF, overflow))
}

/// One bit at a time: at most 63 rounds, and rare.
fn rotate_carry(m: M, w: Width, flags: u64, a: u64, n: u32) -> Answer {
    let rounds = match w.bits {
        8 => n % 9,
        16 => n % 17,
        _ => n,
    };
    let (mut r, mut carry) = (a, flags & CF != 0);
    for _ in 0..rounds {
        if m == M::Rcl {
            let out = w.sign(r);
            r = ((r << 1) | u64::from(carry)) & w.mask;
            carry = out;
        } else {
            let out = r & 1 != 0;
            r = (r >> 1) | flag(w.top(), carry);
            carry = out;
        }
    }
    let top = w.sign(r);
    let overflow = if m == M::Rcl { top != carry } else { top != (r & (w.top() >> 1) != 0) };
    if rounds == 0 {
        return (r, flags);
    }
    (r, flags & !(CF | OF) | flag(CF, carry) | flag(OF, overflow))
}

/// shld and shrd. None for counts beyond the operand, whose result is undefined.
pub fn double_shift(m: M, w: Width, flags: u64, a: u64, fill: u64, n: u64) -> Option<Answer> {
    let n = count(w, n);
    if n == 0 {
        return Some((a, flags));
    }
    if n > w.bits {
        return None;
    }
    let back = w.bits.wrapping_sub(n);
    let (r, carry) = if m == M::Shld {
        ((shl(a, n) | shr(fill, back)) & w.mask, shr(a, back) & 1 != 0)
    } else {
        ((shr(a, n) | shl(fill, back)) & w.mask, shr(a, n.wrapping_sub(1)) & 1 != 0)
    };
    Some(shifted(w, flags, r, carry, w.sign(r ^ a)))
}

/// The condition of a setcc.
pub fn condition(m: M) -> Option<fn(u64) -> bool> {
    fn less(f: u64) -> bool {
        (f & SF != 0) != (f & OF != 0)
    }
    Some(match m {
        M::Seto => |f| f & OF != 0,
        M::Setno => |f| f & OF == 0,
        M::Setb => |f| f & CF != 0,
        M::Setae => |f| f & CF == 0,
        M::Sete => |f| f & ZF != 0,
        M::Setne => |f| f & ZF == 0,
        M::Setbe => |f| f & (CF | ZF) != 0,
        M::Seta => |f| f & (CF | ZF) == 0,
        M::Sets => |f| f & SF != 0,
        M::Setns => |f| f & SF == 0,
        M::Setp => |f| f & PF != 0,
        M::Setnp => |f| f & PF == 0,
        M::Setl => less,
        M::Setge => |f| !less(f),
        M::Setle => |f| f & ZF != 0 || less(f),
        M::Setg => |f| f & ZF == 0 && !less(f),
        _ => return None,
    })
}
