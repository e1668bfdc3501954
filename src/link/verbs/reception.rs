//! The exporter's side of the connection manager: a place where clients' queue pairs come in, and who is expected there.
//!
//! See [`cm`]. Belongs to one thread. A stranger's request costs three commands to the kernel and no memory; those that the kernel
//! holds for us are 64 at most.

use super::cm::{self, PATIENCE_NS};
use super::{Choice, cm::failed};
use crate::base::{Error, Result, Status};
use crate::link::mgmt::message::TOKEN;
use crate::sys::Errno;
use crate::sys::clock::now;
use crate::sys::poll::PollFd;
use crate::sys::process::random_bytes;
use crate::sys::rdma_cm::{ConnectionManager, Event, Id, What};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Requests that the kernel holds for us; it refuses more.
const WAITING: u32 = 64;
/// Name of the listener; a member's is his number.
const LISTENER: u64 = u64::MAX;

/// An id; the connection ends with it.
#[derive(Debug)]
pub struct Seat {
    pub(super) manager: Arc<ConnectionManager>,
    pub(super) id: Id,
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Fails when the device has gone: then there is nothing left to end.
        let _ = self.manager.destroy(self.id);
    }
}

/// A request that is expected. Dropping it turns it down.
#[derive(Debug)]
pub struct Request {
    pub(super) seat: Seat,
    /// The number by which the member is known.
    pub member: u64,
    /// READs and atomics at a time that he wants to have answered.
    pub reads: u8,
}

/// What has come.
#[derive(Debug)]
pub enum Arrival {
    /// A queue pair of a member.
    Request(Request),
    /// A member's queue pair is connected no longer.
    Gone(u64, Id),
    /// Somebody who is not expected; he was rejected.
    Stranger(Option<SocketAddr>),
    /// The place is good for nothing any more.
    Broken,
}

/// Whose queue pairs are expected.
struct Expected {
    token: [u8; TOKEN],
    member: u64,
    /// A bit for each lane that has not come yet.
    lanes: u32,
    until: u64,
}

/// All who are expected: one entry a member.
#[derive(Default)]
struct Guests(Vec<Expected>);

impl Guests {
    /// Expects so many lanes of a member until `until`, instead of what was expected of him.
    fn expect(&mut self, member: u64, token: [u8; TOKEN], lanes: u8, until: u64) {
        self.forget(member);
        self.0.push(Expected { token, member, lanes: (1u32 << lanes.min(31)) - 1, until });
    }

    fn forget(&mut self, member: u64) {
        self.0.retain(|e| e.member != member);
    }

    /// The member who was told `token`, if it is good for `lane` at `now`, and `fits`: it is good no longer then.
    fn claim(&mut self, token: &[u8; TOKEN], lane: u8, now: u64, fits: impl FnOnce() -> bool) -> Option<u64> {
        let bit = 1u32.checked_shl(u32::from(lane))?;
        let e = self.0.iter_mut().find(|e| same(&e.token, token))?;
        if e.until <= now || e.lanes & bit == 0 || !fits() {
            return None;
        }
        e.lanes &= !bit;
        let member = e.member;
        self.0.retain(|e| e.lanes != 0 && e.until > now);
        Some(member)
    }
}

/// A listening id on the first port of a device. It costs nothing before the first client asks for it.
pub struct Reception {
    /// Before the file that it is made of.
    _listener: Seat,
    manager: Arc<ConnectionManager>,
    choice: Arc<Choice>,
    /// The address it is bound to.
    bound: IpAddr,
    /// What clients are told; zeros: the address they have called.
    at: [u8; 16],
    port: u16,
    guests: Guests,
}

fn own_address(choice: &Choice) -> Option<IpAddr> {
    choice.ports.first().and_then(|p| cm::address(p.gid, p.lid))
}

impl Reception {
    /// Listens on the address of the choice's first port, or where that has none on `here`, the address that a client has called.
    ///
    /// What [`cm::open`] says; `NOT_SUPPORTED` when no RDMA device is on that address, `SYSTEM`.
    pub fn new(choice: &Arc<Choice>, here: IpAddr) -> Result<Reception> {
        let manager = Arc::new(cm::open()?);
        let own = own_address(choice);
        let bound = own.unwrap_or(here);
        let fail = |e: Errno| {
            let e = failed(format!("listen for queue pairs on {bound} ({})", choice.device.name()), e);
            // To the client a device that is not found and a region that is not found are two things.
            let status = if e.status == Status::NOT_FOUND { Status::NOT_SUPPORTED } else { e.status };
            let remedy = "call the exporter by an address of its RDMA network, or do without: LIBSMC_RENDEZVOUS=tcp";
            Error { status, ..e }.remedy(remedy)
        };
        let id = manager.create(LISTENER).map_err(fail)?;
        let listener = Seat { manager: manager.clone(), id };
        manager.bind(id, &SocketAddr::new(bound, 0)).map_err(fail)?;
        manager.listen(id, WAITING).map_err(fail)?;
        let port = manager.place(id).map_err(fail)?.here.map_or(0, |a| a.port());
        let (choice, at) = (choice.clone(), cm::to_message(own));
        Ok(Reception { _listener: listener, manager, choice, bound, at, port, guests: Guests::default() })
    }

    /// True when it is the place for clients who are to be reached by `choice` and have called `here`.
    pub fn is_for(&self, choice: &Arc<Choice>, here: IpAddr) -> bool {
        Arc::ptr_eq(&self.choice, choice) && (own_address(choice).is_some() || self.bound == here)
    }

    /// The device and the port by which clients come.
    pub fn choice(&self) -> &Arc<Choice> {
        &self.choice
    }

    /// Expects so many lanes of a member, instead of what was expected of him; answers address, port and token for him.
    pub fn expect(&mut self, member: u64, lanes: u8) -> Result<([u8; 16], u16, [u8; TOKEN])> {
        let mut token = [0; TOKEN];
        random_bytes(&mut token)
            .map_err(|e| Error::new(Status::NO_RESOURCES, "draw a token", format!("no random numbers: {e}")))?;
        self.guests.expect(member, token, lanes, now().saturating_add(PATIENCE_NS));
        Ok((self.at, self.port, token))
    }

    /// Expects nothing of a member any more.
    pub fn forget(&mut self, member: u64) {
        self.guests.forget(member);
    }

    /// What to poll for.
    pub fn watch(&self) -> PollFd {
        self.manager.watch()
    }

    /// The next that has come. Does not wait.
    pub fn arrival(&mut self) -> Option<Arrival> {
        loop {
            let event = match self.manager.event() {
                Ok(event) => event?,
                Err(_) => return Some(Arrival::Broken),
            };
            match event.what {
                What::Request => return Some(self.request(&event)),
                What::DeviceGone if event.uid == LISTENER => return Some(Arrival::Broken),
                // As well the end of a request whose sender has given up before it was connected.
                What::Disconnected | What::DeviceGone | What::Failed | What::Rejected => {
                    return Some(Arrival::Gone(event.uid, event.id));
                }
                _ => {}
            }
        }
    }

    fn request(&mut self, event: &Event) -> Arrival {
        let seat = Seat { manager: self.manager.clone(), id: event.id };
        match self.whose(event) {
            Some(member) => Arrival::Request(Request { seat, member, reads: event.reads }),
            None => {
                let from = self.manager.place(event.id).ok().and_then(|p| p.there);
                let _ = self.manager.reject(event.id);
                Arrival::Stranger(from)
            }
        }
    }

    /// The member whom a request is from.
    fn whose(&mut self, event: &Event) -> Option<u64> {
        let (token, lane) = cm::requested(&event.data)?;
        // On another device than the one that his memory is registered with nothing can be made for him.
        let here = || self.manager.place(event.id).is_ok_and(|p| p.device == self.choice.device.guid());
        self.guests.claim(&token, lane, now(), here)
    }
}

/// Compares in a time that tells nothing.
fn same(a: &[u8; TOKEN], b: &[u8; TOKEN]) -> bool {
    a.iter().zip(b).fold(0, |d, (a, b)| d | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_for_each_lane_and_for_its_time() {
        let (a, b) = ([1; TOKEN], [2; TOKEN]);
        let mut guests = Guests::default();
        let claim = |g: &mut Guests, token, lane, now| g.claim(token, lane, now, || true);
        assert_eq!(claim(&mut guests, &a, 0, 0), None, "nobody is expected");
        guests.expect(7, a, 2, 100);
        guests.expect(8, b, 16, 200);
        for bad in [2, 15, 31, 32, 255] {
            assert_eq!(claim(&mut guests, &a, bad, 0), None, "lane {bad} was not arranged");
        }
        assert_eq!(guests.claim(&a, 1, 0, || false), None, "another device");
        assert_eq!(claim(&mut guests, &a, 1, 99), Some(7));
        assert_eq!(claim(&mut guests, &a, 1, 99), None, "again");
        assert_eq!(claim(&mut guests, &a, 0, 100), None, "too late");
        assert_eq!(claim(&mut guests, &b, 15, 100), Some(8));
        assert_eq!(guests.0.len(), 1, "what is over is forgotten");
        guests.expect(8, a, 1, 300);
        assert_eq!(claim(&mut guests, &b, 3, 100), None, "the token of before");
        assert_eq!(claim(&mut guests, &a, 0, 100), Some(8));
        assert!(guests.0.is_empty(), "all have come");
        guests.expect(9, a, 1, 300);
        guests.forget(9);
        assert_eq!(claim(&mut guests, &a, 0, 100), None, "the member has left");
    }
}
