//! Unix sockets of the SEQPACKET kind with abstract names: nothing on the file system, gone with the process.
//!
//! Every descriptor made here is close-on-exec and non-blocking; no call raises SIGPIPE.

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Most descriptors one message carries.
pub const MAX_FDS: usize = 4;

/// Longest abstract name (without the leading NUL byte).
pub const MAX_NAME: usize = 107;

/// Who is at the other end, as the kernel saw him when the connection was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Process id in our namespace; 0 when he lives outside it.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
}

fn socket() -> Result<OwnedFd, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: makes a new descriptor and touches no memory.
    let fd = unsafe { syscall(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) }?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    unsafe { own(fd) }
}

/// The address of an abstract name, and the length to pass with it.
fn address(name: &[u8]) -> Result<(libc::sockaddr_un, usize), Errno> {
    let mut a = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    let room = a.sun_path.get_mut(1..=name.len()).ok_or(Errno(libc::ENAMETOOLONG))?;
    for (to, from) in room.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    Ok((a, std::mem::size_of::<libc::sa_family_t>() + 1 + name.len()))
}

/// Listens on an abstract name; `EADDRINUSE` when somebody has it.
pub fn listen(name: &[u8], backlog: u32) -> Result<OwnedFd, Errno> {
    let fd = socket()?;
    let (a, len) = address(name)?;
    // SAFETY: the address is valid for `len` bytes during the call.
    unsafe { syscall(libc::SYS_bind, [fd.as_raw_fd() as usize, &raw const a as usize, len, 0, 0, 0]) }?;
    // SAFETY: touches no memory.
    unsafe { syscall(libc::SYS_listen, [fd.as_raw_fd() as usize, backlog as usize, 0, 0, 0, 0]) }?;
    Ok(fd)
}

/// Connects to an abstract name: `ECONNREFUSED` when nobody listens there, `EAGAIN` when too many wait already.
pub fn connect(name: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = socket()?;
    let (a, len) = address(name)?;
    // SAFETY: the address is valid for `len` bytes during the call.
    retry(|| unsafe { syscall(libc::SYS_connect, [fd.as_raw_fd() as usize, &raw const a as usize, len, 0, 0, 0]) })?;
    Ok(fd)
}

/// Takes one waiting connection; `EAGAIN` when there is none.
pub fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for, so no memory is written.
    let fd =
        retry(|| unsafe { syscall(libc::SYS_accept4, [listener.as_raw_fd() as usize, 0, 0, flags as usize, 0, 0]) })?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    unsafe { own(fd) }
}

/// The peer's credentials (SO_PEERCRED).
pub fn peer(fd: BorrowedFd<'_>) -> Result<Peer, Errno> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = std::mem::size_of::<libc::ucred>() as libc::socklen_t;
    let (lvl, opt) = (libc::SOL_SOCKET as usize, libc::SO_PEERCRED as usize);
    // SAFETY: both out pointers are valid for the sizes the kernel is told.
    unsafe {
        syscall(
            libc::SYS_getsockopt,
            [fd.as_raw_fd() as usize, lvl, opt, &raw mut cred as usize, &raw mut len as usize, 0],
        )
    }?;
    Ok(Peer { pid: cred.pid as u32, uid: cred.uid })
}

/// Room for one SCM_RIGHTS message: the header (16 bytes) and the descriptors, 8-byte aligned.
#[repr(C, align(8))]
struct Rights {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; MAX_FDS],
}

const RIGHTS_HEAD: usize = 16;

/// Sends one message with up to [`MAX_FDS`] descriptors. Never blocks: `EAGAIN` when the peer does not read.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut rights = Rights {
        len: RIGHTS_HEAD + 4 * fds.len(),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fds: [-1; MAX_FDS],
    };
    if fds.len() > MAX_FDS {
        return Err(Errno(libc::EINVAL));
    }
    for (to, from) in rights.fds.iter_mut().zip(fds) {
        *to = from.as_raw_fd();
    }
    let mut iov = libc::iovec { iov_base: bytes.as_ptr() as *mut libc::c_void, iov_len: bytes.len() };
    let mut msg = empty_msg(&mut iov);
    if !fds.is_empty() {
        msg.msg_control = (&raw mut rights).cast();
        msg.msg_controllen = rights.len.next_multiple_of(8);
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: msg, the vector, the bytes and the control block live for the call; the kernel only reads them.
    retry(|| unsafe {
        syscall(libc::SYS_sendmsg, [fd.as_raw_fd() as usize, &raw const msg as usize, flags as usize, 0, 0, 0])
    })
    .map(drop)
}

/// What one receive brought.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message; 0 when the peer has closed.
    pub len: usize,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// Receives one message. With `want_fds` false descriptors sent along are discarded by the kernel. `EMSGSIZE` when the
/// message was longer than `buf`, `EPROTO` when it carried more descriptors than [`MAX_FDS`].
pub fn recv(fd: BorrowedFd<'_>, buf: &mut [u8], want_fds: bool) -> Result<Received, Errno> {
    let mut rights = Rights { len: 0, level: 0, kind: 0, fds: [-1; MAX_FDS] };
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let mut msg = empty_msg(&mut iov);
    if want_fds {
        msg.msg_control = (&raw mut rights).cast();
        msg.msg_controllen = std::mem::size_of::<Rights>();
    }
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: msg, the vector, the buffer and the control block are valid for writing for the sizes given.
    let len = retry(|| unsafe {
        syscall(libc::SYS_recvmsg, [fd.as_raw_fd() as usize, &raw mut msg as usize, flags as usize, 0, 0, 0])
    })?;
    let (mut fds, mut moved) = (Vec::new(), Ok(()));
    if want_fds
        && msg.msg_controllen >= RIGHTS_HEAD
        && rights.level == libc::SOL_SOCKET
        && rights.kind == libc::SCM_RIGHTS
    {
        let n = rights.len.saturating_sub(RIGHTS_HEAD) / 4;
        for &raw in rights.fds.iter().take(n) {
            // SAFETY: the kernel just installed this descriptor for us; nobody else knows it.
            match unsafe { own(raw as usize) } {
                Ok(fd) => fds.push(fd),
                Err(e) => moved = Err(e),
            }
        }
    }
    // Others stay closed with the Vec.
    moved?;
    if msg.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(Errno(libc::EMSGSIZE));
    }
    if want_fds && msg.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(Errno(libc::EPROTO));
    }
    Ok(Received { len, fds })
}

fn empty_msg(iov: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: msghdr is plain old data; all zero is "no name, no vector, no control".
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov;
    msg.msg_iovlen = 1;
    msg
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_message_carries_bytes_and_descriptors() {
        let name = format!("libsmc-test/sock-{}", std::process::id());
        let l = listen(name.as_bytes(), 4).unwrap();
        assert_eq!(listen(name.as_bytes(), 4).unwrap_err(), Errno(libc::EADDRINUSE));
        let c = connect(name.as_bytes()).unwrap();
        let s = accept(l.as_fd()).unwrap();
        assert_eq!(peer(s.as_fd()).unwrap().pid, std::process::id());
        send(c.as_fd(), b"hello", &[l.as_fd(), s.as_fd()]).unwrap();
        let mut buf = [0u8; 16];
        let got = recv(s.as_fd(), &mut buf, true).unwrap();
        assert_eq!((got.len, got.fds.len(), &buf[..5]), (5, 2, &b"hello"[..]));
        send(c.as_fd(), b"hello", &[l.as_fd()]).unwrap();
        assert_eq!(recv(s.as_fd(), &mut buf, false).unwrap().fds.len(), 0);
        send(c.as_fd(), &[0; 17], &[]).unwrap();
        assert_eq!(recv(s.as_fd(), &mut buf, true).unwrap_err(), Errno(libc::EMSGSIZE));
        assert_eq!(recv(s.as_fd(), &mut buf, true).unwrap_err(), Errno::AGAIN);
        drop(c);
        assert_eq!(recv(s.as_fd(), &mut buf, true).unwrap().len, 0);
        drop((l, s, got));
        assert_eq!(connect(name.as_bytes()).unwrap_err(), Errno(libc::ECONNREFUSED));
    }

    #[test]
    fn long_names_are_refused() {
        assert_eq!(listen(&[b'a'; MAX_NAME + 1], 1).unwrap_err(), Errno(libc::ENAMETOOLONG));
    }
}
