//! Reliable queue pairs and completion queues.

use super::device::{Device, number};
use super::domain::Domain;
use super::extended::{self, Flush};
use super::port::Port;
use super::words::{self, Call, Outcome};
use crate::base::{Error, Result, Status};
use crate::link::mgmt::message::Endpoint;
use crate::sys::errno::around;
use crate::sys::{Errno, mem, process};
use ibverbs_sys as ib;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// 4.096 us * 2^16 = 0.27 s for one try.
const TIMEOUT: u8 = 16;
/// Tries after the first. Not 7: some devices take that for "without end". In all 1.9 s, or up to four times that on devices that round up.
pub(super) const RETRIES: u8 = 6;
/// Pause before a request that found no receiver is repeated: 0.64 ms. None of ours needs a receiver.
const RNR_TIMER: u8 = 12;
/// Routers that packets may pass.
const HOPS: u8 = 64;
/// READs and atomics at a time that are worth having.
const MOST_READS: u8 = 16;
/// Most completions taken at a time.
const POLL: usize = 16;

/// The end of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// What the request was named.
    pub id: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// A completion queue.
#[derive(Debug)]
pub struct Completions {
    device: Arc<Device>,
    cq: NonNull<ib::ibv_cq>,
    poll: unsafe extern "C" fn(*mut ib::ibv_cq, i32, *mut ib::ibv_wc) -> i32,
}

// SAFETY: drivers lock a completion queue for themselves.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

fn failed(device: &Device, what: &str, call: Call, e: Errno) -> Error {
    let attempt = format!("{what} on {}", device.name());
    Error::new(words::status(e), attempt, words::why(call, e, mem::lock_limit()))
}

impl Completions {
    /// A queue for `depth` completions: as many as there can be requests that have not ended, for each may end with an error.
    pub fn new(device: &Arc<Device>, depth: u32) -> Result<Arc<Completions>> {
        let fail = |e| failed(device, "make a completion queue", Call::Other, e);
        device.at_hand().map_err(fail)?;
        let depth = depth.min(device.caps().completions) as i32;
        // SAFETY: an open context; no channel, no context pointer.
        let make =
            || unsafe { (device.lib.create_cq)(device.ctx(), depth, std::ptr::null_mut(), std::ptr::null_mut(), 0) };
        let (cq, e) = around(make);
        let cq = NonNull::new(cq).ok_or_else(|| fail(e))?;
        // SAFETY: an open context; its table of operations never changes.
        let poll = unsafe { (*device.ctx()).ops.poll_cq };
        Ok(Arc::new(Completions { device: device.clone(), cq, poll: poll.unwrap_or(no_poll) }))
    }

    /// Takes what has come, at most 16, and hands each to `take`; answers how many. An error means that the device has gone. Async-signal-safe
    /// if `take` is.
    pub fn poll(&self, mut take: impl FnMut(Completion)) -> std::result::Result<usize, Errno> {
        let mut all = [const { MaybeUninit::<ib::ibv_wc>::uninit() }; POLL];
        // SAFETY: a live queue, and room for so many.
        let (n, _) = around(|| unsafe { (self.poll)(self.cq.as_ptr(), POLL as i32, all.as_mut_ptr().cast()) });
        let n = usize::try_from(n).map_err(|_| Errno::IO)?;
        for wc in all.iter().take(n) {
            // SAFETY: the driver has filled in the first `n`: of a failed request its name, status and queue pair.
            let wc = unsafe { &*wc.as_ptr() };
            let outcome = Outcome(wc.error().map_or(0, |(status, _)| status));
            take(Completion { id: wc.wr_id(), outcome });
        }
        Ok(n)
    }
}

unsafe extern "C" fn no_poll(_: *mut ib::ibv_cq, _: i32, _: *mut ib::ibv_wc) -> i32 {
    -1
}

impl Drop for Completions {
    fn drop(&mut self) {
        let _ = self.device.at_hand();
        // SAFETY: every queue pair that uses it holds it, so those are gone.
        around(|| unsafe { (self.device.lib.destroy_cq)(self.cq.as_ptr()) });
    }
}

/// What a queue pair can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth {
    /// Requests that have not ended.
    pub requests: u32,
    /// Bytes of a WRITE whose source is copied when it is posted.
    pub inline: u32,
}

/// A reliable connected queue pair of one port. Its life: [`QueuePair::new`] (INIT), [`QueuePair::connect`] (RTS), [`QueuePair::fail`]
/// (ERR: everything that has not ended completes with an error), drop.
#[derive(Debug)]
pub struct QueuePair {
    domain: Arc<Domain>,
    qp: NonNull<ib::ibv_qp>,
    post: unsafe extern "C" fn(*mut ib::ibv_qp, *mut ib::ibv_send_wr, *mut *mut ib::ibv_send_wr) -> i32,
    flush: Option<Flush>,
    port: Port,
    number: u32,
    psn: u32,
    depth: Depth,
    // Goes after the queue pair.
    _completions: Arc<Completions>,
}

// SAFETY: drivers lock a queue pair for themselves.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A queue pair in INIT. `remote`: the other side may READ, WRITE and perform atomics, each as far as the memory's registration lets it.
    /// `depth` is a wish; [`QueuePair::depth`] tells what it became.
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        port: &Port,
        depth: Depth,
        remote: bool,
    ) -> Result<QueuePair> {
        let pair = QueuePair::fresh(domain, completions, port, depth)?;
        pair.init(remote).map_err(|e| failed(domain.device(), "make a queue pair", Call::Init, e))?;
        Ok(pair)
    }

    /// A queue pair in RESET, to be brought up by `apply`.
    pub fn fresh(domain: &Arc<Domain>, completions: &Arc<Completions>, port: &Port, depth: Depth) -> Result<QueuePair> {
        let device = domain.device();
        let fail = |call, e| failed(device, "make a queue pair", call, e);
        device.at_hand().map_err(|e| fail(Call::Other, e))?;
        let (qp, depth) = create(domain, completions, depth).map_err(|e| fail(Call::CreatePair, e))?;
        // SAFETY: a live queue pair; the answer is null where it was not created for that.
        let flush = device.caps().flush.then(|| unsafe { (device.lib.qp_to_qp_ex)(qp.as_ptr()) });
        // SAFETY: as above.
        let flush = flush.and_then(|qp| unsafe { Flush::of(qp) });
        // SAFETY: a live queue pair; its number never changes.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        // SAFETY: an open context; its table of operations never changes.
        let post = unsafe { (*device.ctx()).ops.post_send };
        let psn = process::random() as u32 & 0xff_ffff;
        Ok(QueuePair {
            domain: domain.clone(),
            qp,
            post: post.unwrap_or(no_post),
            flush,
            port: *port,
            number,
            psn,
            depth,
            _completions: completions.clone(),
        })
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// What it can hold.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// What the other side may do, as far as the memory's registration lets it.
    pub(super) fn remote_rights(&self) -> u32 {
        use ib::ibv_access_flags as f;
        let flush = if self.domain.device().caps().flush { f::IBV_ACCESS_FLUSH_GLOBAL.0 } else { 0 };
        f::IBV_ACCESS_REMOTE_READ.0 | f::IBV_ACCESS_REMOTE_WRITE.0 | f::IBV_ACCESS_REMOTE_ATOMIC.0 | flush
    }

    /// True when it can post a FLUSH.
    pub fn flushes(&self) -> bool {
        self.flush.is_some()
    }

    /// Posts a FLUSH of the registration of `rkey` that lies at `addr`: its completion, named `id`, says that the writes before it are
    /// visible to everyone there. Async-signal-safe, after [`Device::at_hand`] in this thread. `NOSYS` where [`QueuePair::flushes`]
    /// is false. Not beside another post to this queue pair.
    pub(super) fn post_flush(&self, id: u64, addr: u64, rkey: u32) -> std::result::Result<(), Errno> {
        // SAFETY: a live queue pair; callers post to it one at a time.
        self.flush.as_ref().map_or(Err(Errno::NOSYS), |f| unsafe { f.post(id, addr, rkey) })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// READs and atomics at a time: those it answers, and those it asks.
    pub(super) fn at_a_time(&self) -> (u8, u8) {
        let caps = self.domain.device().caps();
        (caps.answers.min(MOST_READS), caps.asks.min(MOST_READS))
    }

    /// Brings it to the next state by attributes that somebody else has chosen. Errors as of [`QueuePair::connect`].
    pub(super) fn apply(&self, attr: &mut ib::ibv_qp_attr, mask: u32) -> Result<()> {
        let call = match attr.qp_state {
            ib::ibv_qp_state::IBV_QPS_INIT => Call::Init,
            ib::ibv_qp_state::IBV_QPS_RTR => Call::Receive,
            _ => Call::Send,
        };
        self.modify(attr, mask).map_err(|e| failed(self.domain.device(), "connect a queue pair", call, e))
    }

    /// This side, as the other must know it.
    pub fn endpoint(&self) -> Endpoint {
        let reads = self.domain.device().caps().answers.min(MOST_READS);
        self.port.endpoint(self.number, self.psn, reads)
    }

    fn modify(&self, attr: &mut ib::ibv_qp_attr, mask: u32) -> std::result::Result<(), Errno> {
        let device = self.domain.device();
        device.at_hand()?;
        // SAFETY: a live queue pair and an attribute in which everything the mask names is filled in.
        number(around(|| unsafe { (device.lib.modify_qp)(self.qp.as_ptr(), attr, mask as i32) }))
    }

    fn init(&self, remote: bool) -> std::result::Result<(), Errno> {
        use ib::ibv_qp_attr_mask as m;
        let mut attr = blank(ib::ibv_qp_state::IBV_QPS_INIT);
        attr.port_num = self.port.number;
        if remote {
            attr.qp_access_flags = self.remote_rights();
        }
        let mask = m::IBV_QP_STATE.0 | m::IBV_QP_PKEY_INDEX.0 | m::IBV_QP_PORT.0 | m::IBV_QP_ACCESS_FLAGS.0;
        self.modify(&mut attr, mask)
    }

    /// Connects it to the other side's and makes it ready to send: both take the smaller MTU and number of READs. `LINK_DOWN`,
    /// `SYSTEM` with the cause in words, `PROTOCOL` for an address that is none.
    pub fn connect(&self, other: &Endpoint) -> Result<()> {
        let device = self.domain.device();
        let fail = |call, e| failed(device, &format!("connect a queue pair of port {}", self.port.number), call, e);
        if !(1..=5).contains(&other.mtu) || other.qpn > 0xff_ffff || other.psn > 0xff_ffff {
            return Err(Error::of(Status::PROTOCOL, "connect a queue pair"));
        }
        self.receive(other).map_err(|e| fail(Call::Receive, e))?;
        self.send(other).map_err(|e| fail(Call::Send, e))
    }

    fn receive(&self, other: &Endpoint) -> std::result::Result<(), Errno> {
        use ib::ibv_qp_attr_mask as m;
        let mut attr = blank(ib::ibv_qp_state::IBV_QPS_RTR);
        attr.path_mtu = u32::from(other.mtu.min(self.port.mtu));
        attr.dest_qp_num = other.qpn;
        attr.rq_psn = other.psn;
        attr.max_dest_rd_atomic = self.domain.device().caps().answers.min(MOST_READS);
        attr.min_rnr_timer = RNR_TIMER;
        attr.ah_attr.port_num = self.port.number;
        let subnet = |gid: &[u8; 16]| gid.first_chunk::<8>().copied();
        let infiniband = self.port.lid != 0 && other.lid != 0;
        // Inside an InfiniBand subnet the LID is enough.
        if infiniband && subnet(&self.port.gid) == subnet(&other.gid) {
            attr.ah_attr.dlid = other.lid;
        } else {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.dlid = other.lid;
            attr.ah_attr.grh.dgid = ib::ibv_gid { raw: other.gid };
            attr.ah_attr.grh.sgid_index = self.port.gid_index;
            attr.ah_attr.grh.hop_limit = HOPS;
        }
        let mask = m::IBV_QP_STATE.0
            | m::IBV_QP_AV.0
            | m::IBV_QP_PATH_MTU.0
            | m::IBV_QP_DEST_QPN.0
            | m::IBV_QP_RQ_PSN.0
            | m::IBV_QP_MAX_DEST_RD_ATOMIC.0
            | m::IBV_QP_MIN_RNR_TIMER.0;
        self.modify(&mut attr, mask)
    }

    fn send(&self, other: &Endpoint) -> std::result::Result<(), Errno> {
        use ib::ibv_qp_attr_mask as m;
        let mut attr = blank(ib::ibv_qp_state::IBV_QPS_RTS);
        attr.sq_psn = self.psn;
        attr.max_rd_atomic = self.domain.device().caps().asks.min(MOST_READS).min(other.reads);
        attr.timeout = TIMEOUT;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RETRIES;
        let mask = m::IBV_QP_STATE.0
            | m::IBV_QP_SQ_PSN.0
            | m::IBV_QP_MAX_QP_RD_ATOMIC.0
            | m::IBV_QP_TIMEOUT.0
            | m::IBV_QP_RETRY_CNT.0
            | m::IBV_QP_RNR_RETRY.0;
        self.modify(&mut attr, mask)
    }

    /// Puts an end to it: what has not ended completes with an error, and nothing new is taken. A device that has gone has done so already.
    pub fn fail(&self) {
        let mut attr = blank(ib::ibv_qp_state::IBV_QPS_ERR);
        let _ = self.modify(&mut attr, ib::ibv_qp_attr_mask::IBV_QP_STATE.0);
    }

    /// Hands a list of requests to the device with one doorbell. Async-signal-safe, after [`Device::at_hand`] in this thread.
    /// On an error the requests before `*bad` were taken all the same.
    ///
    /// # Safety
    /// `first` is a list of valid requests for memory that stays registered until they have ended.
    pub(super) unsafe fn post(
        &self,
        first: *mut ib::ibv_send_wr,
        bad: &mut *mut ib::ibv_send_wr,
    ) -> std::result::Result<(), Errno> {
        // SAFETY: a live queue pair; the caller vouches for the requests.
        number(around(|| unsafe { (self.post)(self.qp.as_ptr(), first, bad) }))
    }
}

fn create(
    domain: &Domain,
    completions: &Completions,
    depth: Depth,
) -> std::result::Result<(NonNull<ib::ibv_qp>, Depth), Errno> {
    let device = domain.device();
    let requests = depth.requests.min(device.caps().depth);
    let mut last = Errno::INVAL;
    // What a device can take inline it does not tell but by refusing.
    for inline in [depth.inline, depth.inline / 2, depth.inline / 4, 0] {
        let cap = ib::ibv_qp_cap {
            max_send_wr: requests,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        let cq = completions.cq.as_ptr();
        let mut init = ib::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: std::ptr::null_mut(),
            cap,
            qp_type: ib::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: an open context, a live domain and completion queue of it, and complete attributes.
        let flushing = || unsafe { extended::create(device.ctx(), domain.pd(), &mut init) };
        if let Some(qp) = device.caps().flush.then(flushing).flatten() {
            return Ok((qp, Depth { requests, inline: init.cap.max_inline_data }));
        }
        // SAFETY: as above.
        let (qp, e) = around(|| unsafe { (device.lib.create_qp)(domain.pd(), &raw mut init) });
        match NonNull::new(qp) {
            Some(qp) => return Ok((qp, Depth { requests, inline: init.cap.max_inline_data })),
            None if e == Errno::INVAL && inline > 0 => last = e,
            None => return Err(if e.0 == 0 { Errno::IO } else { e }),
        }
    }
    Err(last)
}

unsafe extern "C" fn no_post(_: *mut ib::ibv_qp, _: *mut ib::ibv_send_wr, _: *mut *mut ib::ibv_send_wr) -> i32 {
    Errno::NOSYS.0
}

/// Attributes in which only the state is filled in.
fn blank(state: u32) -> ib::ibv_qp_attr {
    // SAFETY: numbers and bytes only; zero is a value of each.
    let mut attr = unsafe { MaybeUninit::<ib::ibv_qp_attr>::zeroed().assume_init() };
    attr.qp_state = state;
    attr
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let device = self.domain.device();
        let _ = device.at_hand();
        // SAFETY: made by `new`; nothing else holds it.
        around(|| unsafe { (device.lib.destroy_qp)(self.qp.as_ptr()) });
    }
}
