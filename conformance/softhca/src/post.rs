//! Posting to a send queue, after the program's structures have been read.

use crate::engine::UNSENT;
use crate::qp::*;
use crate::wqe::{Address, Data, Op, SendWqe, Sges};
use ibverbs_sys::ibv_wc_opcode as wc;
use ibverbs_sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
use ibverbs_sys::ibv_wr_opcode as wr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// IBV_SEND_*: wait for the READs before it.
const FENCE: u32 = 1;
/// Wants a completion.
const SIGNALED: u32 = 2;
/// The receiver's completion is solicited.
const SOLICITED: u32 = 4;
/// The bytes are taken at once.
pub const INLINE: u32 = 8;

/// A request without its data. `EINVAL` when this transport does not have the operation, or the flags are unknown.
pub fn request(qp: &Qp, wr_id: u64, opcode: u32, flags: u32) -> Result<SendWqe, i32> {
    let (op, wc_opcode) = match opcode {
        wr::IBV_WR_SEND | wr::IBV_WR_SEND_WITH_IMM | wr::IBV_WR_SEND_WITH_INV => (Op::Send, wc::IBV_WC_SEND),
        wr::IBV_WR_RDMA_WRITE | wr::IBV_WR_RDMA_WRITE_WITH_IMM => (Op::Write, wc::IBV_WC_RDMA_WRITE),
        wr::IBV_WR_RDMA_READ => (Op::Read, wc::IBV_WC_RDMA_READ),
        wr::IBV_WR_ATOMIC_CMP_AND_SWP => (Op::CompareSwap, wc::IBV_WC_COMP_SWAP),
        wr::IBV_WR_ATOMIC_FETCH_AND_ADD => (Op::FetchAdd, wc::IBV_WC_FETCH_ADD),
        wr::IBV_WR_BIND_MW => (Op::Bind, wc::IBV_WC_BIND_MW),
        wr::IBV_WR_LOCAL_INV => (Op::Invalidate, wc::IBV_WC_LOCAL_INV),
        wr::IBV_WR_FLUSH => (Op::Flush, wc::IBV_WC_FLUSH),
        _ => return Err(libc::EINVAL),
    };
    let transport = match qp.kind {
        Kind::Rc => true,
        Kind::Uc => matches!(op, Op::Send | Op::Write) && opcode != wr::IBV_WR_SEND_WITH_INV,
        Kind::Ud => op == Op::Send && opcode != wr::IBV_WR_SEND_WITH_INV,
    };
    if !transport || flags & !(FENCE | SIGNALED | SOLICITED | INLINE) != 0 {
        return Err(libc::EINVAL);
    }
    Ok(SendWqe {
        wr_id,
        op,
        wc_opcode,
        signaled: qp.signal_all || flags & SIGNALED != 0,
        solicited: flags & SOLICITED != 0,
        fence: flags & FENCE != 0,
        imm: None,
        invalidate: None,
        addr: 0,
        rkey: 0,
        a: 0,
        b: 0,
        data: Data::Pieces(Sges::default()),
        to: Address::default(),
        bind: None,
        seq: UNSENT,
        epoch: 0,
        received: 0,
        done: false,
    })
}

/// Whether so many bytes may be inline in a request of this operation.
pub fn may_inline(qp: &Qp, op: Op, len: usize) -> bool {
    matches!(op, Op::Send | Op::Write) && len <= qp.caps.max_inline_data as usize
}

/// Puts a request in its queue: `EINVAL` before the queue pair can send, `ENOMEM` when the queue is full. In state ERR
/// it is flushed at once.
pub fn post(qp: &Arc<Qp>, wqe: SendWqe) -> Result<(), i32> {
    let mut inner = qp.lock();
    if matches!(inner.state, IBV_QPS_RESET | IBV_QPS_INIT | IBV_QPS_RTR) {
        return Err(libc::EINVAL);
    }
    if qp.places.load(Ordering::Relaxed) >= qp.caps.max_send_wr {
        return Err(libc::ENOMEM);
    }
    qp.places.fetch_add(1, Ordering::Relaxed);
    if matches!(inner.state, IBV_QPS_ERR | IBV_QPS_SQE) {
        qp.complete_send(&mut inner, &wqe, IBV_WC_WR_FLUSH_ERR);
    } else {
        inner.sq.push_back(wqe);
    }
    Ok(())
}
