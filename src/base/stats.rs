//! Named counters: the user's and the tests' eyes. Relaxed atomics: they count, they never order.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One counter. Safe to add to from hooks, signal handlers and any thread.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }
    /// Adds one.
    pub fn hit(&self) {
        self.add(1);
    }
    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

macro_rules! counters {
    ($(#[$sdoc:meta])* $set:ident { $($(#[doc = $doc:literal])* $name:ident,)* }) => {
        $(#[$sdoc])*
        #[derive(Default, Debug)]
        pub struct $set { $($(#[doc = $doc])* pub $name: Counter,)* }
        impl $set {
            /// All zero.
            pub const fn new() -> $set { $set { $($name: Counter::new(),)* } }
            /// Calls `f` with each counter's name, meaning and value, in the order of the table.
            pub fn each(&self, mut f: impl FnMut(&'static str, &'static str, u64)) {
                $(f(stringify!($name), concat!($($doc),*).trim_start(), self.$name.get());)*
            }
        }
    };
}

counters! {
    /// What one region has done since it was mapped.
    RegionStats {
        /// read or write faults served by fetching from the home
        faults,
        /// faults on pages that were resident already (two threads on one page, reclaim)
        spurious_faults,
        /// pages brought from the home
        pages_fetched,
        /// pages brought without having been touched (read window and prefetch)
        pages_prefetched,
        /// fetches that failed
        fetch_errors,
        /// pages filled with the error value
        pages_poisoned,
        /// pages dropped by acquire, invalidate or eviction
        pages_dropped,
        /// pages evicted to stay within the resident limit
        pages_evicted,
        /// pages found dirty by a harvest
        pages_dirtied,
        /// pages pushed by release, flush, eviction or the write-back thread
        pages_pushed,
        /// messages sent to the home by write-back and write-through
        messages,
        /// bytes sent to the home by write-back and write-through
        bytes_written,
        /// bytes brought from the home
        bytes_fetched,
        /// dirty pages whose bytes equalled the twin: nothing sent
        pages_unchanged,
        /// pages that turned hot (kept writable without a fault)
        pages_hot,
        /// release calls
        releases,
        /// acquire calls
        acquires,
        /// stores emulated by exact write-through
        stores_emulated,
        /// stores that exact write-through single-stepped because they are not in its table
        stores_stepped,
        /// operations performed at the home (atomics, load_u64, store_u64)
        home_ops,
        /// write-backs that failed
        write_errors,
        /// memory registered with the link's hardware for this region
        registrations,
        /// bytes of it
        registered_bytes,
        /// operations through buffers that were registered before
        registrations_reused,
        /// registrations that were refused (see RLIMIT_MEMLOCK): bytes are copied instead
        registrations_refused,
        /// bytes copied through registered buffers, because the region's own memory is not registered
        bytes_staged,
    }
}

counters! {
    /// What one link has done: the suites compare these with the model.
    LinkStats {
        /// fetch operations
        fetches,
        /// bytes fetched
        fetch_bytes,
        /// write messages
        writes,
        /// bytes written
        write_bytes,
        /// atomic operations
        atomics,
        /// fences
        fences,
        /// operations that returned an error
        errors,
        /// changes to the other path
        failovers,
        /// work requests handed to the device
        requests,
        /// lists of work requests handed to it at once
        doorbells,
        /// fences made by FLUSH requests, each in place of a READ
        flushes,
    }
}
