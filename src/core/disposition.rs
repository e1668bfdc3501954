//! What the program has set for the signals that the library uses.
//!
//! While a back end needs a signal, the kernel's disposition of it is ours. The program's own is kept here: the hooks
//! answer from it, and the fault handler follows it for what is not ours, so that program and handler meet as the kernel
//! would have them meet.
//!
//! One disposition is an entry of a small ring and never changes once it is the current one. A change fills a free entry and
//! makes it current by a compare-and-swap; a reader that finds another current entry after reading starts again. Nobody
//! waits for anybody, so handlers may read and change, and a fork in the middle of a change leaves a child the whole one
//! before.
//!
//! A fork child keeps our handlers and passes everything on. A child that shares the memory (vfork) changes its own kernel
//! dispositions and nothing here.
//!
//! The kernel's action has the program's SA_ONSTACK and SA_RESTART, since what they decide is decided before a handler runs.
//! So a signal that somebody sends and the program ignores ends a wait that is never restarted (`poll`, `nanosleep`) with
//! EINTR: without the library it would not.

use super::sigmask::{self, MARK};
use crate::base::active::{self, OWNED};
use crate::sys::Errno;
use crate::sys::signal::{self, Action, Handler, bit};
use crate::sys::sync::SignalsBlocked;
use crate::sys::thread::ForkMark;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// The process whose signals they are.
static OWNER: OnceLock<ForkMark> = OnceLock::new();
/// The library's handler.
static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// What the program has set for each signal that can be ours.
static PROGRAM: [Ring; 4] = [const { Ring::new() }; 4];

fn ring(sig: i32) -> Option<&'static Ring> {
    match sig {
        signal::SIGBUS => PROGRAM.first(),
        signal::SIGSEGV => PROGRAM.get(1),
        signal::SIGTRAP => PROGRAM.get(2),
        MARK => PROGRAM.get(3),
        _ => None,
    }
}

/// One disposition as a program sets and sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disposition {
    /// A function's address, SIG_DFL (0) or SIG_IGN (1).
    pub handler: usize,
    /// SA_* flags.
    pub flags: i32,
    /// Signals blocked while the handler runs: bit 0 is signal 1.
    pub mask: u64,
}

impl Disposition {
    /// As the kernel keeps it: flags that it does not know and signals that cannot be blocked are left out.
    fn kept(self) -> Disposition {
        let flags = self.flags & signal::SA_KEPT | signal::SA_RESTORER;
        Disposition { flags, mask: self.mask & !signal::UNBLOCKABLE, ..self }
    }

    fn of(a: &Action) -> Disposition {
        Disposition { handler: a.handler(), flags: a.flags(), mask: a.mask() }
    }

    /// True for a function.
    pub(super) fn is_handler(&self) -> bool {
        self.handler > IGNORE
    }

    /// True for SIG_IGN.
    pub(super) fn is_ignored(&self) -> bool {
        self.handler == IGNORE
    }

    pub(super) fn has(&self, flag: i32) -> bool {
        self.flags & flag != 0
    }

    fn words(&self) -> [u64; 3] {
        [self.handler as u64, u64::from(self.flags as u32), self.mask]
    }

    fn from_words([handler, flags, mask]: [u64; 3]) -> Disposition {
        Disposition { handler: handler as usize, flags: flags as u32 as i32, mask }
    }
}

/// SIG_IGN; below it is SIG_DFL, above it are functions.
const IGNORE: usize = 1;
/// More than there are threads that change one signal's disposition at once; a thread beyond that waits for them.
const ENTRIES: usize = 16;

/// The dispositions of one signal.
struct Ring {
    /// Number of changes, times 256, plus the entry that is current.
    current: AtomicU64,
    taken: [AtomicBool; ENTRIES],
    entries: [[AtomicU64; 3]; ENTRIES],
}

impl Ring {
    const fn new() -> Ring {
        let mut taken = [const { AtomicBool::new(false) }; ENTRIES];
        taken[0] = AtomicBool::new(true);
        Ring { current: AtomicU64::new(0), taken, entries: [const { [const { AtomicU64::new(0) }; 3] }; ENTRIES] }
    }

    /// The disposition, and the state of the ring that it belongs to.
    fn read(&self) -> (Disposition, u64) {
        loop {
            let state = self.current.load(SeqCst);
            let Some(e) = self.entries.get((state & 0xff) as usize) else { continue };
            let words = e.each_ref().map(|w| w.load(SeqCst));
            // An entry is only filled again after another has become current, and states never come back.
            if self.current.load(SeqCst) == state {
                return (Disposition::from_words(words), state);
            }
        }
    }

    /// Makes `new` current and answers the one before; with `only` not unless that is still the ring's state. Every
    /// signal is blocked: a handler that jumped away from here would keep the entry.
    fn replace(&self, _signals: &SignalsBlocked, new: Disposition, only: Option<u64>) -> Option<Disposition> {
        let free = |t: &AtomicBool| t.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        let entry = loop {
            match self.taken.iter().position(free) {
                Some(i) => break i,
                None => std::hint::spin_loop(),
            }
        };
        let give_back = |i: usize| _ = self.taken.get(i).map(|t| t.store(false, SeqCst));
        for (to, from) in self.entries.get(entry).into_iter().flatten().zip(new.words()) {
            to.store(from, SeqCst);
        }
        loop {
            let (old, state) = self.read();
            if only.is_some_and(|s| s != state) {
                give_back(entry);
                return None;
            }
            let next = (state & !0xff).wrapping_add(0x100) | entry as u64;
            if self.current.compare_exchange(state, next, SeqCst, SeqCst).is_ok() {
                give_back((state & 0xff) as usize);
                return Some(old);
            }
        }
    }
}

/// True in a process that took signals over and is not a fork child of it.
pub(super) fn is_owner() -> bool {
    OWNER.get().is_some_and(|m| !m.in_child())
}

/// True when the kernel's action of `sig` is ours. One relaxed load; async-signal-safe, as is all here but `take_over`.
#[inline(always)]
pub fn is_owned(sig: i32) -> bool {
    (1..=64).contains(&sig) && active::owned() & bit(sig) != 0
}

/// Our action in the kernel for what the program has set.
fn ours(program: Disposition) -> Action {
    let early = if program.is_handler() { program.flags & signal::SA_EARLY } else { signal::SA_EARLY };
    Action::of(HANDLER.load(SeqCst), Action::INFO | early, u64::MAX)
}

fn is_ours(a: &Action) -> bool {
    a.handler() == HANDLER.load(SeqCst)
}

/// Makes the kernel's action follow the program's disposition. Whoever is the last to set it has looked after setting it.
fn follow(sig: i32, r: &Ring) -> Result<(), Errno> {
    loop {
        let (program, state) = r.read();
        signal::set(sig, &ours(program))?;
        if sigmask::kept_open(bit(sig)) != 0 {
            signal::set(MARK, &ours(program))?;
        }
        if r.current.load(SeqCst) == state {
            return Ok(());
        }
    }
}

/// Takes `sig` over with `handler`, once for a signal; the caller sees to that. Where faults arrive by it, the mark is taken
/// over too, and neither the calling thread nor a handler of the program's blocks it any longer. Threads that had it blocked
/// before do so until they change their mask.
pub(super) fn take_over(sig: i32, handler: Handler) -> Result<(), Errno> {
    OWNER.get_or_init(ForkMark::new);
    HANDLER.store(handler as usize, SeqCst);
    let opens = sigmask::kept_open(bit(sig)) != 0;
    if opens && !is_owned(MARK) {
        own(MARK)?;
    }
    own(sig)?;
    if opens {
        (1..=64).filter(|s| !is_owned(*s)).for_each(open_in_handler);
        let mask = signal::mask()?;
        signal::set_mask(sigmask::to_kernel(mask, active::owned()))?;
    }
    Ok(())
}

fn own(sig: i32) -> Result<(), Errno> {
    let Some(r) = ring(sig) else { return Ok(()) };
    let signals = SignalsBlocked::new();
    let first = Disposition::of(&signal::get(sig)?);
    r.replace(&signals, first, None);
    let (_, state) = r.read();
    // The ring is right before a hook or a handler looks at it.
    OWNED.fetch_or(bit(sig), SeqCst);
    let mut before = match signal::set(sig, &ours(first)) {
        Ok(a) => a,
        Err(e) => {
            OWNED.fetch_and(!bit(sig), SeqCst);
            return Err(e);
        }
    };
    // A call that began before the signal was ours may have set it since: before ours, or over it.
    for _ in 0..3 {
        if !is_ours(&before) && Disposition::of(&before) != first {
            r.replace(&signals, Disposition::of(&before), Some(state));
        }
        follow(sig, r)?;
        before = signal::get(sig)?;
        if is_ours(&before) {
            break;
        }
    }
    Ok(())
}

/// A handler that blocks ours would die of the first page it touches: its mask gets the mark instead.
fn open_in_handler(sig: i32) {
    let owned = active::owned();
    let Ok(mut seen) = signal::get(sig) else { return };
    loop {
        let open = seen.with_mask(sigmask::to_kernel(seen.mask(), owned));
        if !seen.is_handler() || open == seen {
            return;
        }
        match signal::set(sig, &open) {
            // Somebody has set another meanwhile, which is now lost: put that one there.
            Ok(was) if was != seen && was != open => {
                seen = was;
                let _ = signal::set(sig, &was);
            }
            _ => return,
        }
    }
}

/// sigaction(2) for a signal that is ours: what the program had set before. `new` is what it sets.
///
/// # Errors
/// Those of the kernel; EINVAL for a signal that is not ours.
pub fn change(sig: i32, new: Option<Disposition>) -> Result<Disposition, Errno> {
    let Some(r) = ring(sig) else { return Err(Errno::INVAL) };
    let new = new.map(Disposition::kept);
    if OWNER.get().is_some_and(ForkMark::is_borrowed) {
        let was = match new {
            Some(n) => signal::set(sig, &Action::of(n.handler, n.flags, sigmask::to_kernel(n.mask, active::owned())))?,
            None => signal::get(sig)?,
        };
        return Ok(if is_ours(&was) { r.read().0 } else { Disposition::of(&was) });
    }
    let Some(new) = new else { return Ok(r.read().0) };
    let signals = SignalsBlocked::new();
    let old = r.replace(&signals, new, None).unwrap_or(new);
    follow_quietly(sig, r, old, new);
    Ok(old)
}

/// [`follow`] where the kernel's action has to change.
fn follow_quietly(sig: i32, r: &Ring, old: Disposition, new: Disposition) {
    if sig != MARK && ours(old) != ours(new) {
        let _ = follow(sig, r);
    }
}

/// Of our signals those that the program ignores become ignored in the kernel too: the answer, as a mask.
pub(super) fn ignore_what_is_ignored() -> u64 {
    let mut done = 0;
    for sig in (1..=64).filter(|s| is_owned(*s)) {
        let ignored = ring(sig).is_some_and(|r| r.read().0.is_ignored());
        // A child of vfork may have set its own.
        if ignored && signal::get(sig).is_ok_and(|a| is_ours(&a)) {
            let _ = signal::set(sig, &Action::of(IGNORE, 0, 0));
            done |= bit(sig);
        }
    }
    done
}

/// Undoes [`ignore_what_is_ignored`] for the signals of a mask.
pub(super) fn own_again(signals: u64) {
    for sig in (1..=64).filter(|s| signals & bit(*s) != 0) {
        let Some(r) = ring(sig) else { continue };
        let _ = if sig == MARK { signal::set(sig, &ours(r.read().0)).map(drop) } else { follow(sig, r) };
    }
}

/// The disposition for a delivery of `sig`, which uses up one with SA_RESETHAND.
pub(super) fn for_delivery(signals: &SignalsBlocked, sig: i32) -> Disposition {
    let Some(r) = ring(sig) else { return Disposition::from_words([0; 3]) };
    loop {
        let (d, state) = r.read();
        if !d.is_handler() || !d.has(signal::SA_RESETHAND) {
            return d;
        }
        let used = Disposition { handler: 0, ..d };
        if r.replace(signals, used, Some(state)).is_some() {
            follow_quietly(sig, r, d, used);
            return d;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Three equal words: a mixture of two entries is seen.
    fn number(n: usize) -> Disposition {
        Disposition { handler: n, flags: n as i32, mask: n as u64 }
    }

    #[test]
    fn a_reader_sees_whole_dispositions_and_a_change_answers_the_one_before() {
        const THREADS: usize = 4;
        const EACH: usize = 20_000;
        let ring = Ring::new();
        let mut seen: Vec<usize> = std::thread::scope(|s| {
            let change = |t: usize| {
                let ring = &ring;
                move || {
                    let signals = SignalsBlocked::new();
                    let set = |i| ring.replace(&signals, number(t * EACH + i + 1), None).unwrap().handler;
                    let look = |i| {
                        let (d, _) = ring.read();
                        assert_eq!(d, number(d.handler), "a mixture");
                        set(i)
                    };
                    (0..EACH).map(look).collect::<Vec<_>>()
                }
            };
            let all: Vec<_> = (0..THREADS).map(|t| s.spawn(change(t))).collect();
            all.into_iter().flat_map(|h| h.join().unwrap()).collect()
        });
        seen.push(ring.read().0.handler);
        seen.sort_unstable();
        assert_eq!(seen, (0..=THREADS * EACH).collect::<Vec<_>>(), "each is answered once, as the one before");
        assert_eq!(ring.taken.iter().filter(|t| t.load(SeqCst)).count(), 1, "entries are given back");
    }

    #[test]
    fn a_change_from_an_older_state_does_nothing() {
        let (ring, signals) = (Ring::new(), SignalsBlocked::new());
        let (_, state) = ring.read();
        assert!(ring.replace(&signals, number(1), Some(state)).is_some());
        assert!(ring.replace(&signals, number(2), Some(state)).is_none());
        assert_eq!(ring.read().0, number(1));
    }
}
