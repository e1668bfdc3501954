//! An open device.

use crate::device::{self, Plan};
use crate::dma::Ring;
use crate::engine::Engine;
use crate::events::{EventQueue, lock};
use crate::fault::Faults;
use crate::keys::Keys;
use crate::link::{self, MAX_NUMBER, Place, QPN_BITS};
use crate::model::Model;
use crate::qp::{Event, Qp};
use crate::raw::{self, Fd};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

/// An open device of this process.
pub struct Context {
    /// Its place on the host.
    pub place: Place,
    /// Asynchronous events that the program has not taken yet.
    pub events: Arc<EventQueue<Event>>,
    /// Memory keys.
    pub keys: Keys,
    /// What operations are declared to cost.
    pub model: Model,
    /// Faults in force.
    pub faults: Faults,
    /// Protection domains made so far.
    pub domains: AtomicU32,
    qps: RwLock<HashMap<u32, Arc<Qp>>>,
    last_qpn: AtomicU32,
    /// Queue pairs with something new to send.
    work: Mutex<Vec<u32>>,
    engine: Mutex<Engine>,
    bell: Fd,
    /// Where the program's context has its number of the bell.
    doorbell: AtomicPtr<i32>,
    /// The engine's thread.
    tid: AtomicU32,
    asleep: AtomicBool,
    /// Until when the engine's thread sleeps, if nothing wakes it.
    until: AtomicU64,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held so that it need not be made for every registration.
    _ring: Option<Arc<Ring>>,
}

impl Context {
    /// Opens a device and starts its engine.
    pub fn open(device: u32) -> Result<Arc<Context>, i32> {
        let (place, listener) = claim(device)?;
        let bell = raw::bell()?;
        let engine = Engine::new(place, listener, &bell)?;
        let context = Arc::new(Context {
            place,
            events: Arc::new(EventQueue::new()?),
            keys: Keys::default(),
            model: Model::of_host(),
            faults: Faults::new(place),
            domains: AtomicU32::new(0),
            qps: RwLock::default(),
            last_qpn: AtomicU32::new(0),
            work: Mutex::default(),
            engine: Mutex::new(engine),
            bell,
            doorbell: AtomicPtr::default(),
            tid: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            until: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            thread: Mutex::new(None),
            _ring: Ring::of_process().ok(),
        });
        let own = context.clone();
        context.faults.refresh(&context, true);
        if context.faults.removed() {
            return Err(libc::ENODEV);
        }
        let thread = without_signals(|| std::thread::Builder::new().name("softhca".into()).spawn(move || own.run()));
        *lock(&context.thread) = Some(thread.map_err(|e| e.raw_os_error().unwrap_or(libc::ENOMEM))?);
        Ok(context)
    }

    /// Ends the engine. Queue pairs that the program has left are gone with it.
    pub fn close(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.ring();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        self.qps.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Whether a port has a link; `EINVAL` when there is no such port.
    pub fn port(&self, port: u32) -> Result<bool, i32> {
        if !(1..=Plan::of_host().ports).contains(&port) {
            return Err(libc::EINVAL);
        }
        self.faults.refresh(self, true);
        Ok(self.faults.port_is_up(port))
    }

    /// When a message of `bytes` that is sent now may be looked at; 0 is at once. `free` is as for [`Model::due`].
    pub fn due(&self, bytes: usize, free: &mut u64) -> u64 {
        let now = raw::now();
        let due = self.model.due(bytes, now, free);
        match self.faults.delay() {
            0 => due,
            delay => due.max(now) + delay,
        }
    }

    /// GID of a port, that requests carry.
    pub fn gid(&self, port: u32, index: usize) -> [u8; 16] {
        device::gid(self.place.device, port.max(1), index).unwrap_or_default()
    }

    /// A free queue pair number; `ENOMEM` when there is none.
    pub fn free_qpn(&self) -> Result<u32, i32> {
        let qps = self.qps.read().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..1u32 << QPN_BITS {
            let low = self.last_qpn.fetch_add(1, Ordering::Relaxed) % (1 << QPN_BITS);
            let number = self.place.number << QPN_BITS | low;
            if low != 0 && !qps.contains_key(&number) {
                return Ok(number);
            }
        }
        Err(libc::ENOMEM)
    }

    /// Makes a queue pair known.
    pub fn add_qp(&self, qp: Arc<Qp>) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).insert(qp.number, qp);
    }

    /// Forgets a queue pair.
    pub fn remove_qp(&self, number: u32) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// A queue pair.
    pub fn qp(&self, number: u32) -> Option<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// All of them.
    pub fn all_qps(&self) -> Vec<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A queue pair has something to send.
    pub fn kick(&self, number: u32) {
        lock(&self.work).push(number);
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.ring();
        }
    }

    /// The bell's number.
    pub fn bell(&self) -> i32 {
        self.bell.raw()
    }

    /// Says where the program's context has its number of the bell.
    pub fn set_doorbell(&self, at: *mut i32) {
        self.doorbell.store(at, Ordering::SeqCst);
    }

    /// True when the calling thread has a descriptor table of its own, where our numbers mean something else. Such a thread can do no
    /// work of the engine, and rings by the number in the program's context, which it must have brought there, as some real
    /// drivers want it.
    fn is_foreign(&self) -> bool {
        thread_local! {
            static ASKED: Cell<(u32, bool)> = const { Cell::new((0, false)) };
        }
        let engine = self.tid.load(Ordering::Relaxed);
        let (of, foreign) = ASKED.get();
        if engine == 0 || of == engine {
            return engine != 0 && foreign;
        }
        let foreign = !raw::share_descriptors(engine, raw::thread());
        ASKED.set((engine, foreign));
        foreign
    }

    fn ring(&self) {
        let program = self.doorbell.load(Ordering::SeqCst);
        if program.is_null() || !self.is_foreign() {
            return raw::ring(&self.bell);
        }
        // SAFETY: a field of the program's context, which lives until it closes the device; it changes it before other threads post.
        raw::ring_number(unsafe { program.read() });
    }

    /// Takes the list of queue pairs with something to send.
    pub fn take_work(&self, to: &mut Vec<u32>) {
        to.append(&mut lock(&self.work));
    }

    /// Lets the calling thread, which waits for completions anyway, do what there is to do.
    pub fn progress(&self) {
        if self.is_foreign() {
            return;
        }
        self.faults.refresh(self, false);
        let Ok(mut engine) = self.engine.try_lock() else { return };
        let (_, due) = engine.step(self);
        // The thread's own step was before: it must learn of a time that it does not know. The lock is still held, so
        // it is either asleep, or will step again before it is.
        if self.asleep.load(Ordering::Relaxed) && due.is_some_and(|at| at < self.until.load(Ordering::Relaxed)) {
            self.asleep.store(false, Ordering::Relaxed);
            self.ring();
        }
    }

    /// Waits until the engine is done with what it has looked up before: memory that was taken away is not touched
    /// any more.
    pub fn settle(&self) {
        drop(lock(&self.engine));
    }

    /// The engine's thread.
    fn run(&self) {
        let mut tokens = Vec::new();
        self.tid.store(raw::thread(), Ordering::Relaxed);
        raw::run_promptly();
        while !self.stop.load(Ordering::SeqCst) {
            self.faults.refresh(self, false);
            let mut engine = lock(&self.engine);
            let (busy, due) = engine.step(self);
            if busy {
                continue;
            }
            // From here to the sleep nothing may come in unseen: who adds something after the look sees us asleep.
            self.asleep.store(true, Ordering::Relaxed);
            engine.sleep(true);
            fence(Ordering::SeqCst);
            let due = due.into_iter().chain(engine.next_input()).min();
            let now = due.is_some_and(|at| at <= raw::now());
            if now || !lock(&self.work).is_empty() || self.stop.load(Ordering::SeqCst) {
                self.asleep.store(false, Ordering::Relaxed);
                engine.sleep(false);
                continue;
            }
            self.until.store(due.unwrap_or(u64::MAX), Ordering::Relaxed);
            let epoll = engine.epoll();
            drop(engine);
            let wait = due.map(|at| at.saturating_sub(raw::now()));
            let wait = self.faults.shorten(wait);
            raw::epoll_wait(&epoll, wait, &mut tokens);
            self.asleep.store(false, Ordering::Relaxed);
            let _ = raw::read(self.bell.raw(), &mut [0; 8]);
            let mut engine = lock(&self.engine);
            engine.sleep(false);
            engine.wake(self, &tokens);
        }
    }
}

/// Claims a free number for an opening of a device. Where the search begins differs from process to process, so that the
/// number of one that has just died is not soon another's.
fn claim(device: u32) -> Result<(Place, Fd), i32> {
    let start = (raw::now() >> 10) as u32 ^ std::process::id().wrapping_mul(0x9e37_79b9);
    for n in 0..MAX_NUMBER {
        let place = Place { device, number: start.wrapping_add(n) % MAX_NUMBER + 1 };
        match link::listen(place) {
            Err(libc::EADDRINUSE) => {}
            got => return got.map(|fd| (place, fd)),
        }
    }
    Err(libc::EMFILE)
}

/// Runs something with all signals blocked, for a thread that is to inherit that.
fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let (all, mut old) = (u64::MAX, 0u64);
    let (set, was) = (&raw const all as usize, &raw mut old as usize);
    // SAFETY: both sets have the 8 bytes that the kernel's signal sets have.
    let _ = unsafe { raw::call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, set, was, 8, 0, 0]) };
    let result = f();
    // SAFETY: as above; the old set is put back.
    let _ = unsafe { raw::call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, was, 0, 8, 0, 0]) };
    result
}
