//! Queue pairs of members that come by the connection manager.

use super::Desk;
use crate::base::{Error, Result, Status};
use crate::core::export::event::{Event, What};
use crate::link::verbs::Choice;
use crate::link::verbs::reception::{Arrival, Reception, Request};
use crate::sys::poll::PollFd;
use std::net::IpAddr;
use std::sync::Arc;

/// Arrivals of one place that are seen to before the others have their turn.
const ARRIVALS: usize = 64;

/// The place where queue pairs of such clients come in.
pub(super) fn place<'a>(all: &'a mut Vec<Reception>, choice: &Arc<Choice>, here: IpAddr) -> Result<&'a mut Reception> {
    let at = match all.iter().position(|r| r.is_for(choice, here)) {
        Some(at) => at,
        None => {
            all.push(Reception::new(choice, here)?);
            all.len() - 1
        }
    };
    all.get_mut(at).ok_or_else(|| Error::of(Status::INTERNAL, "connect"))
}

impl Desk {
    /// Appends what is to be polled.
    pub fn watch(&self, fds: &mut Vec<PollFd>) {
        fds.extend(self.receptions.iter().map(Reception::watch));
    }

    /// Sees to what has come by the connection manager.
    pub fn receive(&mut self) {
        let mut at = 0;
        while let Some(r) = self.receptions.get_mut(at) {
            let arrivals: Vec<_> = std::iter::from_fn(|| r.arrival()).take(ARRIVALS).collect();
            let choice = r.choice().clone();
            at += 1;
            for a in arrivals {
                match a {
                    Arrival::Request(request) => self.admit(request, &choice),
                    Arrival::Gone(id, which) => {
                        if let Some(s) = self.sessions.get_mut(&id) {
                            let grant = s.open.as_mut().and_then(|o| o.grant.as_mut());
                            grant.into_iter().chain(&mut s.remains).for_each(|g| g.part(which));
                        }
                    }
                    Arrival::Stranger(address) => {
                        self.registry
                            .note(Event { address, ..Event::new(What::Refusal, "a queue pair that is not expected") });
                    }
                    Arrival::Broken => {
                        at -= 1;
                        self.receptions.remove(at);
                        break;
                    }
                }
            }
        }
    }

    fn admit(&mut self, request: Request, choice: &Choice) {
        let id = request.member;
        let Some(s) = self.sessions.get_mut(&id) else { return };
        let grant = s.open.as_mut().and_then(|o| o.grant.as_mut());
        // Without one the memory has been taken from him since, or is being moved.
        let (Some(grant), Some(port)) = (grant, choice.ports.first()) else { return };
        if let Err(e) = grant.admit(request, port) {
            self.registry.note(s.event(What::Refusal, id, e.to_string()));
        }
    }
}
