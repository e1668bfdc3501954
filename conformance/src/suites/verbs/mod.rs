//! Regions over RDMA devices, and everything that happens to the way between them: the exporter is another process with
//! a device of its own, and the wire can be broken.
//!
//! The paging suites run over a device as well: `smc-conformance --link verbs`. What is here needs a wire of its own
//! ([`crate::rig::wire`]): two devices of the soft HCA, or of rxe in a guest.

pub mod ends;
pub mod manager;
pub mod memory;
pub mod setup;
pub mod underway;
pub mod weather;

use crate::rig::node::Child;
use crate::rig::wire::{self, Wire};
use crate::rig::{Home, Rig, net};
use crate::runner::{Ctx, Verdict};
use smc_engine::base::{PAGE, config::Backend};
use smc_engine::core::options::MapOptions;
use smc_engine::core::selftest;
use smc_engine::link::Link;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a case is given: an exporter in another process, and the wire to it.
pub struct Far<'a> {
    /// The case.
    pub ctx: &'a Ctx,
    /// What works best here.
    pub backend: Backend,
    /// The exporters; the first one's device is the wire's far end.
    pub exporters: Vec<Child>,
    /// The way to it.
    pub wire: Box<dyn Wire>,
}

/// Why the case stopped before its end.
pub type Stopped = Result<(), String>;

/// Runs `body` with so many exporters, or skips the case with the reason why there is no wire here, or why it cannot do what
/// the case asks of it: an `Err` of the body.
pub fn far(ctx: &mut Ctx, exporters: usize, body: fn(&Far) -> Stopped) -> Verdict {
    let wire = match wire::find(ctx.scratch()) {
        Ok(wire) => wire,
        Err(why) => return Verdict::Skip(why),
    };
    let [theirs, ours] = wire.devices();
    // A child's back end is that of its views; it has none.
    let exporters = (0..exporters).map(|_| Child::fork_on(Backend::Mprotect, Some(&theirs))).collect();
    // SAFETY: the process has one thread yet.
    unsafe { std::env::set_var("LIBSMC_DEVICE", &ours) };
    let (Some(backend), _) = selftest::choose() else { return Verdict::Skip("no back end works here".into()) };
    body(&Far { ctx, backend, exporters, wire }).map_or_else(Verdict::Skip, |()| Verdict::Pass)
}

impl Far<'_> {
    /// So many seconds, as this machine counts them.
    pub fn seconds(&self, n: u64) -> Duration {
        Duration::from_secs(n) * self.wire.patience()
    }

    /// A link to the first exporter.
    pub fn link(&self, port: u16) -> Arc<dyn Link> {
        net::connect(port)
    }

    /// Zeros in the first exporter.
    pub fn home(&self, pages: usize) -> Home {
        self.home_of(0, pages)
    }

    /// Zeros in one of the exporters.
    pub fn home_of(&self, exporter: usize, pages: usize) -> Home {
        self.exporters[exporter].export_far(pages * PAGE, |port| self.link(port))
    }

    /// A region over `home` with a view of all of it.
    pub fn rig(&self, home: Home, opts: MapOptions) -> Rig {
        Rig::new(self.backend, home, opts)
    }
}

/// Waits until `f` holds; never longer than `limit`.
pub fn within(limit: Duration, tag: &str, what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < limit, "{tag}: {what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("{what} after {:?}", start.elapsed());
}
