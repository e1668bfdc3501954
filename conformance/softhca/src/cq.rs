//! Completion queues and completion channels.

use crate::events::{EventQueue, lock};
use crate::raw;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// `struct ibv_wc`; that of the bindings has private fields.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The program's name for the request.
    pub wr_id: u64,
    /// IBV_WC_SUCCESS or an error.
    pub status: u32,
    /// What completed.
    pub opcode: u32,
    /// Always 0: there is no vendor.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, big-endian, or the key that was invalidated.
    pub imm_data: u32,
    /// Local queue pair.
    pub qp_num: u32,
    /// Sender of a datagram.
    pub src_qp: u32,
    /// IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV.
    pub wc_flags: u32,
    /// Always 0.
    pub pkey_index: u16,
    /// Always 0: Ethernet.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Always 0.
    pub dlid_path_bits: u8,
}

const _: () = assert!(size_of::<Wc>() == 48);

/// Places of a work queue in use: taken by a post, given back when the completion is polled, as on hardware.
pub type Places = Arc<AtomicU32>;

/// A completion that waits to be polled.
pub struct Entry {
    /// What the program gets.
    pub wc: Wc,
    /// Whether the sender asked for attention.
    pub solicited: bool,
    /// Work queue to give places back to, and how many.
    pub places: Places,
    /// Requests that this completion retires: itself and the unsignalled ones before it.
    pub retires: u32,
}

/// What was asked of `ibv_req_notify_cq`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

struct Inner {
    queue: VecDeque<Entry>,
    capacity: usize,
    armed: Armed,
    overrun: bool,
}

/// Events of one object that the program has taken and not acknowledged: its destruction waits for them.
#[derive(Default)]
pub struct Unacked {
    count: Mutex<u32>,
    all: Condvar,
}

impl Unacked {
    /// One was taken.
    pub fn taken(&self) {
        *lock(&self.count) += 1;
    }

    /// Some were acknowledged.
    pub fn acked(&self, n: u32) {
        let mut count = lock(&self.count);
        *count = count.saturating_sub(n);
        self.all.notify_all();
    }

    /// Waits until none is left.
    pub fn wait(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.all.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A completion channel.
pub type Channel = EventQueue<Arc<Cq>>;

/// A completion queue.
pub struct Cq {
    inner: Mutex<Inner>,
    channel: Option<Arc<Channel>>,
    /// The program's pointer.
    pub user: AtomicUsize,
    /// Completion events not acknowledged.
    pub comp_events: Unacked,
    /// Asynchronous events not acknowledged.
    pub async_events: Unacked,
    /// Queue pairs and shared receive queues that use it.
    pub users: AtomicU32,
    /// Completions added, for those who nap.
    pushes: AtomicU32,
    nappers: AtomicU32,
}

/// How long a thread may poll an empty queue without a pause before it naps, in nanoseconds.
const SPIN: u64 = 20_000;
/// Longest time between two polls that counts as without a pause.
const PAUSE: u64 = 2_000;
/// How long it naps unless a completion comes.
const NAP: u64 = 200_000;

/// A thread that polls one queue without a pause.
#[derive(Clone, Copy)]
struct Poller {
    cq: usize,
    first: u64,
    last: u64,
}

thread_local! {
    static POLLER: Cell<Poller> = const { Cell::new(Poller { cq: 0, first: 0, last: 0 }) };
}

impl Cq {
    /// An empty queue of `capacity` places.
    pub fn new(capacity: usize, channel: Option<Arc<Channel>>) -> Arc<Cq> {
        let inner = Inner { queue: VecDeque::new(), capacity, armed: Armed::No, overrun: false };
        Arc::new(Cq {
            inner: Mutex::new(inner),
            channel,
            user: AtomicUsize::new(0),
            comp_events: Unacked::default(),
            async_events: Unacked::default(),
            users: AtomicU32::new(0),
            pushes: AtomicU32::new(0),
            nappers: AtomicU32::new(0),
        })
    }

    /// Adds a completion. False when the queue is full for the first time: it is then broken and loses what comes.
    #[must_use]
    pub fn push(self: &Arc<Self>, entry: Entry) -> bool {
        let mut inner = lock(&self.inner);
        if inner.overrun {
            return true;
        }
        if inner.queue.len() >= inner.capacity {
            inner.overrun = true;
            return false;
        }
        let wake = match inner.armed {
            Armed::No => false,
            Armed::Any => true,
            // An error is always worth attention.
            Armed::Solicited => entry.solicited || entry.wc.status != 0,
        };
        inner.queue.push_back(entry);
        if wake {
            inner.armed = Armed::No;
            if let Some(channel) = &self.channel {
                channel.push(self.clone());
            }
        }
        drop(inner);
        self.pushes.fetch_add(1, Ordering::SeqCst);
        if self.nappers.load(Ordering::SeqCst) > 0 {
            raw::futex_wake(&self.pushes);
        }
        true
    }

    /// After an empty poll. A thread that does nothing else takes the processor from those who work for it, the engine
    /// here and the programs of its peers: on hardware they would not need one. So it naps until a completion comes.
    pub fn rest(&self) {
        let (now, own) = (raw::now(), &raw const *self as usize);
        let mut poller = POLLER.get();
        if poller.cq != own || now - poller.last > PAUSE {
            poller = Poller { cq: own, first: now, last: now };
        }
        if now - poller.first > SPIN {
            let seen = self.pushes.load(Ordering::SeqCst);
            self.nappers.fetch_add(1, Ordering::SeqCst);
            if lock(&self.inner).queue.is_empty() {
                raw::futex_wait(&self.pushes, seen, NAP);
            }
            self.nappers.fetch_sub(1, Ordering::SeqCst);
            poller.last = raw::now();
        } else {
            poller.last = now;
        }
        POLLER.set(poller);
    }

    /// Takes up to `n` completions, oldest first.
    pub fn poll(&self, n: usize, mut take: impl FnMut(usize, &Wc)) -> usize {
        let mut inner = lock(&self.inner);
        let n = n.min(inner.queue.len());
        for (i, entry) in inner.queue.drain(..n).enumerate() {
            entry.places.fetch_sub(entry.retires, Ordering::Relaxed);
            take(i, &entry.wc);
        }
        n
    }

    /// Asks for one event at the next completion, or the next that is solicited or an error.
    pub fn arm(&self, solicited_only: bool) {
        let mut inner = lock(&self.inner);
        inner.armed = if solicited_only && inner.armed != Armed::Any { Armed::Solicited } else { Armed::Any };
    }

    /// Drops the completions of a queue pair that is destroyed or reset.
    pub fn forget(&self, qp_num: u32) {
        let mut inner = lock(&self.inner);
        inner.queue.retain(|e| {
            let stays = e.wc.qp_num != qp_num;
            if !stays {
                e.places.fetch_sub(e.retires, Ordering::Relaxed);
            }
            stays
        });
    }

    /// Changes the capacity; `EINVAL` when more completions wait than would fit.
    pub fn resize(&self, capacity: usize) -> Result<(), i32> {
        let mut inner = lock(&self.inner);
        if inner.queue.len() > capacity {
            return Err(libc::EINVAL);
        }
        inner.capacity = capacity;
        Ok(())
    }

    /// Takes back events that nobody has seen yet, and waits for the acknowledgement of the others.
    pub fn drain_events(self: &Arc<Self>) {
        if let Some(channel) = &self.channel {
            channel.remove(|cq| Arc::ptr_eq(cq, self));
        }
        self.comp_events.wait();
        self.async_events.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(qp_num: u32, places: &Places, solicited: bool, status: u32) -> Entry {
        let wc = Wc { qp_num, status, ..Wc::default() };
        Entry { wc, solicited, places: places.clone(), retires: 2 }
    }

    #[test]
    fn places_come_back_when_polled_or_forgotten() {
        let (cq, places) = (Cq::new(4, None), Places::new(AtomicU32::new(6)));
        (1..=3).for_each(|n| assert!(cq.push(entry(n, &places, false, 0))));
        assert_eq!(cq.poll(1, |_, wc| assert_eq!(wc.qp_num, 1)), 1);
        assert_eq!(places.load(Ordering::Relaxed), 4);
        cq.forget(3);
        assert_eq!(places.load(Ordering::Relaxed), 2);
        assert_eq!(cq.poll(8, |_, wc| assert_eq!(wc.qp_num, 2)), 1);
    }

    #[test]
    fn an_overrun_is_told_once() {
        let (cq, places) = (Cq::new(1, None), Places::default());
        let told: Vec<bool> = (0..3).map(|_| cq.push(entry(1, &places, false, 0))).collect();
        assert_eq!(told, [true, false, true]);
    }

    #[test]
    fn an_armed_queue_wakes_once_and_for_what_it_was_asked() {
        let channel = Arc::new(Channel::new().expect("a channel"));
        let (cq, places) = (Cq::new(16, Some(channel.clone())), Places::default());
        let wakes = |solicited, status| {
            assert!(cq.push(entry(1, &places, solicited, status)));
            let woke = std::cell::Cell::new(false);
            channel.remove(|_| {
                woke.set(true);
                true
            });
            woke.get()
        };
        cq.arm(true);
        assert!(!wakes(false, 0));
        assert!(wakes(true, 0));
        cq.arm(true);
        assert!(wakes(false, 5), "an error");
        cq.arm(false);
        cq.arm(true);
        assert!(wakes(false, 0), "any was asked first");
    }
}
