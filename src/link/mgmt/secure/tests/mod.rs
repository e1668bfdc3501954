//! Every way that strangers, wires and broken members have to disturb a conversation.
#![allow(clippy::unwrap_used)]

use super::noise::{self, ANSWER, GREETING, RECORD};
use super::{Channel, SecureError};
use crate::link::mgmt::key::{self, Key};
use crate::link::mgmt::ring::{HINT, Keyring};
use crate::link::mgmt::{CodecError, MAX_FRAME, Message, decode, encode};
use proptest::prelude::*;
use snow::types::{Dh, Random};
use std::cell::Cell;

thread_local! {
    static DH: Cell<u32> = const { Cell::new(0) };
}

/// Counts the expensive operations of this thread.
struct Counted(Box<dyn Dh>);

/// Wraps what the resolver gives out.
pub(super) fn counted(dh: Box<dyn Dh>) -> Box<dyn Dh> {
    Box::new(Counted(dh))
}

fn count() {
    DH.set(DH.get() + 1);
}

impl Dh for Counted {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn pub_len(&self) -> usize {
        self.0.pub_len()
    }
    fn priv_len(&self) -> usize {
        self.0.priv_len()
    }
    fn set(&mut self, privkey: &[u8]) {
        self.0.set(privkey);
    }
    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), snow::Error> {
        count();
        self.0.generate(rng)
    }
    fn pubkey(&self) -> &[u8] {
        self.0.pubkey()
    }
    fn privkey(&self) -> &[u8] {
        self.0.privkey()
    }
    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        count();
        self.0.dh(pubkey, out)
    }
}

fn key(n: u8) -> Key {
    Key::of([n; key::LEN], None)
}

fn ring(n: u8) -> Keyring {
    key(n).into()
}

/// Moves everything that `from` has to say to `to`, in pieces of at most `piece` bytes, and collects messages. Records what was moved.
fn carry(from: &mut Channel, to: &mut Channel, piece: usize, wire: &mut Vec<u8>) -> Result<Vec<Message>, SecureError> {
    let mut got = Vec::new();
    while !from.unsent().is_empty() {
        let n = piece.min(to.room()).min(from.unsent().len());
        let bytes = from.unsent()[..n].to_vec();
        from.sent(n);
        wire.extend_from_slice(&bytes);
        to.feed(&bytes)?;
        while let Some(m) = to.take()? {
            got.push(m);
        }
    }
    Ok(got)
}

/// Gives bytes to an end as a stream would; the messages it makes of them.
fn play(to: &mut Channel, bytes: &[u8]) -> Result<Vec<Message>, SecureError> {
    let (mut rest, mut got) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(to.room()));
        assert!(!now.is_empty(), "an end that takes nothing");
        to.feed(now)?;
        rest = later;
        while let Some(m) = to.take()? {
            got.push(m);
        }
    }
    Ok(got)
}

/// A client and a server who know each other, and the client's and server's greetings.
fn pair() -> (Channel, Channel, Vec<u8>, Vec<u8>) {
    let (mut c, mut s) = (Channel::client(&key(1)).unwrap(), Channel::server(&ring(1)));
    let (mut up, mut down) = (Vec::new(), Vec::new());
    assert!(carry(&mut c, &mut s, 4096, &mut up).unwrap().is_empty());
    assert!(carry(&mut s, &mut c, 4096, &mut down).unwrap().is_empty());
    (c, s, up, down)
}

fn ping(token: u64) -> Message {
    Message::Ping { token }
}

#[test]
fn both_sides_know_each_other_and_talk() {
    let (mut c, mut s, up, down) = pair();
    assert_eq!((up.len(), down.len()), (GREETING, ANSWER));
    assert!(c.is_open() && s.is_open() && c.is_confirmed());
    assert!(!s.is_confirmed(), "a greeting alone may be a replay");
    let mut wire = Vec::new();
    c.say(&ping(0x5a5a_5a5a_5a5a_5a5a)).unwrap();
    assert_eq!(carry(&mut c, &mut s, 7, &mut wire), Ok(vec![ping(0x5a5a_5a5a_5a5a_5a5a)]));
    assert!(s.is_confirmed());
    assert!(!wire.windows(4).any(|w| w == [0x5a; 4]), "a message can be read on the wire");
    let long = Message::Revoked { reason: "x".repeat(512) };
    s.say(&long).unwrap();
    assert_eq!(carry(&mut s, &mut c, 1, &mut wire), Ok(vec![long]));
    assert_eq!((c.end(), s.end()), (Ok(()), Ok(())));
}

#[test]
fn another_key_is_refused_without_an_answer_and_almost_without_work() {
    let (c, mut s) = (Channel::client(&key(2)).unwrap(), Channel::server(&ring(1)));
    DH.set(0);
    assert_eq!(play(&mut s, c.unsent()), Err(SecureError::Refused));
    assert_eq!(DH.get(), 0, "a stranger made the server compute");
    assert!(s.unsent().is_empty(), "a stranger got an answer");
    assert_eq!(s.take(), Err(SecureError::Refused), "refused once, refused for good");
    assert_eq!(s.say(&ping(1)), Err(SecureError::Refused));
    // The count counts.
    assert_eq!(play(&mut Channel::server(&ring(2)), c.unsent()), Ok(vec![]));
    assert_eq!(DH.get(), 2);
}

#[test]
fn a_client_is_known_by_its_key_and_by_nothing_else() {
    let named = |n: u8| Key::of([n; key::LEN], Some(&format!("c{n}")));
    let all = Keyring::of((0..200).map(named).collect()).unwrap();
    for n in [0, 7, 199] {
        let (mut c, mut s) = (Channel::client(&named(n)).unwrap(), Channel::server(&all));
        // What the client's own file calls him is nothing to the server.
        if n == 7 {
            c = Channel::client(&Key::of([n; key::LEN], Some("c199"))).unwrap();
        }
        DH.set(0);
        carry(&mut c, &mut s, 4096, &mut Vec::new()).unwrap();
        assert_eq!(DH.get(), 2, "more than one key was tried");
        carry(&mut s, &mut c, 4096, &mut Vec::new()).unwrap();
        assert_eq!(s.key().unwrap().client().map(|n| &**n), Some(&*format!("c{n}")));
        c.say(&ping(1)).unwrap();
        assert_eq!(carry(&mut c, &mut s, 4096, &mut Vec::new()), Ok(vec![ping(1)]));
    }
    // The hint of one and the message of another: neither.
    let [a, b] = [1, 2].map(|n| Channel::client(&named(n)).unwrap().unsent().to_vec());
    let mixed = [&a[..8 + HINT], &b[8 + HINT..]].concat();
    DH.set(0);
    assert_eq!(play(&mut Channel::server(&all), &mixed), Err(SecureError::Refused));
    assert_eq!(DH.get(), 0);
}

#[test]
fn greetings_of_one_client_have_nothing_in_common() {
    let all: Vec<Vec<u8>> = (0..256).map(|_| Channel::client(&key(1)).unwrap().unsent().to_vec()).collect();
    for at in 8..GREETING {
        let mut seen: Vec<u8> = all.iter().map(|g| g[at]).collect();
        seen.sort_unstable();
        seen.dedup();
        // 256 random bytes show about 162 values; the last bit of a public key's last byte is always clear.
        assert!(seen.len() > if at == 8 + HINT + 31 { 80 } else { 120 }, "byte {at} shows {} values", seen.len());
    }
}

#[test]
fn a_server_with_another_key_is_refused() {
    let mut c = Channel::client(&key(1)).unwrap();
    let mut other = Channel::server(&ring(2));
    let stranger = Channel::client(&key(2)).unwrap();
    play(&mut other, stranger.unsent()).unwrap();
    assert_eq!(play(&mut c, other.unsent()), Err(SecureError::Refused));
    assert!(!c.is_open());
}

#[test]
fn a_replayed_conversation_goes_nowhere() {
    let (mut c, mut s, mut up, mut down) = pair();
    c.say(&ping(1)).unwrap();
    c.say(&ping(2)).unwrap();
    assert_eq!(carry(&mut c, &mut s, 4096, &mut up).unwrap().len(), 2);
    s.say(&Message::Pong { token: 1 }).unwrap();
    carry(&mut s, &mut c, 4096, &mut down).unwrap();
    // Everything the client said, to a fresh server.
    let mut fresh = Channel::server(&ring(1));
    assert_eq!(play(&mut fresh, &up[..GREETING]), Ok(vec![]));
    assert!(!fresh.is_confirmed(), "a replayed greeting was believed");
    assert_eq!(play(&mut fresh, &up[GREETING..]), Err(SecureError::Refused));
    // Everything the server said, to a fresh client.
    assert_eq!(play(&mut Channel::client(&key(1)).unwrap(), &down), Err(SecureError::Refused));
    // A client's own greeting, sent back to him.
    let mut c = Channel::client(&key(1)).unwrap();
    let own = c.unsent().to_vec();
    assert_eq!(play(&mut c, &own), Err(SecureError::Refused));
    // The same in the form that he expects.
    let mut c = Channel::client(&key(1)).unwrap();
    let mut own = c.unsent().to_vec();
    own.drain(8..8 + HINT);
    own[..8].copy_from_slice(&down[..8]);
    assert_eq!(play(&mut c, &own), Err(SecureError::Refused));
}

#[test]
fn records_cannot_be_repeated_reordered_left_out_or_sent_back() {
    let three = || {
        let (mut c, s, _, _) = pair();
        let record = |c: &mut Channel, token| {
            c.say(&ping(token)).unwrap();
            let r = c.unsent().to_vec();
            c.sent(r.len());
            r
        };
        let [one, two] = [1, 2].map(|t| record(&mut c, t));
        (c, s, one, two)
    };
    let (_, mut s, one, two) = three();
    assert_eq!(play(&mut s, &one), Ok(vec![ping(1)]));
    assert_eq!(play(&mut s, &one), Err(SecureError::Refused), "repeated");
    assert_eq!(play(&mut s, &two), Err(SecureError::Refused), "went on after a failure");
    let (_, mut s, _, two) = three();
    assert_eq!(play(&mut s, &two), Err(SecureError::Refused), "one was left out");
    let (mut c, _, one, _) = three();
    assert_eq!(play(&mut c, &one), Err(SecureError::Refused), "sent back to its sender");
}

#[test]
fn lengths_are_judged_before_the_bytes_arrive() {
    for len in [0, 1, RECORD.start() - 1, RECORD.end() + 1, 0xffff] {
        let (_, mut s, _, _) = pair();
        assert_eq!(play(&mut s, &(len as u16).to_le_bytes()), Err(SecureError::Refused), "{len}");
    }
    let (_, mut s, _, _) = pair();
    assert_eq!(s.room(), 2 + RECORD.end());
    assert_eq!(s.feed(&vec![0; s.room() + 1]), Err(SecureError::Refused));
    let mut s = Channel::server(&ring(1));
    assert_eq!(s.feed(&[0; GREETING + 1]), Err(SecureError::Refused));
}

#[test]
fn a_member_who_sends_nonsense_is_told_apart_from_a_stranger() {
    let (mut c, mut s, _, _) = pair();
    let mut out = Vec::new();
    c.session().unwrap().seal(b"nonsense", &mut out).unwrap();
    assert!(matches!(play(&mut s, &out), Err(SecureError::Message(CodecError::Magic | CodecError::Length))));
    for len in [0, MAX_FRAME + 1] {
        let e = c.session().unwrap().seal(&vec![0; len], &mut out).unwrap_err();
        assert_eq!(e, SecureError::Message(CodecError::Length));
    }
}

#[test]
fn keys_change_and_a_session_ends() {
    let (mut c, mut s, _, _) = pair();
    let mut unchanged = pair().0;
    c.session().unwrap().limit(3, 10);
    s.session().unwrap().limit(3, 10);
    for t in 0..10 {
        c.say(&ping(t)).unwrap();
        assert_eq!(carry(&mut c, &mut s, 4096, &mut Vec::new()), Ok(vec![ping(t)]), "{t}");
    }
    assert_eq!(c.say(&ping(10)), Err(SecureError::Spent));
    // The receiver counts for himself.
    let (mut c, mut s, _, _) = pair();
    s.session().unwrap().limit(1 << 16, 2);
    (0..3).for_each(|t| c.say(&ping(t)).unwrap());
    let all = c.unsent().to_vec();
    assert_eq!(play(&mut s, &all), Err(SecureError::Spent));
    // A side that does not change its key when the other does is not understood.
    let (mut c, mut s, _, _) = pair();
    c.session().unwrap().limit(1, 10);
    (0..2).for_each(|t| c.say(&ping(t)).unwrap());
    let all = c.unsent().to_vec();
    assert_eq!(play(&mut s, &all), Err(SecureError::Refused));
    unchanged.say(&ping(0)).unwrap();
}

#[test]
fn a_peer_who_does_not_read_is_given_up() {
    let (_, mut s, _, _) = pair();
    let long = Message::Revoked { reason: "x".repeat(512) };
    let said = (0..1000).take_while(|_| s.say(&long).is_ok()).count();
    assert!((100..140).contains(&said), "{said}");
    assert_eq!(s.take(), Err(SecureError::Unread));
    assert!(s.unsent().is_empty());
}

#[test]
fn the_greeting_names_its_version() {
    let (_, g) = noise::Client::new(&key(1)).unwrap();
    assert_eq!(g[..8], [b'S', b'M', b'C', b'N', 2, 1, 48, 0]);
    for at in 0..8 {
        let mut other = g;
        other[at] ^= 3;
        DH.set(0);
        assert!(matches!(noise::serve(&ring(1), &other), Err(SecureError::Refused)), "byte {at}");
        assert_eq!(DH.get(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_is_never_believed(bytes in proptest::collection::vec(any::<u8>(), 0..300), client: bool) {
        let mut end = if client { Channel::client(&key(1)).unwrap() } else { Channel::server(&ring(1)) };
        let said = end.unsent().len();
        match play(&mut end, &bytes) {
            Err(e) => prop_assert_eq!(e, SecureError::Refused),
            Ok(m) => {
                let most = if client { ANSWER } else { GREETING };
                prop_assert!(m.is_empty() && bytes.len() < most);
            }
        }
        prop_assert!(!end.is_open() && end.unsent().len() <= said);
    }

    #[test]
    fn garbage_after_the_greeting_is_not_believed_either(bytes in proptest::collection::vec(any::<u8>(), 0..300), client: bool) {
        let (mut c, mut s, _, _) = pair();
        let end = if client { &mut c } else { &mut s };
        match play(end, &bytes) {
            Err(e) => prop_assert_eq!(e, SecureError::Refused),
            Ok(m) => prop_assert!(m.is_empty()),
        }
        prop_assert_eq!(end.is_confirmed(), client && end.is_open());
    }

    #[test]
    fn what_a_member_encrypts_is_judged_like_any_message(mut frame in proptest::collection::vec(any::<u8>(), 1..200), cut in 0..4u8) {
        let (mut c, mut s, _, _) = pair();
        // Some of them begin as messages do.
        let real = encode(&Message::Revoked { reason: "x".into() });
        let keep = [0, 8, 16, real.len()][usize::from(cut)].min(frame.len());
        frame[..keep].copy_from_slice(&real[..keep]);
        let mut out = Vec::new();
        c.session().unwrap().seal(&frame, &mut out).unwrap();
        match (decode(&frame), play(&mut s, &out)) {
            (Ok(m), Ok(got)) => prop_assert_eq!(got, vec![m]),
            (Err(e), Err(got)) => prop_assert_eq!(got, SecureError::Message(e)),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_changed_bit_anywhere_is_seen(at in 0..GREETING * 8, down: bool) {
        let mut c = Channel::client(&key(1)).unwrap();
        let mut s = Channel::server(&ring(1));
        let mut hello = c.unsent().to_vec();
        if !down {
            hello[at / 8] ^= 1 << (at % 8);
            // X25519 ignores the top bit of a point; the transcript does not.
            prop_assert_eq!(play(&mut s, &hello), Err(SecureError::Refused));
            prop_assert!(s.unsent().is_empty());
            return Ok(());
        }
        play(&mut s, &hello).unwrap();
        let mut answer = s.unsent().to_vec();
        answer[at / 8 % ANSWER] ^= 1 << (at % 8);
        prop_assert_eq!(play(&mut c, &answer), Err(SecureError::Refused));
    }

    #[test]
    fn a_changed_record_is_seen(token: u64, at: prop::sample::Index, bit in 0..8u32) {
        let (mut c, mut s, _, _) = pair();
        c.say(&ping(token)).unwrap();
        let mut r = c.unsent().to_vec();
        let at = at.index(r.len());
        r[at] ^= 1 << bit;
        match play(&mut s, &r) {
            Err(e) => prop_assert_eq!(e, SecureError::Refused),
            // A greater length: it waits for bytes that never come, or fails on what comes.
            Ok(m) => {
                prop_assert!(m.is_empty() && at < 2);
                prop_assert_eq!(s.end(), Err(SecureError::Truncated));
                prop_assert_eq!(play(&mut s, &vec![0; RECORD.end() + 2 - r.len()]), Err(SecureError::Refused));
            }
        }
        prop_assert!(!s.is_confirmed());
    }

    #[test]
    fn a_stream_cut_anywhere_is_seen(tokens in proptest::collection::vec(any::<u64>(), 1..5), cut: prop::sample::Index) {
        let (mut c, mut s, mut up, _) = pair();
        tokens.iter().for_each(|t| c.say(&ping(*t)).unwrap());
        up.extend_from_slice(c.unsent());
        // The server of the pair has had the greeting; the cut comes after it.
        let cut = GREETING + cut.index(up.len() - GREETING);
        let got = play(&mut s, &up[GREETING..cut]).unwrap();
        let whole = (up.len() - GREETING) / tokens.len();
        prop_assert_eq!(got.len(), (cut - GREETING) / whole);
        let want = if (cut - GREETING).is_multiple_of(whole) { Ok(()) } else { Err(SecureError::Truncated) };
        prop_assert_eq!(s.end(), want);
    }

    #[test]
    fn pieces_do_not_matter(tokens in proptest::collection::vec(any::<u64>(), 0..20), piece in 1..200usize) {
        let (mut c, mut s) = (Channel::client(&key(1)).unwrap(), Channel::server(&ring(1)));
        carry(&mut c, &mut s, piece, &mut Vec::new()).unwrap();
        carry(&mut s, &mut c, piece, &mut Vec::new()).unwrap();
        tokens.iter().for_each(|t| c.say(&ping(*t)).unwrap());
        let got = carry(&mut c, &mut s, piece, &mut Vec::new()).unwrap();
        prop_assert_eq!(got, tokens.into_iter().map(ping).collect::<Vec<_>>());
    }
}
