//! The cryptographic part: greetings and records, one at a time, without buffers or sockets.

use super::SecureError;
use crate::link::mgmt::MAX_FRAME;
use crate::link::mgmt::key::Key;
use crate::link::mgmt::ring::{self, HINT, Keyring};
use crate::sys::process::random_bytes;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState, TransportState};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Version of greetings and records. Another version is another protocol: the two refuse each other.
pub const VERSION: u8 = 2;
const PROLOGUE: &[u8] = &[b'l', b'i', b'b', b's', b'm', b'c', b' ', b'm', b'g', b'm', b't', VERSION];

/// Bytes of an authentication tag.
const TAG: usize = 16;
/// An ephemeral public key and the tag of an empty payload.
const NOISE: usize = 32 + TAG;
const HEAD: usize = 8;
/// Bytes of a client's greeting.
pub const GREETING: usize = HEAD + HINT + NOISE;
/// Bytes of the server's.
pub const ANSWER: usize = HEAD + NOISE;
/// Shortest and longest record, without the two bytes of its length.
pub const RECORD: std::ops::RangeInclusive<usize> = TAG + 1..=TAG + MAX_FRAME;

/// Records of one direction after which its key is changed.
pub const REKEY: u64 = 1 << 16;
/// Records of one direction that a session carries at most.
pub const RECORDS: u64 = 1 << 32;

const CLIENT: [u8; HEAD] = head(1);
const SERVER: [u8; HEAD] = head(2);

const fn head(role: u8) -> [u8; HEAD] {
    [b'S', b'M', b'C', b'N', VERSION, role, NOISE as u8, 0]
}

/// A client's greeting on the wire.
pub type Greeting = [u8; GREETING];
/// The server's.
pub type Answer = [u8; ANSWER];
/// A message of the handshake: an ephemeral public key, which is new each time, and a tag.
type Flight = [u8; NOISE];

/// The kernel's random numbers, by our own system call.
struct Kernel;

impl Random for Kernel {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        dest.chunks_mut(256).try_for_each(random_bytes).map_err(|_| snow::Error::Rng)
    }
}

struct Resolver;

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Kernel))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let dh = DefaultResolver.resolve_dh(choice)?;
        #[cfg(test)]
        let dh = super::tests::counted(dh);
        Some(dh)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

impl From<snow::Error> for SecureError {
    fn from(e: snow::Error) -> SecureError {
        match e {
            snow::Error::Rng | snow::Error::Init(_) | snow::Error::Pattern(_) => SecureError::NoRandom,
            _ => SecureError::Refused,
        }
    }
}

fn start(key: &Key, client: bool) -> Result<HandshakeState, SecureError> {
    let builder = Builder::with_resolver(PATTERN.parse()?, Box::new(Resolver));
    let builder = builder.prologue(PROLOGUE)?.psk(0, key.bytes())?;
    Ok(if client { builder.build_initiator() } else { builder.build_responder() }?)
}

fn write(noise: &mut HandshakeState) -> Result<Flight, SecureError> {
    let mut out = [0; NOISE];
    match noise.write_message(&[], &mut out)? {
        NOISE => Ok(out),
        _ => Err(SecureError::NoRandom),
    }
}

fn read(noise: &mut HandshakeState, flight: &Flight) -> Result<(), SecureError> {
    noise.read_message(flight, &mut [0; TAG])?;
    Ok(())
}

fn nonce(flight: &Flight) -> &[u8; 32] {
    flight.first_chunk().unwrap_or(&[0; 32])
}

/// A client that waits for the server's greeting.
pub struct Client(HandshakeState);

impl Client {
    /// The client and what it says first.
    pub fn new(key: &Key) -> Result<(Client, Greeting), SecureError> {
        let mut noise = start(key, true)?;
        let flight = write(&mut noise)?;
        let hint = ring::hint(key, nonce(&flight)).ok_or(SecureError::NoRandom)?;
        let mut out = [0; GREETING];
        let bytes = CLIENT.iter().chain(&hint).chain(&flight);
        out.iter_mut().zip(bytes).for_each(|(to, b)| *to = *b);
        Ok((Client(noise), out))
    }

    /// Reads the answer: from here on the server is known to have the key.
    pub fn finish(mut self, answer: &Answer) -> Result<Session, SecureError> {
        let flight = answer.strip_prefix(&SERVER).and_then(|f| f.first_chunk()).ok_or(SecureError::Refused)?;
        read(&mut self.0, flight)?;
        Session::new(self.0)
    }
}

/// The server's part: reads the client's greeting and answers it; and whose key it was made with. The client is not proven yet: his
/// greeting may be a replay.
pub fn serve(ring: &Keyring, greeting: &Greeting) -> Result<(Session, Answer, Key), SecureError> {
    // Before anything is computed.
    let rest = greeting.strip_prefix(&CLIENT).ok_or(SecureError::Refused)?;
    let (hint, flight) = rest.split_first_chunk().ok_or(SecureError::Refused)?;
    let flight: &Flight = flight.first_chunk().ok_or(SecureError::Refused)?;
    let key = ring.find(nonce(flight), hint).ok_or(SecureError::Refused)?;
    let mut noise = start(key, false)?;
    read(&mut noise, flight)?;
    let mut out = [0; ANSWER];
    let said = write(&mut noise)?;
    out.iter_mut().zip(SERVER.iter().chain(&said)).for_each(|(to, b)| *to = *b);
    Ok((Session::new(noise)?, out, key.clone()))
}

/// Two keys and two counts.
pub struct Session {
    noise: TransportState,
    sealed: u64,
    opened: u64,
    /// [`REKEY`] and [`RECORDS`]; smaller in tests.
    limits: (u64, u64),
}

impl Session {
    fn new(noise: HandshakeState) -> Result<Session, SecureError> {
        Ok(Session { noise: noise.into_transport_mode()?, sealed: 0, opened: 0, limits: (REKEY, RECORDS) })
    }

    #[cfg(test)]
    pub(super) fn limit(&mut self, rekey: u64, records: u64) {
        self.limits = (rekey, records);
    }

    /// A record of the other side was opened: he has the key, and he is here now.
    pub fn has_opened(&self) -> bool {
        self.opened > 0
    }

    /// Appends the record of `plain` (1 to [`MAX_FRAME`] bytes), with its length before it.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SecureError> {
        let len = plain.len() + TAG;
        if !RECORD.contains(&len) {
            return Err(SecureError::Message(crate::link::mgmt::CodecError::Length));
        }
        if self.sealed >= self.limits.1 {
            return Err(SecureError::Spent);
        }
        let start = out.len();
        out.extend_from_slice(&(len as u16).to_le_bytes());
        out.resize(start + 2 + len, 0);
        let done = self.noise.write_message(plain, out.get_mut(start + 2..).unwrap_or_default());
        if done.is_err() {
            out.truncate(start);
        }
        done?;
        self.sealed += 1;
        if self.sealed.is_multiple_of(self.limits.0) {
            self.noise.rekey_outgoing();
        }
        Ok(())
    }

    /// Opens a record (without its length) into `out`; answers the bytes of the message.
    pub fn open(&mut self, record: &[u8], out: &mut [u8; MAX_FRAME]) -> Result<usize, SecureError> {
        if self.opened >= self.limits.1 {
            return Err(SecureError::Spent);
        }
        if !RECORD.contains(&record.len()) {
            return Err(SecureError::Refused);
        }
        let n = self.noise.read_message(record, out)?;
        self.opened += 1;
        if self.opened.is_multiple_of(self.limits.0) {
            self.noise.rekey_incoming();
        }
        Ok(n)
    }
}
