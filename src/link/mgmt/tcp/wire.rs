//! A channel and the socket below it.

use crate::link::mgmt::Message;
use crate::link::mgmt::secure::{Channel, SecureError};
use crate::sys::poll::PollFd;
use crate::sys::{Errno, inet};
use std::os::fd::{AsFd, OwnedFd};

/// Reads of one connection before the others get their turn.
const TURN: usize = 4;

/// Why a wire is of no more use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Broken {
    /// The peer has closed, between two messages.
    Closed,
    System(Errno),
    Secure(SecureError),
}

impl From<SecureError> for Broken {
    fn from(e: SecureError) -> Broken {
        Broken::Secure(e)
    }
}

pub(super) struct Wire {
    fd: OwnedFd,
    pub channel: Channel,
}

impl Wire {
    pub fn new(fd: OwnedFd, channel: Channel) -> Wire {
        Wire { fd, channel }
    }

    /// Notices within `seconds` that the other host has gone.
    pub fn watchful(&self, seconds: u32) -> Result<(), Errno> {
        inet::watchful(self.fd.as_fd(), seconds)
    }

    /// This host's address on it.
    pub fn local(&self) -> Option<std::net::IpAddr> {
        inet::local(self.fd.as_fd()).ok().map(|a| a.ip())
    }

    /// What to poll for.
    pub fn watch(&self) -> PollFd {
        PollFd::writable_too(self.fd.as_fd(), !self.channel.unsent().is_empty())
    }

    /// Reads what is there and has `hear` answer every message. Bounded in time; poll says when to go on.
    pub fn read(
        &mut self,
        hear: &mut dyn FnMut(&mut Channel, Message) -> Result<(), SecureError>,
    ) -> Result<(), Broken> {
        let mut buf = [0u8; 4200];
        for _ in 0..TURN {
            let room = self.channel.room().min(buf.len());
            let buf = buf.get_mut(..room).unwrap_or_default();
            let n = match inet::receive(self.fd.as_fd(), buf) {
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(Broken::System(e)),
                Ok(0) => {
                    self.channel.end()?;
                    return Err(Broken::Closed);
                }
                Ok(n) => n,
            };
            self.channel.feed(buf.get(..n).unwrap_or_default())?;
            while let Some(m) = self.channel.take()? {
                hear(&mut self.channel, m)?;
            }
        }
        Ok(())
    }

    /// Sends what fits.
    pub fn write(&mut self) -> Result<(), Broken> {
        while !self.channel.unsent().is_empty() {
            match inet::send(self.fd.as_fd(), self.channel.unsent()) {
                Err(Errno::AGAIN) => return Ok(()),
                Err(e) => return Err(Broken::System(e)),
                Ok(n) => self.channel.sent(n),
            }
        }
        Ok(())
    }

    /// When all is sent: the other side reads the end of the stream after it, and may still send.
    pub fn finish(&self) {
        if self.channel.unsent().is_empty() {
            inet::finish(self.fd.as_fd());
        }
    }

    /// Closes without a word.
    pub fn abort(self) {
        inet::abort(self.fd);
    }
}
