//! Two paths to one region: when one fails, operations go over the other, and nobody maps anything anew.
//!
//! The second path leads to the same memory another way (another port or adapter), or to a *replica*: memory that somebody
//! keeps equal. This link does not copy from one to the other. What it promises at a change of path: writes that were not
//! fenced on the old path are not taken for delivered ([`Link::attachments`] counts, and the engine sends them again); writes
//! that were fenced are at the old home, and it is for who keeps the replica that the new one has them too.
//!
//! A path is left when an operation on it fails and the same operation on the other path works; while neither works the link
//! stays where it is. It does not go back by itself when the old path heals: that would be a second interruption for
//! nothing. The next failure takes it back. The wait before a failure is the failing path's own: both get the same deadline.
//!
//! A `Failover` serves one region at a time.

use super::*;
use crate::sys::sync::{Lock, SignalsBlocked};
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};

/// One way to the region, and its name at the other end.
pub struct Path {
    /// The link.
    pub link: Arc<dyn Link>,
    /// Name of the region there; `None`: the one that is asked for.
    pub name: Option<String>,
}

/// The two paths. The module text is its manual.
pub struct Failover {
    paths: [Path; 2],
    /// Key of the region on each path; [`NONE`] where it could not be opened.
    keys: [AtomicU64; 2],
    /// Changes of path. An even number is the first path, an odd one the second: so that who sees a path sees how often it
    /// was changed.
    changes: AtomicU64,
    /// Held by who tries the other path. Taken with signals blocked only.
    trying: Lock,
    /// The open key; 0: none. Old ones never come back.
    key: AtomicU32,
    opened: AtomicU32,
    registered: Mutex<Vec<[Option<Registration>; 2]>>,
    stats: LinkStats,
}

const NONE: u64 = u64::MAX;

/// Failures that another path can help with; the others are about the operation itself.
fn is_of_the_path(s: Status) -> bool {
    !matches!(
        s,
        Status::OUT_OF_RANGE | Status::PERMISSION | Status::INVALID_ARGUMENT | Status::INTERNAL | Status::FORKED
    )
}

impl Failover {
    /// Uses `first` until it fails, then `second`.
    pub fn new(first: Path, second: Path) -> Failover {
        Failover {
            paths: [first, second],
            keys: [AtomicU64::new(NONE), AtomicU64::new(NONE)],
            changes: AtomicU64::new(0),
            trying: Lock::new(),
            key: AtomicU32::new(0),
            opened: AtomicU32::new(0),
            registered: Mutex::default(),
            stats: LinkStats::new(),
        }
    }

    /// The path in use: 0 or 1.
    pub fn active(&self) -> usize {
        (self.changes.load(SeqCst) & 1) as usize
    }

    /// A path's link and the region's key on it.
    fn path(&self, i: usize) -> Option<(&dyn Link, RegionKey)> {
        let key = self.keys.get(i)?.load(SeqCst);
        let link = self.paths.get(i)?;
        (key != NONE).then(|| (&*link.link, RegionKey(key as u32)))
    }

    fn check(&self, key: RegionKey) -> Result<(), Status> {
        if key.0 != 0 && self.key.load(SeqCst) == key.0 { Ok(()) } else { Err(Status::NOT_FOUND) }
    }

    /// Runs `op` on the path in use; where that fails because of the path, on the other, which is in use from then on if it
    /// works there.
    fn run<R>(
        &self,
        key: RegionKey,
        deadline: Deadline,
        op: impl Fn(usize, &dyn Link, RegionKey) -> Result<R, Status>,
    ) -> Result<R, Status> {
        self.check(key)?;
        let on = |i: usize| match self.path(i) {
            Some((link, k)) => op(i, link, k),
            None => Err(Status::NOT_FOUND),
        };
        let seen = self.changes.load(SeqCst);
        let cause = match on((seen & 1) as usize) {
            Err(s) if is_of_the_path(s) => s,
            r => {
                self.look_behind(seen, deadline);
                return self.count(r);
            }
        };
        let signals = SignalsBlocked::new();
        let Some(_one_at_a_time) = self.trying.lock_until(&signals, deadline) else { return self.count(Err(cause)) };
        if self.changes.load(SeqCst) != seen {
            // Somebody else has changed the path meanwhile.
            return self.count(on(self.active()));
        }
        let to = 1 - (seen & 1) as usize;
        let Some((link, k)) = self.path(to).filter(|(l, k)| !matches!(l.health(*k), Health::Down(_))) else {
            return self.count(Err(cause));
        };
        if deadline.passed() {
            return self.count(Err(cause));
        }
        // What an earlier try has left there is older than what went over the path in use since.
        link.abandon(k);
        let Ok(r) = op(to, link, k) else {
            // What the path in use says is the news.
            return self.count(Err(cause));
        };
        self.changes.store(seen + 1, SeqCst);
        self.stats.failovers.hit();
        if let Some((old, k)) = self.path(1 - to) {
            old.abandon(k);
        }
        Ok(r)
    }

    /// The path may have been left while an operation began on it: then what that has left there must not arrive any more.
    /// The engine does it again on the path in use ([`Link::attachments`] tells).
    fn look_behind(&self, seen: u64, deadline: Deadline) {
        if self.changes.load(SeqCst) == seen {
            return;
        }
        let signals = SignalsBlocked::new();
        let lock = self.trying.lock_until(&signals, deadline);
        // Where it is in use again its order is kept: what comes over it later comes behind.
        if lock.is_some()
            && self.active() as u64 != seen & 1
            && let Some((old, k)) = self.path((seen & 1) as usize)
        {
            old.abandon(k);
        }
    }

    fn count<R>(&self, r: Result<R, Status>) -> Result<R, Status> {
        if r.is_err() {
            self.stats.errors.hit();
        }
        r
    }

    fn open_on(&self, i: usize, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        let path = self.paths.get(i).ok_or_else(|| Error::of(Status::INTERNAL, "open a path"))?;
        path.link.open(path.name.as_deref().unwrap_or(name), want, deadline)
    }
}

fn bare(r: Result<(), Status>) -> Status {
    r.err().unwrap_or(Status::OK)
}

impl Link for Failover {
    fn name(&self) -> &'static str {
        "failover"
    }

    fn modelled(&self) -> bool {
        self.paths.iter().any(|p| p.link.modelled())
    }

    /// Opens both paths. One that cannot be opened is done without; the other must work. Both must have the same length.
    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        let attempt = || format!("open region \"{name}\" over two paths");
        if self.key.load(SeqCst) != 0 {
            return Err(Error::new(Status::NO_RESOURCES, attempt(), "these paths have a region open"));
        }
        let both = [0, 1].map(|i| self.open_on(i, name, want, deadline));
        let close = |i: usize, o: &Opened| self.paths.get(i).map(|p| p.link.close(o.key));
        if let [Ok(a), Ok(b)] = &both
            && a.info.len != b.info.len
        {
            close(0, a);
            close(1, b);
            let why = format!("the first path leads to {} bytes, the second to {}", a.info.len, b.info.len);
            return Err(
                Error::new(Status::INVALID_ARGUMENT, attempt(), why).remedy("name a replica of the same region")
            );
        }
        for (k, o) in self.keys.iter().zip(&both) {
            k.store(o.as_ref().map_or(NONE, |o| o.key.0.into()), SeqCst);
        }
        let (active, info) = match both {
            [Ok(a), _] => (0, a.info),
            [Err(_), Ok(b)] => (1, b.info),
            [Err(e), Err(_)] => return Err(e),
        };
        self.changes.store(active, SeqCst);
        let key = (self.opened.fetch_add(1, SeqCst) + 1).max(1);
        self.key.store(key, SeqCst);
        Ok(Opened { key: RegionKey(key), info })
    }

    fn close(&self, key: RegionKey) {
        if key.0 == 0 || self.key.compare_exchange(key.0, 0, SeqCst, SeqCst).is_err() {
            return;
        }
        for (p, k) in self.paths.iter().zip(&self.keys) {
            let k = k.swap(NONE, SeqCst);
            if k != NONE {
                p.link.close(RegionKey(k as u32));
            }
        }
    }

    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        let [first, second] = &self.paths;
        first.link.list(deadline).or_else(|_| second.link.list(deadline))
    }

    /// Up when either path is; otherwise what the path in use says, unless only the other may come back.
    fn health(&self, key: RegionKey) -> Health {
        if let Err(s) = self.check(key) {
            return Health::Down(s);
        }
        let of = |i| self.path(i).map_or(Health::Down(Status::NOT_FOUND), |(l, k)| l.health(k));
        let active = self.active();
        match (of(active), of(1 - active)) {
            (Health::Up, _) | (_, Health::Up) => Health::Up,
            (Health::Down(_), Health::Retrying(s)) => Health::Retrying(s),
            (own, _) => own,
        }
    }

    fn attachments(&self, _key: RegionKey) -> u64 {
        let seen = self.changes.load(SeqCst);
        let inner = self.path((seen & 1) as usize).map_or(0, |(l, k)| l.attachments(k));
        seen << 32 | inner & 0xffff_ffff
    }

    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status {
        let r = self.run(key, deadline, |_, link, k| {
            // SAFETY: the caller's promise is passed on.
            unsafe { link.fetch(k, off, dst, len, deadline) }.ok()
        });
        self.stats.fetches.hit();
        self.stats.fetch_bytes.add(len as u64);
        bare(r)
    }

    unsafe fn fetch_pair(
        &self,
        key: RegionKey,
        off: HomeOff,
        dst: [*mut u8; 2],
        len: usize,
        deadline: Deadline,
    ) -> Status {
        let r = self.run(key, deadline, |_, link, k| {
            // SAFETY: the caller's promise is passed on.
            unsafe { link.fetch_pair(k, off, dst, len, deadline) }.ok()
        });
        self.stats.fetches.hit();
        self.stats.fetch_bytes.add(len as u64);
        bare(r)
    }

    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status {
        let r = self.run(key, deadline, |_, link, k| {
            // SAFETY: the caller's promise is passed on.
            unsafe { link.put(k, off, src, len, deadline) }.ok()
        });
        self.stats.writes.hit();
        self.stats.write_bytes.add(len as u64);
        bare(r)
    }

    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        let ticket = self.run(key, Deadline(u64::MAX), |i, link, k| {
            // SAFETY: the caller's promise is passed on; where it fails on one path nothing of it is under way there.
            let t = unsafe { link.post(k, ops) }?;
            Ok(Ticket(t.0 << 1 | i as u64))
        })?;
        self.stats.writes.add(ops.len() as u64);
        self.stats.write_bytes.add(ops.iter().map(|o| o.len as u64).sum());
        Ok(ticket)
    }

    fn wait(&self, key: RegionKey, ticket: Ticket, deadline: Deadline) -> Status {
        if let Err(s) = self.check(key) {
            return s;
        }
        let Some((link, k)) = self.path((ticket.0 & 1) as usize) else { return Status::NOT_FOUND };
        link.wait(k, Ticket(ticket.0 >> 1), deadline)
    }

    fn fence(&self, key: RegionKey, deadline: Deadline) -> Status {
        self.stats.fences.hit();
        bare(self.run(key, deadline, |_, link, k| link.fence(k, deadline).ok()))
    }

    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        let r = self.run(key, deadline, |_, link, k| link.atomic(k, off, op, deadline));
        self.stats.atomics.hit();
        r
    }

    fn wants_registration(&self) -> bool {
        self.paths.iter().any(|p| p.link.wants_registration())
    }

    unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Registration, Status> {
        let mut made = [None, None];
        let mut cause = Status::NOT_SUPPORTED;
        for (slot, p) in made.iter_mut().zip(&self.paths) {
            // SAFETY: the caller's promise is passed on.
            match unsafe { p.link.register(ptr, len) } {
                Ok(r) => *slot = Some(r),
                Err(s) => cause = s,
            }
        }
        if made.iter().all(Option::is_none) {
            return Err(cause);
        }
        let mut all = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(made);
        Ok(Registration(all.len() as u64 - 1))
    }

    fn deregister(&self, r: Registration) {
        let mut all = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = all.get_mut(r.0 as usize).map(std::mem::take) else { return };
        for (p, r) in self.paths.iter().zip(entry) {
            if let Some(r) = r {
                p.link.deregister(r);
            }
        }
    }

    fn stats(&self) -> &LinkStats {
        &self.stats
    }
}
