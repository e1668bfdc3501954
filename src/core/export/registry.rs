//! What any thread may know of the exports: names, and who has them open.

use super::ClientInfo;
use crate::base::Status;
use crate::link::MemoryKind;
use crate::sys::clock::Deadline;
use std::collections::BTreeMap;
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
    clients: Mutex<Vec<ClientInfo>>,
    changed: Condvar,
}

impl Shared {
    pub fn new(id: u64, name: String, base: usize, len: usize, kind: MemoryKind) -> Shared {
        Shared { id, name, base, len, kind, clients: Mutex::default(), changed: Condvar::new() }
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
}
