//! Owner of everything in this process: settings, the chosen back end, the links and the open regions.

use super::coverage;
use super::options::{MapOptions, PeerName};
use super::region::{Parts, Region};
use super::selftest::{self, Trial};
use super::views;
use crate::base::config::{Backend, Config, LogLevel};
use crate::base::{Error, Result, Status};
use crate::link::Link;
use crate::link::failover::{Failover, Path};
use crate::sys::clock::Deadline;
use crate::sys::mem;
use crate::sys::process;
use crate::sys::sync::SignalsBlocked;
use crate::sys::thread::ForkMark;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// The engine of this process. Costs nothing before its first use, and starts no thread: the first region does.
pub struct Engine {
    config: Config,
    /// Process that made it: a fork child has no threads of ours and must not act.
    owner: ForkMark,
    choice: OnceLock<Choice>,
    links: Mutex<Vec<(PeerName, Arc<dyn Link>)>>,
    regions: Mutex<Vec<Entry>>,
}

/// The back end in use and how it was found.
#[derive(Clone, Debug)]
pub struct Choice {
    /// In use; `None` when nothing works.
    pub backend: Option<Backend>,
    /// Forced by `LIBSMC_FAULT`.
    pub forced: bool,
    /// What was tried, in order.
    pub trials: Vec<Trial>,
}

impl Choice {
    /// Why it was chosen, in words, and why others were not.
    pub fn reason(&self) -> String {
        let failed = |t: &Trial| Some(format!("{}: {}", t.backend.name(), t.outcome.as_ref().err()?));
        let how = if self.forced { "asked for" } else { "chosen by the self-test" };
        let head = if self.backend.is_some() { how } else { "no back end works" };
        std::iter::once(head.to_owned()).chain(self.trials.iter().filter_map(failed)).collect::<Vec<_>>().join("; ")
    }
}

struct Entry {
    /// What it was opened as.
    shared_as: (PeerName, String, MapOptions),
    region: Weak<Region>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What opening a region may take of the heap.
const ROOM: usize = 4 << 20;

/// An error where memory is nearly used up (RLIMIT_AS, RLIMIT_DATA): the allocator would end the process later on.
fn room() -> Result<()> {
    mem::Mapping::anonymous(ROOM, mem::RW).map(drop).map_err(|e| {
        let why = format!("less than {} MiB of memory can be had: {e}", ROOM >> 20);
        Error::new(Status::NO_RESOURCES, "open a region", why).remedy("raise `ulimit -v`")
    })
}

impl Engine {
    /// The process's engine, with the settings of the first call.
    pub fn get(config: impl FnOnce() -> Config) -> Result<&'static Engine> {
        let engine = ENGINE.get_or_init(|| Engine {
            config: config(),
            owner: ForkMark::new(),
            choice: OnceLock::new(),
            links: Mutex::default(),
            regions: Mutex::default(),
        });
        if !engine.owner.in_child() {
            Ok(engine)
        } else {
            Err(Error::of(Status::FORKED, "use libsmc in a fork child")
                .remedy("exec, or map regions in the child before any use"))
        }
    }

    /// The engine if it was started in this very process.
    pub fn running() -> Option<&'static Engine> {
        ENGINE.get().filter(|e| !e.owner.in_child())
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The back end in use and why; tries them on the first call.
    pub fn choice(&self) -> &Choice {
        self.choice.get_or_init(|| {
            let (backend, trials) = match self.config.backend {
                Some(b) => {
                    let t = selftest::try_backend(b);
                    (t.outcome.is_ok().then_some(b), vec![t])
                }
                None => selftest::choose(),
            };
            for t in &trials {
                let found = t.outcome.as_ref().err().map_or("works", String::as_str);
                self.info(|| format!("back end {}: {found}", t.backend.name()));
            }
            Choice { backend, forced: self.config.backend.is_some(), trials }
        })
    }

    fn backend(&self) -> Result<Backend> {
        let c = self.choice();
        c.backend.ok_or_else(|| {
            let tried = |t: &Trial| {
                format!("{}: {}", t.backend.name(), t.outcome.as_ref().err().map_or("works", String::as_str))
            };
            let why = c.trials.iter().map(tried).collect::<Vec<_>>().join("; ");
            Error::new(Status::NO_BACKEND, "choose a fault back end", why).remedy("run `smc doctor`")
        })
    }

    /// The link to a peer; made on first use and kept.
    pub fn link(&self, peer: &PeerName) -> Result<Arc<dyn Link>> {
        let mut links = lock(&self.links);
        if let Some((_, l)) = links.iter().find(|(p, _)| p == peer) {
            return Ok(l.clone());
        }
        let link = crate::link::connect(peer_address(peer), &self.config)?;
        links.push((peer.clone(), link.clone()));
        Ok(link)
    }

    /// Opens the region (peer, name). The same options share one region inside the process; other options make another
    /// one with pages of its own.
    pub fn open(&self, peer: &PeerName, name: &str, opts: &MapOptions) -> Result<Arc<Region>> {
        room()?;
        let opts = self.complete(opts);
        let shared_as = (peer.clone(), name.to_string(), opts.clone());
        let mut regions = lock(&self.regions);
        regions.retain(|e| e.region.strong_count() > 0);
        if let Some(r) = regions.iter().find(|e| e.shared_as == shared_as).and_then(|e| e.region.upgrade()) {
            return Ok(r);
        }
        let region = self.make(self.paths(peer, &opts)?, name, opts)?;
        regions.push(Entry { shared_as, region: Arc::downgrade(&region) });
        Ok(region)
    }

    /// The link to the peer, or both paths where the options name a second.
    fn paths(&self, peer: &PeerName, opts: &MapOptions) -> Result<Arc<dyn Link>> {
        let first = self.link(peer)?;
        let Some(second) = &opts.second else { return Ok(first) };
        let other = Path { link: self.link(&second.peer)?, name: Some(second.name.clone()) };
        Ok(Arc::new(Failover::new(Path { link: first, name: None }, other)))
    }

    fn make(&self, link: Arc<dyn Link>, name: &str, opts: MapOptions) -> Result<Arc<Region>> {
        let backend = self.backend()?;
        coverage::test();
        let opened = link.open(name, opts.access, Deadline::in_ms(opts.wait_ms))?;
        let key = opened.key;
        let policy = opts.policy;
        let region =
            Region::new(Parts { link: link.clone(), opened, opts, backend }).inspect_err(|_| link.close(key))?;
        self.info(|| {
            let (bytes, backend, paged) = (region.len(), region.backend().name(), region.local_limit().is_some());
            let kept = if paged { "paged" } else { "resident whole" };
            format!(
                "region \"{name}\" of {bytes} bytes over {}: back end {backend}, policy {policy:?}, {kept}",
                link.name()
            )
        });
        Ok(region)
    }

    /// A decision, for who asked to be told (`LIBSMC_LOG=info`).
    fn info(&self, text: impl FnOnce() -> String) {
        if self.config.log >= LogLevel::Info {
            process::say(&text());
        }
    }

    /// True when the engine runs and was told to say things of this level.
    pub fn speaks(level: LogLevel) -> bool {
        Engine::running().is_some_and(|e| e.config.log >= level)
    }

    /// Fills in what the caller left to us.
    fn complete(&self, opts: &MapOptions) -> MapOptions {
        let mut o = opts.clone();
        if o.wait_ms == 0 {
            o.wait_ms = self.config.wait_ms;
        }
        if o.resident_limit == 0 {
            o.resident_limit = self.config.resident_limit;
        }
        if o.resident_limit == 0 {
            o.resident_limit = self.default_limit();
        }
        o
    }

    /// Half of what is available when it is first asked: the same answer for the life of the process, so that the same
    /// options stay the same region.
    fn default_limit(&self) -> u64 {
        static LIMIT: OnceLock<u64> = OnceLock::new();
        *LIMIT.get_or_init(|| process::mem_available() / 2)
    }

    /// The region with a view that holds `addr`, and the offset of `addr` in the region.
    pub fn find(&self, addr: usize) -> Option<(Arc<Region>, u64)> {
        let wanted = {
            let _signals = SignalsBlocked::new();
            let view = views::lookup(addr)?;
            let off = (view.page_at(addr) * crate::base::PAGE + addr % crate::base::PAGE) as u64;
            (std::ptr::from_ref(view.region()), off)
        };
        let found = self.regions().into_iter().find(|r| std::ptr::eq(Arc::as_ptr(r), wanted.0))?;
        Some((found, wanted.1))
    }

    /// Every region that is open now.
    pub fn regions(&self) -> Vec<Arc<Region>> {
        lock(&self.regions).iter().filter_map(|e| e.region.upgrade()).collect()
    }

    /// Releases what is dirty in every region: normal exit. What cannot be delivered is named on stderr. Answers the
    /// first failure.
    pub fn release_all(&self) -> Status {
        let mut worst = Status::OK;
        for r in self.regions() {
            let s = r.release(0, 0);
            if !s.is_ok() {
                r.say_lost(s);
            }
            worst = worst.and(s);
        }
        worst
    }
}

fn peer_address(peer: &PeerName) -> Option<(&str, u16)> {
    match peer {
        PeerName::Local => None,
        PeerName::Net { host, port } => Some((host, *port)),
    }
}
