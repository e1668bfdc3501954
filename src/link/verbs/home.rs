//! The exporter's half of a connection: what one client can reach of one region, and nothing else.
//!
//! Each client has a protection domain of its own for each region, one registration of the region's memory in it, and the queue pairs of his last `Connect`.
//! So his key is good on his queue pairs only, and can be taken from him alone.
//!
//! # Taking it away
//! The registration goes first, in [`Grant::cut`]: from there on the device answers every operation of the client with an access error, and
//! reaches no byte of the memory, whatever the client does. The queue pairs stay for as long as the client's connection, so that
//! he gets that answer at once, and not silence until his retries are used up.

use super::cm::{bring_up, failed, terms};
use super::reception::{Request, Seat};
use super::{Choice, Completions, Depth, Device, Domain, Port, QueuePair, Registered, Rights, Table, choose};
use crate::base::config::DeviceWish;
use crate::base::{Error, Result, Status};
use crate::link::Access;
use crate::link::mgmt::Message;
use crate::link::mgmt::message::Endpoint;
use crate::sys::rdma_cm::Id;
use std::net::IpAddr;
use std::sync::Arc;

/// One client's access to one region. Its calls and its drop belong to the thread that opened the device, and block for as long as the device
/// takes: a registration about a millisecond per 4 MiB that was never touched.
#[derive(Debug)]
pub struct Grant {
    /// Gone when the access has been cut.
    home: Option<Registered>,
    lanes: Vec<Lane>,
    /// Ids of queue pairs that are gone. They end when others have come: see [`cm`](super::cm).
    former: Vec<Seat>,
    // What is above holds it.
    domain: Arc<Domain>,
}

/// A queue pair, and by which id it came if by any.
#[derive(Debug)]
struct Lane {
    pair: QueuePair,
    // After the queue pair: the client hears of the end when nothing of his is answered any more.
    came: Option<Seat>,
}

/// Nothing of ours is ever sent on it: all requests are the client's.
const IDLE: Depth = Depth { requests: 1, inline: 0 };

impl Grant {
    /// Registers `[base, base + len)` for a client that may do what `access` says. Errors: [`Domain::new`], [`Domain::register`].
    ///
    /// # Safety
    /// The memory stays mapped to the same pages until the grant is dropped, and may be read, and changed if `access` says so, at
    /// any moment.
    pub unsafe fn new(device: &Arc<Device>, base: *mut u8, len: usize, access: Access) -> Result<Grant> {
        let domain = Domain::new(device)?;
        let rights = match access {
            Access::ReadOnly => Rights::Read,
            Access::ReadWrite => Rights::Write,
        };
        // SAFETY: passed on to the caller.
        let home = unsafe { domain.register(base, len, rights) }?;
        Ok(Grant { home: Some(home), lanes: Vec::new(), former: Vec::new(), domain })
    }

    /// Connects a queue pair to each of the client's; those of an earlier call are gone. Answers what he must know. When it fails
    /// there are none: he may ask again. `REVOKED` after [`Grant::cut`].
    pub fn connect(&mut self, ports: &[Port], lanes: &[Endpoint]) -> Result<Message> {
        let (addr, rkey, flush) = self.start_anew()?;
        // Nothing ever completes there.
        let idle = Completions::new(self.domain.device(), lanes.len() as u32)?;
        let pair = |(lane, port): (&Endpoint, &Port)| {
            let pair = QueuePair::new(&self.domain, &idle, port, IDLE, true)?;
            pair.connect(lane).map(|()| Lane { pair, came: None })
        };
        self.lanes = lanes.iter().zip(pick(ports, lanes)).map(pair).collect::<Result<Vec<_>>>()?;
        let lanes = self.lanes.iter().map(|l| l.pair.endpoint()).collect();
        Ok(Message::Connected { addr, rkey, flush, lanes })
    }

    /// Gives up the queue pairs that there are, before others come by the connection manager. Answers where the memory lies, its key, and whether it may be
    /// flushed. `REVOKED` after [`Grant::cut`].
    pub fn start_anew(&mut self) -> Result<(u64, u32, bool)> {
        self.former.extend(self.lanes.drain(..).filter_map(|Lane { pair, came }| {
            drop(pair);
            came
        }));
        let home = self.home.as_ref().ok_or_else(|| Error::of(Status::REVOKED, "connect"))?;
        Ok((home.base() as u64, home.rkey, home.flushes))
    }

    /// Connects a queue pair to that of a request. `REVOKED`, and what making a queue pair says; the client is turned down then.
    pub fn admit(&mut self, request: Request, port: &Port) -> Result<()> {
        use ibverbs_sys::{ibv_qp_attr_mask as m, ibv_qp_state as to};
        if self.home.is_none() {
            return Err(Error::of(Status::REVOKED, "connect"));
        }
        let Request { seat, member, reads } = request;
        let idle = Completions::new(self.domain.device(), 1)?;
        let pair = QueuePair::fresh(&self.domain, &idle, port, IDLE)?;
        let (manager, id, (answers, _)) = (&seat.manager, seat.id, pair.at_a_time());
        let answers = reads.min(answers);
        bring_up(manager, id, &pair, to::IBV_QPS_INIT, |attr, mask| {
            attr.qp_access_flags = pair.remote_rights();
            *mask |= m::IBV_QP_ACCESS_FLAGS.0;
        })?;
        bring_up(manager, id, &pair, to::IBV_QPS_RTR, |attr, _| attr.max_dest_rd_atomic = answers)?;
        bring_up(manager, id, &pair, to::IBV_QPS_RTS, |attr, _| attr.max_rd_atomic = attr.max_rd_atomic.min(1))?;
        manager.accept(id, member, &terms(&pair, answers, 1, &[])).map_err(|e| failed("accept a queue pair", e))?;
        self.lanes.push(Lane { pair, came: Some(seat) });
        self.former.clear();
        Ok(())
    }

    /// The connection of a queue pair has ended.
    pub fn part(&mut self, id: Id) {
        self.lanes.retain(|l| l.came.as_ref().is_none_or(|s| s.id != id));
        self.former.retain(|s| s.id != id);
    }

    /// Takes the memory away: when this returns the device reaches nothing of it for this client, and it may be moved or unmapped. What the
    /// client has under way, and whatever he tries later, fails at his side with an access error.
    pub fn cut(&mut self) {
        self.home = None;
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }
}

/// A port for each of a client's lanes: lanes of one of his ports share one of ours, those of his next port the next.
fn pick<'a>(ports: &'a [Port], lanes: &[Endpoint]) -> Vec<&'a Port> {
    let mut his: Vec<[u8; 16]> = Vec::new();
    let turn = |lane: &Endpoint| {
        let known = his.iter().position(|g| *g == lane.gid).unwrap_or(his.len());
        if known == his.len() {
            his.push(lane.gid);
        }
        ports.get(known % ports.len().max(1))
    };
    lanes.iter().filter_map(turn).collect()
}

/// The device by which clients reach an exporter, and its ports; one for each address of this host that clients have called. Belongs to
/// one thread, which is to be the only one that uses what it gives out.
#[derive(Debug, Default)]
pub struct Adapters(Vec<(DeviceWish, IpAddr, Arc<Choice>)>);

impl Adapters {
    /// The choice for clients that have called this address of ours and what is to be reached by `wish`, opened at its first use. Errors:
    /// [`choose`].
    pub fn of(&mut self, wish: &DeviceWish, here: IpAddr) -> Result<Arc<Choice>> {
        if let Some((_, _, choice)) = self.0.iter().find(|(w, ip, _)| (w, *ip) == (wish, here)) {
            return Ok(choice.clone());
        }
        let choice = Arc::new(choose(wish, Some(here), Table::Own)?);
        self.0.push((wish.clone(), here, choice.clone()));
        Ok(choice)
    }

    /// A device has gone: the next client gets one that is chosen anew.
    pub fn forget(&mut self, choice: &Arc<Choice>) {
        self.0.retain(|(_, _, c)| !Arc::ptr_eq(c, choice));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_belong_together() {
        let port = |number| Port { number, gid_index: 1, gid: [number; 16], lid: 0, mtu: 5 };
        let lane = |gid| Endpoint { gid: [gid; 16], ..Endpoint::default() };
        let lanes = [7, 7, 9, 7, 9, 11].map(lane);
        let numbers = |ports: &[Port]| pick(ports, &lanes).iter().map(|p| p.number).collect::<Vec<_>>();
        assert_eq!(numbers(&[port(1), port(2)]), [1, 1, 2, 1, 2, 1]);
        assert_eq!(numbers(&[port(3)]), [3; 6]);
    }
}
