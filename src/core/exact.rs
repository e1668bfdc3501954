//! Exact write-through: a store instruction returns when its bytes are at the home.
//!
//! Pages of such a region are shown write-protected for ever. A store faults in the storing thread; the handler decodes
//! it, performs it on A and at the home, and steps over it. A store that is not in the emulator's tables is
//! single-stepped with its page open, and what it changed is sent by the trap that follows.
//!
//! The twin is the book: a byte of T equals the byte of A exactly when the home has it. A store that could not be
//! delivered (after the region's wait) is done locally, its twin bytes are made different, and the page is dirty: the
//! next release sends it. Failure shows in the region's status, as everywhere.

use super::emulate::{self, Memory, Outcome};
use super::fault::Served;
use super::options::Through;
use super::pages::{Event, State};
use super::region::Region;
use super::views::{self, View};
use crate::base::addr::{PAGE, PageRange};
use crate::base::{HomeOff, Status};
use crate::sys::clock::{Deadline, nap};
use crate::sys::sigframe::Frame;
use crate::sys::sync::SignalsBlocked;
use crate::sys::{process, signal};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};

/// Trap flag: one instruction, then SIGTRAP.
const TF: u64 = 1 << 8;
/// Threads that may be in a single step at once; more wait.
const STEPPERS: usize = 64;

/// A thread in a single step and the pages opened for it (an operand can straddle two).
struct Stepper {
    tid: AtomicU32,
    /// The program has SIGTRAP blocked: it is open for the step only, for a trap while it is blocked ends the process.
    blocked: AtomicBool,
    opened: [AtomicUsize; 2],
}

static STEPPING: [Stepper; STEPPERS] = [const {
    Stepper { tid: AtomicU32::new(0), blocked: AtomicBool::new(false), opened: [const { AtomicUsize::new(0) }; 2] }
}; STEPPERS];

/// What must happen before the first exact region: decoder tables are built here, because building them allocates.
pub fn prepare() -> Result<(), crate::sys::Errno> {
    emulate::warm_up();
    super::handler::install_signal(signal::SIGTRAP)
}

/// The region's memory as the emulator sees it.
struct ExactMemory<'a> {
    region: &'a Region,
    deadline: Deadline,
}

impl Memory for ExactMemory<'_> {
    fn read(&mut self, addr: usize, out: &mut [u8]) -> bool {
        let mut done = 0;
        while done < out.len() {
            let at = addr.wrapping_add(done);
            let n = (PAGE - at % PAGE).min(out.len() - done);
            let Some(piece) = out.get_mut(done..done + n) else { return false };
            let had = match views::lookup(at) {
                Some(view) => read_view(&view, at, piece, self.deadline),
                None => process::read_own(at, piece),
            };
            if !had {
                return false;
            }
            done += n;
        }
        true
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> bool {
        let Some(view) = views::lookup(addr) else { return false };
        let page = view.page_at(addr);
        self.region.store_through(page, addr % PAGE, bytes, self.deadline)
    }

    fn owns(&self, addr: usize, len: usize) -> bool {
        let Some(last) = addr.checked_add(len.saturating_sub(1)) else { return false };
        let ours = |a: usize| views::lookup(a).is_some_and(|v| std::ptr::eq(v.region(), self.region));
        ours(addr) && ours(last)
    }

    fn chunk(&self, addr: usize) -> usize {
        PAGE - addr % PAGE
    }
}

/// Bytes of a page of any region, brought if need be.
fn read_view(view: &View, addr: usize, out: &mut [u8], deadline: Deadline) -> bool {
    let (region, page) = (view.region(), view.page_at(addr));
    if region.ensure(page, deadline).is_err() || region.pages.lock(page, deadline).is_err() {
        return false;
    }
    let src = region.a_page(page).wrapping_add(addr % PAGE);
    // SAFETY: the piece lies inside one page of A (the caller cut it there), and the page is locked.
    unsafe { std::ptr::copy_nonoverlapping(src, out.as_mut_ptr(), out.len()) };
    let _ = region.pages.apply(page, Event::Unlock);
    true
}

impl Region {
    /// True when the handler must perform this region's stores.
    pub(super) fn is_exact(&self) -> bool {
        self.opts.through == Through::Exact
    }

    /// A store faulted at `page`: perform it. `ctx` is the interrupted thread.
    pub(super) fn serve_store(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        page: usize,
        ctx: *mut signal::Context,
    ) -> Served {
        let deadline = self.deadline();
        if !self.is_resident(page) && self.serve(signals, view, page, false) == Served::Bus {
            return Served::Bus;
        }
        // SAFETY: the handler was given this context by the kernel, and nothing else uses it meanwhile.
        let mut frame = unsafe { Frame::new(ctx.cast()) };
        let outcome = {
            // Read-modify-write is a read and a store: no other emulated store may come between.
            let _serial = self.exact.lock(signals);
            emulate::emulate(&mut frame, &mut ExactMemory { region: self, deadline })
        };
        match outcome {
            Outcome::Done | Outcome::Partial => {
                self.stats.stores_emulated.hit();
                Served::Retry
            }
            Outcome::Step(_) => {
                let served = self.begin_step(signals, view, page, &mut frame, deadline);
                if served == Served::Retry {
                    open_trap(ctx);
                }
                served
            }
        }
    }

    /// `bytes` at `within` of `page`, in A and at the home.
    fn store_through(&self, page: usize, within: usize, bytes: &[u8], deadline: Deadline) -> bool {
        if self.ensure(page, deadline).is_err() || self.pages.lock(page, deadline).is_err() {
            return false;
        }
        let to = self.a_page(page).wrapping_add(within);
        // SAFETY: the emulator cuts stores at page ends, so they lie inside the page, which is locked.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        let off = self.off(page).plus(within);
        let len = bytes.len().min(self.valid_bytes(page).saturating_sub(within));
        let sent = self.put_through(off, to, len, deadline);
        self.book(page, within, bytes.len(), sent);
        let _ = self.pages.apply(page, Event::Unlock);
        true
    }

    fn put_through(&self, off: HomeOff, src: *const u8, len: usize, deadline: Deadline) -> bool {
        if len == 0 {
            return true;
        }
        loop {
            // SAFETY: src lies inside A or T, in a page this thread has locked.
            let s = unsafe { self.link.put(self.key, off, src, len, deadline) };
            if s.is_ok() {
                self.note(s);
                self.stats.messages.hit();
                self.stats.bytes_written.add(len as u64);
                return true;
            }
            if !self.rides_out(s, deadline) {
                self.note_failed(s);
                self.note_owing();
                self.stats.write_errors.hit();
                return false;
            }
            nap(200_000);
        }
    }

    /// Writes down in T whether the home has these bytes of A. The page is locked.
    fn book(&self, page: usize, within: usize, len: usize, sent: bool) {
        let Some(twin) = self.t_page(page) else { return };
        let (own, twin) = (self.a_page(page).wrapping_add(within), twin.wrapping_add(within));
        if sent {
            // SAFETY: both pieces lie inside the locked page's copies.
            unsafe { std::ptr::copy_nonoverlapping(own, twin, len) };
            return;
        }
        for i in 0..len {
            // SAFETY: as above.
            let b = unsafe { own.wrapping_add(i).read_volatile() };
            // SAFETY: as above.
            unsafe { twin.wrapping_add(i).write_volatile(!b) };
        }
        self.pages.dirty.set(page);
    }

    /// Opens the page for one instruction of this thread. Marked as written first, so that whoever drops or releases the
    /// page meanwhile finds the store.
    fn begin_step(
        &self,
        signals: &SignalsBlocked,
        view: &View,
        page: usize,
        frame: &mut Frame,
        deadline: Deadline,
    ) -> Served {
        let Some(slot) = claim_stepper(process::tid(), deadline) else { return Served::Bus };
        let addr = view.addr_of(page);
        let noted = |o: &AtomicUsize| o.compare_exchange(0, addr, SeqCst, SeqCst).is_ok() || o.load(SeqCst) == addr;
        if !slot.opened.iter().any(noted) {
            return Served::Bus;
        }
        let this = PageRange { start: page, end: page + 1 };
        if self.pages.lock(page, deadline).is_ok() {
            self.stats.stores_stepped.hit();
            {
                let _guard = self.harvest.lock(signals);
                self.pages.written.set(page);
                let _ = self.tracker.admit(view, this, false);
                let _ = self.tracker.unprotect(view, this);
            }
            let _ = self.pages.apply(page, Event::Unlock);
        } else if self.pages.state(page) == State::Poisoned {
            // The store goes to the error value, and the next release says so.
            self.pages.dirty.set(page);
            let _ = self.tracker.unprotect(view, this);
        }
        // A page that is gone again faults again, and is brought.
        frame.set_flags(frame.flags() | TF);
        Served::Retry
    }

    /// Closes a page again and sends what the stepped instruction changed.
    fn end_step(&self, signals: &SignalsBlocked, view: &View, page: usize) {
        let deadline = self.deadline();
        let this = PageRange { start: page, end: page + 1 };
        if self.pages.lock(page, deadline).is_err() {
            // Dropped: whoever did it found the mark. Held beyond the limit, or poisoned: a release looks at it.
            self.pages.dirty.set(page);
            let _ = self.tracker.protect(view, this);
            return;
        }
        {
            let _guard = self.harvest.lock(signals);
            let _ = self.tracker.protect(view, this);
            self.pages.written.take(page);
        }
        if let Some(twin) = self.t_page(page) {
            let len = self.valid_bytes(page);
            let own = self.a_page(page);
            // SAFETY: both pages lie inside A and T; the page is locked. The closure touches the run just compared.
            unsafe {
                self.differ.page(own, twin, len, false, |o, n| {
                    let sent = self.put_through(self.off(page).plus(o), twin.wrapping_add(o), n, deadline);
                    if !sent {
                        self.book(page, o, n, false);
                    }
                });
            }
        }
        let _ = self.pages.apply(page, Event::Unlock);
    }
}

/// Lets the trap of this thread's step arrive.
fn open_trap(ctx: *mut signal::Context) {
    // SAFETY: the handler was given this context by the kernel.
    let mask = unsafe { signal::interrupted_mask(ctx) };
    let tid = process::tid();
    if mask & signal::bit(signal::SIGTRAP) != 0
        && let Some(slot) = STEPPING.iter().find(|s| s.tid.load(SeqCst) == tid)
    {
        slot.blocked.store(true, SeqCst);
        // SAFETY: as above.
        unsafe { signal::set_interrupted_mask(ctx, mask & !signal::bit(signal::SIGTRAP)) };
    }
}

fn claim_stepper(tid: u32, deadline: Deadline) -> Option<&'static Stepper> {
    loop {
        let mine = STEPPING.iter().find(|s| s.tid.load(SeqCst) == tid);
        let free = || STEPPING.iter().find(|s| s.tid.compare_exchange(0, tid, SeqCst, SeqCst).is_ok());
        if let Some(s) = mine.or_else(free) {
            return Some(s);
        }
        if deadline.passed() {
            return None;
        }
        nap(50_000);
    }
}

/// SIGTRAP: true when it ends a step of ours. Clears the trap flag then.
pub(super) fn after_step(signals: &SignalsBlocked, ctx: *mut signal::Context) -> bool {
    let tid = process::tid();
    let Some(slot) = STEPPING.iter().find(|s| s.tid.load(SeqCst) == tid) else { return false };
    for o in &slot.opened {
        let addr = o.swap(0, SeqCst);
        if let Some(view) = (addr != 0).then(|| views::lookup(addr)).flatten() {
            view.region().end_step(signals, &view, view.page_at(addr));
        }
    }
    // SAFETY: the handler was given this context by the kernel.
    let mut frame = unsafe { Frame::new(ctx.cast()) };
    frame.set_flags(frame.flags() & !TF);
    if slot.blocked.swap(false, SeqCst) {
        // SAFETY: as above.
        let mask = unsafe { signal::interrupted_mask(ctx) } | signal::bit(signal::SIGTRAP);
        // SAFETY: as above.
        unsafe { signal::set_interrupted_mask(ctx, mask) };
    }
    slot.tid.store(0, SeqCst);
    true
}

/// Status of a write through a descriptor under exact write-through: it is at the home when the call returns OK.
pub(super) fn finish_write(region: &Region, off: u64, len: u64) -> Status {
    if region.opts.through == Through::Exact { region.release(off, len.max(1)) } else { Status::OK }
}
