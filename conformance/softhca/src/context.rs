//! An open device.

use crate::device::Plan;
use crate::events::EventQueue;
use std::sync::Arc;

/// An open device of this process.
pub struct Context {
    /// Its number on the host.
    pub device: u32,
    /// Asynchronous events that the program has not taken yet.
    pub events: EventQueue<u32>,
}

impl Context {
    /// Opens a device.
    pub fn open(device: u32) -> Result<Arc<Context>, i32> {
        Ok(Arc::new(Context { device, events: EventQueue::new()? }))
    }

    /// Ends everything that runs for it.
    pub fn close(&self) {}

    /// Whether a port has a link; `EINVAL` when there is no such port.
    pub fn port(&self, port: u32) -> Result<bool, i32> {
        if (1..=Plan::of_host().ports).contains(&port) { Ok(true) } else { Err(libc::EINVAL) }
    }
}
