//! What any thread may know of the exports: names, and who has them open.

use super::event::{Event, What};
use super::home::Home;
use super::orders::Port;
use super::{ClientInfo, ExportOptions, Reach};
use crate::base::Status;
use crate::base::config::DeviceWish;
use crate::link::mgmt::RegionDesc;
use crate::link::mgmt::tcp::gate::{Gate, Origin, Rate};
use crate::link::{Access, MemoryKind};
use crate::sys::channel::Sender;
use crate::sys::clock::{Deadline, now};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The public part of one export; the rest belongs to the service thread.
#[derive(Debug)]
pub(super) struct Shared {
    pub id: u64,
    pub name: String,
    pub base: usize,
    pub len: usize,
    pub kind: MemoryKind,
    access: Access,
    reach: Reach,
    incarnation: u64,
    /// Device and port for clients of other hosts, where the export has its own.
    pub port: Option<DeviceWish>,
    /// How often the memory has moved.
    generation: AtomicU64,
    /// The memory is being moved: nothing may be registered.
    moving: AtomicBool,
    clients: Mutex<Vec<ClientInfo>>,
    changed: Condvar,
}

impl Shared {
    pub fn new(id: u64, name: String, home: &Home, options: &ExportOptions) -> Shared {
        Shared {
            id,
            name,
            base: home.base(),
            len: home.len(),
            kind: home.kind,
            access: options.access,
            reach: options.reach.clone(),
            incarnation: options.incarnation,
            port: options.port.clone(),
            generation: AtomicU64::new(home.generation),
            moving: AtomicBool::new(false),
            clients: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Called by the service thread when the memory has moved.
    pub fn set_generation(&self, generation: u64) {
        self.generation.store(generation, SeqCst);
    }

    pub fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// Called by the service thread, before and after it moves the memory.
    pub fn set_moving(&self, moving: bool) {
        self.moving.store(moving, SeqCst);
    }

    pub fn is_moving(&self) -> bool {
        self.moving.load(SeqCst)
    }

    /// What a member may do with it; `None`: it does not exist for him.
    pub fn grant(&self, client: Option<&str>) -> Option<Access> {
        self.reach.grant(client, self.access)
    }

    /// What others are told of it.
    pub fn describe(&self) -> RegionDesc {
        RegionDesc {
            name: self.name.clone(),
            len: self.len as u64,
            access: self.access,
            kind: self.kind,
            pid: std::process::id(),
            clients: self.clients().len() as u32,
            generation: self.generation.load(SeqCst),
            incarnation: self.incarnation,
        }
    }

    pub fn clients(&self) -> Vec<ClientInfo> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Called by the service thread whenever a client of this host comes or goes.
    pub fn set_clients(&self, now: Vec<ClientInfo>) {
        self.change(|list| {
            list.retain(|c| c.remote.is_some());
            list.extend(now);
        });
    }

    /// Called by a network's thread when a client of another host has come, or something of him has changed.
    pub fn put_client(&self, c: ClientInfo) {
        self.change(|list| match list.iter_mut().find(|old| old.id == c.id) {
            Some(old) => *old = c,
            None => list.push(c),
        });
    }

    /// Called by a network's thread when a client of another host has gone.
    pub fn remove_client(&self, id: u64) {
        self.change(|list| list.retain(|c| c.id != id));
    }

    fn change(&self, f: impl FnOnce(&mut Vec<ClientInfo>)) {
        f(&mut self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    pub fn wait_empty(&self, deadline: Deadline) -> Status {
        let mut list = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        while !list.is_empty() {
            let left = deadline.left_ns();
            if left == 0 {
                return Status::TIMED_OUT;
            }
            list =
                self.changed.wait_timeout(list, Duration::from_nanos(left)).unwrap_or_else(PoisonError::into_inner).0;
        }
        Status::OK
    }
}

/// Name to export. A lock and a tree: exports come and go rarely, and a map that many threads may change at once would
/// cost every thread of every program thread-local memory.
#[derive(Debug)]
pub(super) struct Registry {
    exports: Mutex<BTreeMap<String, Arc<Shared>>>,
    ports: Mutex<Vec<Arc<Port>>>,
    record: Mutex<Record>,
    last_id: AtomicU64,
}

/// Where events go.
#[derive(Debug)]
struct Record {
    to: Option<Sender<Event>>,
    refusals: Gate,
    untold: u64,
}

/// Refusals told of one origin.
const REFUSALS: Rate = Rate { interval_ns: 1_000_000_000, burst: 16 };

impl Default for Registry {
    fn default() -> Registry {
        let record = Mutex::new(Record { to: None, refusals: Gate::new(REFUSALS), untold: 0 });
        Registry { exports: Mutex::default(), ports: Mutex::default(), record, last_id: AtomicU64::new(1) }
    }
}

impl Registry {
    fn map(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Shared>>> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that nobody has had in this process.
    pub fn id(&self) -> u64 {
        self.last_id.fetch_add(1, SeqCst) + 1
    }

    pub fn find(&self, name: &str) -> Option<Arc<Shared>> {
        self.map().get(name).cloned()
    }

    /// The networks that serve this process's exports.
    pub fn ports(&self) -> MutexGuard<'_, Vec<Arc<Port>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn record(&self, to: Option<Sender<Event>>) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).to = to;
    }

    /// Tells an event, if anybody listens, and if it is no refusal too many.
    pub fn note(&self, mut e: Event) {
        let mut r = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if r.to.is_none() {
            return;
        }
        if e.what == What::Refusal {
            let from = e.address.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |a| a.ip());
            if !r.refusals.admit(Origin::of(from), now()) {
                r.untold += 1;
                return;
            }
            e.untold = std::mem::take(&mut r.untold);
        }
        if let Some(to) = &r.to {
            let _ = to.send(e);
        }
    }

    pub fn insert(&self, s: &Arc<Shared>) {
        self.map().insert(s.name.clone(), s.clone());
    }

    /// Removes exactly this export, not a later one of the same name.
    pub fn remove(&self, s: &Arc<Shared>) {
        let mut map = self.map();
        if map.get(&s.name).is_some_and(|now| Arc::ptr_eq(now, s)) {
            map.remove(&s.name);
        }
    }

    /// Sorted.
    pub fn names(&self) -> Vec<String> {
        self.map().keys().cloned().collect()
    }

    /// At most `most` exports that a member may see, in the order of their names, from the `start`-th on, with what he may do;
    /// and whether there are more.
    pub fn part(&self, client: Option<&str>, start: usize, most: usize) -> (Vec<RegionDesc>, bool) {
        let map = self.map();
        let mut seen = map.values().filter_map(|s| Some((s, s.grant(client)?))).skip(start);
        let part = seen.by_ref().take(most).map(|(s, access)| RegionDesc { access, ..s.describe() }).collect();
        (part, seen.next().is_some())
    }
}
