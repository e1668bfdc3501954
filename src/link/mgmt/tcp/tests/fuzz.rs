//! Whatever strangers and members send, the server stays, and serves the others.

use super::*;
use crate::link::mgmt::message::Endpoint;

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % n
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.roll(most)).map(|_| self.roll(256) as u8).collect()
    }

    /// Changes, cuts or lengthens.
    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        match self.roll(3) {
            0 if !bytes.is_empty() => {
                let at = self.roll(bytes.len());
                bytes[at] ^= 1 << self.roll(8);
            }
            1 => bytes.truncate(self.roll(bytes.len() + 1)),
            _ => bytes.extend(self.bytes(300)),
        }
    }

    fn message(&mut self) -> Message {
        match self.roll(10) {
            0 => Message::Hello { min: self.roll(4) as u16, max: self.roll(4) as u16 },
            1 => Message::List { start: self.roll(40) as u32 },
            2 => Message::Open { name: "r1".into(), want: Access::ReadWrite },
            3 => Message::Connect { lanes: vec![Endpoint { mtu: 1, ..Endpoint::default() }; 1 + self.roll(16)] },
            4 => Message::Ping { token: self.0 },
            5 => Message::Ended,
            6 => Message::Moved { generation: 1 },
            7 => Message::DeviceFlush { off: 0, len: 1 },
            8 => Message::Arrange { lanes: self.roll(18) as u8 },
            _ => Message::Close,
        }
    }
}

/// One connection: a greeting, or none; records, or none; and garbage at any place.
fn visit(r: &Running, d: &mut Dice) {
    let mut s = r.knock();
    let mut c = Channel::client(&key(if d.roll(4) == 0 { 2 } else { 1 })).unwrap();
    let mut hello = c.unsent().to_vec();
    c.sent(hello.len());
    if d.roll(3) == 0 {
        d.spoil(&mut hello);
    }
    if d.roll(8) == 0 {
        hello = d.bytes(400);
    }
    let _ = s.write_all(&hello);
    let mut answer = [0; ANSWER];
    let waits = hello.len() >= GREETING;
    if waits && s.read_exact(&mut answer).is_ok() && c.feed(&answer).is_ok() && c.take().is_ok() && c.is_open() {
        for _ in 0..d.roll(5) {
            if c.say(&d.message()).is_err() {
                break;
            }
        }
        let mut said = c.unsent().to_vec();
        if d.roll(3) == 0 {
            d.spoil(&mut said);
        }
        // In pieces.
        for piece in said.chunks(1 + d.roll(200)) {
            if s.write_all(piece).is_err() {
                break;
            }
        }
    }
    if d.roll(2) == 0 {
        let _ = s.write_all(&d.bytes(5000));
    }
}

#[test]
fn nothing_that_is_sent_harms_the_server() {
    let seed = now() | 1;
    let (mut d, r) = (Dice(seed), Running::start(wide()));
    let (end, mut visits) = (Deadline::in_ms(1500), 0);
    let mut member = r.client(&key(1)).unwrap();
    while !end.passed() {
        visit(&r, &mut d);
        visits += 1;
        if visits % 64 == 0 {
            let token = visits;
            assert_eq!(
                member.ask(&Message::Ping { token }).unwrap(),
                Message::Pong { token },
                "seed {seed}, visit {visits}"
            );
        }
    }
    assert_eq!(r.client(&key(1)).unwrap().list().unwrap().len(), 20, "seed {seed}");
    assert_eq!(member.ask(&Message::Ping { token: 1 }).unwrap(), Message::Pong { token: 1 }, "seed {seed}");
    assert!(visits > 50, "{visits} visits in {:?}, seed {seed}", end);
    let came = r.heard("admitted");
    let late = Deadline::in_ms(10_000);
    while r.heard("left") < came - 1 && !late.passed() {
        nap(MS);
    }
    assert!(r.heard("left") >= came - 2, "{came} came, {} left, seed {seed}", r.heard("left"));
}
