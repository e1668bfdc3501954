//! Extended verbs, for the one request that the ordinary interface cannot express: FLUSH.
//!
//! A FLUSH completes when the writes before it, on the same queue pair, are visible to everyone at the other side. A READ behind
//! them says the same on every device; a FLUSH says it without moving bytes, where the device, its driver and the other side's
//! registration have it. It needs a queue pair that was created for it, and is posted by functions of that queue pair.

use crate::sys::Errno;
use crate::sys::errno::around;
use ibverbs_sys as ib;
use std::mem::offset_of;
use std::ptr::NonNull;

type CreateEx = unsafe extern "C" fn(*mut ib::ibv_context, *mut ib::ibv_qp_init_attr_ex) -> *mut ib::ibv_qp;

/// The part of `struct verbs_context` that lies before the context, from the function that is wanted on; it is not in the bindings.
#[repr(C)]
struct BeforeContext {
    create_qp_ex: Option<CreateEx>,
    other: [usize; 4],
    private: u64,
    /// Bytes of the whole structure, as far as its library knows it.
    size: usize,
}

/// What the structure counts at least where it has the function: from there to its end.
const ENOUGH: usize = size_of::<BeforeContext>() + size_of::<ib::ibv_context>();
/// `abi_compat` of a context that has such a part.
const IS_EXTENDED: usize = usize::MAX;
/// In the mask of attributes: the domain, and the operations that are wanted.
const PD: u32 = 1;
const SEND_OPS: u32 = 1 << 6;
/// SEND, WRITE, READ and both atomics: what the ordinary interface posts.
const ORDINARY: u64 = 1 | 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6;

// Where verbs.h has them: a part of 648 bytes that ends with a context of 328.
const _: () = assert!(size_of::<BeforeContext>() == 320 - 264);
const _: () = assert!(offset_of!(BeforeContext, size) == 312 - 264);
const _: () = assert!(size_of::<ib::ibv_context>() == 328);

/// The driver's function for such queue pairs.
///
/// # Safety
/// `ctx` is an open context.
unsafe fn creator(ctx: *mut ib::ibv_context) -> Option<CreateEx> {
    // SAFETY: as the caller vouches.
    if unsafe { (*ctx).abi_compat } as usize != IS_EXTENDED {
        return None;
    }
    let before = ctx.cast::<BeforeContext>().wrapping_sub(1);
    // SAFETY: the mark says that the structure lies there, and its size how much of it.
    let size = unsafe { (*before).size };
    // SAFETY: as above.
    if size >= ENOUGH { unsafe { (*before).create_qp_ex } } else { None }
}

/// Creates a queue pair that flushes. `None`: this device or its driver has no such thing; `init` is as before.
///
/// # Safety
/// `ctx`, `pd` and what `init` names are live and belong together.
pub(super) unsafe fn create(
    ctx: *mut ib::ibv_context,
    pd: *mut ib::ibv_pd,
    init: &mut ib::ibv_qp_init_attr,
) -> Option<NonNull<ib::ibv_qp>> {
    // SAFETY: as the caller vouches.
    let create = unsafe { creator(ctx) }?;
    let mut wanted = ib::ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: PD | SEND_OPS,
        pd,
        send_ops_flags: ORDINARY | u64::from(ib::IBV_QP_EX_WITH_FLUSH),
        ..Default::default()
    };
    // SAFETY: complete attributes; the rest as the caller vouches.
    let (qp, _) = around(|| unsafe { create(ctx, &raw mut wanted) });
    let qp = NonNull::new(qp)?;
    init.cap = wanted.cap;
    Some(qp)
}

/// The means by which one queue pair flushes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    qp: NonNull<ib::ibv_qp_ex>,
    start: unsafe extern "C" fn(*mut ib::ibv_qp_ex),
    complete: unsafe extern "C" fn(*mut ib::ibv_qp_ex) -> i32,
    flush: unsafe extern "C" fn(*mut ib::ibv_qp_ex, u32, u64, usize, u8, u8),
}

impl Flush {
    /// Of the extended form of a queue pair that [`create`] has made; `None` when that has no such functions.
    ///
    /// # Safety
    /// `qp` is such a form, or null.
    pub unsafe fn of(qp: *mut ib::ibv_qp_ex) -> Option<Flush> {
        let qp = NonNull::new(qp)?;
        // SAFETY: as the caller vouches.
        let ops = unsafe { qp.as_ref() };
        Some(Flush { qp, start: ops.wr_start?, complete: ops.wr_complete?, flush: ops.wr_flush? })
    }

    /// Posts a FLUSH of the whole registration of `rkey`, which lies at `addr`, with a completion named `id`. Async-signal-safe.
    ///
    /// # Safety
    /// The queue pair is live, and nobody else posts to it meanwhile.
    pub unsafe fn post(&self, id: u64, addr: u64, rkey: u32) -> Result<(), Errno> {
        let qp = self.qp.as_ptr();
        let posted = around(|| {
            // SAFETY: a live queue pair of these functions, and this thread alone posts to it.
            unsafe { (self.start)(qp) };
            // SAFETY: between start and complete these two words are what the next request gets.
            let next = unsafe { &mut *qp };
            (next.wr_id, next.wr_flags) = (id, ib::ibv_send_flags::IBV_SEND_SIGNALED.0);
            let (kind, level) = (ib::IBV_FLUSH_GLOBAL as u8, ib::IBV_FLUSH_MR as u8);
            // SAFETY: as above.
            unsafe { (self.flush)(qp, rkey, addr, 0, kind, level) };
            // SAFETY: as above.
            unsafe { (self.complete)(qp) }
        });
        super::device::number(posted)
    }
}
