//! Faults on demand.

/// Whether a device is there.
pub fn present(_device: u32) -> bool {
    true
}
