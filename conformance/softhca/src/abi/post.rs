//! `ops.post_send`, `ops.post_recv`, `ops.post_srq_recv`: the program's lists become requests of ours.

use super::memory::Handle;
use super::qp::{QpObject, pair};
use super::{answer, argument, object};
use crate::post::{self, INLINE, may_inline};
use crate::qp::{IBV_QPS_ERR, IBV_QPS_RESET, Kind};
use crate::wqe::{Address, Data, RecvQueue, RecvWqe, SendWqe, Sge, Sges};
use ibverbs_sys as sys;
use ibverbs_sys::ibv_wr_opcode as wr;

/// The pieces of a request.
///
/// # Safety
/// `list` must be valid for `n` pieces.
unsafe fn pieces<'a>(list: *const sys::ibv_sge, n: usize) -> &'a [sys::ibv_sge] {
    if n == 0 {
        return &[];
    }
    // SAFETY: the caller vouches.
    unsafe { std::slice::from_raw_parts(list, n) }
}

/// The same as ours.
pub fn sges(list: &[sys::ibv_sge]) -> Sges {
    Sges::new(list.iter().map(|s| Sge { addr: s.addr, len: s.length, lkey: s.lkey }))
}

/// Copies bytes of the program, by the CPU and through its own mapping, as inline data is.
///
/// # Safety
/// `addr` must be readable for `len` bytes.
pub unsafe fn inline(to: &mut Vec<u8>, addr: *const u8, len: usize) {
    if len > 0 {
        // SAFETY: the caller vouches.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(addr, len) });
    }
}

/// One request.
///
/// # Safety
/// `from` must be a valid work request for the queue pair.
unsafe fn convert(own: &QpObject, from: &sys::ibv_send_wr) -> Result<SendWqe, i32> {
    let qp = &own.core;
    let n = usize::try_from(from.num_sge).map_err(|_| libc::EINVAL)?;
    if n > qp.caps.max_send_sge as usize {
        return Err(libc::EINVAL);
    }
    // There is no place in the structure for what a FLUSH is about.
    if from.opcode == wr::IBV_WR_FLUSH {
        return Err(libc::EINVAL);
    }
    let mut wqe = post::request(qp, from.wr_id, from.opcode, from.send_flags)?;
    // SAFETY: the caller vouches.
    let list = unsafe { pieces(from.sg_list, n) };
    if from.send_flags & INLINE != 0 {
        let len = list.iter().map(|s| s.length as usize).sum();
        if !may_inline(qp, wqe.op, len) {
            return Err(libc::EINVAL);
        }
        let mut bytes = Vec::with_capacity(len);
        // SAFETY: the caller vouches for the pieces.
        list.iter().for_each(|s| unsafe { inline(&mut bytes, s.addr as *const u8, s.length as usize) });
        wqe.data = Data::Inline(bytes);
    } else {
        wqe.data = Data::Pieces(sges(list));
    }
    // SAFETY: both forms of the union are 4 plain bytes.
    let imm = unsafe { from.__bindgen_anon_1.imm_data };
    match from.opcode {
        wr::IBV_WR_SEND_WITH_IMM | wr::IBV_WR_RDMA_WRITE_WITH_IMM => wqe.imm = Some(imm),
        wr::IBV_WR_SEND_WITH_INV | wr::IBV_WR_LOCAL_INV => wqe.invalidate = Some(imm),
        wr::IBV_WR_BIND_MW => {
            // SAFETY: the opcode says which form the union has.
            let bind = unsafe { from.__bindgen_anon_2.bind_mw };
            // SAFETY: the caller vouches.
            wqe.bind = Some(unsafe { super::window::binding(bind.mw, bind.rkey, &bind.bind_info, true) }?);
        }
        _ => {}
    }
    match from.opcode {
        wr::IBV_WR_ATOMIC_CMP_AND_SWP | wr::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            // SAFETY: the opcode says which form the union has.
            let atomic = unsafe { from.wr.atomic };
            (wqe.addr, wqe.rkey) = (atomic.remote_addr, atomic.rkey);
            (wqe.a, wqe.b) = (atomic.compare_add, atomic.swap);
        }
        _ if qp.kind == Kind::Ud => {
            // SAFETY: the kind of queue pair says which form the union has.
            let ud = unsafe { from.wr.ud };
            if ud.ah.is_null() {
                return Err(libc::EINVAL);
            }
            // SAFETY: the program gives a handle of this library.
            let gid = unsafe { object::<Handle, _>(ud.ah) }.gid;
            wqe.to = Address { gid, qpn: ud.remote_qpn, qkey: ud.remote_qkey };
        }
        _ => {
            // SAFETY: the opcode says which form the union has; for SEND the fields are not used.
            let rdma = unsafe { from.wr.rdma };
            (wqe.addr, wqe.rkey) = (rdma.remote_addr, rdma.rkey);
        }
    }
    Ok(wqe)
}

/// Queues one request, if the device is there.
pub fn post_one(own: &QpObject, wqe: SendWqe) -> Result<(), i32> {
    if own.context.faults.removed() { Err(libc::EIO) } else { post::post(&own.core, wqe) }
}

/// Posts a list of sends.
///
/// # Safety
/// As the manual page of `ibv_post_send` asks.
pub unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> i32 {
    // SAFETY: the caller vouches.
    let own = unsafe { pair(qp) };
    let mut result = 0;
    while !wr.is_null() {
        // SAFETY: the caller vouches for every member of the list.
        let from = unsafe { argument(wr) };
        // SAFETY: as above.
        let posted = unsafe { convert(own, from) }
            .and_then(|wqe| if own.context.faults.removed() { Err(libc::EIO) } else { post::post(&own.core, wqe) });
        if let Err(e) = posted {
            // SAFETY: the program gives a place for the first bad request.
            unsafe { answer(bad, wr) };
            result = e;
            break;
        }
        wr = from.next;
    }
    own.context.kick(own.core.number);
    result
}

/// Posts a list of receives.
///
/// # Safety
/// `wr` must be a valid list, `bad` a place for an answer.
unsafe fn receive(queue: &RecvQueue, mut wr: *mut sys::ibv_recv_wr, bad: *mut *mut sys::ibv_recv_wr) -> i32 {
    while !wr.is_null() {
        // SAFETY: the caller vouches for every member of the list.
        let from = unsafe { argument(wr) };
        let posted = usize::try_from(from.num_sge).map_err(|_| libc::EINVAL).and_then(|n| {
            // SAFETY: as above.
            queue.post(n, || RecvWqe { wr_id: from.wr_id, sges: sges(unsafe { pieces(from.sg_list, n) }) })
        });
        if let Err(e) = posted {
            // SAFETY: the program gives a place for the first bad request.
            unsafe { answer(bad, wr) };
            return e;
        }
        wr = from.next;
    }
    0
}

/// Posts a list of receives to a queue pair.
///
/// # Safety
/// As the manual page of `ibv_post_recv` asks.
pub unsafe extern "C" fn post_recv(
    qp: *mut sys::ibv_qp,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> i32 {
    // SAFETY: the caller vouches.
    let own = unsafe { pair(qp) };
    let mut inner = own.core.lock();
    if inner.state == IBV_QPS_RESET || own.core.recv.shared {
        // SAFETY: the program gives a place for the first bad request.
        unsafe { answer(bad, wr) };
        return libc::EINVAL;
    }
    // SAFETY: the caller vouches.
    let result = unsafe { receive(&own.core.recv, wr, bad) };
    if inner.state == IBV_QPS_ERR {
        own.core.flush(&mut inner);
    }
    result
}

/// Posts a list of receives to a shared queue.
///
/// # Safety
/// As the manual page of `ibv_post_srq_recv` asks.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> i32 {
    // SAFETY: the caller vouches.
    let own = unsafe { super::srq::shared(srq) };
    // SAFETY: the caller vouches.
    unsafe { receive(&own.core, wr, bad) }
}
