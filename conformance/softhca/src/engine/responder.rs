//! The responder: takes requests of other queue pairs.

use crate::context::Context;
use crate::cq::Wc;
use crate::keys::{Span, access};
use crate::memory::Atomic;
use crate::qp::{self, Element, Event, Inner, Kind, Qp};
use crate::ring::Header;
use crate::window;
use crate::wire::{self, Answer, before};
use crate::wqe::RecvWqe;
use ibverbs_sys as sys;
use ibverbs_sys::{ibv_wc_opcode as opcode, ibv_wc_status as status};
use std::sync::Arc;

/// Answers to atomics that are kept for repeats.
const REPLAY: usize = 2 * crate::device::MAX_RD_ATOMIC as usize;

/// Bytes that a datagram's receiver gets before the message.
const GRH: usize = 40;

/// Why a message was not taken.
enum Refusal {
    /// There is no receive request.
    NotReady,
    /// The sender is told a status, and this queue pair stops with an event, if any.
    Error(u32, Option<u32>),
}
use Refusal::{Error, NotReady};

/// The sender asked for what this queue pair does not do.
const INVALID: Refusal = Error(status::IBV_WC_REM_INV_REQ_ERR, Some(sys::IBV_EVENT_QP_REQ_ERR));
/// The sender has no right to that memory.
const ACCESS: Refusal = Error(status::IBV_WC_REM_ACCESS_ERR, Some(sys::IBV_EVENT_QP_ACCESS_ERR));

/// Takes a piece of a request. Returns the answer, when one is due.
pub fn requested(context: &Context, h: &Header, payload: &[u8]) -> Option<Answer> {
    let last = h.offset + payload.len() as u32 >= h.total || !matches!(h.kind, wire::SEND | wire::WRITE);
    let reliable = h.flags & wire::RELIABLE != 0;
    // Whoever gets no answer at all is told so once.
    let lost = |when: bool| (reliable && when).then(|| Answer::to(h, wire::LOST, 0));
    let Some(qp) = context.qp(h.to) else { return lost(last) };
    let mut guard = qp.lock();
    let inner = &mut *guard;
    if !takes(context, &qp, inner, h) {
        return lost(last);
    }
    if qp.kind == Kind::Ud {
        datagram(context, &qp, inner, h, payload);
        return None;
    }
    if qp.kind == Kind::Uc {
        unreliable(context, &qp, inner, h, payload, last);
        return None;
    }
    if before(h.seq, inner.expected) {
        return if last { repeated(context, &qp, inner, h) } else { None };
    }
    if h.seq != inner.expected {
        // After an answer that sends the requester back, what it has sent meanwhile is passed over.
        return lost(last);
    }
    if h.offset != 0 && h.offset != inner.offset {
        // Its beginning was not taken.
        return lost(last);
    }
    let answer = match take(context, &qp, inner, h, payload, last) {
        Ok(answer) => {
            inner.offset = h.offset + payload.len() as u32;
            answer.filter(|_| last)
        }
        Err(NotReady) => {
            inner.offset = u32::MAX;
            return Some(Answer::to(h, wire::NOT_READY, u32::from(inner.attr.min_rnr_timer)));
        }
        Err(Error(status, event)) => {
            qp.fail(inner, event);
            return Some(Answer::to(h, wire::NAK, status));
        }
    };
    if last {
        inner.expected = (inner.expected + 1) & 0xff_ffff;
    }
    if answer.is_some() && context.faults.drops_answer() {
        return lost(true);
    }
    answer
}

/// Whether a queue pair listens to this sender at all.
fn takes(context: &Context, qp: &Qp, inner: &Inner, h: &Header) -> bool {
    let state = matches!(inner.state, qp::IBV_QPS_RTR | qp::IBV_QPS_RTS | qp::IBV_QPS_SQD | qp::IBV_QPS_SQE);
    let kind = match qp.kind {
        Kind::Rc => h.flags & wire::RELIABLE != 0,
        Kind::Ud => h.flags & wire::DATAGRAM != 0 && h.qkey == inner.attr.qkey,
        Kind::Uc => h.flags & (wire::RELIABLE | wire::DATAGRAM) == 0,
    };
    let sender = qp.kind == Kind::Ud || inner.attr.dest_qp_num == h.from;
    state && kind && sender && context.faults.port_is_up(u32::from(inner.attr.port_num))
}

/// Takes a piece of the message that is expected.
fn take(
    context: &Context,
    qp: &Arc<Qp>,
    inner: &mut Inner,
    h: &Header,
    payload: &[u8],
    last: bool,
) -> Result<Option<Answer>, Refusal> {
    match h.kind {
        wire::SEND => {
            sent(context, qp, inner, h, payload)?;
            if last {
                received(qp, inner, h, opcode::IBV_WC_RECV);
            }
            Ok(Some(Answer::to(h, wire::ACK, 0)))
        }
        wire::WRITE => {
            written(context, qp, inner, h, payload)?;
            if last && h.flags & wire::IMM != 0 {
                received(qp, inner, h, opcode::IBV_WC_RECV_RDMA_WITH_IMM);
            }
            Ok(Some(Answer::to(h, wire::ACK, 0)))
        }
        wire::READ => {
            let data = remote(context, qp, inner, h, u64::from(h.total), access::REMOTE_READ)?;
            Ok(Some(Answer { data, ..Answer::to(h, wire::DATA, 0) }))
        }
        wire::FLUSH => {
            // Bytes are in memory when a request is taken: nothing is left to be done but the checks.
            remote(context, qp, inner, h, h.a, access::FLUSH_GLOBAL)?;
            Ok(Some(Answer::to(h, wire::ACK, 0)))
        }
        wire::COMPARE_SWAP | wire::FETCH_ADD => {
            let old = atomic(context, qp, inner, h)?;
            inner.replay.push_back((h.seq, old));
            while inner.replay.len() > REPLAY {
                inner.replay.pop_front();
            }
            Ok(Some(value(h, old)))
        }
        _ => Err(INVALID),
    }
}

fn value(h: &Header, old: u64) -> Answer {
    let answer = Answer::to(h, wire::VALUE, 0);
    Answer { header: Header { a: old, ..answer.header }, ..answer }
}

/// The memory that a request of the other side names.
fn remote(context: &Context, qp: &Qp, inner: &Inner, h: &Header, len: u64, need: u32) -> Result<Option<Span>, Refusal> {
    let answered = matches!(h.kind, wire::READ | wire::COMPARE_SWAP | wire::FETCH_ADD);
    if inner.attr.qp_access_flags & need != need || answered && inner.attr.max_dest_rd_atomic == 0 {
        return Err(INVALID);
    }
    if len == 0 {
        return Ok(None);
    }
    context.keys.remote(h.key, qp.pd, qp.number, h.addr, len, need).map(Some).ok_or(ACCESS)
}

fn written(context: &Context, qp: &Arc<Qp>, inner: &mut Inner, h: &Header, payload: &[u8]) -> Result<(), Refusal> {
    let span = remote(context, qp, inner, h, u64::from(h.total), access::REMOTE_WRITE)?;
    if h.flags & wire::IMM != 0 && inner.filling.is_none() {
        inner.filling = Some(next_recv(context, qp)?);
    }
    let Some(span) = span else { return Ok(()) };
    let at = span.at + h.offset as usize;
    span.region.memory.write(at, payload).map_err(|_| Error(status::IBV_WC_REM_OP_ERR, None))
}

fn atomic(context: &Context, qp: &Arc<Qp>, inner: &mut Inner, h: &Header) -> Result<u64, Refusal> {
    if !h.addr.is_multiple_of(8) {
        return Err(INVALID);
    }
    let Some(span) = remote(context, qp, inner, h, 8, access::REMOTE_ATOMIC)? else { return Err(INVALID) };
    let op = if h.kind == wire::FETCH_ADD { Atomic::Add(h.a) } else { Atomic::CompareSwap { compare: h.a, swap: h.b } };
    span.region.memory.atomic(span.at, op).map_err(|_| Error(status::IBV_WC_REM_OP_ERR, None))
}

/// The next receive request.
fn next_recv(context: &Context, qp: &Arc<Qp>) -> Result<RecvWqe, Refusal> {
    let (wqe, low) = qp.recv.take();
    if low {
        let element = Element::Srq(qp.recv.clone());
        context.events.push(Event { kind: sys::IBV_EVENT_SRQ_LIMIT_REACHED, element });
    }
    wqe.ok_or(NotReady)
}

/// A piece of a SEND goes where the receive request says.
fn sent(context: &Context, qp: &Arc<Qp>, inner: &mut Inner, h: &Header, payload: &[u8]) -> Result<(), Refusal> {
    let wqe = match inner.filling.take() {
        Some(wqe) => wqe,
        None => next_recv(context, qp)?,
    };
    let outcome = if u64::from(h.total) > wqe.sges.len() {
        Err((status::IBV_WC_LOC_LEN_ERR, status::IBV_WC_REM_INV_REQ_ERR))
    } else {
        let last = h.offset + payload.len() as u32 >= h.total;
        let put = deliver(context, qp, &wqe, u64::from(h.offset), payload).is_ok();
        let closes = last && h.flags & wire::INVALIDATE != 0;
        // Only windows of type 2 can be closed from afar.
        let done = put && (!closes || window::invalidate(context, qp, h.imm));
        if done { Ok(()) } else { Err((status::IBV_WC_LOC_PROT_ERR, status::IBV_WC_REM_OP_ERR)) }
    };
    let Err((here, there)) = outcome else {
        inner.filling = Some(wqe);
        return Ok(());
    };
    let wc = Wc { wr_id: wqe.wr_id, status: here, opcode: opcode::IBV_WC_RECV, ..Wc::default() };
    qp.complete_recv(inner, wc, false);
    Err(Error(there, None))
}

fn deliver(context: &Context, qp: &Qp, wqe: &RecvWqe, at: u64, from: &[u8]) -> Result<(), ()> {
    super::each_piece(&wqe.sges, at, from.len(), |sge, inside, done, n| {
        // A shared receive queue has a protection domain of its own.
        let pd = if qp.recv.shared { qp.recv.pd } else { qp.pd };
        let span = context.keys.span(sge.lkey, pd, sge.addr + inside, n as u64, access::LOCAL_WRITE).ok_or(())?;
        span.region.memory.write(span.at, &from[done..done + n]).map_err(drop)
    })
}

/// Completes the receive request that the message has filled.
fn received(qp: &Arc<Qp>, inner: &mut Inner, h: &Header, opcode: u32) {
    let Some(wqe) = inner.filling.take() else { return };
    let flags = if h.flags & wire::IMM != 0 {
        sys::ibv_wc_flags::IBV_WC_WITH_IMM.0
    } else if h.flags & wire::INVALIDATE != 0 {
        sys::ibv_wc_flags::IBV_WC_WITH_INV.0
    } else {
        0
    };
    let wc = Wc {
        wr_id: wqe.wr_id,
        opcode,
        byte_len: h.total,
        imm_data: h.imm,
        wc_flags: flags,
        src_qp: h.from,
        ..Wc::default()
    };
    qp.complete_recv(inner, wc, h.flags & wire::SOLICITED != 0);
}

/// A request that was taken before: its answer was lost.
fn repeated(context: &Context, qp: &Arc<Qp>, inner: &mut Inner, h: &Header) -> Option<Answer> {
    match h.kind {
        wire::READ => match remote(context, qp, inner, h, u64::from(h.total), access::REMOTE_READ) {
            Ok(data) => Some(Answer { data, ..Answer::to(h, wire::DATA, 0) }),
            Err(_) => Some(Answer::to(h, wire::NAK, status::IBV_WC_REM_ACCESS_ERR)),
        },
        wire::COMPARE_SWAP | wire::FETCH_ADD => {
            let old = inner.replay.iter().find(|r| r.0 == h.seq).map(|r| r.1);
            Some(old.map_or_else(|| Answer::to(h, wire::LOST, 0), |old| value(h, old)))
        }
        _ => Some(Answer::to(h, wire::ACK, 0)),
    }
}

/// A piece of a message of an unreliable connection: what does not fit is dropped, and nobody is told.
fn unreliable(context: &Context, qp: &Arc<Qp>, inner: &mut Inner, h: &Header, payload: &[u8], last: bool) {
    if h.offset == 0 {
        inner.dropping = !matches!(h.kind, wire::SEND | wire::WRITE);
        inner.expected = h.seq;
    }
    if inner.dropping || h.seq != inner.expected {
        return;
    }
    match take(context, qp, inner, h, payload, last) {
        Ok(_) => {}
        Err(NotReady) => inner.dropping = true,
        // Errors of the receiver itself stop it, those of the sender do not.
        Err(Error(status::IBV_WC_REM_ACCESS_ERR, _)) => inner.dropping = true,
        Err(Error(_, event)) => qp.fail(inner, event),
    }
}

fn datagram(context: &Context, qp: &Arc<Qp>, inner: &mut Inner, h: &Header, payload: &[u8]) {
    let Ok(wqe) = next_recv(context, qp) else { return };
    let mut grh = [0u8; GRH];
    grh[0] = 0x60;
    grh[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    grh[6] = 0x1b;
    grh[7] = 64;
    grh[8..24].copy_from_slice(&h.gid);
    grh[24..].copy_from_slice(&context.gid(u32::from(inner.attr.port_num), 1));
    let total = (GRH + payload.len()) as u64;
    let fits = total <= wqe.sges.len();
    let put =
        fits && deliver(context, qp, &wqe, 0, &grh).is_ok() && deliver(context, qp, &wqe, GRH as u64, payload).is_ok();
    let status = match (fits, put) {
        (_, true) => status::IBV_WC_SUCCESS,
        (true, _) => status::IBV_WC_LOC_PROT_ERR,
        _ => status::IBV_WC_LOC_LEN_ERR,
    };
    let imm = if h.flags & wire::IMM != 0 { sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 } else { 0 };
    let wc = Wc {
        wr_id: wqe.wr_id,
        status,
        opcode: opcode::IBV_WC_RECV,
        byte_len: total as u32,
        imm_data: h.imm,
        src_qp: h.from,
        wc_flags: imm | sys::ibv_wc_flags::IBV_WC_GRH.0,
        ..Wc::default()
    };
    qp.complete_recv(inner, wc, h.flags & wire::SOLICITED != 0);
    if status != status::IBV_WC_SUCCESS {
        qp.fail(inner, None);
    }
}
