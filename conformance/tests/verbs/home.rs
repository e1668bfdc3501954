//! What an exporter gives to clients of other hosts, and takes from them: seen from the client's side, with bare queue pairs.

use super::parts::{chosen, memory, next};
use super::pool::Pool;
use super::{again, on_hca, softhca_support};
use smc_engine::base::config::{Config, DeviceWish, LogLevel, Rendezvous};
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::core::export::net::Network;
use smc_engine::core::export::{Event, Export, ExportOptions, Exporter, Memory, What};
use smc_engine::link::mgmt::Message;
use smc_engine::link::mgmt::key::Key;
use smc_engine::link::mgmt::message::Endpoint;
use smc_engine::link::mgmt::tcp::Client;
use smc_engine::link::verbs::words::Outcome;
use smc_engine::link::verbs::*;
use smc_engine::link::{self, Access, Health, Link, RegionKey};
use smc_engine::sys::channel::channel;
use smc_engine::sys::clock::Deadline;
use std::net::SocketAddr;
use std::sync::Arc;

const DONE: u32 = 0;
const REM_ACCESS: u32 = 10;

fn soon() -> Deadline {
    Deadline::in_ms(30_000)
}

fn reach(at: SocketAddr, key: &Key) -> Client {
    Client::connect(&[at], key, "the exporter", soon()).expect("connect")
}

/// An exporter that listens, with one export of 16 pages.
struct Home {
    key: Key,
    net: Network,
    export: Export,
}

impl Home {
    fn new(name: &str) -> Home {
        let (e, key) = (Exporter::get().unwrap(), Key::generate(Some("c")).unwrap());
        let net = e.listen("127.0.0.1:0".parse().unwrap(), key.clone().into()).unwrap();
        let name = format!("{name}-{}", std::process::id());
        let export = e.export(&name, Memory::New(16 * PAGE), ExportOptions::default()).unwrap();
        Home { key, net, export }
    }

    fn byte(&self, at: usize) -> u8 {
        // SAFETY: inside the export, which other processes change as this one reads.
        unsafe { self.export.base().wrapping_add(at).read_volatile() }
    }

    fn set(&self, at: usize, b: u8) {
        // SAFETY: as above.
        unsafe { self.export.base().wrapping_add(at).write_volatile(b) };
    }

    fn open(&self, choice: &Choice, access: Access) -> Peer {
        let mut client = reach(self.net.address(), &self.key);
        let m = client.ask(&Message::Open { name: self.export.name().to_owned(), want: access }).unwrap();
        assert!(matches!(m, Message::Opened { .. }), "{m:?}");
        let domain = Domain::new(&choice.device).unwrap();
        let mut p = Peer {
            pool: Pool::new(&domain, PAGE).unwrap(),
            cq: Completions::new(&choice.device, 64).unwrap(),
            pair: None,
            port: choice.ports[0],
            addr: 0,
            rkey: 0,
            client,
            domain,
        };
        p.connect();
        p
    }
}

/// A client of another host.
struct Peer {
    pair: Option<QueuePair>,
    cq: Arc<Completions>,
    pool: Pool,
    port: Port,
    addr: u64,
    rkey: u32,
    client: Client,
    domain: Arc<Domain>,
}

impl Peer {
    /// Three lanes, of which the last is used.
    fn connect(&mut self) {
        let new =
            || QueuePair::new(&self.domain, &self.cq, &self.port, Depth { requests: 8, inline: 0 }, false).unwrap();
        let mine = [new(), new(), new()];
        match self.client.ask(&Message::Connect { lanes: mine.iter().map(QueuePair::endpoint).collect() }).unwrap() {
            Message::Connected { addr, rkey, lanes, .. } => {
                assert_eq!(lanes.len(), 3);
                mine.iter().zip(&lanes).for_each(|(q, l)| q.connect(l).unwrap());
                (self.addr, self.rkey) = (addr, rkey);
            }
            m => panic!("{m:?}"),
        }
        self.pair = mine.into_iter().next_back();
    }

    fn run(&self, verb: Verb, at: usize, rkey: u32) -> u32 {
        let local = Place { ptr: self.pool.ptr(), len: 8, lkey: self.pool.lkey() };
        let request = Request { id: 1, verb, local, addr: self.addr + at as u64, rkey, signalled: true };
        let mut batch = Batch::<1>::new();
        assert!(batch.push(&request));
        // SAFETY: the pool outlives the completion, which is waited for.
        unsafe { batch.post(self.pair.as_ref().unwrap()) }.unwrap();
        let Outcome(status) = next(&self.cq).outcome;
        status
    }

    /// Reads eight bytes at `at`.
    fn read(&self, at: usize) -> Result<u8, u32> {
        match self.run(Verb::Read, at, self.rkey) {
            // SAFETY: the pool's first byte; the device has written it.
            DONE => Ok(unsafe { self.pool.ptr().read_volatile() }),
            e => Err(e),
        }
    }

    fn write(&self, at: usize, b: u8) -> u32 {
        // SAFETY: eight bytes of the pool, which the device does not use now.
        unsafe { self.pool.ptr().write_bytes(b, 8) };
        self.run(Verb::Write, at, self.rkey)
    }

    fn heard(&mut self) -> Message {
        self.client.hear(soon()).unwrap().expect("a message in time")
    }
}

#[test]
fn clients_reach_what_they_may_and_nothing_more() {
    if !on_hca("home::clients_reach_what_they_may_and_nothing_more", &[]) {
        return;
    }
    let (choice, home) = (chosen(), Home::new("rights"));
    let (mut writer, mut reader) = (home.open(&choice, Access::ReadWrite), home.open(&choice, Access::ReadOnly));
    home.set(PAGE, 7);
    assert_eq!((writer.read(PAGE), reader.read(PAGE)), (Ok(7), Ok(7)));
    assert_eq!(writer.write(2 * PAGE, 9), DONE);
    assert_eq!((home.byte(2 * PAGE), reader.read(2 * PAGE)), (9, Ok(9)));
    assert_ne!(writer.rkey, reader.rkey);
    let known = home.export.clients();
    let devices: Vec<_> = known.iter().map(|c| c.remote.as_ref().unwrap().device.clone()).collect();
    assert_eq!(devices, [Some("softhca0".to_owned()), Some("softhca0".to_owned())]);
    // A reader cannot write, nor change by an atomic.
    assert_eq!(reader.write(0, 1), REM_ACCESS);
    reader.connect();
    assert_eq!(reader.run(Verb::FetchAdd(1), 0, reader.rkey), REM_ACCESS);
    reader.connect();
    // The key of another client is of no use to him, though it is good.
    assert_eq!(reader.run(Verb::Write, 0, writer.rkey), REM_ACCESS);
    reader.connect();
    assert_eq!(reader.run(Verb::Read, 0, writer.rkey), REM_ACCESS);
    reader.connect();
    // Nothing before, behind, or across the end.
    for at in [16 * PAGE, 16 * PAGE - 4, 0usize.wrapping_sub(8)] {
        let mut p = home.open(&choice, Access::ReadWrite);
        p.addr = p.addr.wrapping_add(at as u64);
        assert_eq!(p.run(Verb::Write, 0, p.rkey), REM_ACCESS, "{at:#x}");
    }
    // After all that the others go on, and nothing has changed.
    assert_eq!((writer.read(PAGE), reader.read(PAGE), home.byte(0)), (Ok(7), Ok(7), 0));
    // Connecting again keeps the registration.
    let key = writer.rkey;
    writer.connect();
    assert_eq!((writer.rkey, writer.read(2 * PAGE)), (key, Ok(9)));
}

#[test]
fn revocation_kills_the_key_and_nobody_else_feels_it() {
    if !on_hca("home::revocation_kills_the_key_and_nobody_else_feels_it", &[]) {
        return;
    }
    let (choice, home) = (chosen(), Home::new("revoke"));
    let [mut one, two, mut three] = [0; 3].map(|_| home.open(&choice, Access::ReadWrite));
    home.set(0, 5);
    assert_eq!((one.read(0), two.read(0)), (Ok(5), Ok(5)));
    let ids: Vec<u64> = home.export.clients().iter().map(|c| c.id).collect();
    home.export.revoke(ids[0], "enough", false).unwrap();
    // Dead when revoke has returned, not when the client has heard of it.
    assert_eq!(one.read(0), Err(REM_ACCESS));
    assert_eq!(one.heard(), Message::Revoked { reason: "enough".into() });
    assert_eq!(two.read(0), Ok(5));
    assert_eq!(two.write(8, 6), DONE);
    assert_eq!(home.byte(8), 6);
    // Nothing has moved: a client of another host need not be moved away from.
    let at = three.client.ask(&Message::Ping { token: 1 }).unwrap();
    assert_eq!(at, Message::Pong { token: 1 });
    // The end of the export, and the end of the listener.
    drop(home.export);
    assert_eq!((two.read(0), three.read(0)), (Err(REM_ACCESS), Err(REM_ACCESS)));
    assert_eq!(three.heard(), Message::Ended);
}

#[test]
fn memory_is_moved_under_clients_of_both_kinds() {
    if !on_hca("home::memory_is_moved_under_clients_of_both_kinds", &[]) {
        return;
    }
    let (choice, home) = (chosen(), Home::new("move"));
    let mut remote = home.open(&choice, Access::ReadWrite);
    assert_eq!(remote.write(PAGE, 3), DONE);
    let here = link::connect(None, &Config::default()).unwrap();
    let _local = here.open(home.export.name(), Access::ReadWrite, soon()).unwrap();
    let id = home.export.clients().iter().find(|c| c.remote.is_none()).unwrap().id;
    let old = remote.rkey;
    home.export.revoke(id, "go", true).unwrap();
    // The old key is dead: nothing of his reaches the old pages or the new.
    assert_ne!(remote.read(PAGE), Ok(3));
    assert_eq!(remote.heard(), Message::Moved { generation: 2 });
    remote.connect();
    assert_ne!(remote.rkey, old);
    assert_eq!(remote.read(PAGE), Ok(3));
    assert_eq!(remote.write(PAGE, 4), DONE);
    assert_eq!(home.byte(PAGE), 4, "the client writes other pages than the exporter has");
}

#[test]
fn the_callers_memory_is_his_again_when_the_export_has_ended() {
    if !on_hca("home::the_callers_memory_is_his_again_when_the_export_has_ended", &[]) {
        return;
    }
    let (choice, mut home) = (chosen(), Home::new("caller"));
    let mine = memory(16 * PAGE);
    mine.fill(1);
    let at = mine.as_mut_ptr();
    // SAFETY: whole pages of private memory that is never unmapped; no reference to it is used below.
    let memory = unsafe { Memory::at(at, 16 * PAGE) };
    let name = format!("mine-{}", std::process::id());
    home.export = Exporter::get().unwrap().export(&name, memory, ExportOptions::default()).unwrap();
    let p = home.open(&choice, Access::ReadWrite);
    assert_eq!((p.addr, p.write(0, 2), p.read(PAGE)), (at as u64, DONE, Ok(1)));
    drop(home.export);
    assert_eq!(p.write(0, 9), REM_ACCESS);
    // SAFETY: the memory of above.
    assert_eq!(unsafe { at.read_volatile() }, 2);
}

#[test]
fn an_exporter_without_a_device_lists_and_says_what_is_missing() {
    if std::env::var_os(super::CHILD).is_none() {
        let nowhere = softhca_support::target().join("softhca/none");
        std::fs::create_dir_all(&nowhere).unwrap();
        std::fs::write(nowhere.join("libibverbs.so.1"), "no library").unwrap();
        let mut c = again("home::an_exporter_without_a_device_lists_and_says_what_is_missing");
        c.env("LD_LIBRARY_PATH", &nowhere);
        softhca_support::success("without a library", &softhca_support::output(c));
        return;
    }
    let home = Home::new("none");
    let mut c = reach(home.net.address(), &home.key);
    assert!(c.list().unwrap().iter().any(|r| r.name == home.export.name()));
    c.ask(&Message::Open { name: home.export.name().to_owned(), want: Access::ReadOnly }).unwrap();
    let lanes = vec![Endpoint { mtu: 1, ..Endpoint::default() }];
    let e = c.ask(&Message::Connect { lanes }).unwrap_err();
    assert_eq!(e.status, Status::NOT_SUPPORTED, "{e}");
    assert!(e.why.contains("the exporter cannot use RDMA") && e.why.contains("install libibverbs"), "{e}");
    assert_eq!(c.ask(&Message::Ping { token: 1 }).unwrap(), Message::Pong { token: 1 }, "and it goes on");
}

/// A device that the connection manager does not know, or a kernel without one: an error that says what to do, on both sides, and nothing else
/// is done instead.
#[test]
fn without_a_connection_manager_it_is_said_so() {
    if !on_hca("home::without_a_connection_manager_it_is_said_so", &[]) {
        return;
    }
    let home = Home::new("cm");
    let mut c = reach(home.net.address(), &home.key);
    c.ask(&Message::Open { name: home.export.name().to_owned(), want: Access::ReadOnly }).unwrap();
    let e = c.ask(&Message::Arrange { lanes: 3 }).unwrap_err();
    assert!(e.status == Status::NOT_SUPPORTED && e.why.contains("LIBSMC_RENDEZVOUS=tcp"), "{e}");
    assert_eq!(c.ask(&Message::Ping { token: 1 }).unwrap(), Message::Pong { token: 1 }, "and it goes on");
    let (at, key) = (home.net.address(), home.key.clone());
    let link = VerbsLink::with_key("127.0.0.1", at.port(), key, DeviceWish::default(), None, LogLevel::Off);
    let link = link.by(Rendezvous::RdmaCm);
    let e = link.open(home.export.name(), Access::ReadWrite, soon()).unwrap_err();
    assert!(e.status == Status::NOT_SUPPORTED && e.to_string().contains("LIBSMC_RENDEZVOUS=tcp"), "{e}");
    assert!(e.to_string().contains("/dev/infiniband/rdma_cm") || e.to_string().contains("no RDMA device"), "{e}");
}

/// Eight bytes to the home and back.
fn goes_round(link: &VerbsLink, k: RegionKey, at: usize, b: u8) -> Status {
    let (from, mut to) = ([b; 8], [0u8; 8]);
    let end = soon();
    // An operation that meets an outage answers LINK_DOWN; the region comes back by itself.
    loop {
        // SAFETY: buffers of that length.
        let mut s = unsafe { link.put(k, HomeOff(at as u64), from.as_ptr(), 8, soon()) };
        if s.is_ok() {
            // SAFETY: as above.
            s = unsafe { link.fetch(k, HomeOff(at as u64), to.as_mut_ptr(), 8, soon()) };
        }
        if s.is_ok() {
            assert_eq!(to, from);
            return s;
        }
        if s != Status::LINK_DOWN || end.passed() {
            return s;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// The real link at the real exporter: moved under it, revoked, recorded.
#[test]
fn the_link_follows_a_move_and_ends_with_its_revocation() {
    if !on_hca("home::the_link_follows_a_move_and_ends_with_its_revocation", &[]) {
        return;
    }
    let (to, events) = channel();
    Exporter::get().unwrap().record(Some(to));
    let home = Home::new("link");
    let port = home.net.address().port();
    let new = || VerbsLink::with_key("127.0.0.1", port, home.key.clone(), DeviceWish::default(), None, LogLevel::Off);
    let links = [new(), new()];
    let [one, two] = [0, 1].map(|i| links[i].open(home.export.name(), Access::ReadWrite, soon()).unwrap().key);
    assert_eq!(goes_round(&links[0], one, 0, 1), Status::OK);
    assert_eq!(goes_round(&links[1], two, PAGE, 2), Status::OK);
    assert_eq!((home.byte(0), home.byte(PAGE)), (1, 2));
    let here = link::connect(None, &Config::default()).unwrap();
    for round in 3..6 {
        let _local = here.open(home.export.name(), Access::ReadWrite, soon()).unwrap();
        let id = home.export.clients().iter().find(|c| c.remote.is_none()).unwrap().id;
        home.export.revoke(id, "go", true).unwrap();
        for (i, k) in [one, two].into_iter().enumerate() {
            assert_eq!(goes_round(&links[i], k, i * PAGE, round), Status::OK, "after move {round}");
            assert_eq!(home.byte(i * PAGE), round, "the link writes other pages than the exporter has");
        }
    }
    let id = home.export.clients()[0].id;
    home.export.revoke(id, "enough", false).unwrap();
    assert_eq!(home.export.clients().len(), 1);
    let end = soon();
    let gone = loop {
        match [one, two].into_iter().enumerate().find(|(i, k)| links[*i].health(*k) == Health::Down(Status::REVOKED)) {
            Some((i, _)) => break i,
            None => assert!(!end.passed(), "neither is revoked"),
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    assert_eq!(goes_round(&links[gone], [one, two][gone], 0, 9), Status::REVOKED);
    let stays = 1 - gone;
    assert_eq!(goes_round(&links[stays], [one, two][stays], 0, 8), Status::OK);
    assert_eq!(home.byte(0), 8);
    drop(links);
    assert_eq!(home.export.wait_clients_gone(soon()), Status::OK);
    Exporter::get().unwrap().record(None);
    let all: Vec<Event> = events.until_the_end().filter(|e| e.address.is_some()).collect();
    let count = |what: What, device: Option<&str>| {
        all.iter()
            .filter(|e| e.what == what && e.device.as_deref() == device && e.client.as_deref() == Some("c"))
            .count()
    };
    // Each is opened, and registered at first and after each of three moves; one is revoked and one leaves.
    assert_eq!((count(What::Grant, None), count(What::Grant, Some("softhca0"))), (2, 8), "{all:#?}");
    let ends =
        (count(What::Revocation, Some("softhca0")), count(What::End, Some("softhca0")), count(What::Refusal, None));
    assert_eq!(ends, (1, 1, 0), "{all:#?}");
}

/// Descriptors of all threads, threads by name, and resident KiB.
fn held() -> (usize, usize, usize, u64) {
    let tasks: Vec<_> = std::fs::read_dir("/proc/self/task").unwrap().map(|t| t.unwrap().path()).collect();
    let fds = tasks.iter().map(|t| std::fs::read_dir(t.join("fd")).map_or(0, Iterator::count)).sum();
    let hca = |t: &&std::path::PathBuf| std::fs::read_to_string(t.join("comm")).is_ok_and(|c| c.starts_with("softhca"));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    let kib = line.trim().trim_end_matches(" kB").parse().unwrap();
    (fds, tasks.len(), tasks.iter().filter(hca).count(), kib)
}

#[test]
fn twelve_hundred_clients_leave_nothing_behind() {
    if !on_hca("home::twelve_hundred_clients_leave_nothing_behind", &[]) {
        return;
    }
    let home = Home::new("cycles");
    // Addresses are all that the exporter must know to make its side ready.
    let gid = "::ffff:127.0.0.1".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let lane = |n: u32| Endpoint { qpn: 1000 + n, psn: n, gid, lid: 0, mtu: 5, reads: 4 };
    let cycle = |n: u32| {
        let mut c = reach(home.net.address(), &home.key);
        let want = if n.is_multiple_of(2) { Access::ReadWrite } else { Access::ReadOnly };
        c.ask(&Message::Open { name: home.export.name().to_owned(), want }).unwrap();
        for _ in 0..=n % 3 {
            match c.ask(&Message::Connect { lanes: (0..4).map(lane).collect() }) {
                Ok(Message::Connected { lanes, .. }) => assert_eq!(lanes.len(), 4),
                m => panic!("cycle {n}: {m:?}"),
            }
        }
    };
    (0..100).for_each(cycle);
    assert_eq!(home.export.wait_clients_gone(soon()), Status::OK);
    let before = held();
    (0..1200).for_each(cycle);
    assert_eq!(home.export.wait_clients_gone(soon()), Status::OK);
    // Connections are closed soon after their clients are no longer listed.
    let late = soon();
    let mut after = held();
    while after.0 > before.0 || (after.1, after.2) != (before.1, before.2) {
        assert!(!late.passed(), "descriptors, threads, threads of the device: {before:?}, then {after:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
        after = held();
    }
    assert!(after.3 < before.3 + 4096, "memory grew from {} to {} KiB", before.3, after.3);
    assert_eq!(after.2, 1);
    // The device is closed with the last that was made of it: nothing can be left.
    drop(home);
    let late = soon();
    while held().2 > 0 {
        assert!(!late.passed(), "something still holds the device: {:?}", held());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
