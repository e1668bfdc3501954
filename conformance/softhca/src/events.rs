//! Queues of events that a program waits for with a descriptor: completion channels and asynchronous events.

use crate::raw;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whatever happened to another holder: the library aborts rather than unwinds.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue with a descriptor that is readable exactly while the queue holds something.
pub struct EventQueue<T> {
    fd: raw::Fd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty one.
    pub fn new() -> Result<EventQueue<T>, i32> {
        Ok(EventQueue { fd: raw::semaphore()?, queue: Mutex::new(VecDeque::new()) })
    }

    /// The descriptor, for poll() and for fcntl(O_NONBLOCK).
    pub fn fd(&self) -> i32 {
        self.fd.raw()
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        let mut queue = lock(&self.queue);
        queue.push_back(event);
        raw::ring(&self.fd);
    }

    /// Takes the oldest event. Waits for one, or fails with `EAGAIN` when the program has set O_NONBLOCK, or `EINTR`.
    /// `taken` is called before anyone can find that the event is no longer queued.
    pub fn pop(&self, taken: impl Fn(&T)) -> Result<T, i32> {
        loop {
            raw::read(self.fd.raw(), &mut [0u8; 8])?;
            let mut queue = lock(&self.queue);
            if let Some(event) = queue.pop_front() {
                taken(&event);
                return Ok(event);
            }
        }
    }

    /// Drops every event of which `gone` is true.
    pub fn remove(&self, gone: impl Fn(&T) -> bool) {
        let mut queue = lock(&self.queue);
        let before = queue.len();
        queue.retain(|e| !gone(e));
        for _ in queue.len()..before {
            // One that is about to take an event may already have taken it off the count: it then looks on. So this
            // must not wait, whatever the descriptor's flags.
            let _ = raw::read_now(&self.fd, &mut [0u8; 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_follows_the_queue() {
        let q = EventQueue::new().expect("a queue");
        let epoll = raw::epoll().expect("epoll");
        raw::epoll_add(&epoll, &q.fd, 7).expect("watch");
        let ready = || {
            let mut tokens = Vec::new();
            raw::epoll_wait(&epoll, Some(0), &mut tokens);
            tokens == [7]
        };
        assert!(!ready());
        (1..=3).for_each(|n| q.push(n));
        assert!(ready());
        assert_eq!(q.pop(|n| assert_eq!(*n, 1)), Ok(1));
        q.remove(|n| *n == 2);
        assert!(ready());
        assert_eq!(q.pop(|_| {}), Ok(3));
        assert!(!ready());
    }
}
