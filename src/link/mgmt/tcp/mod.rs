//! The management path over TCP: a server that strangers may knock at, and a client.
//!
//! A stranger is somebody whose first record has not been opened yet. What he can cost is bounded: [`gate`] says how many
//! connections are taken from where, [`Limits`] how many strangers there are at a time and how long each may take, and
//! [`secure`](super::secure) what one may send. The oldest stranger gives way to a new one when all places are taken, once he has had a second:
//! a client needs two round trips, so a flood keeps members out only if it is fast enough to fill all places within that second.

pub mod client;
pub mod gate;
pub mod peer;
pub mod server;
mod wire;

#[cfg(test)]
mod tests;

pub use client::Client;
pub use peer::Member;
pub use server::{Limits, Office, Reply, Server};

/// Seconds after which a connection whose other host has gone is given up.
const SILENCE_S: u32 = 20;
