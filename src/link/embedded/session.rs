//! One conversation with an exporter, as seen by the manager thread.

use super::control;
use super::search::{Search, What};
use super::slots::Table;
use crate::base::{Error, Status};
use crate::link::mgmt::{self, MAX_FRAME, Message, RegionDesc};
use crate::link::{Access, Opened, RegionInfo, RegionKey};
use crate::sys::channel::Sender;
use crate::sys::clock::{Deadline, now};
use crate::sys::mem::{self, Mapping};
use crate::sys::{Errno, memfile, socket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

/// What the caller asked for, and where the answer goes.
pub(super) enum Purpose {
    Open {
        name: String,
        want: Access,
        reply: Sender<Result<Opened, Error>>,
    },
    List {
        found: Vec<RegionInfo>,
        reply: Sender<Vec<RegionInfo>>,
    },
    /// The open was answered; the session lives on for its region.
    Live {
        key: RegionKey,
        what: What,
        beat: u64,
        pending: Option<(Mapping, u64)>,
    },
    /// The exporter has gone: its name is looked for.
    Lost {
        key: RegionKey,
        what: What,
        search: Search,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Connecting,
    Greeting,
    Asked,
}

pub(super) struct Session {
    address: Vec<u8>,
    pub fd: Option<OwnedFd>,
    pub phase: Phase,
    pub deadline: Deadline,
    pub purpose: Purpose,
    /// Nothing more to do here.
    pub done: bool,
}

type Outcome = Result<(), Error>;

impl Session {
    pub fn new(address: Vec<u8>, purpose: Purpose, deadline: Deadline) -> Session {
        Session { address, fd: None, phase: Phase::Connecting, deadline, purpose, done: false }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|f| f.as_fd())
    }

    /// True while the exporter has not answered the request of a caller.
    pub fn waiting(&self) -> bool {
        matches!(self.purpose, Purpose::Open { .. } | Purpose::List { .. })
    }

    pub fn key(&self) -> Option<RegionKey> {
        match self.purpose {
            Purpose::Live { key, .. } | Purpose::Lost { key, .. } => Some(key),
            _ => None,
        }
    }

    /// When the session must be looked at without a message, at the latest.
    pub fn moment(&self, beat: u64) -> u64 {
        match &self.purpose {
            Purpose::Lost { search, .. } if self.fd.is_none() => search.next,
            Purpose::Live { .. } => beat,
            _ => self.deadline.0,
        }
    }

    /// True when the time to answer is over.
    pub fn is_late(&self) -> bool {
        let asked = self.waiting() || (matches!(self.purpose, Purpose::Lost { .. }) && self.phase != Phase::Connecting);
        let answered = matches!(&self.purpose, Purpose::Lost { search, .. } if search.taken || search.found.is_some());
        asked && !answered && !self.done && self.deadline.passed()
    }

    /// True while it waits for room in the exporter's queue.
    pub fn is_knocking(&self) -> bool {
        self.waiting() && self.fd.is_none()
    }

    fn attempt(&self) -> String {
        match &self.purpose {
            Purpose::Open { name, .. } => format!("open region \"{name}\""),
            _ => "talk to the exporter".into(),
        }
    }

    fn error(&self, status: Status, why: impl Into<String>) -> Error {
        Error::new(status, self.attempt(), why)
    }

    /// Connects and greets; stays in place when the exporter's queue is full.
    pub fn connect(&mut self, trusted: &dyn Fn(u32) -> bool) {
        if let Purpose::Lost { search, .. } = &self.purpose
            && self.fd.is_none()
            && now() < search.next
        {
            return;
        }
        if self.phase == Phase::Connecting
            && let Err(e) = self.try_connect(trusted)
        {
            self.fail(e);
        }
    }

    fn try_connect(&mut self, trusted: &dyn Fn(u32) -> bool) -> Outcome {
        let fd = match socket::connect(&self.address) {
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::CONNREFUSED) => {
                let e = self.error(Status::NOT_FOUND, "no process on this host exports that name");
                return Err(e.remedy("start the exporter first, or look for the name with `smc ls`"));
            }
            r => r.map_err(|e| self.error(Status::SYSTEM, format!("connect: {e}")))?,
        };
        let peer = socket::peer(fd.as_fd()).map_err(|e| self.error(Status::SYSTEM, format!("SO_PEERCRED: {e}")))?;
        if !trusted(peer.uid) {
            let why = format!(
                "the exporter (process {}) runs as user {}, whom this process does not trust",
                peer.pid, peer.uid
            );
            return Err(self.error(Status::PERMISSION, why).remedy("run the exporter as your own user or as root"));
        }
        self.fd = Some(fd);
        self.phase = Phase::Greeting;
        self.say(&Message::Hello { min: mgmt::VERSION_MIN, max: mgmt::VERSION_MAX })
    }

    fn say(&self, m: &Message) -> Outcome {
        let Some(fd) = &self.fd else { return Ok(()) };
        match socket::send(fd.as_fd(), &mgmt::encode(m), &[]) {
            // He has closed; what he said before that (why he refuses) is still to be read, and then the end.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(e) => Err(self.error(Status::PEER_DEAD, format!("send: {e}"))),
        }
    }

    /// Ends the session with an error for whoever waits for it.
    pub fn fail(&mut self, e: Error) {
        let over = matches!(e.status, Status::REVOKED | Status::STALE);
        match self.purpose {
            Purpose::Live { .. } if e.status == Status::PEER_DEAD => return self.search_again(),
            Purpose::Lost { .. } if !over => return self.search_again(),
            _ => {}
        }
        self.done = true;
        self.fd = None;
        if let Purpose::Open { reply, .. } = &self.purpose {
            let _ = reply.send(Err(e));
        } else if let Purpose::List { found, reply } = &mut self.purpose {
            let _ = reply.send(std::mem::take(found));
        }
    }

    /// The caller's time is up.
    pub fn expire(&mut self) {
        let why = if self.phase == Phase::Connecting {
            "too many clients wait for it"
        } else {
            "the exporter did not answer in time"
        };
        self.fail(self.error(Status::TIMED_OUT, why));
    }

    /// Reads what has arrived.
    pub fn readable(&mut self, table: &Table) {
        // Bounded, so that one exporter cannot hold the thread.
        for _ in 0..32 {
            let Some(fd) = &self.fd else { return };
            let mut buf = [0u8; MAX_FRAME];
            let result = match socket::recv(fd.as_fd(), &mut buf, true) {
                Err(Errno::AGAIN) => return,
                // Said once, when he closed without reading all we sent; his last words come after it.
                Err(Errno::CONNRESET) => continue,
                Err(Errno::MSGSIZE | Errno::PROTO) => Err(self.error(Status::PROTOCOL, "oversized message")),
                Err(e) => Err(self.error(Status::PEER_DEAD, format!("receive: {e}"))),
                Ok(r) if r.len == 0 => Err(self.error(Status::PEER_DEAD, "the exporter has closed the connection")),
                Ok(r) => match mgmt::decode(buf.get(..r.len).unwrap_or_default()) {
                    Ok(m) => self.take(m, r.fds, table),
                    Err(e) => Err(self.error(Status::PROTOCOL, e.to_string())),
                },
            };
            if let Err(e) = result {
                let lost = matches!(self.purpose, Purpose::Lost { .. });
                if let Some(slot) = self.key().and_then(|k| table.slot(k.0 as usize & (super::SLOTS - 1))) {
                    // Whatever goes wrong in a search, the next one may find the exporter.
                    let keeps_looking = lost && !matches!(e.status, Status::REVOKED | Status::STALE);
                    slot.fail(if keeps_looking { Status::PEER_DEAD } else { e.status });
                }
                return self.fail(e);
            }
        }
    }

    fn take(&mut self, m: Message, fds: Vec<OwnedFd>, table: &Table) -> Outcome {
        match (m, self.phase) {
            (Message::Welcome { version, .. }, Phase::Greeting) => self.welcome(version),
            (Message::Error { status, text }, _) if !matches!(self.purpose, Purpose::Live { .. }) => {
                let status = if status.is_ok() { Status::REFUSED } else { status };
                Err(self.error(status, format!("the exporter says: {text}")))
            }
            (Message::Names { next, regions }, Phase::Asked) => self.names(next, &regions),
            (Message::Opened { region }, Phase::Asked) => self.opened(region, fds, table),
            (Message::Moved { generation }, _) => self.moved(generation, fds, table),
            (Message::Revoked { reason }, _) if !self.waiting() => Err(self.error(Status::REVOKED, reason)),
            (Message::Ended, _) if !self.waiting() => Err(self.error(Status::PEER_DEAD, "the export has ended")),
            (Message::Pong { .. } | Message::Error { .. }, _) => Ok(()),
            _ => Err(self.error(Status::PROTOCOL, "a message that does not fit here")),
        }
    }

    fn welcome(&mut self, version: u16) -> Outcome {
        if !(mgmt::VERSION_MIN..=mgmt::VERSION_MAX).contains(&version) {
            return Err(self.error(Status::PROTOCOL, format!("the exporter speaks protocol version {version}")));
        }
        self.phase = Phase::Asked;
        match &self.purpose {
            Purpose::Open { name, want, .. } => self.say(&Message::Open { name: name.clone(), want: *want }),
            Purpose::Lost { what, .. } => self.say(&Message::Open { name: what.name.clone(), want: what.want }),
            _ => self.say(&Message::List { start: 0 }),
        }
    }

    fn names(&mut self, next: u32, regions: &[RegionDesc]) -> Outcome {
        let Purpose::List { found, reply } = &mut self.purpose else {
            return Err(self.error(Status::PROTOCOL, "names that nobody asked for"));
        };
        found.extend(regions.iter().map(RegionDesc::info));
        if next == 0 || found.len() > 100_000 {
            let _ = reply.send(std::mem::take(found));
            self.done = true;
            self.fd = None;
            return Ok(());
        }
        self.say(&Message::List { start: next })
    }

    fn opened(&mut self, region: RegionDesc, fds: Vec<OwnedFd>, table: &Table) -> Outcome {
        let (name, want) = match &self.purpose {
            Purpose::Open { name, want, .. } => (name, *want),
            Purpose::Lost { what, search, .. } if search.found.is_none() && !search.taken => (&what.name, what.want),
            _ => return Err(self.error(Status::PROTOCOL, "an opening that nobody asked for")),
        };
        let Ok([home, control]) = <[OwnedFd; 2]>::try_from(fds) else {
            return Err(self.error(Status::PROTOCOL, "an opening without its two descriptors"));
        };
        if region.name != *name || region.access < want || region.len == 0 {
            return Err(self.error(Status::PROTOCOL, "an opening of something else"));
        }
        let what = What { name: name.clone(), want, len: region.len, incarnation: region.incarnation };
        if let Purpose::Lost { what: before, .. } = &self.purpose
            && *before != what
        {
            return Err(self.error(Status::STALE, "the exporter came back with other memory"));
        }
        let writable = want == Access::ReadWrite;
        let home = self.map(&home, region.len, if writable { mem::RW } else { mem::READ })?;
        let page = self.map(&control, control::LEN as u64, mem::RW)?;
        // SAFETY: a live mapping of at least a page; Control consists of atomics and every bit pattern is one.
        if !unsafe { &*page.ptr().cast::<control::Control>() }.is_ours() {
            return Err(self.error(Status::PROTOCOL, "the control page has an unknown layout"));
        }
        if let Purpose::Lost { search, .. } = &mut self.purpose {
            search.found = Some((home, region.generation, page));
            self.settle(table);
            return Ok(());
        }
        let Some(key) = table.install(home, region.generation, page, region.len, writable) else {
            return Err(self.error(Status::NO_RESOURCES, format!("{} regions are open already", super::SLOTS)));
        };
        let mut info = region.info();
        info.access = want;
        let live = Purpose::Live { key, what, beat: 0, pending: None };
        let Purpose::Open { reply, .. } = std::mem::replace(&mut self.purpose, live) else { return Ok(()) };
        if reply.send(Ok(Opened { key, info })).is_err()
            && let Some(slot) = table.slot(key.0 as usize & (super::SLOTS - 1))
        {
            // The caller gave up: nobody will ever close it.
            slot.key.store(0, SeqCst);
            self.done = true;
        }
        Ok(())
    }

    /// Maps a descriptor the exporter sent, after making sure that he cannot shrink it under us.
    fn map(&self, fd: &OwnedFd, len: u64, prot: i32) -> Result<Mapping, Error> {
        let bytes = usize::try_from(len).ok().filter(|n| *n <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| self.error(Status::PROTOCOL, "a length beyond the address space"))?;
        let (seals, size) = (memfile::seals(fd.as_fd()), memfile::size(fd.as_fd()));
        if seals.is_none_or(|s| s & mem::SEAL_SHRINK == 0) || size.is_none_or(|s| s < len) {
            return Err(self.error(Status::PROTOCOL, "memory that is not sealed against shrinking"));
        }
        let map = Mapping::shared(fd.as_fd(), 0, bytes, mem::NONE)
            .and_then(|m| m.unlocked(prot).map(|()| m))
            .map_err(|e| self.error(Status::NO_RESOURCES, format!("mmap: {e}")))?;
        map.advise(0, bytes, mem::DONTFORK).map_err(|e| self.error(Status::SYSTEM, format!("MADV_DONTFORK: {e}")))?;
        // Only a nicety: a core dump shall not hold other people's memory.
        let _ = map.advise(0, bytes, mem::DONTDUMP);
        Ok(map)
    }

    fn moved(&mut self, generation: u64, fds: Vec<OwnedFd>, table: &Table) -> Outcome {
        let slot = self.key().and_then(|k| table.slot(k.0 as usize & (super::SLOTS - 1)));
        let (Some(slot), Ok([home])) = (slot, <[OwnedFd; 1]>::try_from(fds)) else {
            return Err(self.error(Status::PROTOCOL, "a move that does not fit here"));
        };
        let prot = if slot.writable.load(SeqCst) != 0 { mem::RW } else { mem::READ };
        let map = self.map(&home, slot.len.load(SeqCst), prot)?;
        match &mut self.purpose {
            Purpose::Live { pending, .. } => *pending = Some((map, generation)),
            Purpose::Lost { search, .. } => search.pending = Some((map, generation)),
            _ => {}
        }
        self.settle(table);
        Ok(())
    }

    /// Installs a moved home as soon as there is room for it; true when nothing waits any more.
    pub fn settle(&mut self, table: &Table) -> bool {
        if !self.attach(table) {
            return false;
        }
        let Purpose::Live { key, pending, .. } = &mut self.purpose else { return true };
        let Some(slot) = table.slot(key.0 as usize & (super::SLOTS - 1)) else { return true };
        if slot.key.load(SeqCst) != key.0 {
            *pending = None;
            return true;
        }
        if let Some((map, generation)) = pending.take()
            && let Err(back) = slot.replace(map, generation)
        {
            *pending = Some((back, generation));
            return false;
        }
        slot.unmap_old()
    }

    /// Once a second: notes the exporter's heartbeat and asks for an answer.
    pub fn tick(&mut self, table: &Table) {
        if let Purpose::Live { key, beat, .. } = &mut self.purpose
            && let Some(slot) = table.slot(key.0 as usize & (super::SLOTS - 1))
            && let Some(c) = slot.control()
        {
            let seen = c.heartbeat.load(SeqCst);
            if seen != *beat {
                *beat = seen;
                slot.beat_at.store(now(), SeqCst);
            }
            // A full queue means a stopped exporter: the heartbeat tells that already.
            let _ = self.say(&Message::Ping { token: seen });
        }
    }

    /// The application has closed the region.
    pub fn close(&mut self) {
        let _ = self.say(&Message::Close);
        self.fd = None;
        self.done = true;
    }
}
