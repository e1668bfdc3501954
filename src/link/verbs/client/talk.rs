//! The management conversation of one region.

use super::super::{Completions, Depth, QueuePair};
use super::lane::{DEPTH, Wires};
use super::rig::Rig;
use super::session::Session;
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
const INLINE: u32 = 256;

/// Whom to ask, for what.
#[derive(Clone)]
pub(super) struct Plan {
    /// The peer as the user named it.
    pub who: String,
    pub addresses: Vec<SocketAddr>,
    pub key: Key,
    pub name: String,
    pub want: Access,
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
    /// When the other side was last heard.
    pub heard: u64,
}

/// What the exporter says about his side.
struct Far {
    addr: u64,
    rkey: u32,
    flush: bool,
    lanes: Vec<Endpoint>,
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
        Ok((Talk { client, heard: now() }, region))
    }

    /// Makes queue pairs and has the other side make theirs; then the session's lanes are connected.
    pub fn connect(&mut self, session: &Session, rig: &Rig, deadline: Deadline) -> Result<()> {
        let mut made = Vec::new();
        for (i, _) in session.lanes.iter().enumerate() {
            // The fault lane and the first work lane share the first port; the others take turns.
            let turn = i.saturating_sub(1) % rig.choice.ports.len().max(1);
            let port = rig.choice.ports.get(turn).ok_or_else(|| Error::of(Status::INTERNAL, "connect"))?;
            let cq = Completions::new(&rig.choice.device, DEPTH)?;
            let pair = QueuePair::new(&rig.domain, &cq, port, Depth { requests: DEPTH, inline: INLINE }, false)?;
            made.push((cq, pair));
        }
        let mine: Vec<Endpoint> = made.iter().map(|(_, pair)| pair.endpoint()).collect();
        let far = self.exchange(mine, deadline)?;
        for ((_, pair), other) in made.iter().zip(&far.lanes) {
            pair.connect(other)?;
        }
        session.atomics.store(rig.choice.device.caps().atomics, SeqCst);
        for (lane, (cq, pair)) in session.lanes.iter().zip(made) {
            let (device, room) = (rig.choice.device.clone(), pair.depth().requests);
            let flush = far.flush && pair.flushes();
            lane.install(Wires { pair, cq, device, addr: far.addr, rkey: far.rkey, flush, room });
        }
        Ok(())
    }

    fn exchange(&mut self, lanes: Vec<Endpoint>, deadline: Deadline) -> Result<Far> {
        let (attempt, count) = ("connect queue pairs", lanes.len());
        self.client.until(deadline);
        let mut answer = self.client.ask(&Message::Connect { lanes })?;
        loop {
            self.heard = now();
            match answer {
                Message::Connected { addr, rkey, flush, lanes } if lanes.len() == count => {
                    return Ok(Far { addr, rkey, flush, lanes });
                }
                Message::Revoked { reason } => return Err(Error::new(Status::REVOKED, attempt, reason)),
                Message::Ended => return Err(Error::new(Status::PEER_DEAD, attempt, "the export has ended")),
                // It moved before it answers: the answer is of the new place.
                Message::Pong { .. } | Message::Moved { .. } => {}
                _ => return Err(Error::new(Status::PROTOCOL, attempt, "a message that does not fit here")),
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
