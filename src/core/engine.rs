//! Owner of everything in this process.

use super::options::{MapOptions, PeerName};
use super::region::Region;
use crate::base::config::Config;
use crate::base::{Error, Result, Status};
use std::sync::Arc;

/// The engine of this process. Made on first use; costs nothing before.
pub struct Engine {}

impl Engine {
    /// The process's engine, started with `config()` on the first call. Starts no thread: the first region does.
    pub fn get(_config: impl FnOnce() -> Config) -> Result<&'static Engine> {
        Err(Error::of(Status::NOT_SUPPORTED, "start the engine"))
    }

    /// The engine if it was started in this process; async-signal-safe.
    pub fn running() -> Option<&'static Engine> {
        None
    }

    /// Opens the region (peer, name); the same options share one region inside the process.
    pub fn open(&self, _peer: &PeerName, _name: &str, _opts: &MapOptions) -> Result<Arc<Region>> {
        Err(Error::of(Status::NOT_SUPPORTED, "open a region"))
    }

    /// The region with a view that holds `addr`, and the offset of `addr` in the region.
    pub fn find(&self, _addr: usize) -> Option<(Arc<Region>, u64)> {
        None
    }

    /// Releases what is dirty in every region: normal exit.
    pub fn release_all(&self) -> Status {
        Status::OK
    }
}
