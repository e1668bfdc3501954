//! Registered memory for the raw requests of these tests.

use smc_engine::base::Result;
use smc_engine::link::verbs::{Domain, Registered, Rights};
use smc_engine::sys::mem::{Mapping, RW};
use std::sync::Arc;

/// Zeros, registered as a whole.
#[derive(Debug)]
pub struct Pool {
    // Before the memory: fields are dropped in this order.
    registered: Registered,
    memory: Mapping,
}

impl Pool {
    pub fn new(domain: &Arc<Domain>, len: usize) -> Result<Pool> {
        let memory = Mapping::anonymous(len, RW).expect("memory");
        // SAFETY: the memory lives as long as the registration, and is nobody else's.
        let registered = unsafe { domain.register(memory.ptr(), len, Rights::Local) }?;
        Ok(Pool { registered, memory })
    }

    pub fn ptr(&self) -> *mut u8 {
        self.memory.ptr()
    }

    pub fn lkey(&self) -> u32 {
        self.registered.lkey
    }
}
