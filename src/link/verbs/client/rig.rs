//! The opened device of a link: its ports, its protection domain, and what is registered there.
//!
//! One thread ("smc-device") that lives in the program's descriptor table opens the device and registers memory, so that the
//! device's descriptors are where the program's threads, which post, have theirs. It starts with the link's first open. When the device
//! has gone, everything that was made of it is dropped; it is opened again, perhaps another one, when somebody asks.

use super::super::{Choice, Domain, Registered, Rights, Table, choose};
use super::memory::{Bounce, Known};
use crate::base::config::DeviceWish;
use crate::base::stats::LinkStats;
use crate::base::{Error, Result, Status};
use crate::sys::channel::{Sender, channel};
use crate::sys::thread::{self, Started};
use crate::sys::{mem, process};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pieces of the bounce buffer: 4 MiB in all, or what may be pinned of it; two pages in the end, so that with 64 KiB a few peers
/// can be reached. Multiples of a word.
const CHUNKS: [usize; 5] = [64 << 10, 8 << 10, 4 << 10, 512, 64];
/// Longest wait for the thread: registering a terabyte takes minutes.
const PATIENCE: Duration = Duration::from_secs(600);

type Job = Box<dyn FnOnce() + Send>;

/// The thread in the program's descriptor table.
#[derive(Debug)]
struct Station {
    jobs: Sender<Job>,
    thread: Started,
}

/// One opening of the device. Whoever drops it last, it is closed by the station: it has descriptors in the program's table, and in
/// the table of another thread their numbers are somebody else's.
pub(super) struct Rig {
    pub choice: ManuallyDrop<Choice>,
    pub domain: ManuallyDrop<Arc<Domain>>,
    jobs: Sender<Job>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        // SAFETY: nobody looks at it after this.
        let choice = unsafe { ManuallyDrop::take(&mut self.choice) };
        // SAFETY: as above.
        let domain = unsafe { ManuallyDrop::take(&mut self.domain) };
        let _ = self.jobs.send(Box::new(move || drop((domain, choice))));
    }
}

/// A stretch that users want registered.
struct Stretch {
    base: usize,
    len: usize,
    entry: usize,
    registered: Option<Registered>,
    is_bounce: bool,
}

#[derive(Default)]
struct State {
    rig: Option<Arc<Rig>>,
    stretches: BTreeMap<u64, Stretch>,
    last: u64,
}

/// What all regions of a link share: the device, its registered memory, the counters.
pub(super) struct Rigs {
    pub stats: LinkStats,
    wish: DeviceWish,
    /// Says on stderr what was chosen and why.
    loud: bool,
    station: Mutex<Option<Station>>,
    /// Held while something is registered.
    state: Mutex<State>,
    pub known: Known,
    bounce: Mutex<Option<Arc<Bounce>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rigs {
    pub fn new(wish: DeviceWish, loud: bool) -> Arc<Rigs> {
        let (station, state, bounce) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Rigs { stats: LinkStats::new(), wish, loud, station, state, known: Known::new(), bounce })
    }

    /// Starts the thread, which gets the descriptor table of the caller: to be called by the program's threads.
    pub fn start(&self) -> Result<()> {
        let mut station = lock(&self.station);
        if station.is_none() {
            let (jobs, todo) = channel::<Job>();
            let thread = thread::start("smc-device", move || todo.until_the_end().for_each(|job| job()))
                .map_err(|e| Error::new(Status::NO_RESOURCES, "use RDMA", format!("cannot start a thread: {e}")))?;
            *station = Some(Station { jobs, thread });
        }
        Ok(())
    }

    fn is_started(&self) -> bool {
        lock(&self.station).is_some()
    }

    /// Runs `job` on the thread.
    fn on_station<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Result<R> {
        let gone = || Error::new(Status::INTERNAL, "use RDMA", "the thread of the device has ended");
        let (tx, answer) = channel();
        let job = Box::new(move || _ = tx.send(job()));
        lock(&self.station).as_ref().ok_or_else(gone)?.jobs.send(job).map_err(|_| gone())?;
        answer.wait(PATIENCE).ok_or_else(gone)
    }

    /// The opened device; opens it when there is none, near the address `local` of this host.
    pub fn get(self: &Arc<Rigs>, local: Option<IpAddr>) -> Result<Arc<Rig>> {
        let me = self.clone();
        self.on_station(move || me.open(local))?
    }

    fn open(&self, local: Option<IpAddr>) -> Result<Arc<Rig>> {
        let mut state = lock(&self.state);
        if let Some(rig) = &state.rig {
            return Ok(rig.clone());
        }
        let choice = choose(&self.wish, local, Table::Program)?;
        if self.loud {
            process::say(&format!("RDMA device {}", choice.reason));
        }
        let domain = Domain::new(&choice.device)?;
        self.make_bounce(&mut state, &domain)?;
        // Not the bounce buffer that was made just now: twice it may be more than may be pinned.
        for s in state.stretches.values_mut().filter(|s| s.registered.is_none()) {
            let registered = s.register(&domain, &self.known);
            // What cannot be registered (now) goes through the bounce buffer; without that nothing goes at all. It is the first.
            if s.is_bounce {
                registered?;
            }
        }
        let gone = || Error::new(Status::INTERNAL, "use RDMA", "the thread of the device has ended");
        let jobs = lock(&self.station).as_ref().ok_or_else(gone)?.jobs.clone();
        let (choice, domain) = (ManuallyDrop::new(choice), ManuallyDrop::new(domain));
        let rig = Arc::new(Rig { choice, domain, jobs });
        state.rig = Some(rig.clone());
        Ok(rig)
    }

    /// The bounce buffer, as large as may be pinned; the first of all registrations.
    fn make_bounce(&self, state: &mut State, domain: &Arc<Domain>) -> Result<()> {
        if lock(&self.bounce).is_some() {
            return Ok(());
        }
        let mut last = Ok(());
        for chunk in CHUNKS {
            let bounce = Bounce::new(chunk)?;
            let (ptr, len) = bounce.range();
            // SAFETY: the buffer lives as long as the link, which drops its registrations first.
            match unsafe { domain.register(ptr, len, Rights::Local) } {
                Ok(r) => {
                    let full = || Error::of(Status::NO_RESOURCES, "register memory");
                    let entry = self.known.add(ptr as usize, len).ok_or_else(full)?;
                    self.known.set(entry, Some(r.lkey));
                    state.last += 1;
                    let s = Stretch { base: ptr as usize, len, entry, registered: Some(r), is_bounce: true };
                    state.stretches.insert(state.last, s);
                    *lock(&self.bounce) = Some(Arc::new(bounce));
                    if self.loud && chunk != CHUNKS[0] {
                        let cause = mem::lock_limit_words();
                        process::say(&format!("only {len} bytes could be pinned for a bounce buffer; {cause}"));
                    }
                    return Ok(());
                }
                Err(e) => last = Err(e),
            }
        }
        last
    }

    /// The buffer for what is not registered; there is one once the device was opened.
    pub fn bounce(&self) -> Option<Arc<Bounce>> {
        lock(&self.bounce).clone()
    }

    /// The device has gone, as far as its user `rig` could see: the next [`Rigs::get`] opens it anew.
    pub fn retire(self: &Arc<Rigs>, rig: &Arc<Rig>) {
        let (me, rig) = (self.clone(), rig.clone());
        let _ = self.on_station(move || me.close(&rig));
    }

    fn close(&self, rig: &Arc<Rig>) {
        let mut state = lock(&self.state);
        if state.rig.as_ref().is_some_and(|r| Arc::ptr_eq(r, rig)) {
            for s in state.stretches.values_mut() {
                self.known.set(s.entry, None);
                s.registered = None;
            }
            state.rig = None;
        }
    }

    /// Registers memory with the device as long as it is open, now and whenever it is opened again. Answers what
    /// [`Rigs::deregister`] takes. `NO_RESOURCES`: the device refuses it, or too much is registered; nothing is noted.
    ///
    /// # Safety
    /// It stays mapped until [`Rigs::deregister`].
    pub unsafe fn register(self: &Arc<Rigs>, ptr: *mut u8, len: usize) -> std::result::Result<u64, Status> {
        let (me, base) = (self.clone(), ptr as usize);
        let noted = if self.is_started() {
            self.on_station(move || me.note(base, len)).map_err(|e| e.status)?
        } else {
            self.note(base, len)
        };
        noted.ok_or(Status::NO_RESOURCES)
    }

    fn note(&self, base: usize, len: usize) -> Option<u64> {
        let mut state = lock(&self.state);
        let entry = self.known.add(base, len)?;
        let mut s = Stretch { base, len, entry, registered: None, is_bounce: false };
        let rig = state.rig.clone();
        if rig.as_ref().is_some_and(|rig| s.register(&rig.domain, &self.known).is_err()) {
            self.known.remove(entry);
            return None;
        }
        state.last += 1;
        let id = state.last;
        state.stretches.insert(id, s);
        Some(id)
    }

    /// Takes a registration back: the device does not touch the memory any more.
    pub fn deregister(self: &Arc<Rigs>, id: u64) {
        let me = self.clone();
        if self.is_started() {
            let _ = self.on_station(move || me.forget(id));
        } else {
            self.forget(id);
        }
    }

    fn forget(&self, id: u64) {
        if let Some(s) = lock(&self.state).stretches.remove(&id) {
            // Off the list last: its place may be another's then.
            self.known.set(s.entry, None);
            drop(s.registered);
            self.known.remove(s.entry);
        }
    }

    /// The link has gone, and every session with it: closes the device and ends the thread.
    pub fn end(self: &Arc<Rigs>) {
        let me = self.clone();
        let _ = self.on_station(move || *lock(&me.state) = State::default());
        let station = lock(&self.station).take();
        if let Some(Station { jobs, thread }) = station {
            drop(jobs);
            thread.join();
        }
    }
}

impl Stretch {
    /// Makes it known to the device. Errors: [`Domain::register`]; the device does not know it then.
    fn register(&mut self, domain: &Arc<Domain>, known: &Known) -> Result<()> {
        // SAFETY: who had it noted keeps it mapped until it is taken back.
        let made = unsafe { domain.register(self.base as *mut u8, self.len, Rights::Local) };
        let (registered, result) = match made {
            Ok(r) => (Some(r), Ok(())),
            Err(e) => (None, Err(e)),
        };
        self.registered = registered;
        known.set(self.entry, self.registered.as_ref().map(|r| r.lkey));
        result
    }
}
