//! The link's own thread: opens, closes, and hears what exporters say.

use super::names;
use super::session::{Purpose, Session};
use super::slots::{SLOTS, Table};
use crate::base::{Error, Status};
use crate::link::mgmt::message::valid_name;
use crate::link::{Access, Opened, RegionInfo, RegionKey};
use crate::sys::channel::{Receiver, Sender, channel};
use crate::sys::clock::{Deadline, now};
use crate::sys::poll::{PollFd, poll};
use crate::sys::process::euid;
use crate::sys::thread::{self, OwnThread, Wake};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What the link asks of its thread.
enum Command {
    Start(Session),
    Close(RegionKey),
    Stop,
}

/// The link's handle on its thread.
#[derive(Debug)]
pub(super) struct Manager {
    table: Arc<Table>,
    /// Beside the user that the process has at the moment: the one it had at first, root, and those it was told.
    trusted: Vec<u32>,
    thread: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    thread: OwnThread,
    queue: Sender<Command>,
}

/// Beat of the keep-alive.
const TICK_NS: u64 = 1_000_000_000;
/// Poll interval while something waits for a moment that no descriptor announces.
const BUSY_MS: u64 = 2;

impl Manager {
    pub fn new(table: Arc<Table>, trusted: &[u32]) -> Manager {
        let me = euid();
        let mut trusted = trusted.to_vec();
        trusted.extend([0, me]);
        Manager { table, trusted, thread: Mutex::new(None) }
    }

    pub fn open(&self, name: &str, want: Access, deadline: Deadline) -> Result<Opened, Error> {
        let attempt = || format!("open region \"{name}\"");
        if !valid_name(name) {
            let e = Error::new(Status::INVALID_ARGUMENT, attempt(), "not a region name");
            return Err(e.remedy("use 1 to 200 bytes of [A-Za-z0-9._-], not starting with a dot"));
        }
        let (reply, answer) = channel();
        let purpose = Purpose::Open { name: name.to_owned(), want, reply };
        self.tell(Command::Start(Session::new(names::address(name), purpose, deadline)), attempt)?;
        // The thread keeps the deadline; the slack only guards against its death.
        let wait = Duration::from_nanos(deadline.left_ns()) + Duration::from_secs(2);
        answer.wait(wait).unwrap_or_else(|| Err(Error::of(Status::TIMED_OUT, attempt())))
    }

    pub fn list(&self, deadline: Deadline) -> Result<Vec<RegionInfo>, Error> {
        let attempt = || "list exported regions".to_owned();
        let listed =
            names::list_local().map_err(|e| Error::new(Status::SYSTEM, attempt(), format!("/proc/net/unix: {e}")))?;
        let (reply, answers) = channel();
        for entry in &listed {
            let purpose = Purpose::List { found: Vec::new(), reply: reply.clone() };
            self.tell(Command::Start(Session::new(names::listed_address(entry), purpose, deadline)), attempt)?;
        }
        drop(reply);
        // Every session answers, at the latest when its deadline passes, and then drops its end.
        let mut all: Vec<RegionInfo> = answers.until_the_end().flatten().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
        Ok(all)
    }

    pub fn close(&self, key: RegionKey) {
        let _ = self.tell(Command::Close(key), String::new);
    }

    fn tell(&self, c: Command, attempt: impl Fn() -> String) -> Result<(), Error> {
        let mut running = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            let (queue, rx) = channel();
            let (table, trusted) = (self.table.clone(), self.trusted.clone());
            let body = move |wake| {
                Loop { table, trusted, rx, wake, sessions: Vec::new(), closed: Vec::new(), stop: false }.run()
            };
            let thread = thread::spawn("smc-link", body)
                .map_err(|e| Error::new(Status::NO_RESOURCES, attempt(), format!("cannot start a thread: {e}")))?;
            *running = Some(Running { thread, queue });
        }
        if let Some(r) = running.as_ref() {
            r.queue.send(c).map_err(|_| Error::new(Status::INTERNAL, attempt(), "the link's thread has ended"))?;
            r.thread.wake();
        }
        Ok(())
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let running = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(r) = running else { return };
        if self.table.in_child() {
            // The thread lives in the parent only; its handle and queue mean nothing here.
            std::mem::forget(r);
            return;
        }
        let _ = r.queue.send(Command::Stop);
        r.thread.wake();
        r.thread.join();
    }
}

/// The thread's state.
struct Loop {
    table: Arc<Table>,
    trusted: Vec<u32>,
    rx: Receiver<Command>,
    wake: Wake,
    sessions: Vec<Session>,
    /// Closed regions that somebody is still in.
    closed: Vec<RegionKey>,
    stop: bool,
}

impl Loop {
    fn run(mut self) {
        let mut beat = now();
        while !self.stop {
            let ready = self.wait(beat.saturating_add(TICK_NS));
            self.commands();
            let (table, trusted) = (self.table.clone(), std::mem::take(&mut self.trusted));
            for (s, ready) in self.sessions.iter_mut().zip(ready.into_iter().chain(std::iter::repeat(false))) {
                s.connect(&|uid| trusted.contains(&uid) || uid == euid());
                if ready {
                    s.readable(&table);
                }
                if s.is_late() {
                    s.expire();
                }
                s.settle(&table);
            }
            self.trusted = trusted;
            if now().saturating_sub(beat) >= TICK_NS {
                beat = now();
                self.sessions.iter_mut().for_each(|s| s.tick(&table));
            }
            self.sweep();
        }
        self.shut();
    }

    /// Sleeps until a descriptor, a wake or a moment; says which sessions are readable.
    fn wait(&mut self, beat: u64) -> Vec<bool> {
        let mut fds = vec![PollFd::readable(self.wake.fd())];
        fds.extend(self.sessions.iter().filter_map(|s| s.fd().map(PollFd::readable)));
        let _ = poll(&mut fds, self.timeout_ms(beat));
        self.wake.clear();
        let mut polled = fds.iter().skip(1);
        self.sessions.iter().map(|s| s.fd().is_some() && polled.next().is_some_and(PollFd::ready)).collect()
    }

    fn timeout_ms(&mut self, beat: u64) -> u64 {
        let table = self.table.clone();
        let busy = !self.closed.is_empty() || self.sessions.iter_mut().any(|s| !s.settle(&table) || s.is_knocking());
        if busy {
            return BUSY_MS;
        }
        let moments = self.sessions.iter().map(|s| s.moment(beat));
        moments.min().map_or(60_000, |m| m.saturating_sub(now()).div_ceil(1_000_000))
    }

    fn commands(&mut self) {
        while let Some(c) = self.rx.try_next() {
            match c {
                Command::Start(s) => self.sessions.push(s),
                Command::Close(key) => {
                    // The session may have ended before (peer dead, revoked); the slot is there all the same, unless it
                    // was taken down with the session and given to another region since.
                    self.sessions.iter_mut().filter(|s| s.key() == Some(key)).for_each(Session::close);
                    if self.table.is_of(key) && !self.closed.contains(&key) {
                        self.closed.push(key);
                    }
                }
                Command::Stop => self.stop = true,
            }
        }
    }

    /// Forgets what has ended and unmaps what nobody uses.
    fn sweep(&mut self) {
        let abandoned = |s: &Session| s.key().filter(|k| self.table.enter(*k).is_err() && !self.closed.contains(k));
        let lost: Vec<RegionKey> = self.sessions.iter().filter(|s| s.done).filter_map(abandoned).collect();
        self.closed.extend(lost);
        self.sessions.retain(|s| !s.done);
        let table = &self.table;
        self.closed.retain(|k| table.slot(k.0 as usize & (SLOTS - 1)).is_some_and(|s| !s.take_down()));
    }

    /// The link is being dropped: no operation runs any more.
    fn shut(&mut self) {
        for i in 0..SLOTS {
            if let Some(s) = self.table.slot(i) {
                s.key.store(0, std::sync::atomic::Ordering::SeqCst);
                s.take_down();
            }
        }
        self.sessions.iter_mut().for_each(Session::close);
    }
}
