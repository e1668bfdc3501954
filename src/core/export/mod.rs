//! Exporter: this process's memory, offered to others by name.
//!
//! [`Exporter::export`] gives memory a name; clients then map it inside their links and move bytes without this process
//! taking part. One thread ("smc-export"), started with the first export, answers the management path. It has all
//! signals blocked and a descriptor table of its own: sockets and memory files are invisible to the application, survive
//! its `close_range`, and are not inherited by its fork children.
//!
//! Admission: a client is known by the kernel's word (SO_PEERCRED). Our own user and root are admitted; more by
//! [`ExportOptions::allow_uids`] or [`ExportOptions::allow_any`].
//!
//! Access: what [`ExportOptions::access`] grants at most. A read-only client gets a descriptor that cannot be written
//! through. A process of the *same user* (or root) could open it again for writing by /proc; where nobody may write,
//! export read-only: the memory is then sealed against any new writer.
//!
//! Other hosts: [`Exporter::listen`] starts a second thread ("smc-net") that lets members list and open exports over a network, as
//! far as [`ExportOptions::reach`] shows them. See [`net`].
//!
//! Revocation takes the memory away, it does not ask: see [`Export::revoke`].
//!
//! Memory stays at its address for the life of the [`Export`]; the caller must not unmap it, replace it or change its
//! protection meanwhile. A fork child must not use it: memory made by the library is absent in the child, memory of the
//! caller is shared with the parent until the first revocation.

mod conn;
mod event;
mod home;
pub mod net;
mod orders;
pub mod own;
mod reach;
mod registry;
mod revoke;
mod service;

use crate::base::config::DeviceWish;
use crate::base::{Error, Result, Status};
use crate::link::mgmt::message::valid_name;
use crate::link::{Access, MemoryKind};
use crate::sys::channel::{Sender, channel};
use crate::sys::clock::Deadline;
use crate::sys::reserve;
use crate::sys::thread::{self, ForkMark, OwnThread};
use orders::Who;
use registry::{Registry, Shared};
use service::{Command, Service};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

pub use event::{Event, What};
pub use reach::Reach;

/// What is exported.
#[derive(Debug)]
pub enum Memory {
    /// So many bytes of fresh zeroed memory (rounded up to whole pages), allocated by the library as they are touched.
    New(usize),
    /// Memory of the caller, made by [`Memory::at`].
    At(CallerMemory),
}

/// A range of the caller's own memory.
#[derive(Debug)]
pub struct CallerMemory {
    addr: usize,
    len: usize,
}

impl Memory {
    /// Whole pages of private anonymous memory (malloc, mmap) at `ptr`: moved in place onto memory that can be shared. The
    /// content and the address stay; when the export ends the memory is private again.
    ///
    /// # Safety
    /// `[ptr, ptr + len)` is memory that other processes may change at any moment, so nobody holds a reference to it. It
    /// is not registered with a device and no fork child relies on its content. Where userfaultfd is not available no
    /// thread writes to it while [`Exporter::export`] or the drop of the [`Export`] runs.
    pub unsafe fn at(ptr: *mut u8, len: usize) -> Memory {
        Memory::At(CallerMemory { addr: ptr as usize, len })
    }
}

/// Who may do what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportOptions {
    /// The most a client gets; default read and write.
    pub access: Access,
    /// Users admitted beside our own and root.
    pub allow_uids: Vec<u32>,
    /// Every user of this host is admitted.
    pub allow_any: bool,
    /// Names the content: a client that loses this exporter goes on with a later export of the same name, length and number,
    /// without noticing more than a pause. To be given only when the memory holds all that the earlier export held at its
    /// end. 0: a number unlike any other.
    pub incarnation: u64,
    /// Clients of other hosts; default everybody who has a key, if this process [listens](Exporter::listen).
    pub reach: Reach,
    /// Device and port by which those reach the memory; otherwise the process's ([`Exporter::listen`]).
    pub port: Option<DeviceWish>,
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        let (access, reach) = (Access::ReadWrite, Reach::Members);
        ExportOptions { access, allow_uids: Vec::new(), allow_any: false, incarnation: 0, reach, port: None }
    }
}

/// A client of one export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientInfo {
    /// Names it for [`Export::revoke`]; never used twice in one process.
    pub id: u64,
    /// Its process; 0 when it lives in another pid namespace or on another host.
    pub pid: u32,
    /// Its user; [`NO_USER`] on another host.
    pub uid: u32,
    /// What it was granted.
    pub access: Access,
    /// When it opened, in nanoseconds of CLOCK_MONOTONIC.
    pub since: u64,
    /// Of a client of another host.
    pub remote: Option<Remote>,
}

/// The user of a client that has none here.
pub const NO_USER: u32 = u32::MAX;

/// What is known of a client of another host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remote {
    /// The name in its key; `None` when it uses a shared one.
    pub client: Option<String>,
    /// Where it calls from.
    pub address: SocketAddr,
    /// The adapter by which it reaches the memory; `None` until it has connected its queue pairs.
    pub device: Option<String>,
}

/// Longest time a caller waits for the service thread: moving memory takes about a second per 4 GB.
const PATIENCE: Duration = Duration::from_secs(600);

/// The exporter of this process.
#[derive(Debug)]
pub struct Exporter {
    registry: Arc<Registry>,
    mark: ForkMark,
    service: Mutex<Option<(OwnThread, Sender<Command>)>>,
}

static EXPORTER: OnceLock<Exporter> = OnceLock::new();

impl Exporter {
    /// This process's exporter. Starts nothing. `FORKED` in a fork child of a process that had one.
    pub fn get() -> Result<&'static Exporter> {
        let make = || Exporter { registry: Arc::default(), mark: ForkMark::new(), service: Mutex::new(None) };
        let e = EXPORTER.get_or_init(make);
        if e.mark.in_child() { Err(Error::of(Status::FORKED, "use the exporter")) } else { Ok(e) }
    }

    /// Offers memory under `name` (1 to 200 bytes of `[A-Za-z0-9._-]`, not starting with a dot) on this host.
    ///
    /// `EXISTS` when somebody in this network namespace has the name, `NOT_SUPPORTED` when the memory is not of a kind
    /// that can be exported, `INVALID_ARGUMENT`, `NO_RESOURCES`.
    pub fn export(&self, name: &str, memory: Memory, options: ExportOptions) -> Result<Export> {
        let attempt = || format!("export \"{name}\"");
        if !valid_name(name) {
            let e = Error::new(Status::INVALID_ARGUMENT, attempt(), "not a region name");
            return Err(e.remedy("use 1 to 200 bytes of [A-Za-z0-9._-], not starting with a dot"));
        }
        reserve::at_hand().map_err(|s| Error::of(s, attempt()))?;
        let (reply, answer) = channel();
        self.tell(Command::Export { name: name.to_owned(), memory, options, reply }, &attempt)?;
        let shared = answer.wait(PATIENCE).unwrap_or_else(|| Err(Error::of(Status::TIMED_OUT, attempt())))?;
        Ok(Export { shared, exporter: EXPORTER.get().unwrap_or(self).registry.clone() })
    }

    /// Sends every grant, refusal, revocation and end to `to` from now on, of clients of this host and of others; `None`: no more.
    /// Refusals of one origin are told at a limited rate; the next that is told says how many were not.
    pub fn record(&self, to: Option<Sender<Event>>) {
        self.registry.record(to);
    }

    /// Names exported now, sorted.
    pub fn names(&self) -> Vec<String> {
        self.registry.names()
    }

    fn tell(&self, c: Command, attempt: &dyn Fn() -> String) -> Result<()> {
        if self.mark.in_child() {
            return Err(Error::of(Status::FORKED, attempt()));
        }
        let mut service = self.service.lock().unwrap_or_else(PoisonError::into_inner);
        if service.is_none() {
            let (queue, rx) = channel();
            let registry = self.registry.clone();
            let thread = thread::spawn("smc-export", move |wake| Service::new(registry, rx, wake).run())
                .map_err(|e| Error::new(Status::NO_RESOURCES, attempt(), format!("cannot start a thread: {e}")))?;
            *service = Some((thread, queue));
        }
        if let Some((thread, queue)) = service.as_ref() {
            queue.send(c).map_err(|_| Error::new(Status::INTERNAL, attempt(), "the exporter's thread has ended"))?;
            thread.wake();
        }
        Ok(())
    }
}

/// Exported memory. Dropping it ends the export: no client reaches the memory any more, the name is free again.
#[derive(Debug)]
pub struct Export {
    shared: Arc<Shared>,
    exporter: Arc<Registry>,
}

impl Export {
    /// First byte; constant.
    pub fn base(&self) -> *mut u8 {
        self.shared.base as *mut u8
    }

    /// Bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.shared.len
    }

    /// Never: an export has at least a page.
    pub fn is_empty(&self) -> bool {
        self.shared.len == 0
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What the memory was found to be.
    pub fn kind(&self) -> MemoryKind {
        self.shared.kind
    }

    /// Who has it open now.
    pub fn clients(&self) -> Vec<ClientInfo> {
        self.shared.clients()
    }

    /// Takes the memory away from one client. When this returns OK nothing he still holds, mapping or descriptor, reads or
    /// writes the exported bytes: they have moved to other pages (at the same address here), and the old ones are zero.
    /// The other clients follow the move; their operations wait for it, one that does not drain within a second is
    /// revoked too. `reason` is shown to the client. For a client of another host nothing moves: his registration is destroyed, and
    /// his key is good for nothing.
    ///
    /// Threads of this process that store into the memory sleep during the copy (userfaultfd); where only the
    /// unprivileged mode is permitted, a *system call* of this process that writes into the memory meanwhile answers
    /// EFAULT. Where userfaultfd is not available at all the caller must see to it that nobody in this process writes to
    /// the memory during the call, and say so with `quiesced`; else the answer is `BUSY` and nothing was done.
    ///
    /// Takes about a second per 4 GB of touched memory, and twice that memory for the time. `NOT_FOUND` when there is no
    /// such client (any more), `NO_RESOURCES` when there is no room for the copy: the client then keeps his access.
    pub fn revoke(&self, client: u64, reason: &str, quiesced: bool) -> Result<()> {
        self.command_revoke(Who::One(client), reason, quiesced)
    }

    /// As [`Export::revoke`] for every client; OK when there is none.
    pub fn revoke_all(&self, reason: &str, quiesced: bool) -> Result<()> {
        self.command_revoke(Who::All, reason, quiesced)
    }

    fn command_revoke(&self, who: Who, reason: &str, quiesced: bool) -> Result<()> {
        let attempt = || format!("revoke access to \"{}\"", self.shared.name);
        let (reply, answer) = channel();
        let id = self.shared.id;
        Exporter::get()?.tell(Command::Revoke { id, who, reason: reason.to_owned(), quiesced, reply }, &attempt)?;
        answer.wait(PATIENCE).unwrap_or_else(|| Err(Error::of(Status::TIMED_OUT, attempt())))
    }

    /// Waits until no client has it open; `TIMED_OUT` at the deadline.
    pub fn wait_clients_gone(&self, deadline: Deadline) -> Status {
        self.shared.wait_empty(deadline)
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let Ok(exporter) = Exporter::get() else { return };
        let (reply, answer) = channel();
        let attempt = || format!("unexport \"{}\"", self.shared.name);
        if exporter.tell(Command::Unexport { id: self.shared.id, reply }, &attempt).is_ok() {
            // The caller may reuse or unmap the memory when we return.
            let _ = answer.wait(PATIENCE);
        }
        self.exporter.remove(&self.shared);
    }
}
