//! The management conversation of one region.

use super::super::{Completions, Depth, QueuePair, cm};
use super::lane::{DEPTH, Wires};
use super::meet::{Invitation, Made, Met};
use super::rig::Rig;
use super::session::Session;
use crate::base::config::Rendezvous;
use crate::base::{Error, Result, Status};
use crate::link::Access;
use crate::link::mgmt::key::Key;
use crate::link::mgmt::message::Endpoint;
use crate::link::mgmt::tcp::Client;
use crate::link::mgmt::{Message, RegionDesc};
use crate::sys::clock::{Deadline, now};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::SeqCst;

/// Writes up to this many bytes are copied when they are posted, where the device can.
pub(super) const INLINE: u32 = 256;

/// For an exporter that is too old to know the question: it closes the connection.
const ARRANGE: &str = "an exporter that knows no rdma_cm does that: bring it up to date, or set LIBSMC_RENDEZVOUS=tcp";

fn unfit() -> Error {
    Error::new(Status::PROTOCOL, "connect queue pairs", "a message that does not fit here")
}

/// Whom to ask, for what.
#[derive(Clone)]
pub(super) struct Plan {
    /// The peer as the user named it.
    pub who: String,
    pub addresses: Vec<SocketAddr>,
    pub key: Key,
    pub name: String,
    pub want: Access,
    pub rendezvous: Rendezvous,
}

/// What happened to a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Trouble {
    /// The queue pairs have failed.
    Lanes,
    /// The home has moved: the old queue pairs and key are dead, new ones are to be had at once.
    Moved,
    /// The connection has ended, or nobody answers there.
    Lost(Status),
    /// It will not come back.
    Over(Status),
}

/// A connection on which a region was opened.
pub(super) struct Talk {
    pub client: Client,
    rendezvous: Rendezvous,
    /// The last [`Talk::connect`] has failed for reasons of the connection manager's: what was said and heard is in order.
    pub in_order: bool,
    /// When the other side was last heard.
    pub heard: u64,
}

/// What the exporter says about his memory.
struct Far {
    addr: u64,
    rkey: u32,
    flush: bool,
}

impl Talk {
    /// Connects and opens the region.
    pub fn open(plan: &Plan, deadline: Deadline) -> Result<(Talk, RegionDesc)> {
        let attempt = || format!("open region \"{}\" of {}", plan.name, plan.who);
        let mut client = Client::connect(&plan.addresses, &plan.key, &plan.who, deadline)?;
        let answer = client.ask(&Message::Open { name: plan.name.clone(), want: plan.want });
        let region = match answer.map_err(|e| Error { attempt: attempt(), ..e })? {
            Message::Opened { region } => region,
            _ => return Err(Error::new(Status::PROTOCOL, attempt(), "a message that does not fit here")),
        };
        if region.name != plan.name || region.access < plan.want || region.len == 0 {
            return Err(Error::new(Status::PROTOCOL, attempt(), "an opening of something else"));
        }
        Ok((Talk { client, rendezvous: plan.rendezvous, in_order: false, heard: now() }, region))
    }

    /// Makes queue pairs and has the other side make theirs; then the session's lanes are connected. Answers what the connection manager
    /// holds of them, if it does.
    pub fn connect(&mut self, session: &Session, rig: &Rig, deadline: Deadline) -> Result<Option<Met>> {
        self.client.until(deadline);
        self.in_order = false;
        let ((far, made), met) = match self.rendezvous {
            Rendezvous::Tcp => (self.exchange(session.lanes.len(), rig)?, None),
            Rendezvous::RdmaCm => {
                let mut met = Met::new()?;
                (self.arrange(session.lanes.len(), rig, &mut met, deadline)?, Some(met))
            }
        };
        session.atomics.store(rig.choice.device.caps().atomics, SeqCst);
        for (lane, (cq, pair)) in session.lanes.iter().zip(made) {
            let (device, room) = (rig.choice.device.clone(), pair.depth().requests);
            let flush = far.flush && pair.flushes();
            lane.install(Wires { pair, cq, device, addr: far.addr, rkey: far.rkey, flush, room });
        }
        Ok(met)
    }

    /// Both sides tell each other the numbers of their queue pairs.
    fn exchange(&mut self, count: usize, rig: &Rig) -> Result<(Far, Made)> {
        let mut made = Vec::new();
        for i in 0..count {
            // The fault lane and the first work lane share the first port; the others take turns.
            let turn = i.saturating_sub(1) % rig.choice.ports.len().max(1);
            let port = rig.choice.ports.get(turn).ok_or_else(|| Error::of(Status::INTERNAL, "connect"))?;
            let cq = Completions::new(&rig.choice.device, DEPTH)?;
            let pair = QueuePair::new(&rig.domain, &cq, port, Depth { requests: DEPTH, inline: INLINE }, false)?;
            made.push((cq, pair));
        }
        let mine: Vec<Endpoint> = made.iter().map(|(_, pair)| pair.endpoint()).collect();
        match self.ask(&Message::Connect { lanes: mine })? {
            Message::Connected { addr, rkey, flush, lanes } if lanes.len() == count => {
                made.iter().zip(&lanes).try_for_each(|((_, pair), other)| pair.connect(other))?;
                Ok((Far { addr, rkey, flush }, made))
            }
            _ => Err(unfit()),
        }
    }

    /// The exporter tells where it expects the queue pairs, and they are connected by the connection manager.
    fn arrange(&mut self, count: usize, rig: &Rig, met: &mut Met, deadline: Deadline) -> Result<(Far, Made)> {
        let asked = self.ask(&Message::Arrange { lanes: count as u8 });
        match asked.map_err(|e| if e.status == Status::LINK_DOWN { e.remedy(ARRANGE) } else { e })? {
            Message::Arranged { addr, rkey, flush, at, port, token } => {
                let way = Invitation { to: cm::to_connect(at, port, self.client.there()), token };
                self.in_order = true;
                Ok((Far { addr, rkey, flush }, met.meet(rig, count, &way, deadline)?))
            }
            _ => Err(unfit()),
        }
    }

    /// Asks for a connection; the answer, after whatever else is said before it.
    fn ask(&mut self, question: &Message) -> Result<Message> {
        let attempt = "connect queue pairs";
        let mut answer = self.client.ask(question)?;
        loop {
            self.heard = now();
            match answer {
                Message::Revoked { reason } => return Err(Error::new(Status::REVOKED, attempt, reason)),
                Message::Ended => return Err(Error::new(Status::PEER_DEAD, attempt, "the export has ended")),
                // It moved before it answers: the answer is of the new place.
                Message::Pong { .. } | Message::Moved { .. } => {}
                m => return Ok(m),
            }
            answer = self.client.next()?;
        }
    }

    /// Reads what has come; the first that changes something.
    pub fn hear(&mut self) -> Option<Trouble> {
        loop {
            match self.client.news() {
                Ok(None) => return None,
                Ok(Some(m)) => {
                    self.heard = now();
                    match m {
                        Message::Pong { .. } => {}
                        Message::Moved { .. } => return Some(Trouble::Moved),
                        Message::Revoked { .. } => return Some(Trouble::Over(Status::REVOKED)),
                        Message::Ended => return Some(Trouble::Lost(Status::PEER_DEAD)),
                        Message::Error { status, .. } if status == Status::REVOKED => {
                            return Some(Trouble::Over(status));
                        }
                        Message::Error { .. } => return Some(Trouble::Lost(Status::LINK_DOWN)),
                        _ => return Some(Trouble::Lost(Status::PROTOCOL)),
                    }
                }
                Err(e) => return Some(Trouble::Lost(e.status)),
            }
        }
    }
}
