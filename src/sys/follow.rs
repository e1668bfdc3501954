//! Own threads keep the user, the groups and the capabilities of the program.
//!
//! To Linux these belong to a thread. The C library makes `setuid` and its relatives calls of the whole process: it sends
//! every thread a signal of its own (33), whose handler makes the same call. It ends the program when the outcome differs
//! from thread to thread, which would leave a thread with rights that the program has given up. But whether such a call is
//! permitted depends on capabilities and on secure bits ("keep the capabilities over a change of user"), which a program
//! sets for one thread only; it knows of no others. So an own thread takes these over from the calling thread just before
//! it makes the call: [`together`] keeps them, and a handler put in front of the C library's takes them. Then both calls
//! have the same outcome, and the own thread is left with the rights of the caller, no more. A change by `capset` alone
//! is passed on at once, by [`pass_on`].
//!
//! An own thread's rights shrink with the program's and never grow: what the caller has beyond them it cannot take, and
//! then the C library ends the program as it would for any other thread.

use super::errno::{Errno, syscall};
use super::process;
use super::signal::{self, Action};
use super::sync::{Lock, SignalsBlocked, futex_wait, futex_wake};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};

/// The signal by which the C library makes threads follow; `sigaction` refuses it to programs.
pub const SIGSETXID: i32 = 33;
/// Own threads that can follow; the C library alone makes others do.
const PLACES: usize = 1024;
/// A place that is taken by a thread that does not run yet.
const TAKEN: u32 = u32::MAX;

/// Thread ids; 0: free.
static OWN: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
/// Places ever taken: the first so many.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The process whose threads these are: a fork child has none of them.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A thread's membership among those that follow, until dropped: after its end, when its id may be given to another.
#[derive(Debug)]
pub struct Place(Option<usize>);

impl Place {
    /// Takes a place, if one is free.
    fn take() -> Place {
        let pid = process::pid();
        if ![0, pid].contains(&PROCESS.swap(pid, SeqCst)) {
            // A fork child begins: its parent's threads are not here.
            OWN.iter().for_each(|p| p.store(0, SeqCst));
        }
        let free = |p: &AtomicU32| p.compare_exchange(0, TAKEN, SeqCst, SeqCst).is_ok();
        let at = OWN.iter().position(free);
        if let Some(i) = at {
            USED.fetch_max(i + 1, SeqCst);
        }
        Place(at)
    }

    /// Its number.
    fn number(&self) -> Option<usize> {
        self.0
    }

    /// Returns when its thread has come.
    fn wait(&self) {
        let Some(p) = self.0.and_then(|i| OWN.get(i)) else { return };
        while p.load(SeqCst) == TAKEN {
            let _ = futex_wait(p, TAKEN, 100_000_000);
        }
    }
}

/// Makes a thread that follows: `start` starts one that calls [`enter`] with the number it is given. No change of user goes
/// by meanwhile. The caller has every signal blocked but 33: the C library holds a lock while it waits for threads to
/// follow, and needs it to make one.
pub fn born<T, E>(
    signals: &SignalsBlocked,
    start: impl FnOnce(Option<usize>) -> Result<T, E>,
) -> Result<(T, Place), E> {
    let _turn = TURN.lock(signals);
    let place = Place::take();
    let thread = start(place.number())?;
    place.wait();
    Ok((thread, place))
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(p) = self.0.and_then(|i| OWN.get(i)) {
            p.store(0, SeqCst);
        }
    }
}

/// The calling thread follows from now on, in this place.
pub fn enter(place: Option<usize>) {
    install();
    if let Some(p) = place.and_then(|i| OWN.get(i)) {
        p.store(process::tid(), SeqCst);
        futex_wake(p, 1);
    }
}

fn own() -> impl Iterator<Item = u32> {
    OWN.iter().take(USED.load(SeqCst)).map(|p| p.load(SeqCst)).filter(|t| *t != 0 && *t != TAKEN)
}

/// True when there is an own thread in this process.
fn is_needed() -> bool {
    USED.load(SeqCst) != 0 && PROCESS.load(SeqCst) == process::pid() && own().next().is_some()
}

/// Effective, permitted and inheritable capabilities, low words and high words.
type Capabilities = [u32; 6];

/// Version 3, and the calling thread.
const HEADER: [u32; 2] = [0x2008_0522, 0];

fn capabilities() -> Result<Capabilities, Errno> {
    let (header, mut set) = (HEADER, [0; 6]);
    // SAFETY: header has the kernel's layout and set has room for version 3's two triples.
    unsafe { syscall(libc::SYS_capget, [header.as_ptr() as usize, set.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    Ok(set)
}

fn set_capabilities(set: &Capabilities) -> Result<(), Errno> {
    let header = HEADER;
    // SAFETY: as in `capabilities`; only the calling thread is concerned.
    unsafe { syscall(libc::SYS_capset, [header.as_ptr() as usize, set.as_ptr() as usize, 0, 0, 0, 0]) }.map(drop)
}

fn prctl(what: i32, argument: usize) -> Result<usize, Errno> {
    // SAFETY: the two requests made here take a number, and concern the calling thread only.
    unsafe { syscall(libc::SYS_prctl, [what as usize, argument, 0, 0, 0, 0]) }
}

/// The rights on which the outcome of a change depends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rights {
    secure_bits: usize,
    capabilities: Capabilities,
}

impl Rights {
    fn of_this_thread() -> Result<Rights, Errno> {
        Ok(Rights { secure_bits: prctl(libc::PR_GET_SECUREBITS, 0)?, capabilities: capabilities()? })
    }

    /// The calling thread takes them. What it may not take it goes without.
    fn take(&self) {
        let Ok(mine) = Rights::of_this_thread() else { return };
        if mine.secure_bits != self.secure_bits {
            // The first needs a capability that the program may be about to drop; the one bit everybody may set does not.
            let keep = self.secure_bits & libc::SECBIT_KEEP_CAPS as usize;
            let _ = prctl(libc::PR_SET_KEEPCAPS, usize::from(keep != 0));
            let _ = prctl(libc::PR_SET_SECUREBITS, self.secure_bits);
        }
        if mine.capabilities != self.capabilities {
            let _ = set_capabilities(&self.capabilities);
        }
    }
}

/// The rights of the thread whose turn it is, in words.
static ANNOUNCED: [AtomicU32; 7] = [const { AtomicU32::new(0) }; 7];
/// Set once something was announced.
static SPOKEN: AtomicBool = AtomicBool::new(false);
/// One change at a time: an own thread must not take the rights of a thread that has changed already.
static TURN: Lock = Lock::new();

fn announce() {
    let Ok(r) = Rights::of_this_thread() else { return };
    let [bits, capabilities @ ..] = &ANNOUNCED;
    bits.store(r.secure_bits as u32, SeqCst);
    capabilities.iter().zip(r.capabilities).for_each(|(to, from)| to.store(from, SeqCst));
    SPOKEN.store(true, SeqCst);
}

fn announced() -> Option<Rights> {
    let [bits, capabilities @ ..] = ANNOUNCED.each_ref().map(|w| w.load(SeqCst));
    SPOKEN.load(SeqCst).then_some(Rights { secure_bits: bits as usize, capabilities })
}

/// Makes `call`, which changes user or groups in every thread: own threads take the caller's capabilities and secure bits
/// before they follow. `call` is told whether there is anybody to follow. Async-signal-safe when `call` is.
pub fn together<T>(call: impl FnOnce(bool) -> T) -> T {
    if !is_needed() {
        return call(false);
    }
    // Signal 33 stays open: another thread's change, made past us, waits for this one too.
    let signals = SignalsBlocked::but(SIGSETXID);
    let _turn = TURN.lock(&signals);
    announce();
    call(true)
}

/// Called after the calling thread has changed its capabilities. When it is the program's first thread, own threads take
/// them; another's are its own affair: it may be the only one to go without. Returns when the threads have been told: true
/// when there were any. Async-signal-safe.
pub fn pass_on() -> bool {
    let pid = process::pid();
    if process::tid() != pid || !is_needed() {
        return false;
    }
    let signals = SignalsBlocked::but(SIGSETXID);
    let _turn = TURN.lock(&signals);
    announce();
    for tid in own() {
        // SAFETY: siginfo is made of integers and addresses; all zero is a valid one.
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        info.si_signo = SIGSETXID;
        info.si_code = libc::SI_QUEUE;
        // SAFETY: info is a siginfo for the call. The C library's handler ignores what it has not sent itself.
        let _ = unsafe {
            syscall(
                libc::SYS_rt_tgsigqueueinfo,
                [pid as usize, tid as usize, SIGSETXID as usize, &raw const info as usize, 0, 0],
            )
        };
    }
    true
}

/// The C library's action on the signal.
struct Previous(UnsafeCell<Action>);

// SAFETY: written once, before our handler is installed, and only read by it.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(Action::DEFAULT));

/// Puts our handler in front of the C library's, which is there since the first thread was made.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(old) = signal::get(SIGSETXID) else { return };
        if !old.is_handler() {
            return;
        }
        // SAFETY: nobody reads it before the handler is installed below.
        unsafe { *PREVIOUS.0.get() = old };
        let _ = signal::set(SIGSETXID, &old.with_handler(on_signal));
    });
}

/// Every thread comes here when the C library makes it follow, own or not.
extern "C" fn on_signal(sig: i32, info: *mut signal::Info, ctx: *mut signal::Context) {
    let me = process::tid();
    // The id of an own thread that has ended may be another's now; then the mark is not set.
    if own().any(|t| t == me)
        && super::thread::is_own()
        && let Some(rights) = announced()
    {
        rights.take();
    }
    // SAFETY: `install` wrote it before this handler could run.
    let old = unsafe { *PREVIOUS.0.get() };
    // The C library ignores what it has not sent itself.
    // SAFETY: these are the kernel's arguments.
    unsafe { old.chain(sig, info, ctx) };
}
