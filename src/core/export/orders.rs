//! What the service thread asks of the threads that serve other hosts, and waits for.
//!
//! A network's thread has memory of exports registered with an adapter. Before that memory is moved, unmapped or given back to the
//! caller the service thread orders every network to let go of it, and waits for the answer: never for longer than
//! [`PATIENCE_NS`], and never the other way round, so that neither can wait for the other for ever.

use super::registry::Registry;
use crate::link::mgmt::ring::Keyring;
use crate::sys::channel::{Receiver, Sender, channel};
use crate::sys::clock::Deadline;
use crate::sys::thread::OwnThread;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for a network. Deregistering memory takes about a second per 100 GB.
const PATIENCE_NS: u64 = 30_000_000_000;
/// Pieces of that wait.
const STEP: Duration = Duration::from_millis(100);

/// Whom of the clients of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Who {
    One(u64),
    All,
}

/// What a network's thread is to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Begin to serve.
    Start,
    /// Let go of the memory of this export; who wants to connect waits for `Resume`. Answered when nothing of it is registered.
    Hold { export: u64, done: Sender<()> },
    /// The memory can be registered again. Its clients are told.
    Resume { export: u64 },
    /// The export has ended: let go of it and of its clients. Answered when nothing of it is registered.
    End { export: u64, done: Sender<()> },
    /// Take the access from these clients. Answered when their keys are good for nothing.
    Revoke { export: u64, who: Who, reason: String, done: Sender<()> },
    /// Take these keys from now on. Whose key has gone loses his access. Answered when it is so.
    Keys { keys: Keyring, done: Sender<()> },
    /// Let go of everything and end.
    Stop,
}

/// The way to a network's thread.
#[derive(Debug)]
pub(super) struct Port {
    queue: Sender<Order>,
    /// Gone when the thread is being joined: what has its number then may be anybody.
    thread: Mutex<Option<OwnThread>>,
}

impl Port {
    pub fn new(queue: Sender<Order>, thread: OwnThread) -> Port {
        Port { queue, thread: Mutex::new(Some(thread)) }
    }

    /// Gives an order. One that the thread has not heard when it ends is as good as done: it lets go of everything.
    pub fn tell(&self, order: Order) {
        if self.queue.send(order).is_ok()
            && let Some(t) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).as_ref()
        {
            t.wake();
        }
    }

    /// The thread, to be joined or forgotten.
    pub fn take(&self) -> Option<OwnThread> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Waits until it is done, or until whoever was to do it has ended. `beat` is called in between. False when it takes too long.
pub(super) fn wait(done: &Receiver<()>, beat: &mut dyn FnMut()) -> bool {
    let late = Deadline::in_ns(PATIENCE_NS);
    loop {
        let step = Deadline::in_ns(STEP.as_nanos() as u64);
        // Nothing before the step is over: there is no sender left.
        if done.wait(STEP).is_some() || !step.passed() {
            return true;
        }
        if late.passed() {
            return false;
        }
        beat();
    }
}

impl Registry {
    /// Gives the same order to every network and waits for all. False when one takes too long.
    pub fn order(&self, make: &dyn Fn(Sender<()>) -> Order, beat: &mut dyn FnMut()) -> bool {
        let given: Vec<Receiver<()>> = self
            .ports()
            .iter()
            .map(|p| {
                let (done, answer) = channel();
                p.tell(make(done));
                answer
            })
            .collect();
        given.iter().all(|g| wait(g, beat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_ended_is_not_waited_for() {
        let (done, answer) = channel();
        let began = crate::sys::clock::now();
        drop(done);
        assert!(wait(&answer, &mut || panic!("waited")));
        let (done, answer) = channel();
        let t = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(250));
            done.send(())
        });
        let mut beats = 0;
        assert!(wait(&answer, &mut || beats += 1));
        assert!((1..=3).contains(&beats), "{beats} beats");
        assert!(crate::sys::clock::now() - began < 10_000_000_000);
        assert_eq!(t.join().map(|r| r.is_ok()).ok(), Some(true));
    }
}
