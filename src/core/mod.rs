//! Engine: regions, pages, faults, write-back. All state and all locks.

pub mod acquire;
pub mod board;
pub mod condition;
pub mod detector;
pub mod emulate;
pub mod engine;
pub mod exact;
pub mod export;
pub mod fault;
pub mod handler;
pub mod harvest;
pub mod home;
pub mod hooks;
pub mod keeper;
pub mod losses;
pub mod mapping;
pub mod options;
pub mod pages;
pub mod poison;
pub mod region;
pub mod selftest;
pub mod tracker;
pub mod transfer;
pub mod unsent;
pub mod views;
pub mod writeback;
