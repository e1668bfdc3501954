//! Engine: regions, pages, faults, write-back. All state and all locks.

pub mod emulate;
pub mod engine;
pub mod options;
pub mod region;
