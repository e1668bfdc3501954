//! What the program brings of its own for an export: a port, and a protection domain.

use super::Export;
use crate::base::Result;
use crate::base::config::DeviceWish;
use crate::link::Access;
use crate::link::verbs::{Foreign, Table, choose};
use std::ffi::c_void;

/// OK when a device and port of this wish can be used now. `NOT_FOUND` with the reason, `NOT_SUPPORTED` without libibverbs. For threads
/// of the program.
pub fn can_bind(port: &DeviceWish) -> Result<()> {
    choose(port, None, Table::Program).map(drop)
}

/// Exported memory, registered in a domain of the program's: beside the domains that clients get, for the program's own queue pairs. For
/// threads of the program; to be dropped before the export.
pub struct Own {
    domain: usize,
    access: Access,
    registration: Option<Foreign>,
}

impl Own {
    /// Registers it. Errors: [`Foreign::register`].
    ///
    /// # Safety
    /// `domain` stays until this is dropped.
    pub unsafe fn new(export: &Export, domain: *mut c_void, access: Access) -> Result<Own> {
        let mut own = Own { domain: domain.expose_provenance(), access, registration: None };
        own.register(export)?;
        Ok(own)
    }

    /// `lkey` and `rkey`; `None` when it could not be registered again after it had moved.
    pub fn keys(&self) -> Option<(u32, u32)> {
        self.registration.as_ref().map(|r| (r.lkey, r.rkey))
    }

    /// Runs what may move the memory: the device lets go of it before, and gets it again afterwards, under other keys.
    pub fn moving(&mut self, export: &Export, f: impl FnOnce() -> Result<()>) -> Result<()> {
        self.registration = None;
        let done = f();
        done.and(self.register(export))
    }

    fn register(&mut self, export: &Export) -> Result<()> {
        let domain = std::ptr::with_exposed_provenance_mut(self.domain);
        // SAFETY: the caller of `new` keeps the domain. Exported memory stays where it is but in `moving`, which gives the registration up
        // before, and after the export, before which this is dropped.
        let made = unsafe { Foreign::register(domain, export.base(), export.len(), self.access) }?;
        self.registration = Some(made);
        Ok(())
    }
}
