//! Who is there, what each has open, and what is said to them.

use super::done;
use crate::base::Status;
use crate::core::export::event::{Event, What};
use crate::core::export::orders::{Order, Who};
use crate::core::export::registry::{Registry, Shared};
use crate::core::export::{ClientInfo, NO_USER, Remote};
use crate::link::Access;
use crate::link::mgmt::message::{Endpoint, MAX_NAMES};
use crate::link::mgmt::tcp::{Member, Office, Reply, Server};
use crate::link::mgmt::{Message, RegionDesc};
use crate::sys::clock::now;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// A region that a member has open.
struct Open {
    shared: Arc<Shared>,
    access: Access,
    since: u64,
    /// He wants to connect while the memory is being moved.
    waiting: Option<Vec<Endpoint>>,
}

struct Session {
    client: Option<String>,
    from: SocketAddr,
    open: Option<Open>,
}

/// The members of one network.
pub(super) struct Desk {
    registry: Arc<Registry>,
    sessions: BTreeMap<u64, Session>,
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
            ..Event::new(what, why)
        }
    }

    fn has(&self, export: u64) -> bool {
        self.open.as_ref().is_some_and(|o| o.shared.id == export)
    }

    /// As the exporter's clients are listed.
    fn info(&self, id: u64, o: &Open) -> ClientInfo {
        let remote = Some(Remote { client: self.client.clone(), address: self.from, device: None });
        ClientInfo { id, pid: 0, uid: NO_USER, access: o.access, since: o.since, remote }
    }

    /// Lets go of the region: nothing of it is registered for him any more, and he is not listed.
    fn shut(&mut self, id: u64) {
        if let Some(o) = self.open.take() {
            o.shared.remove_client(id);
        }
    }
}

impl Desk {
    pub fn new(registry: Arc<Registry>) -> Desk {
        Desk { registry, sessions: BTreeMap::new() }
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

    fn hold(&mut self, _export: u64) {}

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
        let open = Open { shared: shared.clone(), access: want, since: now(), waiting: None };
        // Before the answer: whoever has been told that it is open is in the list.
        shared.put_client(s.info(who.id, &open));
        s.open = Some(open);
        self.registry.note(s.event(What::Grant, who.id, "opened"));
        Reply::Say(Message::Opened { region: RegionDesc { access: want, ..shared.describe() } })
    }

    fn connect(&mut self, _id: u64, _lanes: &[Endpoint]) -> Message {
        Message::error(Status::NOT_SUPPORTED, "regions can be opened over a network, but not reached yet")
    }

    /// Connects now, or when the memory has moved.
    fn ask_to_connect(&mut self, id: u64, lanes: Vec<Endpoint>) -> Reply {
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
    fn admitted(&mut self, client: Option<&str>, from: &SocketAddr) -> u64 {
        let id = self.registry.id();
        self.sessions.insert(id, Session { client: client.map(str::to_owned), from: *from, open: None });
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
            Message::Connect { lanes } => self.ask_to_connect(who.id, lanes),
            _ => Reply::Say(Message::error(Status::NOT_SUPPORTED, "this region is not accelerator memory")),
        }
    }

    fn left(&mut self, who: &Member, why: &'static str) {
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
