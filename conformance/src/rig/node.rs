//! Nodes that share a home: each with a region of its own, in this process or in a child process.
//!
//! A child is forked before the case starts any thread. It takes commands from a mailbox in shared memory, so that a
//! case drives two processes as it drives two regions.

use super::{Home, load, net, open, store};
use crate::runner::Over;
use smc_engine::base::config::Backend;
use smc_engine::base::{PAGE, Status};
use smc_engine::core::export::{ExportOptions, Exporter, Memory};
use smc_engine::core::options::{MapOptions, Policy, Through};
use smc_engine::core::region::Region;
use smc_engine::link::embedded::EmbeddedLink;
use smc_engine::link::{AtomicOp, Link};
use smc_engine::sys::clock::{Deadline, nap};
use smc_engine::sys::mem::{self, Mapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What a node is asked to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Plain store of a word.
    Store(usize, u64),
    /// Plain load of a word.
    Load(usize),
    /// Store every byte of `[at, at + len)` whose offset is `rem` modulo 2.
    Bytes(usize, usize, u8),
    /// Release of everything; the status.
    Release,
    /// Acquire of everything; the status.
    Acquire,
    /// Release and acquire of everything, hot pages too; the status.
    Barrier,
    /// Load at the home.
    Home(usize),
    /// Addition at the home.
    Add(usize, u64),
    /// Compare and swap at the home: offset, expected, new.
    Swap(usize, u64, u64),
}

/// A node in this process.
pub struct Node {
    region: Arc<Region>,
    v: usize,
    len: usize,
}

impl Node {
    /// A region over `home` with a view of all of it.
    pub fn new(backend: Backend, home: &Home, opts: MapOptions) -> Node {
        let region = open(backend, home, opts);
        let v = region.map_view(0, false, 0, home.len, true).expect("a view");
        Node { region, v, len: home.len }
    }

    fn at_home(&self, at: usize, op: AtomicOp) -> u64 {
        self.region.at_home(at as u64, op).expect("an operation at the home")
    }

    /// Does it.
    pub fn ask(&self, ask: Ask) -> u64 {
        let status = |s: Status| s.0 as u64;
        match ask {
            Ask::Store(at, value) => {
                store(self.v + at, value);
                0
            }
            Ask::Load(at) => load(self.v + at),
            Ask::Bytes(at, len, rem) => {
                let mine = (at..at + len).filter(|i| i % 2 == usize::from(rem));
                mine.for_each(|i| super::store8(self.v + i, rem + 1));
                0
            }
            Ask::Release => status(self.region.release(0, 0)),
            Ask::Acquire => status(self.region.acquire(0, 0)),
            Ask::Barrier => status(self.region.barrier()),
            Ask::Home(at) => self.at_home(at, AtomicOp::Load),
            Ask::Add(at, n) => self.at_home(at, AtomicOp::FetchAdd(n)),
            Ask::Swap(at, expected, new) => self.at_home(at, AtomicOp::CompareSwap { expected, new }),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.region.unmap_view(self.v, self.len.next_multiple_of(PAGE));
    }
}

/// Words of the mailbox: request number (0 = idle), three arguments, answer, then the name of the region.
const REQUEST: usize = 0;
const ARGS: usize = 1;
const ANSWER: usize = 4;
const NAME: usize = 8;
const NAME_WORDS: usize = 32;
/// Port on which the exporter of the region listens; 0 when it is not reached over a network.
const PORT: usize = NAME + NAME_WORDS;

const OPEN: u64 = 100;
const END: u64 = 101;
const EXPORT: u64 = 102;
const LISTEN: u64 = 103;

fn number(ask: Ask) -> (u64, [u64; 3]) {
    match ask {
        Ask::Store(at, v) => (1, [at as u64, v, 0]),
        Ask::Load(at) => (2, [at as u64, 0, 0]),
        Ask::Bytes(at, len, rem) => (3, [at as u64, len as u64, u64::from(rem)]),
        Ask::Release => (4, [0; 3]),
        Ask::Acquire => (5, [0; 3]),
        Ask::Barrier => (6, [0; 3]),
        Ask::Home(at) => (7, [at as u64, 0, 0]),
        Ask::Add(at, n) => (8, [at as u64, n, 0]),
        Ask::Swap(at, old, new) => (9, [at as u64, old, new]),
    }
}

fn meaning(number: u64, [a, b, c]: [u64; 3]) -> Option<Ask> {
    let at = a as usize;
    Some(match number {
        1 => Ask::Store(at, b),
        2 => Ask::Load(at),
        3 => Ask::Bytes(at, b as usize, c as u8),
        4 => Ask::Release,
        5 => Ask::Acquire,
        6 => Ask::Barrier,
        7 => Ask::Home(at),
        8 => Ask::Add(at, b),
        9 => Ask::Swap(at, b, c),
        _ => return None,
    })
}

/// A node in a child process, seen from the case.
pub struct Child {
    mail: Arc<Mapping>,
    pid: i32,
}

fn write_name(mail: &Mapping, name: &str) {
    let bytes: Vec<u8> = name.bytes().chain(std::iter::repeat(0)).take(NAME_WORDS * 8).collect();
    for (i, w) in bytes.chunks(8).enumerate() {
        word(mail, NAME + i).store(u64::from_le_bytes(w.try_into().expect("8 bytes")), SeqCst);
    }
}

fn read_name(mail: &Mapping) -> String {
    let bytes: Vec<u8> = (0..NAME_WORDS).flat_map(|i| word(mail, NAME + i).load(SeqCst).to_le_bytes()).collect();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn word(mail: &Mapping, i: usize) -> &AtomicU64 {
    // SAFETY: the mapping is a page, page aligned, shared and only used atomically; i is below 512.
    unsafe { AtomicU64::from_ptr(mail.ptr().cast::<u64>().wrapping_add(i)) }
}

impl Child {
    /// Forks a node. The case must not have started a thread yet.
    pub fn fork(backend: Backend) -> Child {
        Child::fork_on(backend, None)
    }

    /// As [`Child::fork`], with an RDMA device of its own: a value of `LIBSMC_DEVICE`.
    pub fn fork_on(backend: Backend, device: Option<&str>) -> Child {
        // The child knows it too.
        net::key();
        let fd = mem::memfd(c"suite-mail", PAGE as u64).expect("a memory file");
        use std::os::fd::AsFd;
        let mail = Arc::new(Mapping::shared(fd.as_fd(), 0, PAGE, mem::RW).expect("a mailbox"));
        // SAFETY: no other thread exists that could hold a lock the child needs.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: takes a signal number; the child must not outlive the case.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            if let Some(d) = device {
                // SAFETY: the process has one thread.
                unsafe { std::env::set_var("LIBSMC_DEVICE", d) };
            }
            serve(&mail, backend);
            // SAFETY: ends the child without running what the parent registered.
            unsafe { libc::_exit(0) };
        }
        assert!(pid > 0, "fork failed");
        Child { mail, pid }
    }

    /// Maps an exported region in the child, with this policy.
    pub fn map(&self, region: &str, len: usize, policy: Policy) {
        self.name(region);
        self.request(OPEN, [len as u64, policy as u64, 0]);
    }

    /// The same in exact write-through mode.
    pub fn map_exact(&self, region: &str, len: usize) {
        self.name(region);
        self.request(OPEN, [len as u64, Policy::Byte as u64, Through::Exact as u64]);
    }

    /// Exports zeros from the child, for as long as it lives.
    pub fn export(&self, len: usize) -> Home {
        write_name(&self.mail, &super::home::fresh_name());
        assert_eq!(self.request(EXPORT, [len as u64, 0, 0]), 0, "the child cannot export");
        let port = if Over::now() == Over::Verbs { self.port() } else { 0 };
        word(&self.mail, PORT).store(port.into(), SeqCst);
        foreign_home(&self.mail, len)
    }

    /// [`Child::export`], reached over the network by a link that `connect` makes, and looked at by another.
    pub fn export_far(&self, len: usize, connect: impl Fn(u16) -> Arc<dyn Link>) -> Home {
        write_name(&self.mail, &super::home::fresh_name());
        assert_eq!(self.request(EXPORT, [len as u64, 0, 0]), 0, "the child cannot export");
        Home::seen(connect(self.port()), read_name(&self.mail), len)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.request(LISTEN, [0; 3]) as u16
    }

    fn name(&self, region: &str) {
        write_name(&self.mail, region);
        let port = if Over::now() == Over::Verbs { net::listen() } else { 0 };
        word(&self.mail, PORT).store(port.into(), SeqCst);
    }

    /// Ends the process at once, as a crash does; it has ended when this returns.
    pub fn kill(&self) {
        // SAFETY: our own child, not reaped before this is dropped.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: as above; the child stays to be reaped; info is a valid out buffer.
        unsafe { libc::waitid(libc::P_PID, self.pid as u32, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
    }

    /// Lets the child do it.
    pub fn ask(&self, ask: Ask) -> u64 {
        let (n, args) = number(ask);
        self.request(n, args)
    }

    fn request(&self, n: u64, args: [u64; 3]) -> u64 {
        args.into_iter().enumerate().for_each(|(i, a)| word(&self.mail, ARGS + i).store(a, SeqCst));
        word(&self.mail, REQUEST).store(n, SeqCst);
        let start = Instant::now();
        wait(|| word(&self.mail, REQUEST).load(SeqCst) == 0 || start.elapsed() > Duration::from_secs(20));
        assert_eq!(word(&self.mail, REQUEST).load(SeqCst), 0, "the node's process does not answer request {n}");
        word(&self.mail, ANSWER).load(SeqCst)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        word(&self.mail, REQUEST).store(END, SeqCst);
        let mut status = 0;
        // SAFETY: our own child, waited for once; status is a valid out pointer.
        unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
    }
}

/// Polls: hard at first, since an answer takes microseconds, then sleeping.
fn wait(done: impl Fn() -> bool) {
    let mut turns = 0u32;
    while !done() {
        turns += 1;
        if turns > 2000 {
            nap(50_000);
        } else {
            std::thread::yield_now();
        }
    }
}

/// The child's loop.
fn serve(mail: &Mapping, backend: Backend) {
    let mut node: Option<Node> = None;
    let mut exports = Vec::new();
    loop {
        wait(|| word(mail, REQUEST).load(SeqCst) != 0);
        let args = [0, 1, 2].map(|i| word(mail, ARGS + i).load(SeqCst));
        let n = word(mail, REQUEST).load(SeqCst);
        let answer = match n {
            END => return,
            OPEN => {
                // The old one first: it writes back what it holds.
                drop(node.take());
                let home = foreign_home(mail, args[0] as usize);
                let policies = super::POLICIES.into_iter().find(|p| *p as u64 == args[1]);
                let exact = args[2] == Through::Exact as u64;
                let opts = MapOptions {
                    through: if exact { Through::Exact } else { Through::Off },
                    ..super::policy(policies.unwrap_or(Policy::Byte))
                };
                node = Some(Node::new(backend, &home, opts));
                0
            }
            EXPORT => {
                let memory = Memory::New(args[0] as usize);
                let export = Exporter::get().and_then(|e| e.export(&read_name(mail), memory, ExportOptions::default()));
                u64::from(export.map(|e| exports.push(e)).is_err())
            }
            LISTEN => net::listen().into(),
            _ => match (meaning(n, args), &node) {
                (Some(ask), Some(node)) => node.ask(ask),
                _ => u64::MAX,
            },
        };
        word(mail, ANSWER).store(answer, SeqCst);
        word(mail, REQUEST).store(0, SeqCst);
    }
}

/// The exported home as the child reaches it: by the link alone.
fn foreign_home(mail: &Mapping, len: usize) -> Home {
    let name = read_name(mail);
    let link: Arc<dyn Link> = match word(mail, PORT).load(SeqCst) {
        0 => Arc::new(EmbeddedLink::connect_local()),
        port => net::connect(port as u16),
    };
    let seen = link.list(Deadline::in_ms(5000)).expect("a list of exports");
    assert!(seen.iter().any(|r| r.name == name), "{name} is not exported");
    Home::unseen(link, name, len)
}

/// One or the other.
pub enum AnyNode {
    /// In this process.
    Here(Node),
    /// In a child.
    There(Arc<Child>),
}

impl AnyNode {
    /// Does it.
    pub fn ask(&self, ask: Ask) -> u64 {
        match self {
            AnyNode::Here(n) => n.ask(ask),
            AnyNode::There(c) => c.ask(ask),
        }
    }
}

/// Options of a node in bounded write-through mode.
pub fn through() -> MapOptions {
    MapOptions { through: Through::Bounded, ..MapOptions::default() }
}
