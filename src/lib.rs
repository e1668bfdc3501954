//! libsmc's engine. (Architecture text to come with the layers.)
#![warn(clippy::unwrap_used, clippy::expect_used)]

pub mod base;
pub mod sys;
pub mod link;
pub mod core;
pub mod policy;
pub mod capi;
