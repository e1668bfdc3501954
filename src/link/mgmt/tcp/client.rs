//! A client: asks one server, and waits for each answer.

use super::SILENCE_S;
use super::wire::{Broken, Wire};
use crate::base::{Error, Result, Status};
use crate::link::mgmt::key::Key;
use crate::link::mgmt::secure::{Channel, SecureError};
use crate::link::mgmt::{Message, RegionDesc, VERSION_MAX, VERSION_MIN};
use crate::sys::clock::Deadline;
use crate::sys::poll::{PollFd, poll};
use crate::sys::{Errno, inet};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

const COMPARE: &str = "compare the fingerprints: `smc keygen --check`, here and there";
/// Regions a server may list; more is nonsense.
const MOST: usize = 1 << 16;

/// A connection to a server that has proven to have the key. Its calls block, until the deadline at most.
pub struct Client {
    wire: Wire,
    heard: VecDeque<Message>,
    /// The server as the user named it.
    who: String,
    there: IpAddr,
    deadline: Deadline,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.who)
    }
}

impl Client {
    /// Connects to the first of `addresses` that answers, and makes sure that it has the key. `who` names it in errors; every
    /// call of the client ends at `deadline`.
    ///
    /// `REFUSED` when the other side has another key or is none of ours, `LINK_DOWN` when nobody listens there or the
    /// connection broke, `TIMED_OUT`, `PROTOCOL`.
    pub fn connect(addresses: &[SocketAddr], key: &Key, who: &str, deadline: Deadline) -> Result<Client> {
        let mut last = Error::new(Status::NOT_FOUND, format!("reach {who}"), "it has no address");
        for (i, a) in addresses.iter().enumerate() {
            // What is left is shared by the addresses that are left.
            let share = Deadline::in_ns(deadline.left_ns() / (addresses.len() - i) as u64);
            match reach(a, share) {
                Ok(fd) => return Client::greet(fd, key, who, a.ip(), deadline),
                Err(e) => {
                    let status = if e == Errno::TIMEDOUT { Status::TIMED_OUT } else { Status::LINK_DOWN };
                    last = Error::new(status, format!("reach {who}"), format!("{a}: {e}"));
                }
            }
        }
        Err(last)
    }

    fn greet(fd: OwnedFd, key: &Key, who: &str, there: IpAddr, deadline: Deadline) -> Result<Client> {
        let attempt = || format!("reach {who}");
        let channel = Channel::client(key).map_err(|e| Error::new(e.status(), attempt(), e.to_string()))?;
        let mut c =
            Client { wire: Wire::new(fd, channel), heard: VecDeque::new(), who: who.to_owned(), there, deadline };
        while !c.wire.channel.is_open() {
            c.step().map_err(|e| match e {
                // It tells strangers nothing.
                Broken::Closed | Broken::System(Errno::CONNRESET | Errno::PIPE) => {
                    let why = "it closed the connection without a word: another key, another version, or too many connections";
                    Error::new(Status::REFUSED, attempt(), why).remedy(COMPARE)
                }
                e => c.error(e),
            })?;
        }
        match c.ask(&Message::Hello { min: VERSION_MIN, max: VERSION_MAX })? {
            Message::Welcome { version, .. } if (VERSION_MIN..=VERSION_MAX).contains(&version) => Ok(c),
            _ => Err(Error::of(Status::PROTOCOL, attempt())),
        }
    }

    /// From now on its calls end at `deadline`.
    pub fn until(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    /// This host's address on the connection.
    pub fn local(&self) -> Option<IpAddr> {
        self.wire.local()
    }

    /// The server's address, as it was called.
    pub fn there(&self) -> IpAddr {
        self.there
    }

    /// What to poll for, to learn when [`Client::news`] has something to do.
    pub fn watch(&self) -> PollFd {
        self.wire.watch()
    }

    /// Sends a message without waiting for an answer, nor for the message to leave: [`Client::news`] goes on.
    pub fn tell(&mut self, m: &Message) -> Result<()> {
        self.wire.channel.say(m).map_err(|e| self.error(e.into()))?;
        self.wire.write().map_err(|e| self.error(e))
    }

    /// The next message that has come; `None` when there is none now. Does not wait. [`Message::Error`] is a message here.
    pub fn news(&mut self) -> Result<Option<Message>> {
        if self.heard.is_empty() {
            let heard = &mut self.heard;
            let moved = self.wire.write().and_then(|()| {
                self.wire.read(&mut |_, m| {
                    heard.push_back(m);
                    Ok(())
                })
            });
            // A last word before the end counts; the end shows again.
            if let (Err(e), true) = (moved, self.heard.is_empty()) {
                return Err(self.error(e));
            }
        }
        Ok(self.heard.pop_front())
    }

    /// What the server exports.
    pub fn list(&mut self) -> Result<Vec<RegionDesc>> {
        let mut all = Vec::new();
        let mut start = 0;
        loop {
            match self.ask(&Message::List { start })? {
                Message::Names { next, regions } => {
                    all.extend(regions);
                    if next == 0 {
                        return Ok(all);
                    }
                    if next <= start || all.len() > MOST {
                        return Err(Error::of(Status::PROTOCOL, self.attempt()));
                    }
                    start = next;
                }
                _ => return Err(Error::of(Status::PROTOCOL, self.attempt())),
            }
        }
    }

    /// Sends a question and waits for its answer; an [`Message::Error`] becomes the error it tells.
    pub fn ask(&mut self, m: &Message) -> Result<Message> {
        self.wire.channel.say(m).map_err(|e| self.error(e.into()))?;
        self.next()
    }

    /// Waits for the next message; an [`Message::Error`] becomes the error it tells.
    #[allow(clippy::should_implement_trait, reason = "it is no iterator: it waits, and fails")]
    pub fn next(&mut self) -> Result<Message> {
        let mut end = None;
        loop {
            // A last word before the end counts.
            match (self.heard.pop_front(), end) {
                (Some(Message::Error { status, text }), _) => return Err(Error::new(status, self.attempt(), text)),
                (Some(m), _) => return Ok(m),
                (None, Some(e)) => return Err(self.error(e)),
                (None, None) => end = self.step().err(),
            }
        }
    }

    /// The next message that the server sends unasked, or `None` when there is none until `until`.
    pub fn hear(&mut self, until: Deadline) -> Result<Option<Message>> {
        loop {
            match self.heard.pop_front() {
                Some(m) => return Ok(Some(m)),
                None => match self.step_until(until) {
                    Ok(()) => {}
                    Err(Broken::System(Errno::TIMEDOUT)) => return Ok(None),
                    // A last word before the end counts.
                    Err(e) => return self.heard.pop_front().map(Some).ok_or_else(|| self.error(e)),
                },
            }
        }
    }

    /// Moves bytes once, waiting for the moment when that is possible.
    fn step(&mut self) -> std::result::Result<(), Broken> {
        self.step_until(self.deadline)
    }

    fn step_until(&mut self, deadline: Deadline) -> std::result::Result<(), Broken> {
        self.wire.write()?;
        let mut fds = [self.wire.watch()];
        wait(&mut fds, deadline).map_err(Broken::System)?;
        let heard = &mut self.heard;
        self.wire.read(&mut |_, m| {
            heard.push_back(m);
            Ok(())
        })
    }

    fn attempt(&self) -> String {
        format!("ask {}", self.who)
    }

    fn error(&self, e: Broken) -> Error {
        match e {
            Broken::Closed => Error::new(Status::LINK_DOWN, self.attempt(), "it closed the connection"),
            Broken::System(Errno::TIMEDOUT) => Error::of(Status::TIMED_OUT, self.attempt()),
            Broken::System(e) => Error::new(Status::LINK_DOWN, self.attempt(), e.to_string()),
            Broken::Secure(e) => {
                let said = Error::new(e.status(), self.attempt(), e.to_string());
                match e {
                    SecureError::Refused => said.remedy(COMPARE),
                    _ => said,
                }
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Politely, if that is possible without waiting.
        if self.wire.channel.say(&Message::Close).is_ok() {
            let _ = self.wire.write();
        }
    }
}

/// Waits for one of `fds`; `ETIMEDOUT` at the deadline.
fn wait(fds: &mut [PollFd], deadline: Deadline) -> std::result::Result<(), Errno> {
    loop {
        match deadline.left_ns() {
            0 => return Err(Errno::TIMEDOUT),
            left if poll(fds, left.div_ceil(1_000_000))? > 0 => return Ok(()),
            _ => {}
        }
    }
}

fn reach(a: &SocketAddr, deadline: Deadline) -> std::result::Result<OwnedFd, Errno> {
    let fd = inet::connect(a)?;
    wait(&mut [PollFd::writable_too(fd.as_fd(), true)], deadline)?;
    inet::outcome(fd.as_fd())?;
    inet::watchful(fd.as_fd(), SILENCE_S)?;
    Ok(fd)
}
