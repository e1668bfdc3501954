//! The C API: `extern "C"` functions over the engine. The header is made from this module and from nothing else; the
//! modules appear in it in the order in which they are named here.
//!
//! Each function checks its arguments, calls the engine and turns the outcome into a code plus a text (`call`). What C
//! holds are handles, not pointers (`handle`): a stale one is refused, not followed. Nothing here panics: the library is
//! built so that a panic ends the process.
#![allow(non_camel_case_types)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod clients;
pub mod context;
pub mod coverage;
pub mod data;
pub mod error;
pub mod export;
pub mod failure;
pub mod home;
pub mod listen;
pub mod map;
pub mod peer;
pub mod register;
pub mod state;
pub mod types;
pub mod version;

mod attr;
mod call;
mod handle;
