//! The server: sockets, strangers and members, as a state that its owner's poll loop drives. One thread's.

use super::SILENCE_S;
use super::gate::{Gate, Origin, Rate};
use super::wire::Wire;
use crate::base::Status;
use crate::link::mgmt::key::Key;
use crate::link::mgmt::secure::Channel;
use crate::link::mgmt::{self, Message};
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
    /// New connections of one origin.
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

struct Peer {
    wire: Wire,
    origin: Origin,
    since: u64,
    /// When he last said something.
    heard: u64,
    /// For [`Limits::messages`].
    spent: u64,
    member: bool,
    /// He has said which versions he speaks.
    greeted: bool,
    /// To be closed, when what is said to him has been sent.
    leaving: bool,
    gone: bool,
}

/// A listening socket and everybody who came by it.
pub struct Server {
    key: Key,
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
    pub fn bind(at: &SocketAddr, key: Key, limits: Limits) -> Result<Server, Errno> {
        let listener = inet::listen(at, BACKLOG)?;
        let (address, gate) = (inet::local(listener.as_fd())?, Gate::new(limits.knocks));
        Ok(Server { key, listener, address, limits, gate, peers: Vec::new(), accept_after: 0, tally: Tally::default() })
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
        let members = self.peers.iter().filter(|p| p.member).count();
        (self.peers.len() - members, members)
    }

    /// Appends what is to be polled. Give exactly these to [`Server::turn`].
    pub fn watch(&self, fds: &mut Vec<PollFd>) {
        fds.extend(self.peers.iter().map(|p| p.wire.watch()));
        // Last, so that its absence moves nothing.
        if now() >= self.accept_after {
            fds.push(PollFd::readable(self.listener.as_fd()));
        }
    }

    /// When [`Server::turn`] is to be called at the latest.
    pub fn moment(&self) -> u64 {
        let pause = if self.accept_after > now() { self.accept_after } else { u64::MAX };
        self.peers.iter().map(|p| self.limits.end_of(p)).fold(pause, u64::min)
    }

    /// Serves whoever is ready. `answer` gets the messages that concern the exports, and says what is to be answered.
    pub fn turn(&mut self, polled: &[PollFd], answer: &mut dyn FnMut(Message) -> Message) {
        let known = self.peers.len();
        for (p, fd) in self.peers.iter_mut().zip(polled) {
            if fd.ready() {
                p.serve(&self.limits, answer);
            }
        }
        let mut admitted = 0;
        for p in self.peers.iter_mut().filter(|p| !p.member && p.wire.channel.is_confirmed()) {
            p.member = true;
            admitted += 1;
        }
        self.tally.admitted += admitted;
        self.sweep();
        if polled.get(known).is_some_and(PollFd::ready) {
            self.accept();
        }
    }

    fn sweep(&mut self) {
        let (_, members) = self.connected();
        let excess = members.saturating_sub(self.limits.members);
        // The newest members go when there are too many.
        self.peers.iter_mut().rev().filter(|p| p.member).take(excess).for_each(|p| p.gone = true);
        let now = now();
        let limits = self.limits;
        let over = |p: &mut Peer| p.gone || now >= limits.end_of(p);
        for p in self.peers.extract_if(.., over) {
            // A member reads the last word; a stranger gets none.
            if !p.member {
                self.tally.refused += 1;
                p.wire.abort();
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            match inet::accept(self.listener.as_fd()) {
                Ok((fd, from)) => self.knock(fd, Origin::of(from.ip())),
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

    fn knock(&mut self, fd: OwnedFd, origin: Origin) {
        let now = now();
        let admitted = self.gate.admit(origin, now) && self.has_place(origin, now);
        if !admitted || inet::watchful(fd.as_fd(), SILENCE_S).is_err() {
            self.tally.turned_away += 1;
            return inet::abort(fd);
        }
        let wire = Wire::new(fd, Channel::server(&self.key));
        let (member, greeted, leaving, gone) = (false, false, false, false);
        self.peers.push(Peer { wire, origin, since: now, heard: now, spent: 0, member, greeted, leaving, gone });
    }

    /// Is there a place for one more stranger of this origin? The oldest of all may have to give way for him.
    fn has_place(&mut self, origin: Origin, now: u64) -> bool {
        let strangers = || self.peers.iter().enumerate().filter(|(_, p)| !p.member);
        if strangers().filter(|(_, p)| p.origin == origin).count() >= self.limits.strangers_each {
            return false;
        }
        if strangers().count() < self.limits.strangers {
            return true;
        }
        let oldest = strangers().min_by_key(|(_, p)| p.since).map(|(i, p)| (i, p.since));
        match oldest {
            Some((i, since)) if now.saturating_sub(since) >= self.limits.grace_ns => {
                self.peers.remove(i).wire.abort();
                self.tally.refused += 1;
                true
            }
            _ => false,
        }
    }
}

impl Limits {
    /// When this peer is given up.
    fn end_of(&self, p: &Peer) -> u64 {
        if p.member && !p.leaving {
            p.heard.saturating_add(self.silence_ns)
        } else {
            p.since.max(p.heard).saturating_add(self.patience_ns)
        }
    }
}

impl Peer {
    fn serve(&mut self, limits: &Limits, answer: &mut dyn FnMut(Message) -> Message) {
        let Peer { wire, heard, spent, greeted, leaving, .. } = self;
        let mut hear = |channel: &mut Channel, m: Message| {
            *heard = now();
            if *leaving {
                return Ok(());
            }
            if !limits.messages.take(spent, *heard) {
                *leaving = true;
                return channel.say(&Message::error(Status::REFUSED, "too many messages"));
            }
            let (reply, last) = respond(greeted, m, answer);
            *leaving = last;
            reply.map_or(Ok(()), |r| channel.say(&r))
        };
        let read = wire.read(&mut hear);
        let sent = wire.write();
        let spoken = self.leaving && self.wire.channel.unsent().is_empty();
        self.gone = spoken || sent.is_err() || read.is_err();
    }
}

/// What to answer, and whether that is the last word.
fn respond(greeted: &mut bool, m: Message, answer: &mut dyn FnMut(Message) -> Message) -> (Option<Message>, bool) {
    let refuse = |status, text: String| (Some(Message::error(status, text)), true);
    match (*greeted, m) {
        (false, Message::Hello { min, max }) => match mgmt::negotiate(min, max) {
            Some(version) => {
                *greeted = true;
                (Some(Message::Welcome { version, pid: std::process::id() }), false)
            }
            None => {
                let ours = format!("{} to {}", mgmt::VERSION_MIN, mgmt::VERSION_MAX);
                refuse(Status::PROTOCOL, format!("you speak versions {min} to {max}, this exporter {ours}"))
            }
        },
        (_, Message::Close) => (None, true),
        (true, Message::Ping { token }) => (Some(Message::Pong { token }), false),
        (true, m @ (Message::List { .. } | Message::Open { .. } | Message::DeviceFlush { .. })) => {
            (Some(answer(m)), false)
        }
        _ => refuse(Status::PROTOCOL, "a message that does not fit here".into()),
    }
}
