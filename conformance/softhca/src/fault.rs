//! Faults on demand.
//!
//! `LIBSOFTHCA_FAULTS` is a list of faults, or the path of a file that holds one and may be changed at any time. A change
//! is noticed within some milliseconds, and before the next registration or port query. Words are separated by white
//! space; what is not known is passed over.
//!
//! | word | meaning |
//! |---|---|
//! | `lose-requests=N` | every Nth request (whole message) of an open device is lost |
//! | `lose-answers=N` | the answer to every Nth request it receives is lost |
//! | `scatter` | of those two: not every Nth, but one in N, as if by chance and the same in every run |
//! | `delay=NS` | messages it sends arrive that much later |
//! | `register=ERRNO` | registrations fail with that number |
//! | `memlock` | registrations count against RLIMIT_MEMLOCK, as the kernel counts those of a real device; for root too |
//! | `no-flush` | what a queue pair has to flush when its program moves it to ERR never completes |
//! | `revoke=TIME` | regions registered until now lose all rights; another number revokes again |
//! | `port-down=PORT` | the port has no link; may be given for several |
//! | `remove` | the device is gone |
//! | `device=D`, `pid=P` | the list is for that device or process only |
//!
//! `lose-requests=1` is a dead wire: the requester's timeouts and retries run out, and its request ends in
//! `RETRY_EXC_ERR`. A port that goes down or comes up tells every program, as does a device that goes.

use crate::context::Context;
use crate::events::lock;
use crate::link::Place;
use crate::qp::{Element, Event};
use crate::raw;
use ibverbs_sys as sys;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

const RELAXED: Ordering = Ordering::Relaxed;

/// Time between two looks at the file, in nanoseconds.
const LOOK: u64 = 1_000_000;
/// Longest sleep of an engine when there is a file to look at, in nanoseconds.
const SLEEP: u64 = 5_000_000;

/// A list of faults.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct List {
    requests: u32,
    answers: u32,
    scatter: bool,
    delay: u64,
    register: i32,
    memlock: bool,
    no_flush: bool,
    revoke: u64,
    down: u32,
    removed: bool,
}

impl List {
    /// Reads a list for a device of this process; an empty one when it is for others.
    fn parse(text: &str, device: u32) -> List {
        let mut list = List::default();
        for word in text.split_whitespace() {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number: u64 = value.parse().unwrap_or(0);
            match name {
                "lose-requests" => list.requests = number as u32,
                "lose-answers" => list.answers = number as u32,
                "scatter" => list.scatter = true,
                "delay" => list.delay = number,
                "register" => list.register = number as i32,
                "memlock" => list.memlock = true,
                "no-flush" => list.no_flush = true,
                "revoke" => list.revoke = number,
                "port-down" => list.down |= 1u32.checked_shl(number as u32).unwrap_or(0),
                "remove" => list.removed = true,
                "device" if number != u64::from(device) => return List::default(),
                "pid" if number != u64::from(std::process::id()) => return List::default(),
                _ => {}
            }
        }
        list
    }
}

/// Where the list comes from.
enum Source {
    None,
    Fixed(String),
    File(CString),
}

fn source() -> &'static Source {
    static SOURCE: OnceLock<Source> = OnceLock::new();
    SOURCE.get_or_init(|| match std::env::var("LIBSOFTHCA_FAULTS") {
        Err(_) => Source::None,
        Ok(text) if text.starts_with('/') => CString::new(text).map_or(Source::None, Source::File),
        Ok(text) => Source::Fixed(text),
    })
}

fn read_file(path: &CStr) -> String {
    let mut bytes = vec![0; 4096];
    let got = raw::open(path, libc::O_RDONLY).and_then(|fd| raw::read(fd.raw(), &mut bytes));
    bytes.truncate(got.unwrap_or(0));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn current(device: u32) -> List {
    match source() {
        Source::None => List::default(),
        Source::Fixed(text) => List::parse(text, device),
        Source::File(path) => List::parse(&read_file(path), device),
    }
}

/// Whether a device is there.
pub fn present(device: u32) -> bool {
    !current(device).removed
}

/// Faults in force for one open device.
pub struct Faults {
    place: Place,
    requests: AtomicU32,
    answers: AtomicU32,
    requests_seen: AtomicU32,
    answers_seen: AtomicU32,
    scatter: AtomicBool,
    delay: AtomicU64,
    register: AtomicI32,
    memlock: AtomicBool,
    no_flush: AtomicBool,
    down: AtomicU32,
    removed: AtomicBool,
    /// List in force.
    list: Mutex<List>,
    looked: AtomicU64,
}

impl Faults {
    /// None yet.
    pub fn new(place: Place) -> Faults {
        Faults {
            place,
            requests: AtomicU32::new(0),
            answers: AtomicU32::new(0),
            requests_seen: AtomicU32::new(0),
            answers_seen: AtomicU32::new(0),
            scatter: AtomicBool::new(false),
            delay: AtomicU64::new(0),
            register: AtomicI32::new(0),
            memlock: AtomicBool::new(false),
            no_flush: AtomicBool::new(false),
            down: AtomicU32::new(0),
            removed: AtomicBool::new(false),
            list: Mutex::default(),
            looked: AtomicU64::new(0),
        }
    }

    /// Looks for changes: at once, or not more often than every millisecond.
    pub fn refresh(&self, context: &Context, at_once: bool) {
        if matches!(source(), Source::None) {
            return;
        }
        let now = raw::now();
        if !at_once && now - self.looked.load(RELAXED) < LOOK {
            return;
        }
        self.looked.store(now, RELAXED);
        let mut list = lock(&self.list);
        let new = current(self.place.device);
        if *list != new {
            self.apply(context, &list, &new);
            *list = new;
        }
    }

    fn apply(&self, context: &Context, old: &List, new: &List) {
        self.requests.store(new.requests, RELAXED);
        self.answers.store(new.answers, RELAXED);
        self.scatter.store(new.scatter, RELAXED);
        self.delay.store(new.delay, RELAXED);
        self.register.store(new.register, RELAXED);
        self.memlock.store(new.memlock, RELAXED);
        self.no_flush.store(new.no_flush, RELAXED);
        self.down.store(new.down, RELAXED);
        if new.revoke != old.revoke && new.revoke != 0 {
            context.keys.revoke_all();
        }
        for port in 1..=crate::device::Plan::of_host().ports {
            let (was, is) = (old.down >> port & 1, new.down >> port & 1);
            let kind = if is == 1 { sys::IBV_EVENT_PORT_ERR } else { sys::IBV_EVENT_PORT_ACTIVE };
            if was != is {
                context.events.push(Event { kind, element: Element::Port(port) });
            }
        }
        // What has been removed does not come back: the program opens it anew.
        if new.removed && !self.removed.swap(true, RELAXED) {
            context.events.push(Event { kind: sys::IBV_EVENT_DEVICE_FATAL, element: Element::Device });
            for qp in context.all_qps() {
                qp.fail(&mut qp.lock(), None);
            }
        }
    }

    /// Whether the device is gone.
    pub fn removed(&self) -> bool {
        self.removed.load(RELAXED)
    }

    /// Whether a registration fails.
    pub fn registration(&self) -> Result<(), i32> {
        match self.register.load(RELAXED) {
            _ if self.removed() => Err(libc::EIO),
            0 => Ok(()),
            e => Err(e),
        }
    }

    /// Whether registrations count against RLIMIT_MEMLOCK.
    pub fn counts_locked(&self) -> bool {
        self.memlock.load(RELAXED)
    }

    /// Whether what is flushed never completes.
    pub fn swallows_flushes(&self) -> bool {
        self.no_flush.load(RELAXED)
    }

    /// Whether a port has a link.
    pub fn port_is_up(&self, port: u32) -> bool {
        self.down.load(RELAXED).checked_shr(port).unwrap_or(0) & 1 == 0 && !self.removed()
    }

    /// Whether the next request is lost.
    pub fn drops_request(&self) -> bool {
        nth(&self.requests_seen, self.requests.load(RELAXED), self.scatter.load(RELAXED))
    }

    /// Whether the next answer is lost.
    pub fn drops_answer(&self) -> bool {
        nth(&self.answers_seen, self.answers.load(RELAXED), self.scatter.load(RELAXED))
    }

    /// Nanoseconds that a message is held back.
    pub fn delay(&self) -> u64 {
        self.delay.load(RELAXED)
    }

    /// Time to wait so that changes are noticed.
    pub fn shorten(&self, wait: Option<u64>) -> Option<u64> {
        match source() {
            Source::File(_) => Some(wait.unwrap_or(SLEEP).min(SLEEP)),
            _ => wait,
        }
    }
}

/// True for every `n`th call, or for one in `n` without a pattern: a queue pair that repeats just `n` messages would lose the same
/// one for ever. Never when `n` is 0.
fn nth(seen: &AtomicU32, n: u32, scatter: bool) -> bool {
    if n == 0 {
        return false;
    }
    let count = seen.fetch_add(1, RELAXED) + 1;
    // The high bits of a product are well mixed.
    let mixed =
        (u64::from(count).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33;
    if scatter { mixed.is_multiple_of(u64::from(n)) } else { count.is_multiple_of(n) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let list = List::parse("lose-requests=3 port-down=1\nport-down=2 delay=7 scatter nonsense no-flush memlock", 0);
        let (no_flush, memlock) = (true, true);
        assert_eq!(list, List { requests: 3, down: 6, delay: 7, scatter: true, no_flush, memlock, ..List::default() });
        assert_eq!(List::parse("remove device=1", 0), List::default());
        assert!(List::parse("remove device=1", 1).removed);
        assert!(List::parse(&format!("remove pid={}", std::process::id()), 0).removed);
    }

    #[test]
    fn every_nth_is_every_nth() {
        let seen = AtomicU32::new(0);
        assert_eq!((0..6).map(|_| nth(&seen, 3, false)).collect::<Vec<_>>(), [false, false, true, false, false, true]);
        for scatter in [false, true] {
            assert!((0..9).all(|_| !nth(&seen, 0, scatter)) && (0..9).all(|_| nth(&seen, 1, scatter)));
        }
        // No period of a window's length.
        for n in [10u32, 33] {
            let lost: Vec<bool> = (0..33_000).map(|_| nth(&seen, n, true)).collect();
            let count = lost.iter().filter(|l| **l).count() as u32;
            assert!((count * n).abs_diff(33_000) < 6_000, "one in {n}: {count}");
            for window in 1..200 {
                let again = lost.iter().zip(&lost[window..]).filter(|(a, b)| **a && **b).count() as u32;
                assert!(again < count / 3 * 2, "one in {n}, {window} apart: {again} of {count}");
            }
        }
    }
}
