//! A software HCA: `libibverbs.so.1` for programs that know nothing of it, without hardware, kernel driver or root.
//!
//! ```text
//! LD_LIBRARY_PATH=DIRECTORY ibv_devinfo        where DIRECTORY/libibverbs.so.1 is this library
//! ```

mod abi;
mod context;
mod cq;
mod device;
mod engine;
mod events;
mod fault;
mod keys;
mod link;
mod memory;
mod model;
mod modify;
mod post;
mod qp;
mod raw;
mod ring;
mod wire;
mod wqe;
