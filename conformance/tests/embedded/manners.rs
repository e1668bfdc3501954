//! Clients that do not behave, and the hand-written client they are made of.

use crate::child::{Client, eventually, export, word};
use smc_engine::base::Status;
use smc_engine::link::embedded::control::Control;
use smc_engine::link::embedded::names::address;
use smc_engine::link::mgmt::{Message, decode, encode};
use smc_engine::link::{Access, AtomicOp};
use smc_engine::sys::poll::{PollFd, poll};
use smc_engine::sys::{Errno, socket};
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;

/// A client by hand.
pub struct Raw {
    fd: OwnedFd,
    fds: RefCell<Vec<OwnedFd>>,
}

impl Raw {
    pub fn connect(name: &str) -> Raw {
        Raw { fd: socket::connect(&address(name)).unwrap(), fds: RefCell::default() }
    }

    pub fn open(name: &str, want: Access) -> Raw {
        let r = Raw::connect(name);
        r.send(&Message::Hello { min: 2, max: 2 });
        assert!(matches!(r.recv(), Some(Message::Welcome { version: 2, .. })));
        r.send(&Message::Open { name: name.into(), want });
        assert!(matches!(r.recv(), Some(Message::Opened { .. })));
        assert_eq!(r.fds.borrow().len(), 2);
        r
    }

    pub fn send(&self, m: &Message) {
        self.bytes(&encode(m)).unwrap();
    }

    pub fn bytes(&self, b: &[u8]) -> Result<(), Errno> {
        socket::send(self.fd.as_fd(), b, &[])
    }

    /// The next message; `None` when the exporter has hung up.
    pub fn recv(&self) -> Option<Message> {
        let mut p = [PollFd::readable(self.fd.as_fd())];
        assert_eq!(poll(&mut p, 10_000), Ok(1), "no answer in time");
        let mut buf = [0; 4096];
        let got = socket::recv(self.fd.as_fd(), &mut buf, true).ok().filter(|g| g.len > 0)?;
        self.fds.borrow_mut().extend(got.fds);
        Some(decode(&buf[..got.len]).unwrap())
    }

    /// True when the exporter hangs up within the time limit; what it says before is thrown away.
    pub fn is_dropped(&self) -> bool {
        while self.recv().is_some() {}
        true
    }

    /// Maps the home read-write and keeps it for ever.
    pub fn map_home(&self) -> *mut u8 {
        let fd = self.fds.borrow()[0].as_raw_fd();
        let p = map(fd).expect("map the home");
        p.cast()
    }

    /// The control page, mapped for ever.
    pub fn control(&self) -> &'static Control {
        let fd = self.fds.borrow()[1].as_raw_fd();
        // SAFETY: a page of atomics that stays mapped until the process ends.
        unsafe { &*map(fd).expect("map the control page").cast::<Control>() }
    }

    /// Tries every way to write into a home that was opened read-only.
    pub fn can_write_somehow(&self) -> bool {
        let fd = self.fds.borrow()[0].as_raw_fd();
        let byte = [1u8];
        // SAFETY: the byte is readable.
        let written = unsafe { libc::pwrite(fd, byte.as_ptr().cast(), 1, 0) } == 1;
        let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).unwrap();
        // SAFETY: the path is NUL-terminated.
        let again = unsafe { libc::open(path.as_ptr(), libc::O_RDWR) };
        // SAFETY: as above.
        let again_written = again >= 0 && unsafe { libc::pwrite(again, byte.as_ptr().cast(), 1, 0) } == 1;
        written || again_written || map(fd).is_some() || (again >= 0 && map(again).is_some())
    }

    pub fn truncate(&self) -> i32 {
        let fd = self.fds.borrow()[0].as_raw_fd();
        // SAFETY: the kernel refuses it, or the test fails.
        unsafe { libc::ftruncate(fd, 0) }
    }

    pub fn add_seal(&self, seal: i32) -> i32 {
        let fd = self.fds.borrow()[0].as_raw_fd();
        // SAFETY: fcntl with an integer argument touches no memory.
        unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seal) }
    }
}

fn map(fd: i32) -> Option<*mut libc::c_void> {
    // SAFETY: a new mapping at a place the kernel chooses.
    let p =
        unsafe { libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
    (p != libc::MAP_FAILED).then_some(p)
}

#[test]
fn a_version_nobody_speaks_is_answered_in_words() {
    let e = export("version", 4096);
    let r = Raw::connect(e.name());
    r.send(&Message::Hello { min: 7, max: 9 });
    match r.recv() {
        Some(Message::Error { status, text }) => {
            assert_eq!(status, Status::PROTOCOL);
            assert!(text.contains("7 to 9") && text.contains("2 to 2"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert!(r.is_dropped());
    // A newer client that still speaks ours is welcome.
    let r = Raw::connect(e.name());
    r.send(&Message::Hello { min: 1, max: 9 });
    assert!(matches!(r.recv(), Some(Message::Welcome { version: 2, .. })));
}

#[test]
fn nonsense_and_floods_hurt_only_their_sender() {
    let e = export("flood", 4096);
    let good = Client::open(e.name(), Access::ReadWrite);
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..200u64 {
        let r = Raw::connect(e.name());
        let junk: Vec<u8> = (0..1 + random() % 5000).map(|_| random() as u8).collect();
        let mut frame = encode(&Message::Hello { min: 2, max: 2 });
        match round % 4 {
            0 => {
                let _ = r.bytes(&junk);
            }
            1 => {
                let at = random() as usize % 16;
                frame[at] ^= 0x55;
                let _ = r.bytes(&frame);
                let _ = r.bytes(&junk);
            }
            2 => {
                r.send(&Message::Hello { min: 2, max: 2 });
                {
                    let _ = r.bytes(&encode(&Message::Opened { region: a_region() }));
                };
            }
            _ => {
                let _ = r.bytes(&encode(&Message::Open { name: e.name().into(), want: Access::ReadWrite }));
            }
        }
        assert!(r.is_dropped(), "seed round {round}");
        assert_eq!(good.atomic(0, AtomicOp::FetchAdd(1)), Ok(round));
    }
    // A flood of perfectly good messages is cut off too.
    let r = Raw::open(e.name(), Access::ReadWrite);
    let ping = encode(&Message::Ping { token: 1 });
    eventually("the flood is cut off", || {
        (0..100).any(|_| matches!(r.bytes(&ping), Err(Errno(libc::EPIPE | libc::ECONNRESET))))
    });
    eventually("only the good client is left", || e.clients().len() == 1);
    assert_eq!(word(&e, 0).load(SeqCst), 200);
    assert_eq!(good.word(0), Ok(200));
}

fn a_region() -> smc_engine::link::mgmt::RegionDesc {
    smc_engine::link::mgmt::RegionDesc {
        name: "x".into(),
        len: 1,
        access: Access::ReadOnly,
        kind: smc_engine::link::MemoryKind::System,
        pid: 1,
        clients: 0,
        generation: 0,
        incarnation: 1,
    }
}

#[test]
fn a_client_cannot_shrink_or_seal_the_home() {
    let e = export("seals", 8192);
    let r = Raw::open(e.name(), Access::ReadWrite);
    assert_eq!(r.truncate(), -1);
    assert_eq!(r.add_seal(0x10), -1, "a client may not stop us from wiping");
    assert_eq!(r.add_seal(libc::F_SEAL_WRITE), -1);
    word(&e, 4096).store(1, SeqCst);
}

#[test]
fn who_greets_and_then_says_nothing_is_dropped() {
    let e = export("silent", 4096);
    let r = Raw::connect(e.name());
    r.send(&Message::Hello { min: 2, max: 2 });
    assert!(matches!(r.recv(), Some(Message::Welcome { .. })));
    assert!(matches!(r.recv(), Some(Message::Error { status: Status::TIMED_OUT, .. })));
    assert!(r.is_dropped());
}
