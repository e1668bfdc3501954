//! Queue pairs: what both sides of the engine and the verbs work on.

use crate::cq::{Cq, Entry, Places, Unacked, Wc};
use crate::events::{EventQueue, lock};
use crate::link::Place;
use crate::wqe::{RecvQueue, RecvWqe, SendWqe};
use ibverbs_sys as sys;
use ibverbs_sys::ibv_wc_status as status;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

pub use ibverbs_sys::ibv_qp_state::*;

/// Transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// What an asynchronous event is about.
#[derive(Clone)]
pub enum Element {
    /// A completion queue.
    Cq(Arc<Cq>),
    /// A queue pair.
    Qp(Arc<Qp>),
    /// A shared receive queue.
    Srq(Arc<RecvQueue>),
    /// A port, from 1.
    Port(u32),
    /// The device.
    Device,
}

/// An asynchronous event.
#[derive(Clone)]
pub struct Event {
    /// IBV_EVENT_*.
    pub kind: u32,
    /// What it is about.
    pub element: Element,
}

/// Why a send queue stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// It does not.
    No,
    /// A message was lost; sent again at that time, if ever.
    Lost(Option<u64>),
    /// The receiver was not ready; tried again at that time.
    NotReady(u64),
}

/// What changes in a queue pair.
pub struct Inner {
    /// IBV_QPS_*.
    pub state: u32,
    /// Attributes as set.
    pub attr: sys::ibv_qp_attr,
    /// Where the peer of a connection is; `None` when its address is nobody's.
    pub peer: Option<Place>,
    /// Requests that have not completed, oldest first.
    pub sq: VecDeque<SendWqe>,
    /// Index of the first that has not been sent whole.
    pub next: usize,
    /// Bytes of it that have been sent.
    pub sent: u32,
    /// Whether anything of it, be it no bytes, has been sent.
    pub begun: bool,
    /// Number of the next new message.
    pub next_seq: u32,
    /// Starts so far.
    pub epoch: u32,
    /// Why it stands still.
    pub wait: Wait,
    /// Retries left after losses.
    pub retries: u8,
    /// Retries left after "receiver not ready".
    pub rnr_retries: u8,
    /// Completed requests without a completion of their own.
    pub silent: u32,
    /// Error found when the request at `next` was to be sent: told when those before it are done.
    pub local_error: Option<u32>,
    /// Message expected next.
    pub expected: u32,
    /// Bytes of it that have come.
    pub offset: u32,
    /// Request that the current message fills.
    pub filling: Option<RecvWqe>,
    /// Answers to the last atomics, for when they are asked again.
    pub replay: VecDeque<(u32, u64)>,
    /// Message that is being dropped, of an unreliable connection.
    pub dropping: bool,
}

/// A queue pair.
pub struct Qp {
    /// Its number.
    pub number: u32,
    /// Its transport.
    pub kind: Kind,
    /// Protection domain.
    pub pd: u32,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Its own receive queue or a shared one.
    pub recv: Arc<RecvQueue>,
    /// What was asked for at its creation.
    pub caps: sys::ibv_qp_cap,
    /// Whether every send completes with a completion.
    pub signal_all: bool,
    /// Places of the send queue in use.
    pub places: Places,
    /// Queue for asynchronous events.
    pub events: Arc<EventQueue<Event>>,
    /// The program's pointer.
    pub user: AtomicUsize,
    /// Asynchronous events not acknowledged.
    pub async_events: Unacked,
    /// What it has to flush is lost.
    pub mute: AtomicBool,
    inner: Mutex<Inner>,
}

/// What a new queue pair is made of.
pub struct Parts {
    /// See [`Qp`].
    pub number: u32,
    /// See [`Qp`].
    pub kind: Kind,
    /// See [`Qp`].
    pub pd: u32,
    /// See [`Qp`].
    pub send_cq: Arc<Cq>,
    /// See [`Qp`].
    pub recv_cq: Arc<Cq>,
    /// See [`Qp`].
    pub recv: Arc<RecvQueue>,
    /// See [`Qp`].
    pub caps: sys::ibv_qp_cap,
    /// See [`Qp`].
    pub signal_all: bool,
    /// See [`Qp`].
    pub events: Arc<EventQueue<Event>>,
}

impl Inner {
    fn new() -> Inner {
        Inner {
            state: IBV_QPS_RESET,
            attr: sys::ibv_qp_attr::default(),
            peer: None,
            sq: VecDeque::new(),
            next: 0,
            sent: 0,
            begun: false,
            next_seq: 0,
            epoch: 0,
            wait: Wait::No,
            retries: 0,
            rnr_retries: 0,
            silent: 0,
            local_error: None,
            expected: 0,
            offset: 0,
            filling: None,
            replay: VecDeque::new(),
            dropping: false,
        }
    }

    /// READs and atomics under way.
    pub fn reads(&self) -> usize {
        self.sq.iter().take(self.next).filter(|w| w.is_read() && !w.done).count()
    }

    /// Sends everything from `index` on anew, some time.
    pub fn rewind(&mut self, index: usize) {
        self.next = index;
        self.sent = 0;
        self.begun = false;
        self.local_error = None;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Retries start from their full numbers: something went through.
    pub fn progressed(&mut self) {
        self.retries = self.attr.retry_cnt;
        self.rnr_retries = self.attr.rnr_retry;
    }
}

impl Qp {
    /// A queue pair in state RESET.
    pub fn new(p: Parts) -> Arc<Qp> {
        let Parts { number, kind, pd, send_cq, recv_cq, recv, caps, signal_all, events } = p;
        send_cq.users.fetch_add(1, Ordering::Relaxed);
        recv_cq.users.fetch_add(1, Ordering::Relaxed);
        recv.users.fetch_add(1, Ordering::Relaxed);
        Arc::new(Qp {
            number,
            kind,
            pd,
            send_cq,
            recv_cq,
            recv,
            caps,
            signal_all,
            places: Places::default(),
            events,
            user: AtomicUsize::new(0),
            async_events: Unacked::default(),
            mute: AtomicBool::new(false),
            inner: Mutex::new(Inner::new()),
        })
    }

    /// What changes, locked. Locks of receive and completion queues may be taken under it.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Tells the program something about this queue pair.
    pub fn tell(self: &Arc<Self>, kind: u32) {
        self.events.push(Event { kind, element: Element::Qp(self.clone()) });
    }

    fn push(self: &Arc<Self>, inner: &mut Inner, cq: &Arc<Cq>, entry: Entry) {
        if !cq.push(entry) {
            self.events.push(Event { kind: sys::IBV_EVENT_CQ_ERR, element: Element::Cq(cq.clone()) });
            self.fail(inner, Some(sys::IBV_EVENT_QP_FATAL));
        }
    }

    /// Completes a send request that has left the queue.
    pub fn complete_send(self: &Arc<Self>, inner: &mut Inner, wqe: &SendWqe, status: u32) {
        inner.silent += 1;
        if status == status::IBV_WC_SUCCESS && !wqe.signaled {
            return;
        }
        let wc = Wc {
            wr_id: wqe.wr_id,
            status,
            opcode: wqe.wc_opcode,
            byte_len: wqe.received,
            qp_num: self.number,
            ..Wc::default()
        };
        let retires = std::mem::take(&mut inner.silent);
        let entry = Entry { wc, solicited: false, places: self.places.clone(), retires };
        self.push(inner, &self.send_cq, entry);
    }

    /// Completes a receive request; `wc` says what of it is particular.
    pub fn complete_recv(self: &Arc<Self>, inner: &mut Inner, wc: Wc, solicited: bool) {
        let wc = Wc { qp_num: self.number, ..wc };
        let entry = Entry { wc, solicited, places: self.recv.places.clone(), retires: 1 };
        self.push(inner, &self.recv_cq, entry);
    }

    /// Completes what is done at the head of the send queue.
    pub fn retire(self: &Arc<Self>, inner: &mut Inner) {
        while inner.sq.front().is_some_and(|w| w.done) {
            let Some(wqe) = inner.sq.pop_front() else { return };
            inner.next -= 1;
            self.complete_send(inner, &wqe, status::IBV_WC_SUCCESS);
        }
    }

    /// Completes the oldest send request with an error and stops the queue pair.
    pub fn fail_front(self: &Arc<Self>, inner: &mut Inner, status: u32) {
        if let Some(wqe) = inner.sq.pop_front() {
            self.complete_send(inner, &SendWqe { received: 0, ..wqe }, status);
        }
        self.fail(inner, None);
    }

    /// To state ERR: everything that waits is flushed.
    pub fn fail(self: &Arc<Self>, inner: &mut Inner, event: Option<u32>) {
        if inner.state == IBV_QPS_ERR || inner.state == IBV_QPS_RESET {
            return;
        }
        inner.state = IBV_QPS_ERR;
        inner.wait = Wait::No;
        inner.rewind(0);
        if let Some(event) = event {
            self.tell(event);
        }
        self.flush(inner);
        if self.recv.shared {
            self.tell(sys::IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    /// Flushes both queues of a queue pair in state ERR.
    pub fn flush(self: &Arc<Self>, inner: &mut Inner) {
        if self.mute.load(Ordering::Relaxed) {
            inner.sq.clear();
        }
        while let Some(wqe) = inner.sq.pop_front() {
            self.complete_send(inner, &SendWqe { received: 0, ..wqe }, status::IBV_WC_WR_FLUSH_ERR);
        }
        let mut recv = inner.filling.take();
        loop {
            if recv.is_none() && !self.recv.shared {
                recv = self.recv.take().0;
            }
            let Some(wqe) = recv.take() else { break };
            let opcode = sys::ibv_wc_opcode::IBV_WC_RECV;
            let wc = Wc { wr_id: wqe.wr_id, status: status::IBV_WC_WR_FLUSH_ERR, opcode, ..Wc::default() };
            self.complete_recv(inner, wc, false);
        }
    }

    /// To state RESET: everything is forgotten, completions too.
    pub fn reset(&self, inner: &mut Inner) {
        let gone = inner.sq.len() as u32 + inner.silent;
        self.places.fetch_sub(gone, Ordering::Relaxed);
        if inner.filling.is_some() {
            self.recv.places.fetch_sub(1, Ordering::Relaxed);
        }
        if !self.recv.shared {
            self.recv.clear();
        }
        *inner = Inner { epoch: inner.epoch.wrapping_add(1), ..Inner::new() };
        self.send_cq.forget(self.number);
        self.recv_cq.forget(self.number);
    }
}

impl Qp {
    /// It is destroyed: what it uses may be destroyed too.
    pub fn release(&self) {
        self.send_cq.users.fetch_sub(1, Ordering::Relaxed);
        self.recv_cq.users.fetch_sub(1, Ordering::Relaxed);
        self.recv.users.fetch_sub(1, Ordering::Relaxed);
    }
}
