//! Management messages over a byte stream that strangers can read and write: both sides prove that they have the pre-shared
//! key, and everything after that is encrypted and cannot be changed, repeated, left out or reordered unseen.
//!
//! # Protocol
//!
//! Noise, `NNpsk0` with X25519, ChaCha20-Poly1305 and BLAKE2s. Client and server send one greeting each, of
//! [`noise::GREETING`] and [`noise::ANSWER`] bytes: four bytes of magic, the version, the sender's role, the length of the Noise message, from the
//! client a [hint](super::ring) at his key, and the Noise message (an ephemeral public key and a tag). Version and roles are fixed and part
//! of what is authenticated; the hint is a keyed hash of the ephemeral key. Then both send *records*: a length
//! (two bytes, little endian) and one encrypted management message.
//!
//! Why this pattern: *psk0* mixes the key in first, so that the very first message has a tag that only a member can make.
//! A stranger costs the server a hash for each key it takes and no Diffie-Hellman, and gets no answer at all. With *psk2* (the usual one for a key that
//! is only known after the first message) every stranger would cost two. *NN*: there are no long-term keys but the pre-shared ones: one for all, or one for each client, which is what
//! an administrator of a cluster distributes; ephemeral keys give forward secrecy: who learns a pre-shared key
//! later cannot read what was recorded. A client with a key of its own cannot pose as another, nor as the exporter to another.
//!
//! The client's greeting can be replayed by whoever recorded it: he gets a fresh greeting of the server and can do
//! nothing with it. So a server takes a peer for a member only when his first record has been opened
//! ([`Channel::is_confirmed`]); the greeting carries nothing that could act. The server's greeting proves itself to the client at once.
//!
//! # Limits
//!
//! Before the greeting is accepted a channel holds at most a greeting's bytes, after it one record's ([`Channel::room`]). Keys are
//! changed every [`noise::REKEY`] records of a direction, and after [`noise::RECORDS`] records the channel is spent, long before a nonce could
//! repeat. Lengths and times of messages are visible to an observer. Deadlines belong to the owner of the stream.
//!
//! Every failure of the cryptography is the same [`SecureError::Refused`], at which the stream is to be closed without a word.

pub mod channel;
pub mod noise;

#[cfg(test)]
mod tests;

pub use channel::Channel;

use super::codec::CodecError;
use crate::base::Status;

/// Why a channel has failed. A channel that has failed once stays so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SecureError {
    /// What arrived was not made for this place of this conversation by somebody who has the key: another key, another
    /// version, a replay, a change, garbage. Deliberately not told apart.
    #[error("the other side has another key or version, or what it sent was changed on the way")]
    Refused,
    /// The stream ended inside a greeting or a record.
    #[error("the connection was cut off in the middle of a message")]
    Truncated,
    /// A member sent a record that holds no management message.
    #[error("{0}")]
    Message(CodecError),
    /// The other side does not read what is sent to it.
    #[error("the other side does not read")]
    Unread,
    /// The channel has carried as many records as it may.
    #[error("the connection has carried all the messages it may")]
    Spent,
    /// The kernel gave no random numbers, or the cryptography could not be set up.
    #[error("no cryptography: the kernel gave no random numbers")]
    NoRandom,
}

impl SecureError {
    /// The code for the caller of the library.
    pub fn status(self) -> Status {
        match self {
            SecureError::Refused => Status::REFUSED,
            SecureError::Truncated | SecureError::Spent => Status::LINK_DOWN,
            SecureError::Message(_) => Status::PROTOCOL,
            SecureError::Unread => Status::TIMED_OUT,
            SecureError::NoRandom => Status::SYSTEM,
        }
    }
}
