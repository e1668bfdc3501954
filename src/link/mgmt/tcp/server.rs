//! The server: sockets, strangers and members, as a state that its owner's poll loop drives. One thread's.

use super::SILENCE_S;
use super::gate::{Gate, Rate};
use super::peer::{CLOSED, Member, Peer};
use super::wire::Wire;
use crate::link::mgmt::Message;
use crate::link::mgmt::ring::Keyring;
use crate::link::mgmt::secure::Channel;
use crate::sys::clock::now;
use crate::sys::poll::PollFd;
use crate::sys::{Errno, inet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// What strangers and members may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections of strangers at a time.
    pub strangers: usize,
    /// Of those, from one origin.
    pub strangers_each: usize,
    /// Connections of members at a time.
    pub members: usize,
    /// New connections of one origin. Who becomes a member gets his place back.
    pub knocks: Rate,
    /// Time a stranger has to become a member, in nanoseconds.
    pub patience_ns: u64,
    /// Time a stranger has before he gives way to a new one when all places are taken.
    pub grace_ns: u64,
    /// Time a member may be silent.
    pub silence_ns: u64,
    /// Messages of one member.
    pub messages: Rate,
}

const SECOND: u64 = 1_000_000_000;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            strangers: 64,
            strangers_each: 16,
            members: 256,
            knocks: Rate { interval_ns: SECOND / 10, burst: 32 },
            patience_ns: 5 * SECOND,
            grace_ns: SECOND,
            silence_ns: 60 * SECOND,
            messages: Rate { interval_ns: SECOND / 256, burst: 256 },
        }
    }
}

/// Connections taken per round.
const ACCEPTS: usize = 16;
/// Pause when no connection can be taken: descriptors are used up.
const PAUSE_NS: u64 = SECOND / 10;
const BACKLOG: u32 = 128;

/// What became of those who came. For people and tests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Closed at once: too many, or too often.
    pub turned_away: u64,
    /// Strangers who did not prove that they have the key, or gave way.
    pub refused: u64,
    /// Strangers who became members.
    pub admitted: u64,
}

/// What is said to a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// This.
    Say(Message),
    /// This, and nothing after it: the connection is closed.
    Last(Message),
    /// Nothing now; [`Server::tell`] will.
    Later,
    /// Nothing: the connection is closed.
    Leave,
}

/// Whoever the server works for.
pub trait Office {
    /// A stranger has proven that he has a key: `client` is the name in it, `here` the address of this host that he called. Answers
    /// the number by which he is known from here on, one that nobody else has had.
    fn admitted(&mut self, client: Option<&str>, from: &SocketAddr, here: &SocketAddr) -> u64;
    /// A member's message that concerns the exports.
    fn ask(&mut self, who: &Member, m: Message) -> Reply;
    /// A member has gone.
    fn left(&mut self, who: &Member, why: &'static str);
    /// Somebody was refused, for people and records.
    fn refused(&mut self, from: &SocketAddr, client: Option<&str>, why: &'static str);
}

/// A listening socket and everybody who came by it.
pub struct Server {
    ring: Keyring,
    listener: OwnedFd,
    address: SocketAddr,
    limits: Limits,
    gate: Gate,
    peers: Vec<Peer>,
    accept_after: u64,
    tally: Tally,
}

impl Server {
    /// Listens on `at` (port 0: any free one).
    pub fn bind(at: &SocketAddr, ring: Keyring, limits: Limits) -> Result<Server, Errno> {
        let listener = inet::listen(at, BACKLOG)?;
        let (address, gate) = (inet::local(listener.as_fd())?, Gate::new(limits.knocks));
        Ok(Server {
            ring,
            listener,
            address,
            limits,
            gate,
            peers: Vec::new(),
            accept_after: 0,
            tally: Tally::default(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What became of those who came.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Strangers and members connected now.
    pub fn connected(&self) -> (usize, usize) {
        let members = self.peers.iter().filter(|p| p.member.is_some()).count();
        (self.peers.len() - members, members)
    }

    /// Says something to a member unasked; with `last` nothing comes after it, and he is closed when he closes himself, or after
    /// [`Limits::patience_ns`]. Nothing happens when he has gone.
    pub fn tell(&mut self, id: u64, m: &Message, last: bool) {
        if let Some(p) = self.peers.iter_mut().find(|p| p.id() == Some(id)) {
            p.tell(m, last);
        }
    }

    /// From now on these keys are good, and no others. Answers the members whose key is no longer there; strangers with
    /// such a key are closed.
    pub fn take_keys(&mut self, ring: Keyring) -> Vec<u64> {
        self.ring = ring;
        let ring = &self.ring;
        let mut out = Vec::new();
        for p in self.peers.iter_mut().filter(|p| p.key().is_none_or(|k| !ring.has(k))) {
            match p.id() {
                Some(id) => out.push(id),
                // He may be about to greet with a key that was good.
                None => p.gone = Some("the keys have changed"),
            }
        }
        out
    }

    /// Appends what is to be polled. Give exactly these to [`Server::turn`].
    pub fn watch(&self, fds: &mut Vec<PollFd>) {
        fds.extend(self.peers.iter().map(Peer::watch));
        // Last, so that its absence moves nothing.
        if now() >= self.accept_after {
            fds.push(PollFd::readable(self.listener.as_fd()));
        }
    }

    /// When [`Server::turn`] is to be called at the latest.
    pub fn moment(&self) -> u64 {
        let (now, pause) = (now(), if self.accept_after > now() { self.accept_after } else { u64::MAX });
        let of = |p: &Peer| if p.over(&self.limits, now).is_some() { now } else { p.end(&self.limits) };
        self.peers.iter().map(of).fold(pause, u64::min)
    }

    /// Serves whoever is ready.
    pub fn turn(&mut self, polled: &[PollFd], office: &mut dyn Office) {
        let known = self.peers.len();
        for (p, _) in self.peers.iter_mut().zip(polled).filter(|(p, fd)| p.gone.is_none() && fd.ready()) {
            let stranger = p.member.is_none();
            p.serve(&self.limits, office);
            if stranger && p.member.is_some() {
                self.tally.admitted += 1;
                self.gate.give_back(p.origin);
            }
        }
        self.sweep(office);
        if polled.get(known).is_some_and(PollFd::ready) {
            self.accept(office);
        }
    }

    fn sweep(&mut self, office: &mut dyn Office) {
        let (_, members) = self.connected();
        let excess = members.saturating_sub(self.limits.members);
        // The newest members go when there are too many.
        for p in self.peers.iter_mut().rev().filter(|p| p.member.is_some()).take(excess) {
            p.gone = Some("too many members");
        }
        let (now, limits) = (now(), self.limits);
        for p in self.peers.extract_if(.., |p| p.over(&limits, now).is_some()) {
            let why = p.over(&limits, now).unwrap_or(CLOSED);
            match &p.member {
                // A member reads the last word.
                Some(m) => office.left(m, why),
                // A stranger gets none.
                None => {
                    if p.gone.is_none() {
                        office.refused(&p.from, None, why);
                    }
                    self.tally.refused += 1;
                    p.wire.abort();
                }
            }
        }
    }

    fn accept(&mut self, office: &mut dyn Office) {
        for _ in 0..ACCEPTS {
            match inet::accept(self.listener.as_fd()) {
                Ok((fd, from)) => self.knock(fd, from, office),
                Err(e) if e.is_exhaustion() => {
                    self.accept_after = now() + PAUSE_NS;
                    return;
                }
                Err(Errno::AGAIN) => return,
                // That one has gone again.
                Err(_) => {}
            }
        }
    }

    fn knock(&mut self, fd: OwnedFd, from: SocketAddr, office: &mut dyn Office) {
        let here = inet::local(fd.as_fd()).unwrap_or(self.address);
        let p = Peer::new(Wire::new(fd, Channel::server(&self.ring)), from, here);
        let admitted = self.gate.admit(p.origin, p.since) && self.has_place(&p, office);
        if !admitted || p.wire.watchful(SILENCE_S).is_err() {
            self.tally.turned_away += 1;
            office.refused(&from, None, "too many connections, or too often");
            return p.wire.abort();
        }
        self.peers.push(p);
    }

    /// Is there a place for one more stranger of this origin? The oldest of all may have to give way for him.
    fn has_place(&mut self, new: &Peer, office: &mut dyn Office) -> bool {
        let strangers = || self.peers.iter().enumerate().filter(|(_, p)| p.member.is_none());
        if strangers().filter(|(_, p)| p.origin == new.origin).count() >= self.limits.strangers_each {
            return false;
        }
        if strangers().count() < self.limits.strangers {
            return true;
        }
        let oldest = strangers().min_by_key(|(_, p)| p.since).map(|(i, p)| (i, p.since));
        match oldest {
            Some((i, since)) if new.since.saturating_sub(since) >= self.limits.grace_ns => {
                let old = self.peers.remove(i);
                office.refused(&old.from, None, "did not prove that he has a key, and had to make room");
                old.wire.abort();
                self.tally.refused += 1;
                true
            }
            _ => false,
        }
    }
}
