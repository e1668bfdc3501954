//! Faults on demand.

use crate::context::Context;

/// Whether a device is there.
pub fn present(_device: u32) -> bool {
    true
}

/// Faults in force for one open device.
pub struct Faults {}

impl Faults {
    /// None.
    pub fn of_host() -> Faults {
        Faults {}
    }

    /// Looks for changes.
    pub fn refresh(&self, _context: &Context) {}

    /// Whether the device is gone.
    pub fn removed(&self) -> bool {
        false
    }

    /// Whether a registration fails.
    pub fn registration(&self) -> Result<(), i32> {
        Ok(())
    }

    /// Whether a port has a link.
    pub fn port_is_up(&self, _port: u32) -> bool {
        true
    }

    /// Whether the next request is lost.
    pub fn drops_request(&self) -> bool {
        false
    }

    /// Whether the next answer is lost.
    pub fn drops_answer(&self) -> bool {
        false
    }

    /// Nanoseconds that a message is held back.
    pub fn delay(&self) -> u64 {
        0
    }

    /// Time to wait so that changes are noticed.
    pub fn shorten(&self, wait: Option<u64>) -> Option<u64> {
        wait
    }
}
