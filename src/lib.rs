//! libsmc's engine. (Architecture text to come with the layers.)
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod base;
pub mod capi;
pub mod core;
pub mod link;
pub mod policy;
pub mod sys;
