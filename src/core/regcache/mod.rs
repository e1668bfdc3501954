//! Memory that a link's hardware knows: registered in one place, once, and used again and again.
//!
//! Registering is slow (it pins every page) and is never done where bytes move. What a region's traffic touches is the twin
//! where there is one, else A: that memory of a pinned region is registered for the region's life ([`Held`]). A paged region
//! gives its pages back, so it cannot be registered; nor can one whose registration is refused, which is counted and not an error.
//! Their bytes pass through a pool of buffers ([`RegCache::take`]), registered with the first such region and kept for
//! as long as the link is. When no buffer is free the link copies by itself.
//!
//! Nothing of this exists for links that do not care ([`Link::wants_registration`]).

mod pool;

use super::engine::Engine;
use crate::base::config::{self, LogLevel};
use crate::base::stats::RegionStats;
use crate::base::{HomeOff, Status};
use crate::link::{Link, RegionKey, Registration};
use crate::sys::clock::Deadline;
use crate::sys::mem::{self, Mapping};
use crate::sys::process;
pub use pool::Buffer;
use pool::Pool;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Registrations of one link, shared by its regions.
pub struct RegCache {
    link: Arc<dyn Link>,
    /// Bytes the pool may take.
    limit: u64,
    pool: OnceLock<Pool>,
    /// Held while the pool is made.
    making: Mutex<()>,
    held: AtomicU64,
}

/// The caches there are. Each lives as long as a region uses it, or its owner keeps it.
static CACHES: Mutex<Vec<Weak<RegCache>>> = Mutex::new(Vec::new());

/// A registration of memory that somebody else owns; taken back when dropped, which must come before the memory is
/// unmapped.
pub struct Held {
    cache: Arc<RegCache>,
    registration: Registration,
    len: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.cache.link.deregister(self.registration);
        self.cache.held.fetch_sub(self.len as u64, SeqCst);
    }
}

/// How the bytes of one region meet the hardware.
pub enum Way {
    /// The link does not care.
    Plain,
    /// The region's own memory is registered.
    Own(Held),
    /// Through buffers of the pool.
    Staged(Arc<RegCache>),
}

impl Way {
    /// Chooses for a region whose traffic touches `memory`; `None` for one that gives its pages back. Slow path.
    ///
    /// # Safety
    /// `memory` stays mapped until the answer is dropped.
    pub unsafe fn choose(link: &Arc<dyn Link>, memory: Option<&Mapping>, name: &str, stats: &RegionStats) -> Way {
        if !link.wants_registration() {
            return Way::Plain;
        }
        let cache = RegCache::of(link);
        // SAFETY: the caller's promise is passed on.
        let refused = match memory.map(|m| (m, unsafe { cache.hold(m, stats) })) {
            Some((_, Ok(held))) => return Way::Own(held),
            Some((m, Err(_))) => Some(m.len()),
            None => None,
        };
        cache.fill(stats);
        if let Some(text) = cache.refusal(refused).filter(|_| Engine::speaks(LogLevel::Info)) {
            process::say(&format!("region \"{name}\": {text}"));
        }
        Way::Staged(cache)
    }

    /// The cache behind it, where there is one.
    pub fn cache(&self) -> Option<&Arc<RegCache>> {
        match self {
            Way::Plain => None,
            Way::Own(held) => Some(&held.cache),
            Way::Staged(cache) => Some(cache),
        }
    }

    /// The cache whose buffers the traffic passes, where it does.
    pub fn staged(&self) -> Option<&Arc<RegCache>> {
        if let Way::Staged(cache) = self { Some(cache) } else { None }
    }
}

impl RegCache {
    /// The link's cache; made at its first use.
    pub fn of(link: &Arc<dyn Link>) -> Arc<RegCache> {
        let mut all = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|c| c.strong_count() > 0);
        if let Some(c) = all.iter().filter_map(Weak::upgrade).find(|c| Arc::ptr_eq(&c.link, link)) {
            return c;
        }
        let limit = Engine::running().map_or(config::POOL, |e| e.config().pool);
        let cache = RegCache::with_limit(link.clone(), limit);
        all.push(Arc::downgrade(&cache));
        cache
    }

    /// A cache of its own, which no region finds, with a pool of at most `limit` bytes.
    pub fn with_limit(link: Arc<dyn Link>, limit: u64) -> Arc<RegCache> {
        let (pool, making, held) = (OnceLock::new(), Mutex::default(), AtomicU64::new(0));
        Arc::new(RegCache { link, limit, pool, making, held })
    }

    /// True when this is the cache of `link`.
    pub fn is_of(&self, link: &Arc<dyn Link>) -> bool {
        Arc::ptr_eq(&self.link, link)
    }

    /// Bytes that are registered now.
    pub fn held_bytes(&self) -> u64 {
        self.held.load(SeqCst)
    }

    /// Bytes of one buffer of the pool; 0 when there is none.
    pub fn buffer_size(&self) -> usize {
        self.pool.get().map_or(0, Pool::size)
    }

    /// Registers memory for as long as the answer lives.
    ///
    /// # Safety
    /// The memory stays mapped until the answer is dropped.
    pub unsafe fn hold(self: &Arc<Self>, m: &Mapping, stats: &RegionStats) -> Result<Held, Status> {
        // SAFETY: the caller's promise is passed on.
        let registration = unsafe { self.register(m, stats) }?;
        Ok(Held { cache: self.clone(), registration, len: m.len() })
    }

    /// # Safety
    /// The memory stays mapped until the registration is taken back.
    unsafe fn register(&self, m: &Mapping, stats: &RegionStats) -> Result<Registration, Status> {
        // SAFETY: the caller's promise is passed on.
        let r = unsafe { self.link.register(m.ptr(), m.len()) };
        match r {
            Ok(_) => {
                self.held.fetch_add(m.len() as u64, SeqCst);
                stats.registrations.hit();
                stats.registered_bytes.add(m.len() as u64);
            }
            Err(_) => stats.registrations_refused.hit(),
        }
        r
    }

    /// Makes the pool unless there is one. Where all of it is refused a half may be granted, and so on.
    pub fn fill(&self, stats: &RegionStats) {
        let _one_at_a_time = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = self.limit;
        while let Some((size, count)) = pool::cut(bytes).filter(|_| self.pool.get().is_none()) {
            let Ok(memory) = Mapping::anonymous(size * count, mem::RW) else { return };
            let _ = memory.advise(0, memory.len(), mem::DONTFORK);
            let _ = memory.advise(0, memory.len(), mem::DONTDUMP);
            memory.collapse();
            // SAFETY: the memory goes into the pool, whose registration is taken back before it is unmapped.
            if let Ok(r) = unsafe { self.register(&memory, stats) } {
                let _ = self.pool.set(Pool::new(memory, r, (size, count)));
                return;
            }
            bytes /= 2;
        }
    }

    /// A free buffer; `None` when all are in use, or none could be registered. Async-signal-safe.
    pub fn take(self: &Arc<Self>, stats: &RegionStats) -> Option<Buffer> {
        let b = Buffer::take(self)?;
        stats.registrations_reused.hit();
        Some(b)
    }

    /// As [`Link::fetch`], to each of `to`, through a buffer as long as one is free. Async-signal-safe.
    ///
    /// # Safety
    /// As for [`Link::fetch`], for every destination; they do not overlap.
    pub unsafe fn fetch(
        self: &Arc<Self>,
        (key, off): (RegionKey, HomeOff),
        to: [Option<*mut u8>; 2],
        len: usize,
        deadline: Deadline,
        stats: &RegionStats,
    ) -> Status {
        let mut done = 0;
        while done < len {
            let Some(buffer) = self.take(stats) else {
                let to = to.map(|p| p.map(|p| p.wrapping_add(done)));
                // SAFETY: the caller's promise, for what is left.
                return unsafe { fetch_plain(&*self.link, (key, off.plus(done)), to, len - done, deadline) };
            };
            let n = buffer.len().min(len - done);
            // SAFETY: a buffer of ours, at least `n` bytes long.
            let s = unsafe { self.link.fetch(key, off.plus(done), buffer.ptr(), n, deadline) };
            if !s.is_ok() {
                return s;
            }
            for p in to.into_iter().flatten() {
                // SAFETY: the caller vouches for the destination, and the buffer was just filled.
                unsafe { mem::copy_streaming(p.wrapping_add(done), buffer.ptr(), n) };
            }
            stats.bytes_staged.add(n as u64);
            done += n;
        }
        Status::OK
    }

    /// What was refused, what is done instead and what helps; `None` when nothing was. `len`: bytes of the region's own.
    fn refusal(&self, len: Option<usize>) -> Option<String> {
        let (what, instead) = match (len, self.pool.get()) {
            (Some(n), Some(p)) => (format!("{n} bytes"), format!("{} registered bytes of a pool", p.bytes())),
            (Some(n), None) => (format!("{n} bytes"), "buffers of the link".to_owned()),
            (None, None) if self.limit > 0 => ("a pool".to_owned(), "buffers of the link".to_owned()),
            (None, _) => return None,
        };
        let cause = mem::lock_limit_words();
        Some(format!("registering {what} was refused, so bytes are copied through {instead}; {cause}"))
    }
}

impl Drop for RegCache {
    fn drop(&mut self) {
        if let Some(p) = self.pool.take() {
            self.link.deregister(p.registration);
        }
    }
}

/// The link's own fetch, to one place or to both.
///
/// # Safety
/// As for [`RegCache::fetch`].
pub unsafe fn fetch_plain(
    link: &dyn Link,
    (key, off): (RegionKey, HomeOff),
    to: [Option<*mut u8>; 2],
    len: usize,
    deadline: Deadline,
) -> Status {
    match to {
        // SAFETY: the caller's promise is passed on.
        [Some(a), Some(b)] => unsafe { link.fetch_pair(key, off, [a, b], len, deadline) },
        // SAFETY: as above.
        [Some(p), None] | [None, Some(p)] => unsafe { link.fetch(key, off, p, len, deadline) },
        [None, None] => Status::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::loopback::Loopback;

    #[test]
    fn a_refusal_names_the_limit_and_what_is_done_instead() {
        let link = Arc::new(Loopback::new(4096).expect("a home"));
        let cache = RegCache::with_limit(link.clone(), 1 << 20);
        let without = cache.refusal(None).expect("no pool is a refusal");
        assert!(without.contains("a pool was refused") && without.contains("buffers of the link"), "{without}");
        cache.fill(&RegionStats::new());
        assert_eq!(cache.refusal(None), None);
        let own = cache.refusal(Some(77)).expect("refused");
        assert!(own.contains("77 bytes was refused") && own.contains("1048576 registered bytes"), "{own}");
        assert!(own.contains("RLIMIT_MEMLOCK is"), "{own}");
        assert_eq!(RegCache::with_limit(link, 0).refusal(None), None, "no pool was wanted");
    }
}
