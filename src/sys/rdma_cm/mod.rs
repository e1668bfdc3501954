//! The kernel's RDMA connection manager, by `/dev/infiniband/rdma_cm`.
//!
//! This is what librdmacm stands on. That library itself is not used: it keeps one list of opened devices for the whole process, in
//! the descriptor table of whichever thread came first, and closes their numbers when the process ends. In a program
//! that uses librdmacm too, its devices would be found in a thread of ours, or ours in the program; and at its end it would close whatever
//! has those numbers in the program's table. The file has no such memory: what is made of it belongs to it, and ends with it.
//!
//! A [`ConnectionManager`] is one open file. It belongs to one thread, in whose descriptor table it is; it is never waited on but by
//! [`ConnectionManager::watch`]. The kernel takes commands only from a process with the rights it was opened with: after a change of
//! user every command answers `EACCES`, and the file is to be opened anew.
//!
//! The queue pairs are the caller's: the manager is told their numbers, and tells the attributes with which they are to be brought up.

mod abi;

pub use abi::{AhAttr, QpAttr};

use super::descriptor::own;
use super::errno::{Errno, syscall};
use super::inet;
use super::poll::PollFd;
use abi::{Answer, Body, Command, ConnParam};
use std::mem::{MaybeUninit, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The file.
pub const FILE: &str = "/dev/infiniband/rdma_cm";
/// Most bytes that a request can carry on every kind of network.
pub const DATA: usize = 56;

/// Ports of connected queue pairs: a space of their own beside that of TCP.
const PORT_SPACE: u16 = 0x106;
/// `IBV_QPT_RC`.
const RELIABLE: u8 = 2;

/// One side of a connection, or of one that is coming about; a number of its [`ConnectionManager`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id(u32);

/// What has happened to an [`Id`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// The other side's address belongs to a network that a device of ours is on.
    AddressResolved,
    /// The way there is known.
    RouteResolved,
    /// Somebody wants to connect; the event's id is new, and ours.
    Request,
    /// The other side has accepted: time to bring the queue pair up, and to say so by [`ConnectionManager::establish`].
    Response,
    /// Connected.
    Established,
    /// It will not be. The number of [`Event::status`] is an error number, or of [`What::Rejected`] the reason that the other side gave.
    Failed,
    /// The other side, or the manager there, does not want to.
    Rejected,
    /// The other side has ended it, or has gone.
    Disconnected,
    /// The device has gone.
    DeviceGone,
    /// Nothing that matters here.
    Other,
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Name that the id was given; that of the listener in a [`What::Request`].
    pub uid: u64,
    /// Whom it concerns.
    pub id: Id,
    /// What has happened.
    pub what: What,
    /// Why, see [`What`].
    pub status: i32,
    /// Of a request: what it carries, with zeros to the end.
    pub data: [u8; DATA],
    /// Of a request: READs and atomics at a time that the other side wants to have answered.
    pub reads: u8,
}

/// How a queue pair is to be connected.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Its number.
    pub qp_num: u32,
    /// READs and atomics of the other side that it answers at a time.
    pub answers: u8,
    /// Those that it asks at a time.
    pub asks: u8,
    /// Tries after the first, 0 to 6.
    pub retries: u8,
    /// What the request carries, at most [`DATA`] bytes.
    pub data: &'a [u8],
}

/// Where an id is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// `node_guid` of its device, as libibverbs has it; 0 while it has none.
    pub device: u64,
    /// The device's port; 0 while it has none.
    pub port: u8,
    /// This side's address.
    pub here: Option<SocketAddr>,
    /// The other side's.
    pub there: Option<SocketAddr>,
}

/// The open file.
#[derive(Debug)]
pub struct ConnectionManager(OwnedFd);

impl ConnectionManager {
    /// Opens it. `ENOENT` or `ENODEV` without the kernel's module (rdma_ucm), `EACCES`, and what open(2) says.
    pub fn open() -> Result<ConnectionManager, Errno> {
        let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let path = c"/dev/infiniband/rdma_cm".as_ptr() as usize;
        // SAFETY: the path is NUL-terminated.
        let fd = unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags as usize, 0, 0, 0]) }?;
        // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
        unsafe { own(fd) }.map(ConnectionManager)
    }

    /// What to poll for, to learn when [`ConnectionManager::event`] has something.
    pub fn watch(&self) -> PollFd {
        PollFd::readable(self.0.as_fd())
    }

    /// Gives a command whose answer, if it has any, goes to `room` bytes of memory that the body names.
    ///
    /// # Safety
    /// The memory is writable for so many bytes, and may hold any bytes after.
    unsafe fn command<T: Body>(&self, body: T, room: usize) -> Result<(), Errno> {
        let c = Command { number: T::NUMBER, length: size_of::<T>() as u16, room: room as u16, body };
        let args = [self.0.as_raw_fd() as usize, (&raw const c) as usize, 8 + size_of::<T>(), 0, 0, 0];
        // SAFETY: the command is readable for its length; the caller vouches for the memory that it names.
        unsafe { syscall(libc::SYS_write, args) }.map(drop)
    }

    /// Gives a command without an answer.
    fn tell<T: Body>(&self, body: T) -> Result<(), Errno> {
        // SAFETY: no room at all.
        unsafe { self.command(body, 0) }
    }

    /// Gives a command with an answer.
    fn ask<T: Body, A: Answer>(&self, body: impl FnOnce(u64) -> T) -> Result<A, Errno> {
        // SAFETY: an answer is whole for every bit pattern.
        let mut answer = unsafe { MaybeUninit::<A>::zeroed().assume_init() };
        let at = &raw mut answer;
        // SAFETY: the answer is writable for its size, and whole whatever is written there.
        unsafe { self.command(body(at as u64), size_of::<A>()) }?;
        // SAFETY: a live local that only the kernel has written to.
        Ok(unsafe { at.read_volatile() })
    }

    /// A new id. `uid`, which is not 0, names it in events.
    pub fn create(&self, uid: u64) -> Result<Id, Errno> {
        let body =
            |response| abi::CreateId { uid, response, port_space: PORT_SPACE, qp_type: RELIABLE, reserved: [0; 5] };
        self.ask(body).map(|a: abi::CreateIdAnswer| Id(a.id))
    }

    /// Ends an id, and the connection with it; the other side is told. No event of it comes after this.
    pub fn destroy(&self, id: Id) -> Result<(), Errno> {
        self.ask(|response| abi::DestroyId { response, id: id.0, reserved: 0 }).map(|_: abi::DestroyIdAnswer| ())
    }

    /// Gives an id an address of this host, and with port 0 a free port. `ENODEV` when no RDMA device is on that address.
    pub fn bind(&self, id: Id, at: &SocketAddr) -> Result<(), Errno> {
        self.tell(abi::BindIp { response: 0, addr: inet::to_kernel(at).0, id: id.0 })
    }

    /// Takes requests, so many at a time.
    pub fn listen(&self, id: Id, backlog: u32) -> Result<(), Errno> {
        self.tell(abi::Listen { id: id.0, backlog })
    }

    /// Looks for the device by which `to` is reached, if need be from the address `from`: [`What::AddressResolved`] follows.
    pub fn resolve_address(&self, id: Id, from: Option<&SocketAddr>, to: &SocketAddr, ms: u32) -> Result<(), Errno> {
        let src_addr = from.map_or([0; abi::ADDRESS], |a| inet::to_kernel(a).0);
        self.tell(abi::ResolveIp { src_addr, dst_addr: inet::to_kernel(to).0, id: id.0, timeout_ms: ms })
    }

    /// Looks for the way, on InfiniBand by asking the subnet manager: [`What::RouteResolved`] follows.
    pub fn resolve_route(&self, id: Id, ms: u32) -> Result<(), Errno> {
        self.tell(abi::ResolveRoute { id: id.0, timeout_ms: ms })
    }

    /// Where an id is.
    pub fn place(&self, id: Id) -> Result<Place, Errno> {
        let a: abi::QueryRouteAnswer = self.ask(|response| abi::Query { response, id: id.0, option: 0 })?;
        let (here, there) = (inet::from_kernel(&a.src_addr).ok(), inet::from_kernel(&a.dst_addr).ok());
        Ok(Place { device: a.node_guid, port: a.port_num, here, there })
    }

    /// The attributes with which its queue pair goes to a state (`enum ibv_qp_state`), as far as they are known now.
    pub fn attributes(&self, id: Id, state: u32) -> Result<QpAttr, Errno> {
        self.ask(|response| abi::InitQpAttr { response, id: id.0, qp_state: state })
    }

    /// Asks the other side, by the way that was found: [`What::Response`] follows, on iWARP [`What::Established`].
    pub fn connect(&self, id: Id, terms: &Terms<'_>) -> Result<(), Errno> {
        self.tell(abi::Connect { conn_param: parameters(terms), id: id.0, reserved: 0 })
    }

    /// Accepts a request; `uid` names its id from now on.
    pub fn accept(&self, id: Id, uid: u64, terms: &Terms<'_>) -> Result<(), Errno> {
        self.tell(abi::Accept { uid, conn_param: parameters(terms), id: id.0, reserved: 0 })
    }

    /// Tells the other side, who has accepted, that the queue pair is up.
    pub fn establish(&self, id: Id, uid: u64) -> Result<(), Errno> {
        // SAFETY: numbers and bytes only; without `valid` none of them counts.
        let conn_param = unsafe { zeroed::<ConnParam>() };
        self.tell(abi::Accept { uid, conn_param, id: id.0, reserved: 0 })
    }

    /// Refuses a request.
    pub fn reject(&self, id: Id) -> Result<(), Errno> {
        let (reserved, private_data) = ([0; 2], [0; abi::ROOM]);
        self.tell(abi::Reject { id: id.0, private_data_len: 0, reason: 0, reserved, private_data })
    }

    /// Ends a connection in order: the other side is told.
    pub fn disconnect(&self, id: Id) -> Result<(), Errno> {
        self.tell(abi::Disconnect { id: id.0 })
    }

    /// The next event, if there is one. Does not wait.
    pub fn event(&self) -> Result<Option<Event>, Errno> {
        let a: abi::EventAnswer = match self.ask(|response| abi::GetEvent { response }) {
            Err(Errno::AGAIN) => return Ok(None),
            a => a?,
        };
        let mut data = [0; DATA];
        let carried = usize::from(a.conn.private_data_len);
        data.iter_mut().zip(a.conn.private_data.iter().take(carried)).for_each(|(to, from)| *to = *from);
        let (what, reads) = (meaning(a.event), a.conn.responder_resources);
        Ok(Some(Event { uid: a.uid, id: Id(a.id), what, status: a.status as i32, data, reads }))
    }
}

/// `enum rdma_cm_event_type`.
fn meaning(event: u32) -> What {
    match event {
        0 => What::AddressResolved,
        2 => What::RouteResolved,
        4 => What::Request,
        5 => What::Response,
        // Address, route, connection, or the other side cannot be reached.
        1 | 3 | 6 | 7 => What::Failed,
        8 => What::Rejected,
        9 => What::Established,
        10 => What::Disconnected,
        11 => What::DeviceGone,
        _ => What::Other,
    }
}

fn parameters(t: &Terms<'_>) -> ConnParam {
    // SAFETY: numbers and bytes only.
    let mut p = unsafe { zeroed::<ConnParam>() };
    (p.qp_num, p.responder_resources, p.initiator_depth) = (t.qp_num, t.answers, t.asks);
    (p.retry_count, p.rnr_retry_count, p.valid) = (t.retries, t.retries, 1);
    let data = t.data.get(..t.data.len().min(DATA)).unwrap_or_default();
    p.private_data.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    p.private_data_len = data.len() as u8;
    p
}
