//! Links between open devices: a Unix socket that finds the peer and tells of its death, and two rings that carry
//! everything else.
//!
//! An open device claims a number on its host by listening on an abstract socket of that name: the number is also the
//! upper half of its queue pair numbers, so that (device of the GID, queue pair number) is all it takes to find a peer.
//! Whoever sends first connects, makes the shared memory and passes it along. One byte through the socket wakes the
//! other side; the end of the stream means that it is gone. Abstract names belong to a network namespace: processes of
//! different namespaces do not reach each other, as on a real network.

use crate::raw::{self, Fd};
use crate::ring::{ROOM, Ring};

/// Bits of a queue pair number that count within one open device.
pub const QPN_BITS: u32 = 12;
/// Largest number of an open device.
pub const MAX_NUMBER: u32 = 4095;

const HELLO: u8 = 0x53;

/// Which open device: number of the device on the host, number of its opening.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// Device.
    pub device: u32,
    /// Opening.
    pub number: u32,
}

/// Shared memory of a link; unmapped when it goes.
pub struct Memory {
    at: usize,
    len: usize,
}

impl Memory {
    fn new(fd: &Fd, len: usize) -> Result<Memory, i32> {
        Ok(Memory { at: raw::map_shared(fd, len)?, len })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and the rings in it are dropped with their link.
        unsafe { raw::unmap(self.at, self.len) };
    }
}

/// The two directions of a link.
pub struct Rings {
    /// What we send.
    pub tx: Ring,
    /// What we receive.
    pub rx: Ring,
    _memory: Memory,
}

impl Rings {
    fn new(memory: Memory, tx: usize, rx: usize) -> Rings {
        // SAFETY: the memory holds both rings, began as zeroes and stays mapped as long as the value.
        let tx = unsafe { Ring::at(memory.at + tx) };
        // SAFETY: as above.
        let rx = unsafe { Ring::at(memory.at + rx) };
        Rings { tx, rx, _memory: memory }
    }

    /// One ring whose ends are both ours.
    pub fn loopback() -> Result<Rings, i32> {
        let fd = raw::memfd(c"softhca loopback", ROOM)?;
        Ok(Rings::new(Memory::new(&fd, ROOM)?, 0, 0))
    }
}

/// Abstract socket address of a place, and its length.
fn address(place: Place) -> ([u8; 110], usize) {
    let mut a = [0; 110];
    a[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let name = format!("libsofthca/1/{}/{}", place.device, place.number);
    a[3..3 + name.len()].copy_from_slice(name.as_bytes());
    (a, 3 + name.len())
}

fn socket() -> Result<Fd, i32> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    unsafe { raw::call(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) }.map(Fd::own)
}

/// Claims a place: `EADDRINUSE` when another has it.
pub fn listen(place: Place) -> Result<Fd, i32> {
    let (fd, (a, len)) = (socket()?, address(place));
    // SAFETY: `a` holds an address of `len` bytes.
    unsafe { raw::call(libc::SYS_bind, [fd.raw() as usize, a.as_ptr() as usize, len, 0, 0, 0]) }?;
    // SAFETY: no pointers.
    unsafe { raw::call(libc::SYS_listen, [fd.raw() as usize, 128, 0, 0, 0, 0]) }?;
    Ok(fd)
}

/// Connects to a place: `ECONNREFUSED` when nobody has it.
pub fn connect(place: Place) -> Result<(Fd, Rings), i32> {
    let (fd, (a, len)) = (socket()?, address(place));
    // SAFETY: `a` holds an address of `len` bytes.
    unsafe { raw::call(libc::SYS_connect, [fd.raw() as usize, a.as_ptr() as usize, len, 0, 0, 0]) }?;
    let memory = raw::memfd(c"softhca link", 2 * ROOM)?;
    let rings = Rings::new(Memory::new(&memory, 2 * ROOM)?, 0, ROOM);
    send_memory(&fd, &memory)?;
    Ok((fd, rings))
}

/// The next that wants to connect; its rings come with [`receive`].
pub fn accept(listener: &Fd) -> Option<Fd> {
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
    // SAFETY: the address is not asked for.
    unsafe { raw::call(libc::SYS_accept4, [listener.raw() as usize, 0, 0, flags, 0, 0]) }.ok().map(Fd::own)
}

/// A descriptor that becomes readable when the process at the other end dies. The socket alone does not tell when a child
/// of that process has inherited its end. `None` for ourselves and for what is in a namespace that we do not see;
/// `ECONNREFUSED` when it is dead already.
pub fn watch(fd: &Fd) -> Result<Option<Fd>, i32> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize);
    let (to, room) = (&raw mut cred as usize, &raw mut len as usize);
    // SAFETY: both are ours and have the sizes that the call expects.
    unsafe { raw::call(libc::SYS_getsockopt, [fd.raw() as usize, level, name, to, room, 0]) }?;
    if cred.pid == 0 || cred.pid as u32 == std::process::id() {
        return Ok(None);
    }
    // SAFETY: no pointers.
    match unsafe { raw::call(libc::SYS_pidfd_open, [cred.pid as usize, 0, 0, 0, 0, 0]) } {
        Ok(number) => Ok(Some(Fd::own(number))),
        Err(libc::ESRCH) => Err(libc::ECONNREFUSED),
        Err(_) => Ok(None),
    }
}

/// A control message that carries one descriptor.
#[repr(C)]
struct Passing {
    len: usize,
    level: i32,
    kind: i32,
    fd: i32,
    _pad: i32,
}

fn message(byte: &mut u8, passing: &mut Passing, call: libc::c_long, fd: &Fd) -> Result<usize, i32> {
    let mut part = libc::iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 };
    let header = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: &raw mut part,
        msg_iovlen: 1,
        msg_control: (&raw mut *passing).cast(),
        msg_controllen: size_of::<Passing>(),
        msg_flags: 0,
    };
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    // SAFETY: everything the header points at lives through the call and has the lengths given.
    unsafe { raw::call(call, [fd.raw() as usize, &raw const header as usize, flags, 0, 0, 0]) }
}

fn send_memory(fd: &Fd, memory: &Fd) -> Result<(), i32> {
    let len = size_of::<Passing>() - 4;
    let mut passing = Passing { len, level: libc::SOL_SOCKET, kind: libc::SCM_RIGHTS, fd: memory.raw(), _pad: 0 };
    message(&mut { HELLO }, &mut passing, libc::SYS_sendmsg, fd).map(drop)
}

/// The rings of an accepted link: `EAGAIN` when they have not come yet, another error when they never will.
pub fn receive(fd: &Fd) -> Result<Rings, i32> {
    let mut passing = Passing { len: 0, level: 0, kind: 0, fd: -1, _pad: 0 };
    let mut byte = 0;
    let got = message(&mut byte, &mut passing, libc::SYS_recvmsg, fd)?;
    if passing.fd < 0 {
        return Err(libc::EPROTO);
    }
    let memory = Fd::own(passing.fd as usize);
    if got != 1 || byte != HELLO {
        return Err(libc::EPROTO);
    }
    let mut size = [0u64; 18];
    // SAFETY: `struct stat` has 144 bytes.
    unsafe { raw::call(libc::SYS_fstat, [memory.raw() as usize, size.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    // Word 6 is st_size.
    if size[6] != 2 * ROOM as u64 {
        return Err(libc::EPROTO);
    }
    Ok(Rings::new(Memory::new(&memory, 2 * ROOM)?, ROOM, 0))
}

/// Wakes the other side. What does not go through because the socket is full of such bytes need not.
pub fn ring_bell(fd: &Fd) {
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
    let byte = 1u8;
    // SAFETY: one byte that lives through the call.
    let _ = unsafe { raw::call(libc::SYS_sendto, [fd.raw() as usize, &raw const byte as usize, 1, flags, 0, 0]) };
}

/// Takes the bytes that woke us. False when the other side is gone.
pub fn hear_bell(fd: &Fd) -> bool {
    loop {
        match raw::read(fd.raw(), &mut [0; 256]) {
            Ok(0) => return false,
            Ok(256) | Err(libc::EINTR) => {}
            Ok(_) | Err(libc::EAGAIN) => return true,
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Header;

    #[test]
    fn a_link_carries_messages_and_tells_of_death() {
        // Device numbers beyond those of any program.
        let place = Place { device: 1000, number: std::process::id() };
        assert_eq!(connect(place).err(), Some(libc::ECONNREFUSED));
        let listener = listen(place).expect("claim");
        assert_eq!(listen(place).err(), Some(libc::EADDRINUSE));
        let (ours, mut sender) = connect(place).expect("connect");
        let theirs = accept(&listener).expect("accept");
        let mut receiver = receive(&theirs).expect("rings");
        let header = Header { kind: 3, payload: 2, ..Header::default() };
        let fill = |to: &mut [u8]| {
            to.copy_from_slice(b"hi");
            Ok::<(), ()>(())
        };
        assert_eq!(sender.tx.push(&header, fill), Ok(true));
        let (got, bytes) = receiver.rx.front().expect("a message");
        assert_eq!((got.kind, bytes), (3, &b"hi"[..]));
        ring_bell(&ours);
        assert!(hear_bell(&theirs));
        drop(ours);
        assert!(!hear_bell(&theirs));
    }
}
