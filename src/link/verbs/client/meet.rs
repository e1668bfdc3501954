//! A region's queue pairs, connected by the kernel's connection manager: see [`cm`].

use super::super::cm::{bring_up, failed, open, request, terms};
use super::super::{Completions, Depth, Port, QueuePair, cm};
use super::lane::DEPTH;
use super::rig::Rig;
use super::talk::INLINE;
use crate::base::{Error, Result, Status};
use crate::link::mgmt::message::TOKEN;
use crate::sys::Errno;
use crate::sys::clock::Deadline;
use crate::sys::poll::{PollFd, poll};
use crate::sys::rdma_cm::{ConnectionManager, Event, Id, What};
use ibverbs_sys::ibv_qp_state as to;
use std::net::SocketAddr;
use std::sync::Arc;

/// Longest search for an address or a way.
const SEARCH_MS: u64 = 2000;
/// Queue pairs tried for a lane: the other side may not have forgotten an earlier one of the same number.
const TRIES: usize = 4;
/// Reason of a rejection: the number of the queue pair is that of an earlier one.
const STALE: i32 = 10;
/// Reason of a rejection: nobody listens there.
const NO_SERVICE: i32 = 8;

/// Where to, and with what.
pub(super) struct Invitation {
    pub to: SocketAddr,
    pub token: [u8; TOKEN],
}

/// Queue pairs that are connected, with their completion queues.
pub(super) type Made = Vec<(Arc<Completions>, QueuePair)>;

/// What the connection manager holds of a region. One thread's; it ends with the connections.
pub(super) struct Met {
    manager: ConnectionManager,
    ids: Vec<Id>,
}

impl Met {
    /// Nothing yet. Errors: [`cm::open`].
    pub fn new() -> Result<Met> {
        open().map(|manager| Met { manager, ids: Vec::new() })
    }

    /// Connects so many lanes, all by the first port of the device.
    pub fn meet(&mut self, rig: &Rig, lanes: usize, way: &Invitation, deadline: Deadline) -> Result<Made> {
        let port = rig.choice.ports.first().ok_or_else(|| Error::of(Status::INTERNAL, "connect"))?;
        // Nothing is to be sent for the connection manager on a port without a link: see `cm`.
        if !port.is_active(&rig.choice.device) {
            let why = format!("port {} of {} has no link", port.number, rig.choice.device.name());
            return Err(Error::new(Status::LINK_DOWN, format!("connect to {}", way.to), why));
        }
        (0..lanes).map(|lane| self.lane(rig, port, lane as u8, way, deadline)).collect()
    }

    fn lane(
        &mut self,
        rig: &Rig,
        port: &Port,
        lane: u8,
        way: &Invitation,
        deadline: Deadline,
    ) -> Result<(Arc<Completions>, QueuePair)> {
        let mut stale = Vec::new();
        loop {
            let cq = Completions::new(&rig.choice.device, DEPTH)?;
            let pair = QueuePair::fresh(&rig.domain, &cq, port, Depth { requests: DEPTH, inline: INLINE })?;
            let id = self.manager.create(u64::from(lane) + 1).map_err(|e| failed("connect a queue pair", e))?;
            self.ids.push(id);
            match self.pair(rig, id, &pair, port, lane, way, deadline) {
                Err(Stop::Stale) if stale.len() + 1 < TRIES => {
                    self.ids.pop();
                    let _ = self.manager.destroy(id);
                    // Kept, so that the next one has another number.
                    stale.push(pair);
                }
                Err(Stop::Stale) => return Err(failed(format!("connect to {}", way.to), Errno(16))),
                Err(Stop::For(e)) => return Err(e),
                Ok(()) => return Ok((cq, pair)),
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "they are one step's, and have no other use together")]
    fn pair(
        &self,
        rig: &Rig,
        id: Id,
        pair: &QueuePair,
        port: &Port,
        lane: u8,
        way: &Invitation,
        deadline: Deadline,
    ) -> std::result::Result<(), Stop> {
        let (m, uid, attempt) = (&self.manager, u64::from(lane) + 1, || format!("connect to {}", way.to));
        let sent = |r: std::result::Result<(), Errno>| r.map_err(|e| Stop::For(failed(attempt(), e)));
        let ms = |deadline: Deadline| (deadline.left_ns() / 1_000_000).clamp(1, SEARCH_MS) as u32;
        let from = cm::address(port.gid, port.lid).map(|ip| SocketAddr::new(ip, 0));
        sent(m.resolve_address(id, from.as_ref().filter(|f| f.is_ipv4() == way.to.is_ipv4()), &way.to, ms(deadline)))?;
        self.wait(uid, What::AddressResolved, way, deadline)?;
        self.check(rig, id, way)?;
        sent(m.resolve_route(id, ms(deadline)))?;
        self.wait(uid, What::RouteResolved, way, deadline)?;
        bring_up(m, id, pair, to::IBV_QPS_INIT, |_, _| ())?;
        let (_, asks) = pair.at_a_time();
        sent(m.connect(id, &terms(pair, 1, asks, &request(&way.token, lane))))?;
        if self.wait(uid, What::Response, way, deadline)?.what == What::Established {
            // The device has brought the queue pair up by itself.
            return Ok(());
        }
        bring_up(m, id, pair, to::IBV_QPS_RTR, |attr, _| attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(1))?;
        bring_up(m, id, pair, to::IBV_QPS_RTS, |attr, _| attr.max_rd_atomic = attr.max_rd_atomic.min(asks))?;
        sent(m.establish(id, uid))
    }

    /// The manager must have come to the device that our memory is registered with.
    fn check(&self, rig: &Rig, id: Id, way: &Invitation) -> Result<()> {
        let place = self.manager.place(id).map_err(|e| failed(format!("connect to {}", way.to), e))?;
        if place.device == rig.choice.device.guid() {
            return Ok(());
        }
        let guid = u64::from_be(place.device);
        let (port, ours) = (place.port, rig.choice.device.name());
        let why =
            format!("the way there leaves by port {port} of the device with node GUID {guid:016x}, not by {ours}");
        let e = Error::new(Status::NOT_SUPPORTED, format!("connect to {}", way.to), why);
        Err(e.remedy("find its name with `ibv_devices`, and set LIBSMC_DEVICE=NAME:PORT"))
    }

    /// The next event of a lane, which is to be `want` (or the one that comes after a response).
    fn wait(&self, uid: u64, want: What, way: &Invitation, deadline: Deadline) -> std::result::Result<Event, Stop> {
        let attempt = || format!("connect to {}", way.to);
        loop {
            match self.manager.event().map_err(|e| failed(attempt(), e))? {
                Some(e) if e.what == What::Other || (e.uid != uid && !ends(e.what)) => {}
                // A lane that was connected just now: the other side does not want any more.
                Some(e) if e.uid != uid => return Err(refused(attempt(), &e).into()),
                Some(e) if e.what == want || (want, e.what) == (What::Response, What::Established) => return Ok(e),
                Some(e) if e.what == What::Rejected && e.status == STALE => return Err(Stop::Stale),
                Some(e) => return Err(refused(attempt(), &e).into()),
                None if deadline.passed() => return Err(Error::of(Status::TIMED_OUT, attempt()).into()),
                None => {
                    let ms = deadline.left_ns().div_ceil(1_000_000).min(1000);
                    let _ = poll(&mut [self.manager.watch()], ms);
                }
            }
        }
    }

    /// What to poll for.
    pub fn watch(&self) -> PollFd {
        self.manager.watch()
    }

    /// Reads what has come; hands the number of each lane that is connected no longer to `lost`.
    pub fn hear(&self, mut lost: impl FnMut(usize)) {
        loop {
            match self.manager.event() {
                Ok(None) => return,
                Ok(Some(e)) if ends(e.what) => lost(e.uid.saturating_sub(1) as usize),
                Ok(Some(_)) => {}
                // Nothing will be heard any more; the lanes work as they are.
                Err(_) => return,
            }
        }
    }
}

impl Drop for Met {
    fn drop(&mut self) {
        // In order where that is possible; the end of the file ends the rest.
        for id in self.ids.drain(..) {
            let _ = self.manager.disconnect(id);
            let _ = self.manager.destroy(id);
        }
    }
}

/// Why a queue pair was not connected.
enum Stop {
    /// Its number is that of an earlier one.
    Stale,
    /// This.
    For(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::For(e)
    }
}

fn ends(what: What) -> bool {
    matches!(what, What::Disconnected | What::DeviceGone | What::Failed | What::Rejected)
}

fn refused(attempt: String, e: &Event) -> Error {
    match (e.what, e.status) {
        (What::Rejected, NO_SERVICE) => Error::new(Status::LINK_DOWN, attempt, "nobody expects queue pairs there"),
        (What::Rejected, n) => {
            let why =
                format!("rejected (reason {n}): it was not expected any more, or the exporter could not make its own");
            Error::new(Status::LINK_DOWN, attempt, why)
        }
        (What::Failed, n) if n != 0 => failed(attempt, Errno(n.saturating_abs())),
        (What::DeviceGone, _) => Error::new(Status::LINK_DOWN, attempt, "the device has gone"),
        _ => Error::new(Status::LINK_DOWN, attempt, "the other side has ended it"),
    }
}
