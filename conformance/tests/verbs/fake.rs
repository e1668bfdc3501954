//! A small exporter of one region, made of the parts: what the client link is tested against, with every mishap on demand.

use smc_engine::base::Status;
use smc_engine::link::mgmt::key::Key;
use smc_engine::link::mgmt::message::Endpoint;
use smc_engine::link::mgmt::tcp::{Limits, Member, Office, Reply, Server};
use smc_engine::link::mgmt::{Message, RegionDesc};
use smc_engine::link::verbs::*;
use smc_engine::link::{Access, MemoryKind};
use smc_engine::sys::channel::{Receiver, Sender, channel};
use smc_engine::sys::mem::{self, Mapping};
use smc_engine::sys::poll::{PollFd, poll};
use smc_engine::sys::thread::{self, OwnThread, Wake};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Name of the region.
pub const NAME: &str = "fake";

/// What can be asked of it.
pub enum Order {
    /// Fails every queue pair, without a word.
    Flap,
    /// Destroys queue pairs and keys, moves the bytes, and says so.
    Move,
    /// Destroys queue pairs and keys for good, and says so.
    Revoke,
    /// Says that the export has ended, and closes.
    End,
    Stop,
}

/// What a client has of it.
struct Home {
    _pairs: Vec<QueuePair>,
    _registered: Registered,
}

struct Fake {
    device: Arc<Device>,
    port: Port,
    memory: Mapping,
    desc: RegionDesc,
    homes: BTreeMap<u64, Home>,
    members: u64,
}

/// A running exporter. Ends when dropped.
pub struct Exporter {
    pub address: SocketAddr,
    /// Where the region's bytes are (before the first move).
    pub home: &'static mut [u8],
    orders: Sender<(Order, Sender<()>)>,
    thread: Option<OwnThread>,
}

impl Exporter {
    /// Exports `len` bytes on `at` (port 0: any).
    pub fn start(at: SocketAddr, key: &Key, len: usize, incarnation: u64) -> Exporter {
        let ((orders, todo), (tx, rx)) = (channel(), channel());
        let key = key.clone();
        let body = move |wake: Wake| {
            let server = Server::bind(&at, key.into(), Limits::default()).expect("listen");
            let fake = Fake::new(len, incarnation);
            tx.send((server.address(), fake.memory.addr())).expect("the test waits");
            fake.serve(server, &wake, &todo);
        };
        let thread = thread::spawn("fake", body).expect("a thread");
        let (address, home) = rx.wait(Duration::from_secs(20)).expect("it starts");
        // SAFETY: the mapping is never taken back.
        let home = unsafe { std::slice::from_raw_parts_mut(home as *mut u8, len) };
        Exporter { address, home, orders, thread: Some(thread) }
    }

    /// Asks for something; it is done when this returns.
    pub fn ask(&self, order: Order) {
        let (tx, rx) = channel();
        assert!(self.orders.send((order, tx)).is_ok());
        self.thread.as_ref().expect("it runs").wake();
        rx.wait(Duration::from_secs(20)).expect("it answers");
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ask(Order::Stop);
            self.thread.take().expect("it runs").join();
        }
    }
}

fn room(len: usize) -> Mapping {
    let file = mem::memfd(c"fake", len as u64).expect("a file");
    let (ptr, len) = Mapping::shared(file.as_fd(), 0, len, mem::RW).expect("memory").forget();
    // SAFETY: nobody else unmaps it; the test's views of it last as long as the process.
    unsafe { Mapping::adopt(ptr, len) }
}

impl Fake {
    fn new(len: usize, incarnation: u64) -> Fake {
        let local = Some("127.0.0.1".parse().expect("an address"));
        let Choice { device, ports, .. } = choose(&Default::default(), local, Table::Own).expect("a device");
        let desc = RegionDesc {
            name: NAME.into(),
            len: len as u64,
            access: Access::ReadWrite,
            kind: MemoryKind::System,
            pid: std::process::id(),
            clients: 0,
            generation: 1,
            incarnation,
        };
        Fake { device, port: ports[0], memory: room(len), desc, homes: BTreeMap::new(), members: 0 }
    }

    fn serve(mut self, mut server: Server, wake: &Wake, todo: &Receiver<(Order, Sender<()>)>) {
        loop {
            let mut fds = vec![PollFd::readable(wake.fd())];
            server.watch(&mut fds);
            poll(&mut fds, 50).expect("poll");
            wake.clear();
            if let Some((order, done)) = todo.try_next() {
                let stop = matches!(order, Order::Stop);
                self.obey(&order, &mut server);
                let _ = done.send(());
                if stop {
                    self.homes.clear();
                    std::mem::forget(self.memory);
                    return;
                }
            }
            server.turn(&fds[1..], &mut self);
        }
    }

    fn obey(&mut self, order: &Order, server: &mut Server) {
        let all: Vec<u64> = (1..=self.members).collect();
        let mut tell = |m: &Message, last| all.iter().for_each(|id| server.tell(*id, m, last));
        match order {
            Order::Flap => self.homes.values().for_each(|h| h._pairs.iter().for_each(QueuePair::fail)),
            Order::Move => {
                self.homes.clear();
                let next = room(self.memory.len());
                // SAFETY: two mappings of that length; no key leads to either any more.
                unsafe { std::ptr::copy_nonoverlapping(self.memory.ptr(), next.ptr(), next.len()) };
                // What still went to the old place would be lost.
                // SAFETY: as above.
                unsafe { self.memory.ptr().write_bytes(0xee, self.memory.len()) };
                std::mem::forget(std::mem::replace(&mut self.memory, next));
                self.desc.generation += 1;
                tell(&Message::Moved { generation: self.desc.generation }, false);
            }
            Order::Revoke => {
                self.homes.clear();
                tell(&Message::Revoked { reason: "because".into() }, true);
            }
            Order::End => {
                self.homes.clear();
                tell(&Message::Ended, true);
            }
            Order::Stop => {}
        }
    }

    fn connect(&mut self, id: u64, lanes: &[Endpoint]) -> Message {
        self.homes.remove(&id);
        let domain = Domain::new(&self.device).expect("a domain");
        // SAFETY: the memory is never unmapped.
        let registered =
            unsafe { domain.register(self.memory.ptr(), self.memory.len(), Rights::Write) }.expect("a key");
        let cq = Completions::new(&self.device, 16).expect("a queue");
        let pair = |lane: &Endpoint| {
            let pair =
                QueuePair::new(&domain, &cq, &self.port, Depth { requests: 1, inline: 0 }, true).expect("a pair");
            pair.connect(lane).expect("connected");
            pair
        };
        let pairs: Vec<_> = lanes.iter().map(pair).collect();
        let lanes = pairs.iter().map(QueuePair::endpoint).collect();
        let answer = Message::Connected {
            addr: registered.base() as u64,
            rkey: registered.rkey,
            flush: registered.flushes,
            lanes,
        };
        self.homes.insert(id, Home { _pairs: pairs, _registered: registered });
        answer
    }
}

impl Office for Fake {
    fn admitted(&mut self, _client: Option<&str>, _from: &SocketAddr, _here: &SocketAddr) -> u64 {
        self.members += 1;
        self.members
    }

    fn ask(&mut self, who: &Member, m: Message) -> Reply {
        match m {
            Message::List { .. } => Reply::Say(Message::Names { next: 0, regions: vec![self.desc.clone()] }),
            Message::Open { name, want } if name == NAME => {
                Reply::Say(Message::Opened { region: RegionDesc { access: want, ..self.desc.clone() } })
            }
            Message::Open { .. } => Reply::Last(Message::error(Status::NOT_FOUND, "no such region")),
            Message::Connect { lanes } => Reply::Say(self.connect(who.id, &lanes)),
            m => panic!("{m:?}"),
        }
    }

    fn left(&mut self, who: &Member, _why: &'static str) {
        self.homes.remove(&who.id);
    }

    fn refused(&mut self, _from: &SocketAddr, _client: Option<&str>, _why: &'static str) {}
}
