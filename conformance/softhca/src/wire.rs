//! The messages between two open devices.
//!
//! A request is cut into pieces of [`crate::ring::CHUNK`] bytes. The requests of a queue pair are numbered, and the
//! responder takes them in order; each is answered once, in order, when the queue pair is reliable. Links lose nothing,
//! so a loss is told ([`LOST`]) rather than waited for: the requester then lets its timeout pass and sends again, as it
//! would had it heard nothing. A responder that is only slow is never taken for a dead one, however busy the host is.

use crate::keys::Span;
use crate::ring::Header;

/// SEND and datagrams.
pub const SEND: u32 = 1;
/// RDMA WRITE.
pub const WRITE: u32 = 2;
/// RDMA READ.
pub const READ: u32 = 3;
/// Compare and swap.
pub const COMPARE_SWAP: u32 = 4;
/// Fetch and add.
pub const FETCH_ADD: u32 = 5;
/// FLUSH: what came before it is visible to everyone when it is answered; `a` bytes.
pub const FLUSH: u32 = 6;
/// Smallest kind that is an answer.
pub const ANSWERS: u32 = 16;
/// Done.
pub const ACK: u32 = 16;
/// Refused; `imm` is the status.
pub const NAK: u32 = 17;
/// No receive request was there; `imm` is the code of the time to wait.
pub const NOT_READY: u32 = 18;
/// Nothing would have come back.
pub const LOST: u32 = 19;
/// Bytes of a READ.
pub const DATA: u32 = 20;
/// Old value of an atomic.
pub const VALUE: u32 = 21;

/// Flag: `imm` is immediate data.
pub const IMM: u32 = 1;
/// Flag: `imm` is a key to invalidate.
pub const INVALIDATE: u32 = 2;
/// Flag: the receiver's completion is solicited.
pub const SOLICITED: u32 = 4;
/// Flag: from a reliable connection, an answer is due.
pub const RELIABLE: u32 = 8;
/// Flag: from a datagram queue pair.
pub const DATAGRAM: u32 = 16;

/// An answer that waits for room.
pub struct Answer {
    /// Its header; that of the first piece, of a READ.
    pub header: Header,
    /// What a READ reads.
    pub data: Option<Span>,
}

impl Answer {
    /// An answer to a request.
    pub fn to(request: &Header, kind: u32, imm: u32) -> Answer {
        let Header { from, to, seq, epoch, total, .. } = *request;
        Answer { header: Header { kind, to: from, from: to, seq, epoch, total, imm, ..Header::default() }, data: None }
    }
}

/// Time of an RNR timer code, in nanoseconds.
pub fn not_ready_ns(code: u8) -> u64 {
    const US10: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    US10[usize::from(code & 31)] * 10_000
}

/// Time of a timeout code, in nanoseconds; 0 is "never".
pub fn timeout_ns(code: u8) -> Option<u64> {
    (code & 31 != 0).then(|| 4096u64 << (code & 31))
}

/// Whether a number of 24 bits comes before another.
pub fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) & 0xff_ffff < 0x80_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap() {
        assert!(before(1, 2) && !before(2, 1) && !before(2, 2));
        assert!(before(0xff_ffff, 0) && !before(0, 0xff_ffff));
    }

    #[test]
    fn codes_mean_what_the_specification_says() {
        assert_eq!(not_ready_ns(0), 655_360_000);
        assert_eq!(not_ready_ns(12), 640_000);
        assert_eq!(not_ready_ns(31), 491_520_000);
        assert_eq!(timeout_ns(14), Some(67_108_864));
        assert_eq!(timeout_ns(0), None);
    }
}
