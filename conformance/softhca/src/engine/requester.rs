//! The requester: sends what was posted and takes the answers.

use super::Engine;
use crate::context::Context;
use crate::device::{self, MAX_MSG};
use crate::keys::access;
use crate::link::{Place, QPN_BITS};
use crate::modify;
use crate::qp::{self, Inner, Kind, Qp, Wait};
use crate::raw;
use crate::ring::{CHUNK, Header};
use crate::window;
use crate::wire::{self, not_ready_ns, timeout_ns};
use crate::wqe::{Data, Op, SendWqe, Sge};
use ibverbs_sys::ibv_wc_status as status;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

type Timers = BinaryHeap<Reverse<(u64, u32)>>;

/// What became of one request.
enum Sent {
    /// It is on its way; the next.
    Whole,
    /// The link has no room.
    NoRoom,
    /// It must wait for requests before it, or for a time.
    Waits,
    /// It was lost.
    Lost,
}

impl Engine {
    /// Sends what a queue pair may send. Returns whether anything was sent or failed.
    pub fn pump(&mut self, context: &Context, number: u32) -> bool {
        let Some(qp) = context.qp(number) else { return false };
        let mut inner = qp.lock();
        let mut some = false;
        while inner.state == qp::IBV_QPS_RTS && inner.wait == Wait::No && inner.next < inner.sq.len() {
            match self.send_next(context, &qp, &mut inner) {
                Ok(Sent::Whole) => some = true,
                Ok(Sent::NoRoom | Sent::Waits) => break,
                Ok(Sent::Lost) => {
                    some = true;
                    // Those before it are under way: their answers count.
                    (inner.sent, inner.begun) = (0, false);
                    pause(&qp, &mut inner, &mut self.timers);
                }
                Err(error) => {
                    some = true;
                    fail_next(&qp, &mut inner, error);
                    break;
                }
            }
        }
        some
    }

    fn send_next(&mut self, context: &Context, qp: &Arc<Qp>, inner: &mut Inner) -> Result<Sent, u32> {
        let index = inner.next;
        let wqe = &inner.sq[index];
        if wqe.is_local() {
            return local(context, qp, inner);
        }
        let reads = if wqe.fence || wqe.is_read() { inner.reads() } else { 0 };
        if !inner.begun {
            if wqe.fence && reads > 0 || wqe.is_read() && reads >= usize::from(inner.attr.max_rd_atomic) && reads > 0 {
                return Ok(Sent::Waits);
            }
            check(context, qp, inner, wqe)?;
        }
        let mut header = request(context, qp, inner, wqe);
        let place = if qp.kind == Kind::Ud {
            let port = device::find_gid(&wqe.to.gid);
            port.map(|(device, _)| Place { device, number: wqe.to.qpn >> QPN_BITS })
        } else {
            inner.peer
        };
        let up = context.faults.port_is_up(u32::from(inner.attr.port_num));
        let dropped = !inner.begun && context.faults.drops_request();
        let id = if up && !dropped { place.and_then(|p| self.link_to(p)) } else { None };
        // Whole messages are lost: what has begun goes on, over the same link.
        let Some(id) = id else {
            return if qp.kind == Kind::Rc { Ok(Sent::Lost) } else { Ok(unanswered_done(qp, inner)) };
        };
        if !inner.begun {
            let (seq, epoch) = (inner.next_seq, inner.epoch);
            let wqe = &mut inner.sq[index];
            wqe.epoch = epoch;
            wqe.received = 0;
            if wqe.seq == UNSENT {
                wqe.seq = seq;
                inner.next_seq = (seq + 1) & 0xff_ffff;
            }
            inner.begun = true;
        }
        header.seq = inner.sq[index].seq;
        self.send_pieces(context, qp, inner, id, header)
    }

    fn send_pieces(
        &mut self,
        context: &Context,
        qp: &Arc<Qp>,
        inner: &mut Inner,
        id: u64,
        header: Header,
    ) -> Result<Sent, u32> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(Sent::Lost) };
        let Some(rings) = link.rings.as_mut() else { return Ok(Sent::Lost) };
        let carries = matches!(header.kind, wire::SEND | wire::WRITE);
        loop {
            let wqe = &inner.sq[inner.next];
            let left = if carries { header.total - inner.sent } else { 0 };
            let len = left.min(CHUNK as u32);
            let free = self.wire_free;
            let due = context.due(len as usize, &mut self.wire_free);
            let piece = Header { payload: len, offset: inner.sent, due, ..header };
            if !rings.tx.push(&piece, |to| gather(context, qp.pd, wqe, inner.sent, to))? {
                self.wire_free = free;
                link.blocked.push(qp.number);
                return Ok(Sent::NoRoom);
            }
            link.sent = true;
            inner.sent += len;
            if left == len {
                break;
            }
        }
        if qp.kind != Kind::Rc {
            return Ok(unanswered_done(qp, inner));
        }
        inner.next += 1;
        inner.sent = 0;
        inner.begun = false;
        Ok(Sent::Whole)
    }
}

/// Mark of a request that has no number yet.
pub const UNSENT: u32 = u32::MAX;

/// A request that nobody answers is done when it is sent, or lost.
fn unanswered_done(qp: &Arc<Qp>, inner: &mut Inner) -> Sent {
    let index = inner.next;
    inner.sq[index].done = true;
    inner.next += 1;
    inner.sent = 0;
    inner.begun = false;
    qp.retire(inner);
    modify::told_if_drained(qp, inner);
    Sent::Whole
}

/// A request that concerns this device only, once everything before it is done.
fn local(context: &Context, qp: &Arc<Qp>, inner: &mut Inner) -> Result<Sent, u32> {
    if inner.next > 0 {
        return Ok(Sent::Waits);
    }
    let wqe = &inner.sq[0];
    let (done, error) = match &wqe.bind {
        Some(bind) => (window::bind(context, qp, bind), status::IBV_WC_MW_BIND_ERR),
        None => (window::invalidate(context, qp, wqe.invalidate.unwrap_or(0)), status::IBV_WC_LOC_PROT_ERR),
    };
    if done { Ok(unanswered_done(qp, inner)) } else { Err(error) }
}

/// Local checks of a request, before anything of it is sent.
fn check(context: &Context, qp: &Qp, inner: &Inner, wqe: &SendWqe) -> Result<(), u32> {
    let len = wqe.len();
    let atomic = matches!(wqe.op, Op::CompareSwap | Op::FetchAdd);
    if len > u64::from(MAX_MSG) || atomic && len != 8 || qp.kind == Kind::Ud && len > 4096 {
        return Err(status::IBV_WC_LOC_LEN_ERR);
    }
    if wqe.is_read() && inner.attr.max_rd_atomic == 0 {
        return Err(status::IBV_WC_LOC_QP_OP_ERR);
    }
    let need = if wqe.is_read() { access::LOCAL_WRITE } else { 0 };
    let Data::Pieces(pieces) = &wqe.data else { return Ok(()) };
    let open = |s: &Sge| context.keys.span(s.lkey, qp.pd, s.addr, u64::from(s.len), need).is_some();
    if pieces.all().iter().all(open) { Ok(()) } else { Err(status::IBV_WC_LOC_PROT_ERR) }
}

fn request(context: &Context, qp: &Qp, inner: &Inner, wqe: &SendWqe) -> Header {
    let kind = match wqe.op {
        Op::Send => wire::SEND,
        Op::Write => wire::WRITE,
        Op::Read => wire::READ,
        Op::CompareSwap => wire::COMPARE_SWAP,
        Op::Flush => wire::FLUSH,
        // The last two are never sent.
        Op::FetchAdd | Op::Bind | Op::Invalidate => wire::FETCH_ADD,
    };
    let mut flags = 0;
    let mut flag = |on: bool, bit: u32| flags |= if on { bit } else { 0 };
    flag(wqe.imm.is_some(), wire::IMM);
    flag(wqe.invalidate.is_some(), wire::INVALIDATE);
    flag(wqe.solicited, wire::SOLICITED);
    flag(qp.kind == Kind::Rc, wire::RELIABLE);
    flag(qp.kind == Kind::Ud, wire::DATAGRAM);
    let gid_index = usize::from(inner.attr.ah_attr.grh.sgid_index);
    Header {
        kind,
        to: if qp.kind == Kind::Ud { wqe.to.qpn } else { inner.attr.dest_qp_num },
        from: qp.number,
        epoch: inner.epoch,
        total: wqe.len() as u32,
        addr: wqe.addr,
        key: wqe.rkey,
        imm: wqe.imm.or(wqe.invalidate).unwrap_or(0),
        a: wqe.a,
        b: wqe.b,
        flags,
        qkey: wqe.to.qkey,
        gid: context.gid(u32::from(inner.attr.port_num), if qp.kind == Kind::Ud { 1 } else { gid_index }),
        ..Header::default()
    }
}

/// Copies the bytes from offset `at` of a request's data.
fn gather(context: &Context, pd: u32, wqe: &SendWqe, at: u32, to: &mut [u8]) -> Result<(), u32> {
    let pieces = match &wqe.data {
        Data::Inline(bytes) => {
            to.copy_from_slice(&bytes[at as usize..at as usize + to.len()]);
            return Ok(());
        }
        Data::Pieces(pieces) => pieces,
    };
    super::each_piece(pieces, u64::from(at), to.len(), |sge, inside, done, n| {
        let span = context.keys.span(sge.lkey, pd, sge.addr + inside, n as u64, 0);
        let span = span.ok_or(status::IBV_WC_LOC_PROT_ERR)?;
        span.region.memory.read(span.at, &mut to[done..done + n]).map_err(|_| status::IBV_WC_LOC_PROT_ERR)
    })
}

/// Puts bytes of an answer where the request wants them.
fn scatter(context: &Context, pd: u32, wqe: &SendWqe, at: u32, from: &[u8]) -> Result<(), u32> {
    let Data::Pieces(pieces) = &wqe.data else { return Err(status::IBV_WC_LOC_PROT_ERR) };
    super::each_piece(pieces, u64::from(at), from.len(), |sge, inside, done, n| {
        let span = context.keys.span(sge.lkey, pd, sge.addr + inside, n as u64, access::LOCAL_WRITE);
        let span = span.ok_or(status::IBV_WC_LOC_PROT_ERR)?;
        span.region.memory.write(span.at, &from[done..done + n]).map_err(|_| status::IBV_WC_LOC_PROT_ERR)
    })
}

/// The request at `next` cannot be sent: told when those before it are done.
fn fail_next(qp: &Arc<Qp>, inner: &mut Inner, error: u32) {
    if inner.next == 0 {
        qp.fail_front(inner, error);
    } else {
        inner.local_error = Some(error);
        inner.wait = Wait::Lost(None);
    }
}

/// Something of this queue pair was lost: nothing more is sent until its timeout has passed.
fn lost(qp: &Qp, inner: &mut Inner, timers: &mut Timers) {
    inner.rewind(0);
    pause(qp, inner, timers);
}

fn pause(qp: &Qp, inner: &mut Inner, timers: &mut Timers) {
    let until = timeout_ns(inner.attr.timeout).map(|ns| raw::now() + ns);
    inner.wait = Wait::Lost(until);
    if let Some(until) = until {
        timers.push(Reverse((until, qp.number)));
    }
}

/// The timeout has passed: everything that has no answer is sent again.
pub fn try_again(qp: &Arc<Qp>, inner: &mut Inner) {
    inner.wait = Wait::No;
    inner.rewind(0);
    if inner.retries == 0 {
        qp.fail_front(inner, status::IBV_WC_RETRY_EXC_ERR);
    } else {
        inner.retries -= 1;
    }
}

/// A link has died: whoever waits for an answer from a place without a link will not get it.
pub fn peer_is_gone(context: &Context, links: &HashMap<Place, u64>, timers: &mut Timers) {
    for qp in context.all_qps() {
        let mut inner = qp.lock();
        let waits = inner.wait == Wait::No && (inner.next > 0 || inner.begun);
        if waits && inner.peer.is_some_and(|p| !links.contains_key(&p)) {
            lost(&qp, &mut inner, timers);
        }
    }
}

/// Takes an answer. Returns the queue pair if it may have more to send.
pub fn answered(context: &Context, h: &Header, payload: &[u8], timers: &mut Timers) -> Option<u32> {
    let qp = context.qp(h.to)?;
    let mut guard = qp.lock();
    let inner = &mut *guard;
    if inner.state != qp::IBV_QPS_RTS && inner.state != qp::IBV_QPS_SQD {
        return None;
    }
    let index = inner.sq.iter().position(|w| w.seq == h.seq && w.epoch == h.epoch && !w.done)?;
    if h.epoch != inner.epoch || index > inner.next {
        return None;
    }
    match h.kind {
        wire::ACK => inner.sq[index].done = true,
        wire::DATA | wire::VALUE => {
            let bytes = h.a.to_ne_bytes();
            let from = if h.kind == wire::VALUE { &bytes[..] } else { payload };
            if let Err(error) = scatter(context, qp.pd, &inner.sq[index], h.offset, from) {
                qp.fail_front(inner, error);
                return None;
            }
            let wqe = &mut inner.sq[index];
            wqe.received += from.len() as u32;
            wqe.done = h.kind == wire::VALUE || wqe.received >= h.total;
        }
        wire::NOT_READY => {
            not_ready(&qp, inner, index, h.imm as u8, timers);
            return None;
        }
        wire::LOST => {
            lost(&qp, inner, timers);
            return None;
        }
        _ => {
            qp.fail_front(inner, h.imm);
            return None;
        }
    }
    inner.progressed();
    qp.retire(inner);
    if let (Some(error), 0) = (inner.local_error, inner.next) {
        qp.fail_front(inner, error);
    }
    modify::told_if_drained(&qp, inner);
    Some(qp.number)
}

fn not_ready(qp: &Arc<Qp>, inner: &mut Inner, index: usize, code: u8, timers: &mut Timers) {
    if inner.rnr_retries == 0 {
        qp.fail_front(inner, status::IBV_WC_RNR_RETRY_EXC_ERR);
        return;
    }
    // 7 is without end.
    if inner.attr.rnr_retry != 7 {
        inner.rnr_retries -= 1;
    }
    inner.rewind(index);
    let until = raw::now() + not_ready_ns(code);
    inner.wait = Wait::NotReady(until);
    timers.push(Reverse((until, qp.number)));
}
