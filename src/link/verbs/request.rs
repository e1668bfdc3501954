//! Work requests, and lists of them that are posted with one doorbell.

use super::queue::QueuePair;
use crate::sys::Errno;
use ibverbs_sys as ib;
use std::mem::MaybeUninit;

/// What is done at the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// The local bytes become the remote ones.
    Read,
    /// The remote bytes become the local ones.
    Write,
    /// As Write; the source is copied when it is posted, and needs no registration. At most [`Depth::inline`](super::Depth::inline) bytes.
    WriteInline,
    /// Adds to the remote word; the local one becomes its old value.
    FetchAdd(u64),
    /// Replaces the remote word when it is `expected`; the local one becomes its old value.
    CompareSwap {
        /// What must be there.
        expected: u64,
        /// What replaces it.
        new: u64,
    },
}

/// Bytes at this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First byte.
    pub ptr: *mut u8,
    /// Bytes, at most 1 GiB.
    pub len: u32,
    /// Key of the registration that holds them.
    pub lkey: u32,
}

/// One work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its name in the completion.
    pub id: u64,
    /// What to do.
    pub verb: Verb,
    /// Bytes here.
    pub local: Place,
    /// Address at the other side.
    pub addr: u64,
    /// Key for it.
    pub rkey: u32,
    /// It completes also when nothing went wrong. Completions of requests that have not asked for one are implied by the next that has.
    pub signalled: bool,
}

/// Up to `N` requests, on the stack.
pub struct Batch<const N: usize> {
    list: [MaybeUninit<ib::ibv_send_wr>; N],
    places: [MaybeUninit<ib::ibv_sge>; N],
    len: usize,
}

impl<const N: usize> Batch<N> {
    /// Without requests.
    pub const fn new() -> Batch<N> {
        Batch { list: [const { MaybeUninit::uninit() }; N], places: [const { MaybeUninit::uninit() }; N], len: 0 }
    }

    /// How many it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without requests.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True when no more fit.
    pub fn is_full(&self) -> bool {
        self.len == N
    }

    /// Adds a request; false when it is full.
    pub fn push(&mut self, r: &Request) -> bool {
        let (Some(wr), Some(place)) = (self.list.get_mut(self.len), self.places.get_mut(self.len)) else {
            return false;
        };
        place.write(ib::ibv_sge { addr: r.local.ptr as u64, length: r.local.len, lkey: r.local.lkey });
        wr.write(form(r));
        self.len += 1;
        true
    }

    /// Hands all to the device, in order, and is empty after that. On an error answers how many were taken all the same: those
    /// complete as if nothing were wrong. Async-signal-safe, after [`Device::at_hand`](super::Device::at_hand) in this thread.
    ///
    /// # Safety
    /// The local bytes are registered with the queue pair's domain under the keys given, and stay valid, until the requests have ended.
    pub unsafe fn post(&mut self, pair: &QueuePair) -> Result<(), (Errno, usize)> {
        let n = std::mem::take(&mut self.len);
        let mut next = std::ptr::null_mut();
        for (wr, place) in self.list.iter_mut().zip(&mut self.places).take(n).rev() {
            // SAFETY: the first n are written.
            let filled = unsafe { wr.assume_init_mut() };
            filled.sg_list = place.as_mut_ptr();
            filled.next = next;
            next = wr.as_mut_ptr();
        }
        if next.is_null() {
            return Ok(());
        }
        let mut bad = std::ptr::null_mut();
        // SAFETY: a list that ends in null, and the caller vouches for the memory.
        unsafe { pair.post(next, &mut bad) }.map_err(|e| {
            let taken = (bad as usize).wrapping_sub(next as usize) / size_of::<ib::ibv_send_wr>();
            (e, taken.min(n))
        })
    }
}

impl<const N: usize> Default for Batch<N> {
    fn default() -> Self {
        Batch::new()
    }
}

fn form(r: &Request) -> ib::ibv_send_wr {
    use ib::{ibv_send_flags as flag, ibv_wr_opcode as op};
    // SAFETY: numbers, pointers and unions of numbers; zero is a value of each.
    let mut wr = unsafe { MaybeUninit::<ib::ibv_send_wr>::zeroed().assume_init() };
    wr.wr_id = r.id;
    wr.num_sge = 1;
    wr.send_flags = if r.signalled { flag::IBV_SEND_SIGNALED.0 } else { 0 };
    let (remote_addr, rkey) = (r.addr, r.rkey);
    wr.wr.rdma = ib::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    let atomic =
        |compare_add, swap| ib::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey };
    match r.verb {
        Verb::Read => wr.opcode = op::IBV_WR_RDMA_READ,
        Verb::Write => wr.opcode = op::IBV_WR_RDMA_WRITE,
        Verb::WriteInline => {
            wr.opcode = op::IBV_WR_RDMA_WRITE;
            wr.send_flags |= flag::IBV_SEND_INLINE.0;
        }
        Verb::FetchAdd(n) => {
            wr.opcode = op::IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic = atomic(n, 0);
        }
        Verb::CompareSwap { expected, new } => {
            wr.opcode = op::IBV_WR_ATOMIC_CMP_AND_SWP;
            wr.wr.atomic = atomic(expected, new);
        }
    }
    wr
}
