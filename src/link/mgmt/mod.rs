//! Management messages: what a client and an exporter say to each other besides moving bytes.
//!
//! Every message is a header of 16 bytes (magic, version, type, length of the body; little endian) and a body of at most
//! [`MAX_BODY`] bytes. On a packet socket one packet is one message; on a stream [`frame_len`] cuts. Descriptors that
//! belong to a message travel beside it (SCM_RIGHTS on a Unix socket, keys in the body on a network).
//!
//! The greeting (`Hello`, `Welcome`, `Error`) has the same layout in every version to come; all other messages carry the
//! version that `Welcome` named. A client says the range it speaks, the exporter answers the highest both speak.

pub mod codec;
pub mod key;
pub mod message;
pub mod ring;
pub mod secure;
pub mod tcp;

pub use codec::{CodecError, MAX_BODY, MAX_FRAME, decode, encode, frame_len};
pub use message::{Message, RegionDesc};

/// Oldest protocol version this build speaks.
pub const VERSION_MIN: u16 = 2;
/// Newest protocol version this build speaks.
pub const VERSION_MAX: u16 = 2;

/// The version two sides agree on: the highest in both ranges.
pub fn negotiate(min: u16, max: u16) -> Option<u16> {
    let v = max.min(VERSION_MAX);
    (min <= max && v >= min && v >= VERSION_MIN).then_some(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(negotiate(2, 2), Some(2));
        assert_eq!(negotiate(0, 9), Some(2));
        assert_eq!(negotiate(1, 1), None);
        assert_eq!(negotiate(3, 9), None);
        assert_eq!(negotiate(0, 0), None);
        assert_eq!(negotiate(1, 0), None);
    }
}
