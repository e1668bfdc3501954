//! A server on the loopback, members, and strangers of every kind.
#![allow(clippy::unwrap_used)]

mod fuzz;

use super::gate::Rate;
use super::server::Tally;
use super::{Client, Limits, Member, Office, Reply, Server};
use crate::base::Status;
use crate::link::mgmt::key::{self, Key};
use crate::link::mgmt::secure::Channel;
use crate::link::mgmt::secure::noise::{ANSWER, GREETING};
use crate::link::mgmt::{Message, RegionDesc};
use crate::link::{Access, MemoryKind};
use crate::sys::clock::{Deadline, nap, now};
use crate::sys::poll::poll;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const MS: u64 = 1_000_000;

fn key(n: u8) -> Key {
    Key::of([n; key::LEN], None)
}

fn region(n: u32) -> RegionDesc {
    RegionDesc {
        name: format!("r{n}"),
        len: u64::from(n) << 12,
        access: Access::ReadOnly,
        kind: MemoryKind::System,
        pid: 7,
        clients: n,
        generation: 0,
        incarnation: 1,
    }
}

/// Twenty regions, in parts. Remembers who came, and why somebody was refused or went.
#[derive(Default)]
struct Desk {
    last: u64,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Desk {
    fn note(&self, what: String) {
        self.heard.lock().unwrap().push(what);
    }
}

impl Office for Desk {
    fn admitted(&mut self, client: Option<&str>, _: &SocketAddr, _: &SocketAddr) -> u64 {
        self.last += 1;
        self.note(format!("admitted {} {}", self.last, client.unwrap_or("-")));
        self.last
    }

    fn ask(&mut self, who: &Member, m: Message) -> Reply {
        match m {
            Message::List { start } => {
                let regions: Vec<_> = (start..20).take(16).map(region).collect();
                Reply::Say(Message::Names { next: if start + 16 < 20 { start + 16 } else { 0 }, regions })
            }
            Message::DeviceFlush { .. } => Reply::Later,
            Message::Connect { .. } => Reply::Last(Message::Revoked { reason: format!("you are {}", who.id) }),
            _ => Reply::Say(Message::error(Status::NOT_SUPPORTED, "no")),
        }
    }

    fn left(&mut self, who: &Member, why: &'static str) {
        self.note(format!("left {}: {why}", who.id));
    }

    fn refused(&mut self, from: &SocketAddr, client: Option<&str>, why: &'static str) {
        assert!(from.ip().is_loopback());
        self.note(format!("refused {}: {why}", client.unwrap_or("-")));
    }
}

/// What the server's owner does to it.
type Order = Box<dyn FnOnce(&mut Server) + Send>;

/// A running server; ends with the test.
struct Running {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    facts: mpsc::Receiver<(Tally, (usize, usize))>,
    heard: Arc<Mutex<Vec<String>>>,
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(limits: Limits) -> Running {
        let mut server = Server::bind(&"127.0.0.1:0".parse().unwrap(), key(1).into(), limits).unwrap();
        let (at, stop) = (server.address(), Arc::new(AtomicBool::new(false)));
        let ((tx, facts), (orders, todo)) = (mpsc::channel(), mpsc::channel::<Order>());
        let ends = stop.clone();
        let mut desk = Desk::default();
        let heard = desk.heard.clone();
        let thread = std::thread::spawn(move || {
            while !ends.load(SeqCst) {
                let mut fds = Vec::new();
                server.watch(&mut fds);
                let left = server.moment().saturating_sub(now()).div_ceil(MS);
                poll(&mut fds, left.min(20)).unwrap();
                todo.try_iter().for_each(|o| o(&mut server));
                server.turn(&fds, &mut desk);
                let _ = tx.send((server.tally(), server.connected()));
            }
        });
        Running { at, stop, facts, heard, orders, thread: Some(thread) }
    }

    fn client(&self, k: &Key) -> crate::base::Result<Client> {
        Client::connect(&[self.at], k, "there", Deadline::in_ms(10_000))
    }

    fn order(&self, o: impl FnOnce(&mut Server) + Send + 'static) {
        self.orders.send(Box::new(o)).unwrap();
    }

    /// How often the owner has heard this.
    fn heard(&self, what: &str) -> usize {
        self.heard.lock().unwrap().iter().filter(|h| h.contains(what)).count()
    }

    fn knock(&self) -> TcpStream {
        let s = TcpStream::connect(self.at).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        s
    }

    /// Waits until the server's facts are as wanted.
    fn until(&self, what: &str, wanted: impl Fn(Tally, (usize, usize)) -> bool) {
        let (late, mut last) = (Deadline::in_ms(10_000), None);
        while !late.passed() {
            last = self.facts.recv_timeout(Duration::from_secs(10)).ok();
            if last.is_some_and(|(t, c)| wanted(t, c)) {
                return;
            }
        }
        panic!("{what}: {last:?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server has panicked");
    }
}

/// Generous, so that only the limit under test is met.
fn wide() -> Limits {
    Limits { knocks: Rate { interval_ns: 1, burst: 1 << 20 }, strangers_each: 1 << 20, ..Limits::default() }
}

/// The peer has closed, in whatever way, and said nothing.
fn is_shut(s: &mut TcpStream) -> bool {
    match s.read(&mut [0; 64]) {
        Ok(n) => n == 0,
        Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn a_member_lists_what_is_there() {
    let r = Running::start(Limits::default());
    let mut c = r.client(&key(1)).unwrap();
    assert_eq!(c.list().unwrap(), (0..20).map(region).collect::<Vec<_>>());
    assert_eq!(c.ask(&Message::Ping { token: 9 }).unwrap(), Message::Pong { token: 9 });
    let e = c.ask(&Message::Open { name: "r1".into(), want: Access::ReadOnly }).unwrap_err();
    assert_eq!((e.status, &*e.why), (Status::NOT_SUPPORTED, "no"));
    r.until("one member", |t, c| t.admitted == 1 && c == (0, 1));
    drop(c);
    r.until("nobody", |_, c| c == (0, 0));
}

#[test]
fn another_key_is_refused_on_both_sides() {
    let r = Running::start(Limits::default());
    let e = r.client(&key(2)).unwrap_err();
    assert_eq!(e.status, Status::REFUSED, "{e}");
    assert!(e.to_string().contains("fingerprint"), "{e}");
    r.until("refused", |t, c| t.refused == 1 && t.admitted == 0 && c == (0, 0));
    // A client meets somebody who says nothing sensible.
    let liar = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = liar.local_addr().unwrap();
    let t = std::thread::spawn(move || liar.accept().unwrap().0.write_all(&[0x55; ANSWER]).unwrap());
    let e = Client::connect(&[at], &key(1), "there", Deadline::in_ms(10_000)).unwrap_err();
    assert_eq!(e.status, Status::REFUSED, "{e}");
    t.join().unwrap();
    let e = Client::connect(&[at], &key(1), "there", Deadline::in_ms(10_000)).unwrap_err();
    assert_eq!(e.status, Status::LINK_DOWN, "{e}");
}

#[test]
fn a_server_that_does_not_answer_is_not_waited_for() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (began, at) = (now(), mute.local_addr().unwrap());
    let e = Client::connect(&[at], &key(1), "there", Deadline::in_ms(200)).unwrap_err();
    assert_eq!(e.status, Status::TIMED_OUT, "{e}");
    assert!((200 * MS..5000 * MS).contains(&(now() - began)));
}

#[test]
fn garbage_and_replays_get_no_answer() {
    let r = Running::start(wide());
    let mut said = vec![
        vec![0u8; GREETING],
        b"GET / HTTP/1.1\r\nHost: there\r\nAccept: */*\r\nUser-Agent: somebody/1.0 (else)\r\n\r\n".to_vec(),
    ];
    said.push(Channel::client(&key(2)).unwrap().unsent().to_vec());
    for bytes in &said {
        let mut s = r.knock();
        s.write_all(bytes).unwrap();
        assert!(is_shut(&mut s), "{bytes:?}");
    }
    // A recorded greeting is answered, which helps nobody: the first record ends it.
    let recorded = Channel::client(&key(1)).unwrap().unsent().to_vec();
    for _ in 0..2 {
        let mut s = r.knock();
        s.write_all(&recorded).unwrap();
        s.read_exact(&mut [0; ANSWER]).unwrap();
        s.write_all(&[32, 0]).unwrap();
        s.write_all(&[7; 32]).unwrap();
        assert!(is_shut(&mut s));
    }
    r.until("refused", |t, c| t.refused == 5 && t.admitted == 0 && c == (0, 0));
    assert_eq!(r.heard("refused -: another key or version"), 3);
    assert_eq!(r.heard("refused -: a replayed greeting"), 2);
    assert_eq!(r.heard("refused"), 5, "each is told once");
    assert_eq!(r.client(&key(1)).unwrap().list().unwrap().len(), 20);
}

#[test]
fn half_open_connections_end_and_do_not_keep_members_out() {
    let r = Running::start(Limits { strangers: 8, grace_ns: 400 * MS, patience_ns: 2000 * MS, ..wide() });
    // A flood that says nothing, half of a greeting, or a replay.
    let recorded = Channel::client(&key(1)).unwrap().unsent().to_vec();
    let mut flood: Vec<TcpStream> = (0..40).map(|_| r.knock()).collect();
    for (i, s) in flood.iter_mut().enumerate() {
        let _ = s.write_all(&recorded[..[0, 20, GREETING][i % 3]]);
    }
    r.until("the places are taken", |t, c| t.turned_away > 0 && t.turned_away + t.refused == 32 && c.0 == 8);
    nap(410 * MS);
    assert_eq!(r.client(&key(1)).unwrap().list().unwrap().len(), 20, "a member was kept out");
    r.until("one gave way", |t, _| t.refused >= 1 && t.admitted == 1);
    let began = now();
    r.until("all have ended", |t, c| t.turned_away + t.refused == 40 && c == (0, 0));
    assert!(now() - began < 8000 * MS);
    for (i, s) in flood.iter_mut().enumerate() {
        let mut all = Vec::new();
        let _ = s.read_to_end(&mut all);
        assert!(all.is_empty() || (i % 3 == 2 && all.len() == ANSWER), "stranger {i} was told {} bytes", all.len());
    }
}

#[test]
fn one_address_has_a_rate_and_few_places() {
    let knocks = Rate { interval_ns: 3_600_000 * MS, burst: 5 };
    let r = Running::start(Limits { knocks, ..wide() });
    let held: Vec<TcpStream> = (0..9).map(|_| r.knock()).collect();
    r.until("by rate", |t, c| t.turned_away == 4 && c == (5, 0));
    drop(held);
    let r = Running::start(Limits { strangers_each: 3, ..wide() });
    let _held: Vec<TcpStream> = (0..9).map(|_| r.knock()).collect();
    r.until("by places", |t, c| t.turned_away == 6 && c == (3, 0));
}

#[test]
fn members_have_limits_too() {
    let r = Running::start(Limits {
        silence_ns: 1500 * MS,
        members: 2,
        messages: Rate { interval_ns: MS, burst: 50 },
        ..wide()
    });
    let mut first = r.client(&key(1)).unwrap();
    let _second = r.client(&key(1)).unwrap();
    // The third one is closed, or was closed while it said hello.
    let third = r.client(&key(1)).and_then(|mut c| c.list());
    assert!(third.is_err(), "more members than allowed");
    let asked = (0..5000).map(|t| first.ask(&Message::Ping { token: t })).find_map(Result::err);
    assert_eq!(asked.map(|e| e.status), Some(Status::REFUSED), "no end of questions");
    r.until("silent members are gone", |_, c| c == (0, 0));
}

#[test]
fn what_does_not_fit_ends_the_conversation() {
    let r = Running::start(wide());
    for m in [Message::Hello { min: 2, max: 2 }, Message::Pong { token: 1 }, Message::Ended] {
        let mut c = r.client(&key(1)).unwrap();
        assert_eq!(c.ask(&m).unwrap_err().status, Status::PROTOCOL, "{m:?}");
        assert_eq!(c.ask(&Message::Ping { token: 1 }).unwrap_err().status, Status::LINK_DOWN, "{m:?}");
    }
}

#[test]
fn the_server_speaks_unasked_and_closes_after_the_last_word() {
    let r = Running::start(Limits { patience_ns: 300 * MS, ..wide() });
    let [mut a, mut b] = [0; 2].map(|_| r.client(&key(1)).unwrap());
    r.until("two members", |t, _| t.admitted == 2);
    r.order(|s| {
        s.tell(1, &Message::Moved { generation: 7 }, false);
        s.tell(77, &Message::Ended, true);
        s.tell(2, &Message::Revoked { reason: "because".into() }, true);
        s.tell(2, &Message::Ended, false);
    });
    let late = Deadline::in_ms(10_000);
    assert_eq!(a.hear(late).unwrap(), Some(Message::Moved { generation: 7 }));
    assert_eq!(a.ask(&Message::Ping { token: 9 }).unwrap(), Message::Pong { token: 9 });
    assert_eq!(b.hear(late).unwrap(), Some(Message::Revoked { reason: "because".into() }));
    assert_eq!(b.hear(late).unwrap_err().status, Status::LINK_DOWN);
    assert_eq!(r.heard("left"), 0, "he may close first");
    drop(b);
    r.until("one is left", |_, c| c == (0, 1));
    assert_eq!((r.heard("left 2: closed"), r.heard("left")), (1, 1));
    // An answer may come later, and a last one too.
    assert_eq!(a.hear(Deadline::in_ms(1)).unwrap(), None);
    r.order(|s| s.tell(1, &Message::Pong { token: 5 }, false));
    assert_eq!(a.ask(&Message::DeviceFlush { off: 0, len: 1 }).unwrap(), Message::Pong { token: 5 });
    let lanes = vec![crate::link::mgmt::message::Endpoint { mtu: 1, ..Default::default() }];
    assert_eq!(a.ask(&Message::Connect { lanes }).unwrap(), Message::Revoked { reason: "you are 1".into() });
    assert_eq!(a.hear(late).unwrap_err().status, Status::LINK_DOWN);
    // One who does not close is closed.
    let began = now();
    let _c = r.client(&key(1)).unwrap();
    r.order(|s| s.tell(3, &Message::Ended, true));
    while r.heard("left 3: closed") == 0 {
        assert!(!late.passed(), "{:?}", r.heard.lock().unwrap());
        nap(MS);
    }
    assert!(now() - began > 250 * MS);
}

#[test]
fn keys_are_taken_away_and_added() {
    let r = Running::start(wide());
    let named = |n: u8, name: &str| Key::of([n; key::LEN], Some(name));
    let (x, y) = (named(5, "x"), named(6, "y"));
    let both = crate::link::mgmt::ring::Keyring::of(vec![x.clone(), y.clone()]).unwrap();
    let (tx, rx) = mpsc::channel();
    let mut old = r.client(&key(1)).unwrap();
    r.order(move |s| tx.send(s.take_keys(both)).unwrap());
    assert_eq!(rx.recv_timeout(Duration::from_secs(10)).unwrap(), [1], "the member whose key has gone");
    assert_eq!(r.client(&key(1)).unwrap_err().status, Status::REFUSED);
    let [_x, _y] = [&x, &y].map(|k| r.client(k).unwrap());
    // What becomes of him is his owner's matter.
    assert_eq!(old.ask(&Message::Ping { token: 1 }).unwrap(), Message::Pong { token: 1 });
    r.until("all in", |t, _| t.admitted == 3);
    assert_eq!((r.heard("admitted 2 x"), r.heard("admitted 3 y")), (1, 1));
}

#[test]
fn members_come_as_often_as_they_like() {
    let knocks = Rate { interval_ns: 3_600_000 * MS, burst: 5 };
    let r = Running::start(Limits { knocks, ..Limits::default() });
    for n in 0..40 {
        assert_eq!(r.client(&key(1)).unwrap().list().unwrap().len(), 20, "{n}");
    }
    r.until("all were welcome", |t, _| (t.turned_away, t.admitted) == (0, 40));
}

#[test]
fn broken_records_end_a_member_and_are_told_once() {
    let r = Running::start(wide());
    let reach = || {
        let mut s = r.knock();
        let mut c = Channel::client(&key(1)).unwrap();
        s.write_all(c.unsent()).unwrap();
        c.sent(c.unsent().len());
        let mut answer = [0; ANSWER];
        s.read_exact(&mut answer).unwrap();
        c.feed(&answer).unwrap();
        assert!(c.take().unwrap().is_none() && c.is_open());
        c.say(&Message::Hello { min: 2, max: 2 }).unwrap();
        s.write_all(c.unsent()).unwrap();
        c.sent(c.unsent().len());
        // Welcome.
        s.read_exact(&mut [0; 2 + 16 + 16 + 6]).unwrap();
        (s, c)
    };
    // Too long, too short, changed, and cut off.
    for (at, said, told) in [
        (1, vec![0xff, 0xff], "changed on the way, or too long"),
        (2, vec![3, 0], "changed on the way, or too long"),
        (3, [vec![40, 0], vec![7; 40]].concat(), "changed on the way, or too long"),
        (4, vec![40, 0, 1, 2, 3], "cut off in the middle"),
    ] {
        let (mut s, _) = reach();
        s.write_all(&said).unwrap();
        s.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(is_shut(&mut s), "{said:?}");
        r.until("gone", |t, c| t.admitted == at && c == (0, 0));
        assert_eq!(r.heard("refused -"), at as usize, "{said:?}");
        assert!(r.heard(told) >= 1, "{said:?}: {:?}", r.heard.lock().unwrap());
    }
    assert_eq!((r.heard("admitted"), r.heard("left")), (4, 4));
    assert_eq!(r.client(&key(1)).unwrap().list().unwrap().len(), 20);
}
