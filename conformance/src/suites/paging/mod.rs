//! The paging engine: one region, its home, its views.

pub mod basic;
pub mod counters;
pub mod errors;
pub mod limits;
pub mod threads;
pub mod views;
