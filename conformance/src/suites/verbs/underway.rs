//! Requests whose peer or memory goes away while they are posted, on the wire, or done and not looked at: each ends once, under its
//! own name, and what it used is free after that and not before.

use super::{Far, Stopped, far};
use crate::rig::{Home, net};
use crate::runner::{Case, Cost};
use smc_engine::base::config::Config;
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::link::mgmt::Message;
use smc_engine::link::mgmt::tcp::Client;
use smc_engine::link::verbs::{
    Batch, Choice, Completions, Depth, Domain, Place, QueuePair, Registered, Request, Rights, Table, Verb, choose,
};
use smc_engine::link::{Access, WriteOp};
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::mem::{Mapping, RW};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("verbs_each_request_ends_once", |c| far(c, 3, ends_once)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_requests_of_a_device_that_goes", |c| far(c, 1, device_goes)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_memory_of_an_ended_request_is_free", |c| far(c, 3, memory_is_free)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_a_flush_that_never_comes", |c| far(c, 1, no_flush)).verbs_only().cost(Cost::Quick),
];

/// Requests of a case: more than may be on the wire at a time, so the last are posted only.
const REQUESTS: usize = 64;
/// The first one's name; the others follow.
const FIRST: u64 = 0x5_0000_0100;

fn soon() -> Deadline {
    Deadline::in_ms(20_000)
}

/// What goes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goes {
    /// The peer's process.
    Peer,
    /// The peer's queue pair and registration.
    Grant,
    /// The registration of the memory here.
    Buffer,
}

/// A queue pair of the case's own to an exporter, with memory for its requests.
struct Raw {
    client: Option<Client>,
    pair: QueuePair,
    cq: Arc<Completions>,
    memory: Mapping,
    registered: Option<Registered>,
    addr: u64,
    rkey: u32,
    _choice: Choice,
}

impl Raw {
    fn to(home: &Home, port: u16) -> Raw {
        let c = Config::parse(|name| std::env::var(name).ok());
        let choice = choose(&c.device, Some(Ipv4Addr::LOCALHOST.into()), Table::Program).expect("a device");
        let domain = Domain::new(&choice.device).expect("a domain");
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut client = Client::connect(&[at], net::key(), "127.0.0.1", soon()).expect("connect");
        let open = Message::Open { name: home.region.clone(), want: Access::ReadWrite };
        assert!(matches!(client.ask(&open), Ok(Message::Opened { .. })), "open");
        let cq = Completions::new(&choice.device, 2 * REQUESTS as u32).expect("a completion queue");
        let depth = Depth { requests: REQUESTS as u32, inline: 0 };
        let pair = QueuePair::new(&domain, &cq, &choice.ports[0], depth, false).expect("a queue pair");
        let answer = client.ask(&Message::Connect { lanes: vec![pair.endpoint()] });
        let Ok(Message::Connected { addr, rkey, lanes, .. }) = answer else { panic!("connect: {answer:?}") };
        pair.connect(&lanes[0]).expect("ready to send");
        let memory = Mapping::anonymous(REQUESTS * PAGE, RW).expect("memory");
        // SAFETY: the memory is dropped after its registration.
        let registered = unsafe { domain.register(memory.ptr(), memory.len(), Rights::Local) }.expect("register");
        Raw { client: Some(client), pair, cq, memory, registered: Some(registered), addr, rkey, _choice: choice }
    }

    /// READs of a page each, all of which ask for a completion.
    fn post(&self) {
        let lkey = self.registered.as_ref().map_or(0, |r| r.lkey);
        let mut list = Batch::<REQUESTS>::new();
        for i in 0..REQUESTS {
            let local = Place { ptr: self.memory.ptr().wrapping_add(i * PAGE), len: PAGE as u32, lkey };
            let (id, addr) = (FIRST + i as u64, self.addr + (i * PAGE) as u64);
            list.push(&Request { id, verb: Verb::Read, local, addr, rkey: self.rkey, signalled: true });
        }
        // SAFETY: registered memory, which stays until every request has ended.
        unsafe { list.post(&self.pair) }.expect("post");
    }

    /// The first word of a page here.
    fn word(&self, page: usize) -> u64 {
        // SAFETY: a word of the mapping, which the device may write meanwhile.
        unsafe { self.memory.ptr().wrapping_add(page * PAGE).cast::<u64>().read_volatile() }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the mapping's own bytes.
        unsafe { self.memory.ptr().write_bytes(byte, self.memory.len()) };
    }

    /// Takes completions until all have come, and for a moment more; how each ended.
    fn reap(&self, limit: Duration, what: &str) -> BTreeMap<u64, bool> {
        let (mut ends, start) = (BTreeMap::new(), Instant::now());
        let mut over = None;
        while over.is_none_or(|at: Instant| at.elapsed() < Duration::from_millis(50)) {
            let taken = self.cq.poll(|c| {
                assert_eq!(ends.insert(c.id, c.outcome.status().is_ok()), None, "{what}: {:#x} ended twice", c.id);
            });
            assert!(taken.is_ok(), "{what}: the queue cannot be looked at");
            if ends.len() == REQUESTS && over.is_none() {
                over = Some(Instant::now());
            }
            assert!(start.elapsed() < limit, "{what}: {} of {REQUESTS} have ended", ends.len());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(ends.keys().copied().eq(FIRST..FIRST + REQUESTS as u64), "{what}: names {:#x?}", ends.keys());
        ends
    }
}

/// First with requests that are done and not looked at, then on a dead wire: changing that takes long.
fn ends_once(f: &Far) -> Stopped {
    for (exporter, goes) in [(0, Goes::Buffer), (0, Goes::Grant), (1, Goes::Peer)] {
        let (what, raw) = (format!("{goes:?} goes, requests done"), numbered(f, exporter));
        raw.post();
        let (last, start) = (REQUESTS - 1, Instant::now());
        while raw.word(last) != last as u64 + 1 {
            assert!(start.elapsed() < f.seconds(5), "{what}: nothing has arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        let (raw, ends) = end(f, raw, (exporter, goes), &what);
        assert!(ends.values().all(|ok| *ok), "{what}: {ends:?}");
        give_back(f, raw, &what);
    }
    f.wire.cut()?;
    let mut ended = Vec::new();
    for (exporter, goes) in [(0, Goes::Buffer), (0, Goes::Grant), (2, Goes::Peer)] {
        let (what, raw) = (format!("{goes:?} goes, requests under way"), numbered(f, exporter));
        raw.post();
        std::thread::sleep(Duration::from_millis(50));
        let (raw, ends) = end(f, raw, (exporter, goes), &what);
        assert!(ends.values().all(|ok| !*ok), "{what}: {ends:?}");
        raw.fill(0x77);
        ended.push((raw, what));
    }
    // All have ended: the memory is the program's again, whatever comes now.
    f.wire.faults(&[])?;
    std::thread::sleep(Duration::from_millis(100));
    for (raw, what) in ended {
        assert!((0..REQUESTS).all(|p| raw.word(p) == u64::from_le_bytes([0x77; 8])), "{what}: written later");
        give_back(f, raw, &what);
    }
    Ok(())
}

/// The device is taken away under requests on a dead wire, of which it may complete what it will: none twice, none as if it were done, and
/// its memory is free when the queue pair is gone.
fn device_goes(f: &Far) -> Stopped {
    let (what, raw) = ("the device goes", numbered(f, 0));
    f.wire.cut()?;
    raw.post();
    std::thread::sleep(Duration::from_millis(50));
    f.wire.remove()?;
    raw.pair.fail();
    let (mut ends, start) = (BTreeMap::new(), Instant::now());
    while ends.len() < REQUESTS && start.elapsed() < Duration::from_secs(1) {
        let taken = raw.cq.poll(|c| {
            assert!(!c.outcome.status().is_ok(), "{what}: {:#x} is said to be done", c.id);
            assert_eq!(ends.insert(c.id, ()), None, "{what}: {:#x} ended twice", c.id);
        });
        if taken.is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("{what}: {} of {REQUESTS} were completed", ends.len());
    give_back(f, raw, what);
    f.wire.faults(&[])?;
    f.wire.restore()
}

/// A queue pair to a home with a number in each page.
fn numbered(f: &Far, exporter: usize) -> Raw {
    let home = f.home_of(exporter, REQUESTS);
    (0..REQUESTS).for_each(|p| home.set(p * PAGE, p as u64 + 1));
    Raw::to(&home, f.exporters[exporter].port())
}

/// It goes, and the queue pair is put an end to; how each request ended.
fn end(f: &Far, mut raw: Raw, (exporter, goes): (usize, Goes), what: &str) -> (Raw, BTreeMap<u64, bool>) {
    match goes {
        Goes::Buffer => raw.registered = None,
        Goes::Grant => raw.client = None,
        Goes::Peer => f.exporters[exporter].kill(),
    }
    std::thread::sleep(Duration::from_millis(20));
    raw.pair.fail();
    let ends = raw.reap(f.seconds(5), what);
    (raw, ends)
}

fn give_back(f: &Far, raw: Raw, what: &str) {
    let start = Instant::now();
    drop(raw);
    println!("{what}: given back in {:?}", start.elapsed());
    assert!(start.elapsed() < f.seconds(5), "{what}: giving it back took {:?}", start.elapsed());
}

/// The link's own requests: a wait answers once, in its time, and the memory that it named may be used anew and unmapped then: the home
/// never sees what is written there later.
fn memory_is_free(f: &Far) -> Stopped {
    batch(f, (0, false), false)?;
    batch(f, (1, true), false)?;
    f.wire.cut()?;
    batch(f, (2, true), true)?;
    batch(f, (0, false), true)
}

/// A batch that is done and not waited for, or on a dead wire; then the peer dies or does not.
fn batch(f: &Far, (exporter, dies): (usize, bool), on_the_wire: bool) -> Stopped {
    let what = &format!("the peer {}, under way: {on_the_wire}", if dies { "dies" } else { "lives" });
    let (home, peer) = (f.home_of(exporter, REQUESTS), &f.exporters[exporter]);
    let link = f.link(peer.port());
    let key = link.open(&home.region, Access::ReadWrite, soon()).expect("open").key;
    let memory = Mapping::anonymous(REQUESTS * PAGE, RW).expect("memory");
    // SAFETY: the mapping's own bytes.
    let fill = |byte| unsafe { memory.ptr().write_bytes(byte, memory.len()) };
    fill(0x11);
    // SAFETY: the memory is unmapped after the registration was taken back.
    let known = unsafe { link.register(memory.ptr(), memory.len()) }.expect("register");
    let ops: Vec<WriteOp> = (0..REQUESTS).map(|i| write(&memory, i)).collect();
    // SAFETY: the sources stay until the wait has answered.
    let ticket = unsafe { link.post(key, &ops) }.expect("a ticket");
    let start = Instant::now();
    while !on_the_wire && home.bytes((REQUESTS - 1) * PAGE, PAGE) != [0x11; PAGE] {
        assert!(start.elapsed() < f.seconds(5), "{what}: nothing has arrived");
    }
    std::thread::sleep(Duration::from_millis(100));
    if dies {
        peer.kill();
    }
    let start = Instant::now();
    let s = link.wait(key, ticket, Deadline::in_ms(300));
    assert!(start.elapsed() < f.seconds(5), "{what}: the wait took {:?}", start.elapsed());
    assert_eq!(s.is_ok(), !on_the_wire, "{what}: {s}");
    assert_eq!(link.wait(key, ticket, soon()), Status::INVALID_ARGUMENT, "{what}: it ended twice");
    // Still registered: the device could send it.
    fill(0x55);
    if on_the_wire && !dies {
        f.wire.faults(&[])?;
        std::thread::sleep(Duration::from_millis(300));
        let bytes = home.bytes(0, REQUESTS * PAGE);
        let wrong = bytes.iter().position(|b| ![0, 0x11].contains(b));
        assert_eq!(wrong, None, "{what}: a byte of what came later is at the home");
    }
    link.deregister(known);
    drop(memory);
    let start = Instant::now();
    link.close(key);
    drop((home, link));
    println!("{what}: {s}, given back in {:?}", start.elapsed());
    assert!(start.elapsed() < f.seconds(5), "{what}: giving it back took {:?}", start.elapsed());
    Ok(())
}

/// The write of a page of `memory` to the same place at the home.
fn write(memory: &Mapping, page: usize) -> WriteOp {
    WriteOp { src: memory.ptr().wrapping_add(page * PAGE), len: PAGE, off: HomeOff((page * PAGE) as u64) }
}

/// The device forgets what it has to flush: waits end all the same, and so does giving everything back.
fn no_flush(f: &Far) -> Stopped {
    let home = f.home(REQUESTS);
    let link = f.link(f.exporters[0].port());
    let key = link.open(&home.region, Access::ReadWrite, soon()).expect("open").key;
    f.wire.lose_flushes()?;
    f.wire.cut()?;
    let memory = Mapping::anonymous(REQUESTS * PAGE, RW).expect("memory");
    let op =
        |i: usize| WriteOp { src: memory.ptr().wrapping_add(i * PAGE), len: PAGE, off: HomeOff((i * PAGE) as u64) };
    let ops: Vec<WriteOp> = (0..REQUESTS / 2).map(op).collect();
    // SAFETY: the memory outlives the wait.
    let ticket = unsafe { link.post(key, &ops) }.expect("a ticket");
    let start = Instant::now();
    let mut byte = 0u8;
    // SAFETY: a byte of ours.
    let fetched = unsafe { link.fetch(key, HomeOff(0), &raw mut byte, 1, Deadline::in_ms(200)) };
    let waited = link.wait(key, ticket, Deadline::in_ms(200));
    assert!(!fetched.is_ok() && !waited.is_ok(), "{fetched} {waited}");
    assert!(start.elapsed() < f.seconds(5), "they took {:?}", start.elapsed());
    // SAFETY: as above; another batch is under way when the link is given back.
    let posted = unsafe { link.post(key, &ops) };
    let start = Instant::now();
    link.close(key);
    drop((home, link));
    println!("{fetched}, {waited}, {posted:?}; given back in {:?}", start.elapsed());
    assert!(start.elapsed() < f.seconds(5), "giving it back took {:?}", start.elapsed());
    Ok(())
}
