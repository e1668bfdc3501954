//! One connection of a client, as the service thread keeps it.

use super::ClientInfo;
use super::event::{Event, What};
use crate::base::Status;
use crate::link::Access;
use crate::link::embedded::control::{self, Control, GATE_OPEN};
use crate::link::mgmt::{MAX_FRAME, Message, decode, encode};
use crate::sys::clock::now;
use crate::sys::mem::{self, Mapping};
use crate::sys::poll::{PollFd, poll};
use crate::sys::socket::{self, Peer};
use crate::sys::{Errno, mem::memfd, memfile};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

/// Messages a client may send per second; keep-alive needs one.
const BUDGET: u32 = 256;
/// Messages read from one client before the others get their turn.
const TURN: u32 = 16;
/// A client that has not opened anything by then is dropped.
const PATIENCE_NS: u64 = 5_000_000_000;

/// How far the conversation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Waiting for `Hello`.
    Greeting,
    /// Greeted; may list and open.
    Ready,
    /// Has the region.
    Open,
}

/// The page shared with one client.
struct Page {
    map: Mapping,
    /// Until it was sent.
    fd: Option<OwnedFd>,
}

pub(super) struct Conn {
    pub id: u64,
    /// The export it came to.
    pub export: u64,
    pub phase: Phase,
    pub peer: Peer,
    pub access: Access,
    /// To be forgotten at the end of the round.
    pub gone: bool,
    /// Why he has lost his access.
    pub revoked: Option<String>,
    /// Why he did not get what he wanted.
    pub refused: Option<String>,
    fd: OwnedFd,
    since: u64,
    budget: u32,
    page: Option<Page>,
}

impl Conn {
    pub fn new(id: u64, export: u64, peer: Peer, fd: OwnedFd) -> Conn {
        let since = now();
        Conn {
            id,
            export,
            phase: Phase::Greeting,
            peer,
            access: Access::ReadOnly,
            gone: false,
            revoked: None,
            refused: None,
            fd,
            since,
            budget: BUDGET,
            page: None,
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn info(&self) -> ClientInfo {
        let (pid, uid) = (self.peer.pid, self.peer.uid);
        ClientInfo { id: self.id, pid, uid, access: self.access, since: self.since, remote: None }
    }

    /// What is to be told of him at his end, if anything.
    pub fn last_event(&self, region: Option<&str>) -> Option<Event> {
        let (what, why) = match (&self.revoked, &self.refused, self.phase) {
            (Some(why), _, _) => (What::Revocation, &**why),
            (None, Some(why), _) => (What::Refusal, &**why),
            (None, None, Phase::Open) => (What::End, "closed"),
            _ => return None,
        };
        Some(self.event(what, why, region))
    }

    pub fn event(&self, what: What, why: &str, region: Option<&str>) -> Event {
        let access = (self.phase == Phase::Open).then_some(self.access);
        let process = Some((self.peer.pid, self.peer.uid));
        Event { id: self.id, process, access, region: region.map(str::to_owned), ..Event::new(what, why) }
    }

    /// True for a client that has the region open.
    pub fn is_client_of(&self, export: u64) -> bool {
        self.export == export && self.phase == Phase::Open && !self.gone
    }

    /// Sends, or drops the client who does not read.
    pub fn say(&mut self, m: &Message, fds: &[BorrowedFd<'_>]) {
        if socket::send(self.fd.as_fd(), &encode(m), fds).is_err() {
            self.gone = true;
        }
    }

    /// Says why, then drops the client.
    pub fn refuse(&mut self, status: Status, text: impl Into<String>) {
        let text = text.into();
        self.refused = Some(text.clone());
        self.say(&Message::error(status, text), &[]);
        self.gone = true;
    }

    /// The next message; `None` when there is none now, the client has gone, or what he sent is not a message.
    pub fn next(&mut self, turn: &mut u32) -> Option<Message> {
        if self.gone || *turn >= TURN {
            return None;
        }
        *turn += 1;
        let mut buf = [0u8; MAX_FRAME];
        let bytes = match socket::recv(self.fd.as_fd(), &mut buf, false) {
            Err(Errno::AGAIN) => return None,
            Err(Errno::MSGSIZE) => &[][..],
            Ok(r) if r.len > 0 => buf.get(..r.len).unwrap_or_default(),
            _ => {
                self.gone = true;
                return None;
            }
        };
        self.budget = self.budget.saturating_sub(1);
        if self.budget == 0 {
            self.refuse(Status::REFUSED, "too many messages");
            return None;
        }
        decode(bytes).map_err(|e| self.refuse(Status::PROTOCOL, e.to_string())).ok()
    }

    /// Makes the control page and its descriptor.
    pub fn make_page(&mut self, generation: u64) -> Result<(), Errno> {
        let fd = memfd(c"libsmc-control", control::LEN as u64)?;
        let map = Mapping::shared(fd.as_fd(), 0, control::LEN, mem::RW)?;
        map.advise(0, control::LEN, mem::DONTFORK)?;
        mem::seal(fd.as_fd(), mem::SEAL_SHRINK | mem::SEAL_GROW | memfile::SEAL_SEAL)?;
        self.page = Some(Page { map, fd: Some(fd) });
        if let Some(c) = self.control() {
            c.init(generation);
        }
        Ok(())
    }

    /// Hands the region over: the message with the home's descriptor and that of the control page.
    pub fn hand_over(&mut self, m: &Message, home: BorrowedFd<'_>) {
        let page = self.page.as_mut().and_then(|p| p.fd.take());
        let sent = page.map(|fd| socket::send(self.fd.as_fd(), &encode(m), &[home, fd.as_fd()]));
        self.gone = sent.is_none_or(|s| s.is_err());
    }

    /// The control page. Its words are the client's to scribble on: believed for his own matters only.
    pub fn control(&self) -> Option<&Control> {
        // SAFETY: mapped as long as the page lives; Control consists of atomics, every bit pattern is one.
        self.page.as_ref().map(|p| unsafe { &*p.map.ptr().cast::<Control>() })
    }

    pub fn set_gate(&self, gate: u32) {
        if let Some(c) = self.control() {
            c.gate.store(gate, SeqCst);
        }
    }

    /// Opens the gate to memory of a new generation.
    pub fn admit(&self, generation: u64) {
        if let Some(c) = self.control() {
            c.generation.store(generation, SeqCst);
            c.gate.store(GATE_OPEN, SeqCst);
        }
    }

    /// No write of his is under way (or he says so).
    pub fn is_drained(&self) -> bool {
        self.control().is_none_or(|c| c.inflight.load(SeqCst) == 0)
    }

    /// His process has closed the connection.
    pub fn hung_up(&self) -> bool {
        let mut p = [PollFd::readable(self.fd.as_fd())];
        poll(&mut p, 0).is_ok_and(|n| n > 0) && p.iter().any(PollFd::hung_up)
    }

    pub fn beat(&self, count: u64) {
        if let Some(c) = self.control() {
            c.heartbeat.store(count, SeqCst);
        }
    }

    /// Once a second: a fresh budget; drops who is connected and wants nothing.
    pub fn tick(&mut self) {
        self.budget = BUDGET;
        if self.phase != Phase::Open && now().saturating_sub(self.since) > PATIENCE_NS {
            self.refuse(Status::TIMED_OUT, "nothing was opened");
        }
    }

    /// Remembers when and with what access he opened.
    pub fn opened(&mut self, access: Access) {
        (self.access, self.phase, self.since) = (access, Phase::Open, now());
    }
}
