//! One connection of the server: a stranger until his first record has been opened, then a member.

use super::gate::Origin;
use super::server::{Limits, Office, Reply};
use super::wire::{Broken, Wire};
use crate::base::Status;
use crate::link::mgmt::key::Key;
use crate::link::mgmt::secure::{Channel, SecureError};
use crate::link::mgmt::{self, Message};
use crate::sys::clock::now;
use crate::sys::poll::PollFd;
use std::net::SocketAddr;
use std::sync::Arc;

/// Somebody who has proven to have a key of the ring.
#[derive(Clone, Debug)]
pub struct Member {
    /// The number that the [`Office`] gave him.
    pub id: u64,
    /// His name; `None` with a shared key.
    pub client: Option<Arc<str>>,
    /// Where he calls from.
    pub from: SocketAddr,
}

pub(super) struct Peer {
    pub wire: Wire,
    pub from: SocketAddr,
    /// The address of this host that he called.
    here: SocketAddr,
    pub origin: Origin,
    pub since: u64,
    /// When he last said something.
    heard: u64,
    /// For [`Limits::messages`].
    spent: u64,
    pub member: Option<Member>,
    /// He has said which versions he speaks.
    greeted: bool,
    /// To be closed, when what is said to him has been sent.
    leaving: bool,
    /// Then he is given time to close himself: he may still be busy with what he had.
    lingers: bool,
    /// To be closed now, and why.
    pub gone: Option<&'static str>,
}

/// He has ended it himself, in order.
pub(super) const CLOSED: &str = "closed";

impl Peer {
    pub fn new(wire: Wire, from: SocketAddr, here: SocketAddr) -> Peer {
        let (since, origin) = (now(), Origin::of(from.ip()));
        let (heard, spent, member, gone) = (since, 0, None, None);
        let (greeted, leaving, lingers) = (false, false, false);
        Peer { wire, from, here, origin, since, heard, spent, member, greeted, leaving, lingers, gone }
    }

    pub fn id(&self) -> Option<u64> {
        self.member.as_ref().map(|m| m.id)
    }

    pub fn key(&self) -> Option<&Key> {
        self.wire.channel.key()
    }

    pub fn watch(&self) -> PollFd {
        self.wire.watch()
    }

    /// When he is given up.
    pub fn end(&self, limits: &Limits) -> u64 {
        if self.member.is_some() && !self.leaving {
            self.heard.saturating_add(limits.silence_ns)
        } else {
            self.since.max(self.heard).saturating_add(limits.patience_ns)
        }
    }

    /// Why he is to be closed at `now`, if he is.
    pub fn over(&self, limits: &Limits, now: u64) -> Option<&'static str> {
        let late =
            if self.member.is_none() { "did not prove in time that he has a key" } else { "silent for too long" };
        let late = if self.leaving { CLOSED } else { late };
        let spoken = self.leaving && !self.lingers && self.wire.channel.unsent().is_empty();
        self.gone.or(spoken.then_some(CLOSED)).or((now >= self.end(limits)).then_some(late))
    }

    /// Says something unasked; with `last` it is the last he hears, and he is closed when he closes, or when a stranger's patience is over.
    pub fn tell(&mut self, m: &Message, last: bool) {
        if self.leaving {
            return;
        }
        let said = self.wire.channel.say(m).map_err(Broken::from).and_then(|()| self.wire.write());
        if last {
            (self.leaving, self.lingers, self.heard) = (true, true, now());
            self.wire.finish();
        }
        if said.is_err() {
            self.gone = Some("does not read what is said to him");
        }
    }

    /// Reads and answers what he has sent.
    pub fn serve(&mut self, limits: &Limits, office: &mut dyn Office) {
        let Peer { wire, from, here, heard, spent, member, greeted, leaving, .. } = self;
        let mut hear = |channel: &mut Channel, m: Message| {
            if *leaving {
                return Ok(());
            }
            *heard = now();
            let member = member.get_or_insert_with(|| {
                let client = channel.key().and_then(|k| k.client().cloned());
                let id = office.admitted(client.as_deref(), from, here);
                Member { id, client, from: *from }
            });
            if !limits.messages.take(spent, *heard) {
                office.refused(from, member.client.as_deref(), "too many messages");
                *leaving = true;
                return channel.say(&Message::error(Status::REFUSED, "too many messages"));
            }
            let reply = respond(greeted, member, m, office);
            *leaving = matches!(reply, Reply::Last(_) | Reply::Leave);
            match reply {
                Reply::Say(m) | Reply::Last(m) => channel.say(&m),
                Reply::Later | Reply::Leave => Ok(()),
            }
        };
        let read = wire.read(&mut hear);
        let sent = wire.write();
        if self.lingers {
            self.wire.finish();
        }
        self.gone = read.and(sent).err().map(|e| self.judge(e, office));
    }

    /// What his end means; told as a refusal when it is one.
    fn judge(&self, e: Broken, office: &mut dyn Office) -> &'static str {
        let refused = match e {
            Broken::Closed if self.member.is_some() => return CLOSED,
            Broken::System(_) if self.member.is_some() => return "connection lost",
            Broken::Closed | Broken::System(_) => "went away before he had proven that he has a key",
            Broken::Secure(SecureError::Refused) if self.key().is_none() => {
                "another key or version, or no client at all"
            }
            Broken::Secure(SecureError::Refused) if self.member.is_none() => {
                "a replayed greeting, or changed on the way"
            }
            Broken::Secure(SecureError::Refused) => "a message that was changed on the way, or too long",
            Broken::Secure(SecureError::Truncated) => "cut off in the middle of a message",
            Broken::Secure(SecureError::Message(_)) => "a message of no known form",
            Broken::Secure(SecureError::Unread) => return "does not read what is said to him",
            Broken::Secure(SecureError::Spent) => return "has sent all the messages he may",
            Broken::Secure(SecureError::NoRandom) => return "no random numbers",
        };
        // One who knocks and goes away is nothing to tell of: so do programs that look whether a port is open.
        if self.key().is_some() || !matches!(e, Broken::Closed | Broken::System(_)) {
            let client = self.member.as_ref().and_then(|m| m.client.as_deref());
            office.refused(&self.from, client, refused);
        }
        refused
    }
}

/// What to answer.
fn respond(greeted: &mut bool, member: &Member, m: Message, office: &mut dyn Office) -> Reply {
    let refuse = |status, text: String| Reply::Last(Message::error(status, text));
    match (*greeted, m) {
        (false, Message::Hello { min, max }) => match mgmt::negotiate(min, max) {
            Some(version) => {
                *greeted = true;
                Reply::Say(Message::Welcome { version, pid: std::process::id() })
            }
            None => {
                let ours = format!("{} to {}", mgmt::VERSION_MIN, mgmt::VERSION_MAX);
                refuse(Status::PROTOCOL, format!("you speak versions {min} to {max}, this exporter {ours}"))
            }
        },
        (_, Message::Close) => Reply::Leave,
        (true, Message::Ping { token }) => Reply::Say(Message::Pong { token }),
        (
            true,
            m @ (Message::List { .. }
            | Message::Open { .. }
            | Message::Connect { .. }
            | Message::Arrange { .. }
            | Message::DeviceFlush { .. }),
        ) => office.ask(member, m),
        _ => {
            office.refused(&member.from, member.client.as_deref(), "a message that does not fit here");
            refuse(Status::PROTOCOL, "a message that does not fit here".into())
        }
    }
}
