//! What any thread may know of the exports: names, and who has them open.

use super::home::Home;
use super::{ClientInfo, ExportOptions};
use crate::base::Status;
use crate::link::mgmt::RegionDesc;
use crate::link::{Access, MemoryKind};
use crate::sys::clock::Deadline;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
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
    incarnation: u64,
    /// How often the memory has moved.
    generation: AtomicU64,
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
            incarnation: options.incarnation,
            generation: AtomicU64::new(home.generation),
            clients: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Called by the service thread when the memory has moved.
    pub fn set_generation(&self, generation: u64) {
        self.generation.store(generation, SeqCst);
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

    /// Called by the service thread whenever a client comes or goes.
    pub fn set_clients(&self, now: Vec<ClientInfo>) {
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = now;
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
#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<BTreeMap<String, Arc<Shared>>>);

impl Registry {
    fn map(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Shared>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// At most `most` exports in the order of their names, from the `start`-th on; and whether there are more.
    pub fn part(&self, start: usize, most: usize) -> (Vec<RegionDesc>, bool) {
        let map = self.map();
        let part = map.values().skip(start).take(most).map(|s| s.describe()).collect();
        (part, map.len() > start.saturating_add(most))
    }
}
