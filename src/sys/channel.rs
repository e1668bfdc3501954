//! A queue between threads: what std's channels do, without their thread-local memory.
//!
//! Its lock is held for a few instructions only; it must not be used in a signal handler. Allocates.

use super::clock::Deadline;
use std::collections::VecDeque;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    /// The receiver is still there.
    heard: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    news: Condvar,
}

impl<T> Shared<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where messages go in. Clones feed the same queue.
pub struct Sender<T>(Arc<Shared<T>>);

/// Where messages come out, in the order they were sent.
pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Debug for Sender<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

impl<T> Debug for Receiver<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// A queue without bound.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), senders: 1, heard: true };
    let shared = Arc::new(Shared { state: Mutex::new(state), news: Condvar::new() });
    (Sender(shared.clone()), Receiver(shared))
}

impl<T> Sender<T> {
    /// Sends; gives the message back when the receiver has gone.
    pub fn send(&self, message: T) -> Result<(), T> {
        let mut s = self.0.state();
        if !s.heard {
            return Err(message);
        }
        s.queue.push_back(message);
        drop(s);
        self.0.news.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut s = self.0.state();
        s.senders -= 1;
        let last = s.senders == 0;
        drop(s);
        if last {
            self.0.news.notify_one();
        }
    }
}

impl<T> Receiver<T> {
    /// The next message, if there is one now.
    pub fn try_next(&self) -> Option<T> {
        self.0.state().queue.pop_front()
    }

    /// Waits for the next message; `None` when every sender has gone or `patience` is over.
    pub fn wait(&self, patience: Duration) -> Option<T> {
        let deadline = Deadline::in_ns(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
        let mut s = self.0.state();
        loop {
            let message = s.queue.pop_front();
            let left = deadline.left_ns();
            if message.is_some() || s.senders == 0 || left == 0 {
                return message;
            }
            let woken = self.0.news.wait_timeout(s, Duration::from_nanos(left));
            s = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Every message until the last sender has gone; waits for them.
    pub fn until_the_end(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.wait(Duration::MAX))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut s = self.0.state();
        s.heard = false;
        let unheard = std::mem::take(&mut s.queue);
        drop(s);
        // Outside the lock: a message may hold a sender of this very queue.
        drop(unheard);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::sys::clock::now;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn keeps_the_order_and_says_when_it_is_over() {
        let (tx, rx) = channel();
        let other = tx.clone();
        tx.send(1).unwrap();
        other.send(2).unwrap();
        assert_eq!((rx.try_next(), rx.wait(LONG), rx.try_next()), (Some(1), Some(2), None));
        drop(tx);
        let t = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            (3..100).for_each(|n| other.send(n).unwrap());
        });
        assert_eq!(rx.until_the_end().collect::<Vec<_>>(), (3..100).collect::<Vec<_>>());
        t.join().unwrap();
        let began = now();
        assert_eq!(rx.wait(LONG), None);
        assert!(now() - began < 10_000_000_000, "waited though nobody can send");
    }

    #[test]
    fn waits_as_long_as_told() {
        let (tx, rx) = channel::<u8>();
        let began = now();
        assert_eq!(rx.wait(Duration::from_millis(40)), None);
        assert!(now() - began >= 40_000_000);
        drop(tx);
    }

    #[test]
    fn a_message_without_a_receiver_comes_back() {
        let (tx, rx) = channel();
        let (held, _keep) = channel::<u8>();
        tx.send(held.clone()).unwrap();
        drop(rx);
        assert_eq!(held.0.state().senders, 1, "an unheard message was kept");
        assert!(tx.send(held).is_err());
    }
}
