//! The link to an exporter on another host: RDMA for the bytes, TCP and Noise for the management.
//!
//! Each opened region has a management connection, queue pairs (*lanes*) and a thread of its own ("smc-verbs"). The first lane is the fault
//! face's; the others share the work face's batches. Fetches go straight into memory made known by [`Link::register`], everything else
//! through a bounce buffer of the link. No thread takes part in an operation, here or at the exporter.
//!
//! Queue pairs are connected by numbers that both sides tell each other over TCP, or by the kernel's connection manager ([`VerbsLink::by`],
//! `LIBSMC_RENDEZVOUS`): see [`cm`](super::cm).
//!
//! # Failure
//! When a queue pair fails, an operation is given up at its deadline, or the exporter's memory moves, all queue pairs of the region are
//! destroyed and made anew after a pause that doubles (10 ms to 2 s, at once for a move). Nothing that was under way touches memory after its
//! operation has returned. Operations wait for up to half a second for an outage that has just begun; after that they
//! answer `LINK_DOWN` at once until the region is up again. It is [`Health::Retrying`] all the time: the exporter is looked for as
//! long as the region is open. `REVOKED` and `STALE` (other memory under the same name) are for good.
//!
//! # Limits
//! * [`SLOTS`] regions of a peer at a time.
//! * Atomics are performed by the exporter's device: atomic among all clients that come over the same device, but not with respect to what
//!   processes on the exporter's host do to the same word, unless the device says so. A store is a compare-and-swap that is repeated.
//! * Memory that may not be pinned (RLIMIT_MEMLOCK) is refused by [`Link::register`], and reached through the bounce buffer: one more copy.

mod attend;
mod lane;
mod meet;
mod memory;
mod ops;
mod post;
mod rig;
mod session;
mod table;
mod talk;
mod trips;

pub use table::SLOTS;

use crate::base::config::{Config, DeviceWish, LogLevel, Rendezvous};
use crate::base::stats::LinkStats;
use crate::base::{Error, HomeOff, Status};
use crate::link::mgmt::RegionDesc;
use crate::link::mgmt::key::Key;
use crate::link::mgmt::message::valid_name;
use crate::link::mgmt::tcp::Client;
use crate::link::{Access, AtomicOp, Health, Link, Opened, RegionInfo, RegionKey, Registration, Ticket, WriteOp};
use crate::sys::channel::channel;
use crate::sys::clock::Deadline;
use crate::sys::thread::{self, OwnThread};
use crate::sys::{mem, process};
use rig::Rigs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use table::Table;
use talk::Plan;

/// Time that an opening may take longer than its deadline says.
const SLACK_NS: u64 = 2_000_000_000;
/// Most addresses of a peer that are tried.
const ADDRESSES: usize = 8;

/// The link to one exporter. The module text is its manual.
pub struct VerbsLink {
    host: String,
    port: u16,
    key: Key,
    lanes: Option<usize>,
    rendezvous: Rendezvous,
    log: LogLevel,
    table: Arc<Table>,
    rigs: Arc<Rigs>,
    threads: Mutex<Vec<Attending>>,
}

/// A region's thread, and whether it is at its end.
struct Attending {
    thread: OwnThread,
    over: Arc<AtomicBool>,
}

fn status(r: Result<(), Status>) -> Status {
    r.err().unwrap_or(Status::OK)
}

impl VerbsLink {
    /// A link that starts nothing until the first open. The pre-shared key is read now: `NOT_FOUND` without one, `PERMISSION` when others could
    /// read it, `INVALID_ARGUMENT` when it is none.
    pub fn new(host: &str, port: u16, config: &Config) -> Result<VerbsLink, Error> {
        let link = VerbsLink::with_key(host, port, find_key(config)?, config.device.clone(), config.lanes, config.log);
        Ok(link.by(config.rendezvous))
    }

    /// The same with another rendezvous than over TCP. Where it is not to be had, here or at the exporter, [`Link::open`] answers
    /// `NOT_SUPPORTED`, and says what to do; nothing else is tried instead.
    pub fn by(mut self, rendezvous: Rendezvous) -> VerbsLink {
        self.rendezvous = rendezvous;
        self
    }

    /// The same with a key and a device that are given.
    pub fn with_key(
        host: &str,
        port: u16,
        key: Key,
        device: DeviceWish,
        lanes: Option<usize>,
        log: LogLevel,
    ) -> VerbsLink {
        VerbsLink {
            host: host.to_owned(),
            port,
            key,
            lanes,
            rendezvous: Rendezvous::Tcp,
            log,
            table: Table::new(),
            rigs: Rigs::new(device, log >= LogLevel::Info),
            threads: Mutex::default(),
        }
    }

    /// The peer's port.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn who(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, Error> {
        let found = (&*self.host, self.port).to_socket_addrs();
        let found = found.map(|all| all.take(ADDRESSES).collect());
        found.map_err(|e| {
            let e = Error::new(Status::NOT_FOUND, format!("reach {}", self.who()), e.to_string());
            e.remedy("give a host and a port, as node7:7471 or [fd00::7]:7471")
        })
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Attending>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back what threads that are at their end have used.
    fn sweep(&self) {
        let over: Vec<_> = self.threads().extract_if(.., |a| a.over.load(SeqCst)).collect();
        over.into_iter().for_each(|a| a.thread.join());
    }

    fn not_in_child(&self, attempt: impl Into<String>) -> Result<(), Error> {
        if self.table.in_child() { Err(Error::of(Status::FORKED, attempt)) } else { Ok(()) }
    }

    /// Runs an operation on the session of a key and counts its outcome.
    fn count<R>(
        &self,
        key: RegionKey,
        op: impl FnOnce(&session::Session) -> Result<R, Status>,
        ok: impl FnOnce(&LinkStats),
    ) -> Result<R, Status> {
        let r = self.table.enter(key).and_then(|s| op(&s));
        match r {
            Ok(_) => ok(self.stats()),
            Err(_) => self.stats().errors.hit(),
        }
        r
    }
}

/// The key of this process: the one that is named, or the first there is of the usual places.
fn find_key(config: &Config) -> Result<Key, Error> {
    if let Some(named) = &config.key {
        return Key::load(named);
    }
    for place in &config.key_places {
        match Key::load(place) {
            // An unfit key does not let the next place win.
            Err(e) if e.status == Status::NOT_FOUND => {}
            r => return r,
        }
    }
    let e = Error::new(Status::NOT_FOUND, "find a key", "no LIBSMC_KEY, and no key file in the usual places");
    Err(e.remedy("make one with `smc keygen FILE`, copy it to the other host, and set LIBSMC_KEY=FILE"))
}

impl Link for VerbsLink {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        let attempt = || format!("open region \"{name}\" of {}", self.who());
        self.not_in_child(attempt())?;
        if !valid_name(name) {
            let e = Error::new(Status::INVALID_ARGUMENT, attempt(), "not a region name");
            return Err(e.remedy("use 1 to 200 bytes of [A-Za-z0-9._-], not starting with a dot"));
        }
        let (addresses, key, rendezvous) = (self.addresses()?, self.key.clone(), self.rendezvous);
        let plan = Plan { who: self.who(), addresses, key, name: name.to_owned(), want, rendezvous };
        self.sweep();
        self.rigs.start()?;
        let over = Arc::new(AtomicBool::new(false));
        let (ends, (reply, answer)) = (over.clone(), channel());
        let (table, rigs, lanes) = (self.table.clone(), self.rigs.clone(), self.lanes);
        let start = attend::Start { plan, table, rigs, lanes, deadline };
        let body = move |wake| {
            attend::run(start, wake, &reply);
            ends.store(true, SeqCst);
        };
        let thread = thread::spawn("smc-verbs", body)
            .map_err(|e| Error::new(Status::NO_RESOURCES, attempt(), format!("cannot start a thread: {e}")))?;
        self.threads().push(Attending { thread, over });
        let patience = Duration::from_nanos(deadline.left_ns().saturating_add(SLACK_NS));
        let opened = answer.wait(patience).unwrap_or_else(|| Err(Error::of(Status::TIMED_OUT, attempt())))?;
        Ok(opened)
    }

    fn close(&self, key: RegionKey) {
        // Inside the session: its thread runs as long as that.
        if let Ok(s) = self.table.enter(key)
            && self.table.close(key)
        {
            s.closing.store(true, SeqCst);
            s.alarm();
        }
    }

    fn attachments(&self, key: RegionKey) -> u64 {
        self.table.enter(key).map_or(0, |s| s.attachments.load(SeqCst))
    }

    fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        let attempt = || format!("list the regions of {}", self.who());
        self.not_in_child(attempt())?;
        let (addresses, key, who) = (self.addresses()?, self.key.clone(), self.who());
        let (tx, answer) = channel();
        // Its socket is none of the program's descriptors.
        let ask = move |_| _ = tx.send(Client::connect(&addresses, &key, &who, deadline).and_then(|mut c| c.list()));
        let thread = thread::spawn("smc-list", ask)
            .map_err(|e| Error::new(Status::NO_RESOURCES, attempt(), format!("cannot start a thread: {e}")))?;
        let found = answer.until_the_end().next();
        thread.join();
        let found = found.unwrap_or_else(|| Err(Error::of(Status::INTERNAL, attempt())))?;
        Ok(found.iter().map(RegionDesc::info).collect())
    }

    fn health(&self, key: RegionKey) -> Health {
        self.table.enter(key).map_or_else(Health::Down, |s| s.health())
    }

    unsafe fn fetch(&self, key: RegionKey, off: HomeOff, dst: *mut u8, len: usize, deadline: Deadline) -> Status {
        let op = |s: &session::Session| {
            // SAFETY: the caller's promise is passed on.
            s.riding(deadline, || unsafe { s.fetch(off.0, dst, len, deadline) })
        };
        status(self.count(key, op, |s| {
            s.fetches.hit();
            s.fetch_bytes.add(len as u64);
        }))
    }

    unsafe fn put(&self, key: RegionKey, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> Status {
        let op = |s: &session::Session| {
            // SAFETY: the caller's promise is passed on.
            s.riding(deadline, || unsafe { s.put(off.0, src, len, deadline) })
        };
        status(self.count(key, op, |s| {
            s.writes.hit();
            s.write_bytes.add(len as u64);
        }))
    }

    unsafe fn post(&self, key: RegionKey, ops: &[WriteOp]) -> Result<Ticket, Status> {
        let op = |s: &session::Session| {
            // SAFETY: the caller's promise is passed on.
            unsafe { s.post(ops) }
        };
        self.count(key, op, |s| {
            s.writes.add(ops.len() as u64);
            s.write_bytes.add(ops.iter().map(|o| o.len as u64).sum());
        })
    }

    fn wait(&self, key: RegionKey, ticket: Ticket, deadline: Deadline) -> Status {
        status(self.count(key, |s| s.wait(ticket, deadline).ok(), |_| ()))
    }

    fn fence(&self, key: RegionKey, deadline: Deadline) -> Status {
        status(self.count(key, |s| s.riding(deadline, || s.fence(deadline)), |s| s.fences.hit()))
    }

    fn atomic(&self, key: RegionKey, off: HomeOff, op: AtomicOp, deadline: Deadline) -> Result<u64, Status> {
        self.count(key, |s| s.riding(deadline, || s.atomic(off.0, op, deadline)), |s| s.atomics.hit())
    }

    fn wants_registration(&self) -> bool {
        true
    }

    unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<Registration, Status> {
        if self.table.in_child() {
            return Err(Status::FORKED);
        }
        // SAFETY: the caller keeps it mapped until `deregister`.
        let registered = unsafe { self.rigs.register(ptr, len) };
        if registered.is_err() && self.log >= LogLevel::Info {
            let cause = mem::lock_limit_words();
            process::say(&format!("{len} bytes cannot be pinned and are copied on their way; {cause}"));
        }
        registered.map(Registration)
    }

    fn deregister(&self, r: Registration) {
        if !self.table.in_child() {
            self.rigs.deregister(r.0);
        }
    }

    fn stats(&self) -> &LinkStats {
        &self.rigs.stats
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.table.in_child() {
            // They live in the parent only, and so does the device.
            std::mem::forget((threads, self.rigs.clone()));
            return;
        }
        self.table.keys().into_iter().for_each(|k| self.close(k));
        threads.into_iter().for_each(|a| a.thread.join());
        self.rigs.end();
    }
}
