//! A software HCA: `libibverbs.so.1` for programs that know nothing of it, without hardware, kernel driver or root.
//!
//! ```text
//! LD_LIBRARY_PATH=DIRECTORY ibv_devinfo        where DIRECTORY/libibverbs.so.1 is this library
//! ```

#![allow(dead_code)]
mod abi;
mod context;
mod device;
mod events;
mod fault;
mod raw;
