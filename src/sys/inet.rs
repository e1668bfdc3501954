//! TCP sockets, IPv4 and IPv6.
//!
//! Every descriptor made here is close-on-exec and non-blocking; no call raises SIGPIPE. Names are not resolved: that is
//! the business of whoever may wait for it.

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Room for a sockaddr_in or sockaddr_in6.
const ROOM: usize = 28;
/// Bytes of a sockaddr_in.
const V4: usize = 16;

/// The kernel's form of an address: its bytes, and how many count.
pub(super) fn to_kernel(a: &SocketAddr) -> ([u8; ROOM], usize) {
    let mut raw = [0; ROOM];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        raw.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        at += bytes.len();
    };
    match a {
        SocketAddr::V4(a) => {
            put(&(libc::AF_INET as u16).to_ne_bytes());
            put(&a.port().to_be_bytes());
            put(&a.ip().octets());
            (raw, V4)
        }
        SocketAddr::V6(a) => {
            put(&(libc::AF_INET6 as u16).to_ne_bytes());
            put(&a.port().to_be_bytes());
            put(&a.flowinfo().to_ne_bytes());
            put(&a.ip().octets());
            put(&a.scope_id().to_ne_bytes());
            (raw, ROOM)
        }
    }
}

/// The reverse; `EAFNOSUPPORT` for another family.
pub(super) fn from_kernel(raw: &[u8; ROOM]) -> Result<SocketAddr, Errno> {
    let [f0, f1, p0, p1, rest @ ..] = raw;
    let port = u16::from_be_bytes([*p0, *p1]);
    match i32::from(u16::from_ne_bytes([*f0, *f1])) {
        libc::AF_INET => {
            let [a, b, c, d, ..] = *rest;
            Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port))
        }
        libc::AF_INET6 => {
            let word = |at: usize| rest.get(at..).and_then(|b| b.first_chunk().copied()).unwrap_or([0; 4]);
            let ip = rest.get(4..).and_then(|b| b.first_chunk::<16>().copied()).unwrap_or([0; 16]);
            let (flow, scope) = (u32::from_ne_bytes(word(0)), u32::from_ne_bytes(word(20)));
            Ok(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope)))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

fn socket(a: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if a.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: makes a new descriptor and touches no memory.
    let fd = unsafe { syscall(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0, 0]) }?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    unsafe { own(fd) }
}

/// Sets an option whose value is `value`, as the kernel has it in memory.
fn set<T: Copy>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> Result<(), Errno> {
    let args = [
        fd.as_raw_fd() as usize,
        level as usize,
        option as usize,
        std::ptr::from_ref(value).addr(),
        std::mem::size_of::<T>(),
        0,
    ];
    // SAFETY: the value is readable for its size during the call.
    unsafe { syscall(libc::SYS_setsockopt, args) }.map(drop)
}

/// Listens on an address; port 0 is any free one, see [`local`]. `EADDRINUSE` when somebody listens there.
pub fn listen(a: &SocketAddr, backlog: u32) -> Result<OwnedFd, Errno> {
    let fd = socket(a)?;
    // The port may be taken again at once after a restart.
    set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32)?;
    let (raw, len) = to_kernel(a);
    // SAFETY: the address is valid for `len` bytes during the call.
    unsafe { syscall(libc::SYS_bind, [fd.as_raw_fd() as usize, raw.as_ptr() as usize, len, 0, 0, 0]) }?;
    // SAFETY: touches no memory.
    unsafe { syscall(libc::SYS_listen, [fd.as_raw_fd() as usize, backlog as usize, 0, 0, 0, 0]) }?;
    Ok(fd)
}

/// The address a socket is bound to.
pub fn local(fd: BorrowedFd<'_>) -> Result<SocketAddr, Errno> {
    let (mut raw, mut len) = ([0u8; ROOM], ROOM as libc::socklen_t);
    let args = [fd.as_raw_fd() as usize, raw.as_mut_ptr() as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: both out pointers are valid for the sizes the kernel is told.
    unsafe { syscall(libc::SYS_getsockname, args) }?;
    from_kernel(&raw)
}

/// Takes one waiting connection and says whose it is; `EAGAIN` when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> Result<(OwnedFd, SocketAddr), Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (mut raw, mut len) = ([0u8; ROOM], ROOM as libc::socklen_t);
    let args = [listener.as_raw_fd() as usize, raw.as_mut_ptr() as usize, &raw mut len as usize, flags as usize, 0, 0];
    // SAFETY: both out pointers are valid for the sizes the kernel is told.
    let fd = retry(|| unsafe { syscall(libc::SYS_accept4, args) })?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    Ok((unsafe { own(fd) }?, from_kernel(&raw)?))
}

/// Begins to connect. When the socket becomes writable, [`outcome`] says how it went.
pub fn connect(a: &SocketAddr) -> Result<OwnedFd, Errno> {
    let fd = socket(a)?;
    let (raw, len) = to_kernel(a);
    // SAFETY: the address is valid for `len` bytes during the call.
    match unsafe { syscall(libc::SYS_connect, [fd.as_raw_fd() as usize, raw.as_ptr() as usize, len, 0, 0, 0]) } {
        // Interrupted: it goes on all the same.
        Ok(_) | Err(Errno(libc::EINPROGRESS) | Errno::INTR) => Ok(fd),
        Err(e) => Err(e),
    }
}

/// This host's address that packets to `to` come from. Sends nothing.
pub fn source_of(to: &SocketAddr) -> Result<IpAddr, Errno> {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: makes a new descriptor and touches no memory.
    let fd = unsafe { syscall(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0, 0]) }?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    let fd = unsafe { own(fd) }?;
    let (raw, len) = to_kernel(to);
    // SAFETY: the address is valid for `len` bytes during the call.
    unsafe { syscall(libc::SYS_connect, [fd.as_raw_fd() as usize, raw.as_ptr() as usize, len, 0, 0, 0]) }?;
    Ok(local(fd.as_fd())?.ip())
}

/// How a connect ended, or why a connection broke (SO_ERROR); reading it clears it.
pub fn outcome(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let (mut e, mut len) = (0i32, 4 as libc::socklen_t);
    let args = [
        fd.as_raw_fd() as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_ERROR as usize,
        &raw mut e as usize,
        &raw mut len as usize,
        0,
    ];
    // SAFETY: both out pointers are valid for the sizes the kernel is told.
    unsafe { syscall(libc::SYS_getsockopt, args) }?;
    if e == 0 { Ok(()) } else { Err(Errno(e)) }
}

/// Makes a connection notice within about `seconds` (1 to 3600) that its peer's host has gone, whether something is on its way or
/// not, and send small messages at once.
pub fn watchful(fd: BorrowedFd<'_>, seconds: u32) -> Result<(), Errno> {
    let s = seconds.clamp(1, 3600) as i32;
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &(s / 2).max(1))?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, &(s / 6).max(1))?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, &3i32)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &(s * 1000))
}

/// Closes at once: what is unsent is dropped, the peer gets a reset, and nothing of the connection stays in the kernel.
pub fn abort(fd: OwnedFd) {
    let _ = set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Ends what is sent: after the last byte the peer reads the end of the stream. Receiving goes on.
pub fn finish(fd: BorrowedFd<'_>) {
    // SAFETY: numbers only.
    let _ = unsafe { syscall(libc::SYS_shutdown, [fd.as_raw_fd() as usize, libc::SHUT_WR as usize, 0, 0, 0, 0]) };
}

/// Sends what fits; `EAGAIN` when nothing does.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let args = [fd.as_raw_fd() as usize, bytes.as_ptr() as usize, bytes.len(), flags as usize, 0, 0];
    // SAFETY: the bytes are readable for their length; no address is given.
    retry(|| unsafe { syscall(libc::SYS_sendto, args) })
}

/// Receives what is there, at most `out.len()` bytes; 0 at the end of the stream, `EAGAIN` when there is nothing yet.
pub fn receive(fd: BorrowedFd<'_>, out: &mut [u8]) -> Result<usize, Errno> {
    let args = [fd.as_raw_fd() as usize, out.as_mut_ptr() as usize, out.len(), libc::MSG_DONTWAIT as usize, 0, 0];
    // SAFETY: the buffer is writable for its length; no address is asked for.
    retry(|| unsafe { syscall(libc::SYS_recvfrom, args) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::sys::poll::{PollFd, poll};

    fn wait(fd: BorrowedFd<'_>, out: bool) {
        assert_eq!(poll(&mut [PollFd::writable_too(fd, out)], 10_000), Ok(1), "nothing happened");
    }

    #[test]
    fn addresses_survive_the_kernels_form() {
        for a in ["1.2.3.4:5", "[::1]:65535", "[fe80::1:2%3]:80", "0.0.0.0:0"] {
            let a: SocketAddr = a.parse().unwrap();
            assert_eq!(from_kernel(&to_kernel(&a).0), Ok(a));
        }
        assert_eq!(from_kernel(&[0; ROOM]), Err(Errno(libc::EAFNOSUPPORT)));
    }

    fn both_ways(at: &str) {
        let l = listen(&at.parse().unwrap(), 4).unwrap();
        let a = local(l.as_fd()).unwrap();
        assert_ne!(a.port(), 0);
        assert_eq!(listen(&a, 4).unwrap_err(), Errno::ADDRINUSE);
        assert_eq!(accept(l.as_fd()).unwrap_err(), Errno::AGAIN);
        let c = connect(&a).unwrap();
        wait(c.as_fd(), true);
        assert_eq!(outcome(c.as_fd()), Ok(()));
        wait(l.as_fd(), false);
        let (s, from) = accept(l.as_fd()).unwrap();
        assert_eq!(from, local(c.as_fd()).unwrap());
        watchful(s.as_fd(), 20).unwrap();
        let mut buf = [0; 8];
        assert_eq!(receive(s.as_fd(), &mut buf), Err(Errno::AGAIN));
        assert_eq!(send(c.as_fd(), b"hello"), Ok(5));
        wait(s.as_fd(), false);
        assert_eq!((receive(s.as_fd(), &mut buf), &buf[..5]), (Ok(5), &b"hello"[..]));
        drop(c);
        wait(s.as_fd(), false);
        assert_eq!(receive(s.as_fd(), &mut buf), Ok(0));
        let c = connect(&a).unwrap();
        wait(l.as_fd(), false);
        abort(accept(l.as_fd()).unwrap().0);
        wait(c.as_fd(), false);
        assert_eq!(receive(c.as_fd(), &mut buf), Err(Errno::CONNRESET));
        drop(l);
        let refused = connect(&a).and_then(|c| {
            wait(c.as_fd(), true);
            outcome(c.as_fd())
        });
        assert_eq!(refused, Err(Errno::CONNREFUSED));
    }

    #[test]
    fn bytes_go_both_ways() {
        both_ways("127.0.0.1:0");
    }

    #[test]
    fn bytes_go_both_ways_by_the_newer_protocol() {
        // A host without IPv6 has no such address.
        match listen(&"[::1]:0".parse().unwrap(), 1) {
            Err(Errno(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT)) => {}
            _ => both_ways("[::1]:0"),
        }
    }
}
