//! Who is there, what each has open, and what is said to them.

mod arrivals;

use super::done;
use crate::base::config::DeviceWish;
use crate::base::{Error, Status};
use crate::core::export::event::{Event, What};
use crate::core::export::orders::{Order, Who};
use crate::core::export::registry::{Registry, Shared};
use crate::core::export::{ClientInfo, NO_USER, Remote};
use crate::link::Access;
use crate::link::mgmt::message::{Endpoint, MAX_NAMES};
use crate::link::mgmt::tcp::{Member, Office, Reply, Server};
use crate::link::mgmt::{Message, RegionDesc};
use crate::link::verbs::reception::Reception;
use crate::link::verbs::{Adapters, Grant};
use crate::sys::clock::now;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The queue pairs that a member wants to connect.
enum Lanes {
    /// These.
    Told(Vec<Endpoint>),
    /// So many that will come by the connection manager.
    Coming(u8),
}

/// A region that a member has open.
struct Open {
    shared: Arc<Shared>,
    access: Access,
    since: u64,
    /// What is registered of the memory for him.
    grant: Option<Grant>,
    /// He wants to connect while the memory is being moved.
    waiting: Option<Lanes>,
}

struct Session {
    client: Option<String>,
    from: SocketAddr,
    here: IpAddr,
    open: Option<Open>,
    /// What is left of his access when that has been cut: it answers him so until he goes.
    remains: Option<Grant>,
}

/// The members of one network.
pub(super) struct Desk {
    registry: Arc<Registry>,
    // Before the adapters, which everything registered belongs to.
    sessions: BTreeMap<u64, Session>,
    receptions: Vec<Reception>,
    adapters: Adapters,
    wish: DeviceWish,
}

impl Open {
    fn device(&self) -> Option<String> {
        self.grant.as_ref().map(|g| g.device().name().to_owned())
    }
}

/// Connects, by the adapter that the connection of the client suggests. With the reason for the adapter when the memory was registered just now.
fn reach(
    s: &mut Session,
    wish: &DeviceWish,
    adapters: &mut Adapters,
    receptions: &mut Vec<Reception>,
    id: u64,
    lanes: &Lanes,
) -> Result<(Message, Option<String>), Error> {
    let attempt = || Error::of(Status::INTERNAL, "connect");
    let o = s.open.as_mut().ok_or_else(attempt)?;
    let choice = adapters.of(o.shared.port.as_ref().unwrap_or(wish), s.here).map_err(|e| Error {
        // To the client a device that is not found and a region that is not found are two things.
        status: if e.status == Status::NOT_FOUND { Status::NOT_SUPPORTED } else { e.status },
        attempt: format!("reach \"{}\" by RDMA: the exporter cannot {}", o.shared.name, e.attempt),
        ..e
    })?;
    let new = o.grant.is_none();
    let done = (|| {
        let mut grant = match o.grant.take() {
            Some(g) => g,
            None => {
                let base = std::ptr::with_exposed_provenance_mut(o.shared.base);
                // SAFETY: an exported home stays where it is while the service thread has not ordered otherwise: it orders this
                // thread to let go, and waits, before it moves or unmaps it, and has marked it before (is_moving).
                unsafe { Grant::new(&choice.device, base, o.shared.len, o.access) }?
            }
        };
        let m = match lanes {
            Lanes::Told(lanes) => grant.connect(&choice.ports, lanes)?,
            Lanes::Coming(n) => {
                let (addr, rkey, flush) = grant.start_anew()?;
                let (at, port, token) = arrivals::place(receptions, &choice, s.here)?.expect(id, *n)?;
                Message::Arranged { addr, rkey, flush, at, port, token }
            }
        };
        o.grant = Some(grant);
        Ok(m)
    })();
    if done.as_ref().is_err_and(|e: &Error| e.status == Status::LINK_DOWN) {
        adapters.forget(&choice);
        receptions.retain(|r| !Arc::ptr_eq(r.choice(), &choice));
    }
    done.map(|m| (m, new.then(|| choice.reason.clone())))
}

impl Session {
    fn event(&self, what: What, id: u64, why: impl Into<String>) -> Event {
        let open = self.open.as_ref();
        Event {
            id,
            client: self.client.clone(),
            address: Some(self.from),
            region: open.map(|o| o.shared.name.clone()),
            access: open.map(|o| o.access),
            device: open.and_then(Open::device),
            ..Event::new(what, why)
        }
    }

    fn has(&self, export: u64) -> bool {
        self.open.as_ref().is_some_and(|o| o.shared.id == export)
    }

    /// As the exporter's clients are listed.
    fn info(&self, id: u64, o: &Open) -> ClientInfo {
        let remote = Some(Remote { client: self.client.clone(), address: self.from, device: o.device() });
        ClientInfo { id, pid: 0, uid: NO_USER, access: o.access, since: o.since, remote }
    }

    /// Lets go of the region: nothing of it is registered for him any more, and he is not listed.
    fn shut(&mut self, id: u64) {
        if let Some(mut o) = self.open.take() {
            self.remains = o.grant.take();
            self.remains.iter_mut().for_each(Grant::cut);
            o.shared.remove_client(id);
        }
    }
}

impl Desk {
    pub fn new(registry: Arc<Registry>, wish: DeviceWish) -> Desk {
        Desk { registry, sessions: BTreeMap::new(), receptions: Vec::new(), adapters: Adapters::default(), wish }
    }

    /// Does what the service thread wants; false when it is time to end.
    pub fn obey(&mut self, order: Order, server: &mut Server) -> bool {
        match order {
            Order::Start => {}
            Order::Stop => return false,
            Order::Hold { export, done: to } => {
                self.hold(export);
                done(&to);
            }
            Order::Resume { export } => self.resume(export, server),
            Order::End { export, done: to } => {
                for id in self.of(export) {
                    self.out(id, What::End, "the export has ended", &Message::Ended, server);
                }
                done(&to);
            }
            Order::Revoke { export, who, reason, done: to } => {
                let chosen = |id: &u64| matches!(who, Who::All) || who == Who::One(*id);
                for id in self.of(export).into_iter().filter(chosen) {
                    self.revoke(id, &reason, server);
                }
                done(&to);
            }
            Order::Keys { keys, done: to } => {
                for id in server.take_keys(keys) {
                    self.revoke(id, "the key is no longer good", server);
                }
                done(&to);
            }
        }
        true
    }

    /// Lets go of everything; the connections are closed without a word, as by the end of the process.
    pub fn close(mut self) {
        for (id, s) in &mut self.sessions {
            if s.open.is_some() {
                self.registry.note(s.event(What::End, *id, "the exporter listens no longer"));
            }
            s.shut(*id);
        }
    }

    /// Who has this export open.
    fn of(&self, export: u64) -> Vec<u64> {
        self.sessions.iter().filter(|(_, s)| s.has(export)).map(|(id, _)| *id).collect()
    }

    fn revoke(&mut self, id: u64, reason: &str, server: &mut Server) {
        self.out(id, What::Revocation, reason, &Message::Revoked { reason: reason.to_owned() }, server);
    }

    /// Takes from a member what he has, tells him, and closes.
    fn out(&mut self, id: u64, what: What, why: &str, last: &Message, server: &mut Server) {
        if let Some(s) = self.sessions.get_mut(&id) {
            let e = s.event(what, id, why);
            s.shut(id);
            self.registry.note(e);
        }
        server.tell(id, last, true);
    }

    /// Lets go of the memory of an export; its clients keep it open.
    fn hold(&mut self, export: u64) {
        for s in self.sessions.values_mut().filter(|s| s.has(export)) {
            if let Some(o) = &mut s.open {
                o.grant = None;
            }
        }
    }

    fn resume(&mut self, export: u64, server: &mut Server) {
        for id in self.of(export) {
            let Some(o) = self.sessions.get_mut(&id).and_then(|s| s.open.as_mut()) else { continue };
            let (generation, waiting) = (o.shared.generation(), o.waiting.take());
            server.tell(id, &Message::Moved { generation }, false);
            if let Some(lanes) = waiting {
                let answer = self.connect(id, &lanes);
                server.tell(id, &answer, false);
            }
        }
    }

    fn refuse(&self, who: &Member, region: &str, status: Status, text: String) -> Reply {
        let client = who.client.as_deref().map(str::to_owned);
        let region = Some(region.to_owned());
        let e = Event { id: who.id, client, address: Some(who.from), region, ..Event::new(What::Refusal, &*text) };
        self.registry.note(e);
        Reply::Say(Message::error(status, text))
    }

    fn open(&mut self, who: &Member, name: &str, want: Access) -> Reply {
        let client = who.client.as_deref();
        let found = self.registry.find(name).and_then(|s| s.grant(client).map(|most| (s, most)));
        let Some((shared, most)) = found else {
            // Whether it is there is not told to whom it is not shown.
            return self.refuse(who, name, Status::NOT_FOUND, "no such region here".to_owned());
        };
        if want > most {
            return self.refuse(who, name, Status::PERMISSION, format!("\"{name}\" is exported to you read-only"));
        }
        let Some(s) = self.sessions.get_mut(&who.id) else { return Reply::Leave };
        if s.open.is_some() {
            return Reply::Last(Message::error(Status::PROTOCOL, "this connection has a region open"));
        }
        let open = Open { shared: shared.clone(), access: want, since: now(), grant: None, waiting: None };
        // Before the answer: whoever has been told that it is open is in the list.
        shared.put_client(s.info(who.id, &open));
        s.open = Some(open);
        self.registry.note(s.event(What::Grant, who.id, "opened"));
        Reply::Say(Message::Opened { region: RegionDesc { access: want, ..shared.describe() } })
    }

    /// Registers the memory for a client, if it is not yet, and connects his queue pairs.
    fn connect(&mut self, id: u64, lanes: &Lanes) -> Message {
        let Some(s) = self.sessions.get_mut(&id) else { return Message::Close };
        let connected = reach(s, &self.wish, &mut self.adapters, &mut self.receptions, id, lanes);
        if let Some(o) = &s.open {
            o.shared.put_client(s.info(id, o));
        }
        match connected {
            Ok((m, new)) => {
                if let Some(reason) = new {
                    self.registry.note(s.event(What::Grant, id, reason));
                }
                m
            }
            Err(e) => {
                self.registry.note(s.event(What::Refusal, id, e.to_string()));
                Message::error(e.status, e.to_string())
            }
        }
    }

    /// Connects now, or when the memory has moved.
    fn ask_to_connect(&mut self, id: u64, lanes: Lanes) -> Reply {
        match self.sessions.get_mut(&id).and_then(|s| s.open.as_mut()) {
            None => Reply::Last(Message::error(Status::PROTOCOL, "open a region first")),
            Some(o) if o.waiting.is_some() => Reply::Last(Message::error(Status::PROTOCOL, "one question at a time")),
            Some(o) if o.shared.is_moving() => {
                o.waiting = Some(lanes);
                Reply::Later
            }
            Some(_) => Reply::Say(self.connect(id, &lanes)),
        }
    }
}

impl Office for Desk {
    fn admitted(&mut self, client: Option<&str>, from: &SocketAddr, here: &SocketAddr) -> u64 {
        let id = self.registry.id();
        let (client, here) = (client.map(str::to_owned), here.ip().to_canonical());
        self.sessions.insert(id, Session { client, from: *from, here, open: None, remains: None });
        id
    }

    fn ask(&mut self, who: &Member, m: Message) -> Reply {
        match m {
            Message::List { start } => {
                let (regions, more) = self.registry.part(who.client.as_deref(), start as usize, MAX_NAMES);
                let next = if more { start.saturating_add(MAX_NAMES as u32) } else { 0 };
                Reply::Say(Message::Names { next, regions })
            }
            Message::Open { name, want } => self.open(who, &name, want),
            Message::Connect { lanes } => self.ask_to_connect(who.id, Lanes::Told(lanes)),
            Message::Arrange { lanes } => self.ask_to_connect(who.id, Lanes::Coming(lanes)),
            _ => Reply::Say(Message::error(Status::NOT_SUPPORTED, "this region is not accelerator memory")),
        }
    }

    fn left(&mut self, who: &Member, why: &'static str) {
        self.receptions.iter_mut().for_each(|r| r.forget(who.id));
        if let Some(mut s) = self.sessions.remove(&who.id) {
            if s.open.is_some() {
                self.registry.note(s.event(What::End, who.id, why));
            }
            s.shut(who.id);
        }
    }

    fn refused(&mut self, from: &SocketAddr, client: Option<&str>, why: &'static str) {
        let client = client.map(str::to_owned);
        self.registry.note(Event { client, address: Some(*from), ..Event::new(What::Refusal, why) });
    }
}
