//! Leaf of the house: plain types that every layer may use and that know nobody.

pub mod active;
pub mod addr;
pub mod config;
pub mod error;
pub mod free;
pub mod stats;
pub mod status;

pub use addr::{HomeOff, PAGE, PAGE_SHIFT, PageIdx};
pub use error::{Error, Result};
pub use status::Status;
