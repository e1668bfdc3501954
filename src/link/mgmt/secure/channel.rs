//! One end of a secured conversation: bytes in, messages out, and back. It does no input or output itself.

use super::SecureError;
use super::noise::{self, ANSWER, GREETING, RECORD, Session};
use crate::link::mgmt::key::Key;
use crate::link::mgmt::ring::Keyring;
use crate::link::mgmt::{MAX_FRAME, Message, decode, encode};

/// Unsent bytes that a channel holds at most: a peer that does not read them is given up.
const UNSENT: usize = 64 << 10;
/// Bytes of a record's length.
const LEN: usize = 2;

enum State {
    /// Server: waits for a greeting.
    Listening(Keyring),
    /// Client: has sent its greeting.
    Greeted(Box<noise::Client>),
    Open(Session),
    Failed(SecureError),
}

/// One end. Owned by one thread.
pub struct Channel {
    state: State,
    /// What arrived and is not a whole greeting or record yet.
    inbox: Vec<u8>,
    /// What is to be sent.
    outbox: Vec<u8>,
    client: bool,
    /// Server: whose greeting it was.
    key: Option<Key>,
}

impl Channel {
    /// A client's end; its greeting waits in [`Channel::unsent`].
    pub fn client(key: &Key) -> Result<Channel, SecureError> {
        let (client, greeting) = noise::Client::new(key)?;
        Ok(Channel {
            state: State::Greeted(Box::new(client)),
            inbox: Vec::new(),
            outbox: greeting.to_vec(),
            client: true,
            key: None,
        })
    }

    /// A server's end. It says nothing before it has got a greeting made with a key of the ring.
    pub fn server(ring: &Keyring) -> Channel {
        let state = State::Listening(ring.clone());
        Channel { state, inbox: Vec::new(), outbox: Vec::new(), client: false, key: None }
    }

    /// Server: the key of the greeting, which tells whose it was. He is not proven before [`Channel::is_confirmed`].
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// True once keys are agreed and messages can be sent.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// True once the other side has proven that it has the key and is no replay.
    pub fn is_confirmed(&self) -> bool {
        matches!(&self.state, State::Open(s) if self.client || s.has_opened())
    }

    /// Bytes it takes now: never more than what completes a greeting, or a longest record.
    pub fn room(&self) -> usize {
        let most = match self.state {
            State::Open(_) => LEN + RECORD.end(),
            State::Listening(_) => GREETING,
            _ => ANSWER,
        };
        most.saturating_sub(self.inbox.len())
    }

    /// Takes bytes from the stream, at most [`Channel::room`]: more are an error. Follow with [`Channel::take`] until it has none.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), SecureError> {
        if bytes.len() > self.room() {
            return Err(self.fail(SecureError::Refused));
        }
        self.inbox.extend_from_slice(bytes);
        Ok(())
    }

    /// The stream has ended: an error when that was inside a greeting or record.
    pub fn end(&self) -> Result<(), SecureError> {
        match self.state {
            State::Failed(e) => Err(e),
            _ if self.inbox.is_empty() => Ok(()),
            _ => Err(SecureError::Truncated),
        }
    }

    /// The next message that has arrived as a whole.
    pub fn take(&mut self) -> Result<Option<Message>, SecureError> {
        let next = self.step();
        next.map_err(|e| self.fail(e))
    }

    fn fail(&mut self, e: SecureError) -> SecureError {
        self.inbox.clear();
        self.outbox.clear();
        self.state = State::Failed(e);
        e
    }

    fn step(&mut self) -> Result<Option<Message>, SecureError> {
        if matches!(self.state, State::Listening(_) | State::Greeted(_)) && !self.greet()? {
            return Ok(None);
        }
        match &mut self.state {
            State::Failed(e) => Err(*e),
            State::Open(s) => record(s, &mut self.inbox),
            _ => Ok(None),
        }
    }

    /// Reads the other side's greeting; false while it is not complete.
    fn greet(&mut self) -> Result<bool, SecureError> {
        let listening = matches!(self.state, State::Listening(_));
        if self.inbox.len() < if listening { GREETING } else { ANSWER } {
            return Ok(false);
        }
        let said = std::mem::take(&mut self.inbox);
        // Whatever happens, the keys are not needed any longer.
        let session = match std::mem::replace(&mut self.state, State::Failed(SecureError::Refused)) {
            State::Greeted(client) => client.finish(said.as_slice().try_into().map_err(|_| SecureError::Refused)?)?,
            State::Listening(ring) => {
                let greeting = said.as_slice().try_into().map_err(|_| SecureError::Refused)?;
                let (session, answer, key) = noise::serve(&ring, greeting)?;
                self.outbox.extend_from_slice(&answer);
                self.key = Some(key);
                session
            }
            State::Open(s) => s,
            State::Failed(e) => return Err(e),
        };
        self.state = State::Open(session);
        Ok(true)
    }

    /// Appends a message to what is to be sent. Only once the channel [is open](Channel::is_open).
    pub fn say(&mut self, m: &Message) -> Result<(), SecureError> {
        let unread = self.outbox.len() > UNSENT;
        let done = match &mut self.state {
            State::Open(_) if unread => Err(SecureError::Unread),
            State::Open(s) => s.seal(&encode(m), &mut self.outbox),
            State::Failed(e) => Err(*e),
            _ => Err(SecureError::Refused),
        };
        done.map_err(|e| self.fail(e))
    }

    /// What is to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.outbox
    }

    /// The first `n` bytes of [`Channel::unsent`] have been sent.
    pub fn sent(&mut self, n: usize) {
        self.outbox.drain(..n.min(self.outbox.len()));
    }

    #[cfg(test)]
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            State::Open(s) => Some(s),
            _ => None,
        }
    }
}

/// Takes one record off the inbox, if it is whole.
fn record(s: &mut Session, inbox: &mut Vec<u8>) -> Result<Option<Message>, SecureError> {
    let Some((len, rest)) = inbox.split_first_chunk::<LEN>() else { return Ok(None) };
    let len = u16::from_le_bytes(*len) as usize;
    // At once, not only when that much has arrived.
    if !RECORD.contains(&len) {
        return Err(SecureError::Refused);
    }
    let Some(record) = rest.get(..len) else { return Ok(None) };
    let mut plain = [0; MAX_FRAME];
    let n = s.open(record, &mut plain)?;
    inbox.drain(..LEN + len);
    decode(plain.get(..n).unwrap_or_default()).map(Some).map_err(SecureError::Message)
}
