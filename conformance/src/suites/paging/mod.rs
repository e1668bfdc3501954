//! The paging engine: one region, its home, its views.

pub mod basic;
pub mod counters;
pub mod errors;
pub mod exact;
pub mod failover;
pub mod failure;
pub mod first_writes;
pub mod limits;
pub mod registration;
pub mod storms;
pub mod threads;
pub mod views;
