//! Work requests as the device keeps them, and the queues they wait in.

use crate::cq::Places;
use crate::events::lock;
use crate::window::Bind;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// A piece of memory: `struct ibv_sge`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sge {
    /// Address, in the region's own numbering.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Local key.
    pub lkey: u32,
}

/// A list of pieces; few of them are kept in place.
#[derive(Clone, Default, Debug)]
pub struct Sges {
    few: [Sge; 3],
    count: usize,
    many: Vec<Sge>,
}

impl Sges {
    /// Copies the pieces; those without bytes are left out, as hardware passes over them.
    pub fn new(list: impl Iterator<Item = Sge>) -> Sges {
        let mut s = Sges::default();
        for sge in list.filter(|s| s.len > 0) {
            if s.count < s.few.len() {
                s.few[s.count] = sge;
            } else {
                if s.count == s.few.len() {
                    s.many.extend_from_slice(&s.few);
                }
                s.many.push(sge);
            }
            s.count += 1;
        }
        s
    }

    /// The pieces.
    pub fn all(&self) -> &[Sge] {
        if self.many.is_empty() { &self.few[..self.count] } else { &self.many }
    }

    /// Bytes of all together.
    pub fn len(&self) -> u64 {
        self.all().iter().map(|s| u64::from(s.len)).sum()
    }
}

/// What a send request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND, with or without immediate data or invalidation.
    Send,
    /// RDMA WRITE, with or without immediate data.
    Write,
    /// RDMA READ.
    Read,
    /// Compare and swap; `a` is compared, `b` stored.
    CompareSwap,
    /// Fetch and add of `a`.
    FetchAdd,
    /// FLUSH of `a` bytes.
    Flush,
    /// Binding of a memory window: nothing is sent.
    Bind,
    /// Invalidation of a local key: nothing is sent.
    Invalidate,
}

/// Where the bytes of a request are.
#[derive(Clone, Debug)]
pub enum Data {
    /// In registered memory.
    Pieces(Sges),
    /// Copied when it was posted.
    Inline(Vec<u8>),
}

/// Destination of a datagram.
#[derive(Clone, Copy, Default, Debug)]
pub struct Address {
    /// GID of the port it goes to.
    pub gid: [u8; 16],
    /// Queue pair.
    pub qpn: u32,
    /// Queue key.
    pub qkey: u32,
}

/// A posted send request.
#[derive(Clone, Debug)]
pub struct SendWqe {
    /// The program's name for it.
    pub wr_id: u64,
    /// What it does.
    pub op: Op,
    /// Opcode of its completion.
    pub wc_opcode: u32,
    /// Whether a completion is wanted.
    pub signaled: bool,
    /// Whether the receiver's completion is solicited.
    pub solicited: bool,
    /// Whether it waits for the READs and atomics before it.
    pub fence: bool,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key to invalidate at the receiver.
    pub invalidate: Option<u32>,
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// First operand.
    pub a: u64,
    /// Second operand.
    pub b: u64,
    /// The bytes, or where an answer goes.
    pub data: Data,
    /// Destination of a datagram.
    pub to: Address,
    /// What a window is bound to.
    pub bind: Option<Bind>,
    /// Number on the wire, once it has been sent.
    pub seq: u32,
    /// Epoch in which it was sent last.
    pub epoch: u32,
    /// Bytes of the answer that have come.
    pub received: u32,
    /// Acknowledged.
    pub done: bool,
}

impl SendWqe {
    /// Bytes to send or to read.
    pub fn len(&self) -> u64 {
        match &self.data {
            Data::Pieces(s) => s.len(),
            Data::Inline(v) => v.len() as u64,
        }
    }

    /// True for what concerns this device only.
    pub fn is_local(&self) -> bool {
        matches!(self.op, Op::Bind | Op::Invalidate)
    }

    /// True for what is answered with data and counts against `max_rd_atomic`.
    pub fn is_read(&self) -> bool {
        matches!(self.op, Op::Read | Op::CompareSwap | Op::FetchAdd)
    }
}

/// A posted receive request.
#[derive(Clone, Debug, Default)]
pub struct RecvWqe {
    /// The program's name for it.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: Sges,
}

/// Attributes of a receive queue.
#[derive(Clone, Copy, Default, Debug)]
pub struct RecvCaps {
    /// Most requests.
    pub wr: u32,
    /// Most pieces of one.
    pub sge: u32,
}

/// A receive queue, of one queue pair or shared.
pub struct RecvQueue {
    /// Protection domain.
    pub pd: u32,
    /// Whether it is shared: then queue pairs in error leave it alone.
    pub shared: bool,
    caps: Mutex<RecvCaps>,
    /// Places in use.
    pub places: Places,
    queue: Mutex<VecDeque<RecvWqe>>,
    /// Length below which a shared queue tells the program, once; 0 is never.
    pub limit: AtomicU32,
    /// The program's pointer to a shared queue.
    pub user: AtomicUsize,
    /// Asynchronous events not acknowledged.
    pub async_events: crate::cq::Unacked,
    /// Queue pairs that use it.
    pub users: AtomicU32,
}

impl RecvQueue {
    /// An empty queue.
    pub fn new(pd: u32, shared: bool, caps: RecvCaps) -> RecvQueue {
        RecvQueue {
            pd,
            shared,
            caps: Mutex::new(caps),
            places: Places::default(),
            queue: Mutex::default(),
            limit: AtomicU32::new(0),
            user: AtomicUsize::new(0),
            async_events: crate::cq::Unacked::default(),
            users: AtomicU32::new(0),
        }
    }

    /// Its attributes.
    pub fn caps(&self) -> RecvCaps {
        *lock(&self.caps)
    }

    /// Changes the number of places; `EINVAL` when more are in use.
    pub fn resize(&self, wr: u32) -> Result<(), i32> {
        let mut caps = lock(&self.caps);
        if self.places.load(Ordering::Relaxed) > wr {
            return Err(libc::EINVAL);
        }
        caps.wr = wr;
        Ok(())
    }

    /// Adds a request of `pieces` pieces. `ENOMEM` when the queue is full, `EINVAL` when it has too many pieces.
    pub fn post(&self, pieces: usize, wqe: impl FnOnce() -> RecvWqe) -> Result<(), i32> {
        let caps = self.caps();
        if pieces > caps.sge as usize {
            return Err(libc::EINVAL);
        }
        let mut queue = lock(&self.queue);
        if self.places.load(Ordering::Relaxed) >= caps.wr {
            return Err(libc::ENOMEM);
        }
        self.places.fetch_add(1, Ordering::Relaxed);
        queue.push_back(wqe());
        Ok(())
    }

    /// Takes the oldest request, and whether the length has just fallen below the limit.
    pub fn take(&self) -> (Option<RecvWqe>, bool) {
        let mut queue = lock(&self.queue);
        let wqe = queue.pop_front();
        let limit = self.limit.load(Ordering::Relaxed);
        let low = wqe.is_some() && limit > 0 && (queue.len() as u32) < limit;
        if low {
            self.limit.store(0, Ordering::Relaxed);
        }
        (wqe, low)
    }

    /// Drops every request without a completion.
    pub fn clear(&self) {
        let mut queue = lock(&self.queue);
        self.places.fetch_sub(queue.len() as u32, Ordering::Relaxed);
        queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_kept_in_order_and_empty_ones_left_out() {
        for n in 0..8u32 {
            let list = (0..n).flat_map(|i| [Sge { addr: u64::from(i), len: i + 1, lkey: 1 }, Sge::default()]);
            let s = Sges::new(list);
            assert_eq!(s.all().iter().map(|s| s.addr).collect::<Vec<_>>(), (0..u64::from(n)).collect::<Vec<_>>());
            assert_eq!(s.len(), u64::from(n * (n + 1) / 2));
        }
    }

    #[test]
    fn a_receive_queue_is_as_deep_as_it_says() {
        let q = RecvQueue::new(1, true, RecvCaps { wr: 2, sge: 1 });
        assert_eq!(q.post(2, RecvWqe::default), Err(libc::EINVAL));
        assert_eq!(q.post(1, RecvWqe::default), Ok(()));
        assert_eq!(q.post(0, RecvWqe::default), Ok(()));
        assert_eq!(q.post(1, RecvWqe::default), Err(libc::ENOMEM));
        q.limit.store(2, Ordering::Relaxed);
        assert!(matches!(q.take(), (Some(_), true)));
        assert!(matches!(q.take(), (Some(_), false)), "told once");
        assert_eq!(q.post(1, RecvWqe::default), Err(libc::ENOMEM), "places come back when the completion is polled");
    }
}
