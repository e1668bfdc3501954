//! Engine: regions, pages, faults, write-back. All state and all locks.

pub mod engine;
pub mod export;
pub mod options;
pub mod region;
