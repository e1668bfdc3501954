//! What an exporter tells of its clients, for records.

use crate::link::Access;
use std::net::SocketAddr;

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A client has opened a region.
    Grant,
    /// Somebody did not get what he asked for, or was not let in.
    Refusal,
    /// A client has lost his access.
    Revocation,
    /// A client has gone, or what he had has ended.
    End,
}

impl What {
    /// As records name it.
    pub fn name(self) -> &'static str {
        match self {
            What::Grant => "grant",
            What::Refusal => "refusal",
            What::Revocation => "revocation",
            What::End => "end",
        }
    }
}

/// One event. Nothing in it is secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What has happened.
    pub what: What,
    /// The client's number; 0 when he has none.
    pub id: u64,
    /// The name in the client's key.
    pub client: Option<String>,
    /// Where he calls from; `None` on this host.
    pub address: Option<SocketAddr>,
    /// His process and user on this host.
    pub process: Option<(u32, u32)>,
    /// The region.
    pub region: Option<String>,
    /// What he has, had, or asked for.
    pub access: Option<Access>,
    /// The adapter by which he reaches the memory.
    pub device: Option<String>,
    /// For people.
    pub why: String,
    /// Refusals before this one that were not told, because there were too many.
    pub untold: u64,
}

impl Event {
    /// One of which nothing but its kind and cause is known.
    pub(super) fn new(what: What, why: impl Into<String>) -> Event {
        let (client, address, process, region, access, device) = (None, None, None, None, None, None);
        Event { what, id: 0, client, address, process, region, access, device, why: why.into(), untold: 0 }
    }
}
