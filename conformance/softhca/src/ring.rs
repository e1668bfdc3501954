//! A ring of messages in shared memory: one producer, one consumer, in two processes or in one.
//!
//! Layout of a ring: a page of control words, then [`BYTES`] of messages. A message is a [`Header`] and its payload,
//! padded to 64 bytes; it never wraps round the end, a header of kind [`PAD`] fills what is left there.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of messages of one ring.
pub const BYTES: usize = 512 << 10;
/// Control words before them.
const CONTROL: usize = 4096;
/// Room that one ring takes in the shared memory.
pub const ROOM: usize = CONTROL + BYTES;
/// Largest payload of a message.
pub const CHUNK: usize = 32 << 10;
/// Kind of a header that fills the end of the ring.
pub const PAD: u32 = 0;

const UNIT: usize = 64;

/// What every message begins with. `kind` and its meaning of the fields are the business of `wire`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Header {
    /// Kind; 0 is padding.
    pub kind: u32,
    /// Bytes of payload behind the header.
    pub payload: u32,
    /// Time before which the consumer must not look at it, in nanoseconds of CLOCK_MONOTONIC.
    pub due: u64,
    /// Queue pair it goes to.
    pub to: u32,
    /// Queue pair it comes from.
    pub from: u32,
    /// Number of the request in its send queue (24 bits).
    pub seq: u32,
    /// How often the sender has started anew: an answer to an earlier start is no answer.
    pub epoch: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Offset of the payload in it.
    pub offset: u32,
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub key: u32,
    /// Immediate data, key to invalidate, or status of an answer.
    pub imm: u32,
    /// First operand of an atomic, or the old value.
    pub a: u64,
    /// Second operand of an atomic.
    pub b: u64,
    /// Flags.
    pub flags: u32,
    /// Queue key of a datagram.
    pub qkey: u32,
    /// GID that it comes from.
    pub gid: [u8; 16],
}

const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 96 && HEADER + CHUNK < BYTES / 4);

#[repr(C)]
struct Control {
    head: AtomicU64,
    _gap0: [u64; 7],
    tail: AtomicU64,
    _gap1: [u64; 7],
    asleep: AtomicU32,
    _gap2: [u32; 15],
    waiting: AtomicU32,
}

/// One end of a ring, or both. The memory must outlive it.
pub struct Ring {
    at: usize,
    /// Position of our side that the other does not know yet.
    cached_tail: u64,
}

fn room_of(payload: usize) -> u64 {
    (HEADER + payload).next_multiple_of(UNIT) as u64
}

impl Ring {
    /// The ring at an address.
    ///
    /// # Safety
    /// [`ROOM`] bytes at `at`, which began as zeroes, must stay mapped for as long as the value lives, and at most one
    /// producer and one consumer may use them, both by this module.
    pub unsafe fn at(at: usize) -> Ring {
        Ring { at, cached_tail: 0 }
    }

    fn control(&self) -> &Control {
        // SAFETY: `at` promised ROOM bytes there, and all fields of Control are atomic.
        unsafe { &*(self.at as *const Control) }
    }

    fn slot(&self, position: u64) -> usize {
        self.at + CONTROL + (position % BYTES as u64) as usize
    }

    fn put_header(&self, position: u64, header: &Header) {
        // SAFETY: positions are multiples of 64, and `push` never leaves less than a header's room before the end.
        unsafe { (self.slot(position) as *mut Header).write(*header) };
    }

    fn get_header(&self, position: u64) -> Header {
        // SAFETY: as for `put_header`; any bytes are a valid Header.
        unsafe { (self.slot(position) as *const Header).read() }
    }

    /// Puts a message if there is room; `fill` writes the payload, and may refuse.
    ///
    /// `Ok(false)` means that there is no room: the consumer will ring when there is.
    pub fn push<E>(&mut self, header: &Header, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<bool, E> {
        let payload = header.payload as usize;
        debug_assert!(payload <= CHUNK);
        let mut head = self.control().head.load(Ordering::Relaxed);
        let need = room_of(payload);
        let to_end = BYTES as u64 - head % BYTES as u64;
        // What is left at the end must hold this message and then still a whole header, or nothing.
        let skip = if to_end == need || to_end >= need + room_of(0) { 0 } else { to_end };
        if !self.has_room(head + skip + need) {
            return Ok(false);
        }
        if skip > 0 {
            self.put_header(head, &Header { kind: PAD, ..Header::default() });
            head += skip;
        }
        // SAFETY: the room check says that the consumer has left these bytes, and they do not pass the end.
        let to = unsafe { std::slice::from_raw_parts_mut((self.slot(head) + HEADER) as *mut u8, payload) };
        fill(to)?;
        self.put_header(head, header);
        self.control().head.store(head + need, Ordering::Release);
        Ok(true)
    }

    fn has_room(&mut self, end: u64) -> bool {
        if end - self.cached_tail <= BYTES as u64 {
            return true;
        }
        self.cached_tail = self.control().tail.load(Ordering::Acquire);
        if end - self.cached_tail <= BYTES as u64 {
            return true;
        }
        // Ask to be woken, then look again: the consumer may have gone on in between.
        self.control().waiting.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.cached_tail = self.control().tail.load(Ordering::Acquire);
        end - self.cached_tail <= BYTES as u64
    }

    /// The oldest message and its payload, if there is one; [`Ring::next`] makes it go.
    pub fn front(&mut self) -> Option<(Header, &[u8])> {
        let mut tail = self.control().tail.load(Ordering::Relaxed);
        if tail == self.control().head.load(Ordering::Acquire) {
            return None;
        }
        let mut header = self.get_header(tail);
        if header.kind == PAD {
            tail += BYTES as u64 - tail % BYTES as u64;
            self.control().tail.store(tail, Ordering::Release);
            header = self.get_header(tail);
        }
        let payload = (header.payload as usize).min(CHUNK);
        // SAFETY: the producer has published these bytes and leaves them until `next`.
        let bytes = unsafe { std::slice::from_raw_parts((self.slot(tail) + HEADER) as *const u8, payload) };
        Some((header, bytes))
    }

    /// Removes the message that `front` returned. True when the producer waits for room and must be woken.
    pub fn next(&mut self, header: &Header) -> bool {
        let tail = self.control().tail.load(Ordering::Relaxed) + room_of((header.payload as usize).min(CHUNK));
        self.control().tail.store(tail, Ordering::Release);
        fence(Ordering::SeqCst);
        // Waking for every message would be one system call each: only once half of the ring is free.
        let used = self.control().head.load(Ordering::Relaxed) - tail;
        used < BYTES as u64 / 2
            && self.control().waiting.load(Ordering::Relaxed) == 1
            && self.control().waiting.swap(0, Ordering::Relaxed) == 1
    }

    /// The consumer says whether it must be woken.
    pub fn sleep(&self, asleep: bool) {
        self.control().asleep.store(u32::from(asleep), Ordering::Relaxed);
    }

    /// The producer asks, after it has put messages, whether the consumer must be woken.
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.control().asleep.load(Ordering::Relaxed) == 1 && self.control().asleep.swap(0, Ordering::Relaxed) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Vec<u64>, Ring) {
        let memory = vec![0u64; ROOM / 8 + 8];
        let at = (memory.as_ptr() as usize).next_multiple_of(64);
        // SAFETY: the vector is returned beside the ring and outlives it in each test.
        (memory, unsafe { Ring::at(at) })
    }

    #[test]
    fn messages_of_every_size_come_out_as_they_went_in() {
        let (_memory, mut ring) = ring();
        let seed =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
        let mut random = seed | 1;
        let mut sent = std::collections::VecDeque::new();
        for n in 0..20000u32 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let len = (random >> 33) as usize % (CHUNK + 1);
            let header = Header { kind: 1, payload: len as u32, seq: n, ..Header::default() };
            let pushed = ring
                .push(&header, |to| {
                    to.fill(n as u8);
                    Ok::<(), ()>(())
                })
                .expect("fill");
            if pushed {
                sent.push_back((n, len));
            }
            if !pushed || random & 1 == 0 {
                let (n, len) = sent.pop_front().expect("a full ring holds something");
                let (header, bytes) = ring.front().expect("a message");
                assert_eq!((header.seq, bytes.len()), (n, len), "seed {seed}");
                assert!(bytes.iter().all(|b| *b == n as u8), "seed {seed}");
                ring.next(&header);
            }
        }
    }

    #[test]
    fn a_full_ring_says_so_and_asks_to_be_woken() {
        let (_memory, mut ring) = ring();
        let header = Header { kind: 1, payload: CHUNK as u32, ..Header::default() };
        let mut count = 0;
        while ring.push(&header, |_| Ok::<(), ()>(())).expect("fill") {
            count += 1;
        }
        assert!(count >= 14);
        let mut woken = 0;
        while ring.front().is_some() {
            woken += u32::from(ring.next(&header));
        }
        assert_eq!(woken, 1);
    }
}
