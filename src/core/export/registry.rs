//! What any thread may know of the exports: names, and who has them open.

use super::ClientInfo;
use crate::base::Status;
use crate::link::MemoryKind;
use crate::sys::clock::Deadline;
use dashmap::DashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
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

/// A hasher with fixed keys: the usual one would ask the kernel for random bytes, and names come from the application.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// Name to export.
#[derive(Debug)]
pub(super) struct Registry {
    map: DashMap<String, Arc<Shared>, Hasher>,
}

impl Registry {
    pub fn new() -> Registry {
        // The number of shards is given because the default one is found by reading /proc.
        Registry { map: DashMap::with_capacity_and_hasher_and_shard_amount(0, Hasher::default(), 4) }
    }

    pub fn insert(&self, s: &Arc<Shared>) {
        self.map.insert(s.name.clone(), s.clone());
    }

    /// Removes exactly this export, not a later one of the same name.
    pub fn remove(&self, s: &Arc<Shared>) {
        self.map.remove_if(&s.name, |_, v| Arc::ptr_eq(v, s));
    }

    pub fn names(&self) -> Vec<String> {
        let mut all: Vec<String> = self.map.iter().map(|e| e.key().clone()).collect();
        all.sort();
        all
    }
}
