//! The exporter's thread: owns every socket, memory file and home; the only one that talks to clients.

use super::conn::{Conn, Phase};
use super::event::What;
use super::home::Home;
use super::orders::{Order, Who};
use super::registry::{Registry, Shared};
use super::revoke::revoke;
use super::{ExportOptions, Memory};
use crate::base::{Error, Result, Status};
use crate::link::Access;
use crate::link::embedded::control::GATE_ENDED;
use crate::link::embedded::names::address;
use crate::link::mgmt::message::MAX_NAMES;
use crate::link::mgmt::{self, Message, RegionDesc};
use crate::sys::channel::{Receiver, Sender};
use crate::sys::clock::now;
use crate::sys::poll::{PollFd, poll};
use crate::sys::thread::Wake;
use crate::sys::{Errno, process, socket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// What other threads ask of the service.
#[derive(Debug)]
pub(super) enum Command {
    Export { name: String, memory: Memory, options: ExportOptions, reply: Sender<Result<Arc<Shared>>> },
    Unexport { id: u64, reply: Sender<()> },
    Revoke { id: u64, who: Who, reason: String, quiesced: bool, reply: Sender<Result<()>> },
}

/// Connections per process; more are closed as they come.
const MAX_CONNS: usize = 4096;
/// Connections taken from one listener per round.
const ACCEPTS: usize = 16;
/// Beat of the keep-alive.
const TICK_NS: u64 = 1_000_000_000;
/// Pause of a listener that cannot accept (no descriptors left).
const PAUSE_NS: u64 = 100_000_000;

/// One export.
struct Hosted {
    shared: Arc<Shared>,
    options: ExportOptions,
    listener: OwnedFd,
    home: Home,
}

impl Hosted {
    fn admits(&self, uid: u32) -> bool {
        // Our user is the one the process has now.
        let me = process::euid();
        self.options.allow_any || uid == 0 || uid == me || self.options.allow_uids.contains(&uid)
    }
}

/// State of the thread.
pub(super) struct Service {
    registry: Arc<Registry>,
    rx: Receiver<Command>,
    wake: Wake,
    exports: Vec<Hosted>,
    conns: Vec<Conn>,
    beat: u64,
    accept_after: u64,
}

impl Service {
    pub fn new(registry: Arc<Registry>, rx: Receiver<Command>, wake: Wake) -> Service {
        Service { registry, rx, wake, exports: Vec::new(), conns: Vec::new(), beat: 1, accept_after: 0 }
    }

    /// Serves until the process ends.
    pub fn run(mut self) {
        let mut ticked = now();
        loop {
            let (listeners, conns) = self.wait(ticked.saturating_add(TICK_NS));
            self.commands();
            // A command may have removed an export or connections: then the marks are off and the next round is right.
            if listeners.len() == self.exports.len() && conns.len() == self.conns.len() {
                self.read(&conns);
                self.accept(&listeners);
            }
            if now().saturating_sub(ticked) >= TICK_NS {
                ticked = now();
                self.tick();
            }
            self.sweep();
        }
    }

    /// Sleeps until something happens; says which listeners and which connections are ready.
    fn wait(&mut self, tick: u64) -> (Vec<bool>, Vec<bool>) {
        let accepting = now() >= self.accept_after;
        let mut fds = vec![PollFd::readable(self.wake.fd())];
        fds.extend(self.conns.iter().map(|c| PollFd::readable(c.fd())));
        if accepting {
            fds.extend(self.exports.iter().map(|e| PollFd::readable(e.listener.as_fd())));
        }
        let until = if accepting { tick } else { tick.min(self.accept_after) };
        // Nobody connected: nothing to keep alive.
        let idle = self.conns.is_empty() && accepting;
        let timeout = if idle { 60_000 } else { until.saturating_sub(now()).div_ceil(1_000_000) };
        if poll(&mut fds, timeout).is_err() {
            crate::sys::clock::nap(10_000_000);
        }
        self.wake.clear();
        let mut ready = fds.iter().skip(1).map(PollFd::ready);
        let conns = ready.by_ref().take(self.conns.len()).collect();
        let listeners = self.exports.iter().map(|_| ready.next().unwrap_or(false)).collect();
        (listeners, conns)
    }

    fn commands(&mut self) {
        while let Some(c) = self.rx.try_next() {
            match c {
                Command::Export { name, memory, options, reply } => {
                    let _ = reply.send(self.export(name, memory, options));
                }
                Command::Unexport { id, reply } => {
                    self.unexport(id);
                    let _ = reply.send(());
                }
                Command::Revoke { id, who, reason, quiesced, reply } => {
                    let result = self.revoke(id, who, &reason, quiesced);
                    // The caller sees the list without the revoked.
                    self.sweep();
                    let _ = reply.send(result);
                }
            }
        }
    }

    fn export(&mut self, name: String, memory: Memory, mut options: ExportOptions) -> Result<Arc<Shared>> {
        while options.incarnation == 0 {
            options.incarnation = process::random();
        }
        let attempt = || format!("export \"{name}\"");
        let listener = match socket::listen(&address(&name), 128) {
            Err(Errno::ADDRINUSE) => {
                return Err(Error::of(Status::EXISTS, attempt()).remedy("see `smc ls` for who has it"));
            }
            r => r.map_err(|e| Error::new(Status::SYSTEM, attempt(), format!("listen: {e}")))?,
        };
        let mut beats = self.beats();
        let home = match memory {
            Memory::New(len) => Home::create(len, options.access)?,
            Memory::At(at) => Home::adopt(&at, options.access, &mut beats)?,
        };
        drop(beats);
        let shared = Arc::new(Shared::new(self.registry.id(), name, &home, &options));
        self.registry.insert(&shared);
        self.exports.push(Hosted { shared: shared.clone(), options, listener, home });
        Ok(shared)
    }

    /// Keeps every client's heartbeat going during long work.
    fn beats(&mut self) -> impl FnMut() + '_ {
        move || {
            self.beat += 1;
            self.conns.iter().for_each(|c| c.beat(self.beat));
        }
    }

    fn unexport(&mut self, id: u64) {
        let Some(at) = self.exports.iter().position(|e| e.shared.id == id) else { return };
        let host = self.exports.swap_remove(at);
        drop(host.listener);
        // From here on no client of another host finds it; then those who have it lose it.
        self.registry.remove(&host.shared);
        for c in self.conns.iter_mut().filter(|c| c.export == id) {
            if c.is_client_of(id) {
                c.set_gate(GATE_ENDED);
                c.say(&Message::Ended, &[]);
                self.registry.note(c.event(What::End, "the export has ended", Some(&host.shared.name)));
            }
            c.gone = true;
        }
        let registry = self.registry.clone();
        let mut beats = self.beats();
        if registry.order(&|done| Order::End { export: id, done }, &mut beats) {
            host.home.retire(&mut beats);
        } else {
            // An adapter may still write there: the pages stay as they are, for as long as this process lives.
            std::mem::forget(host.home);
            crate::sys::process::say_aside(&format!(
                "\"{}\" has ended, but a network adapter does not let go of its memory: it stays shared",
                host.shared.name
            ));
        }
        drop(beats);
        self.conns.retain(|c| !c.gone);
        host.shared.set_clients(Vec::new());
    }

    fn revoke(&mut self, id: u64, who: Who, reason: &str, quiesced: bool) -> Result<()> {
        let host = self.exports.iter().find(|e| e.shared.id == id);
        let shared = host.ok_or_else(|| Error::of(Status::NOT_FOUND, "revoke access"))?.shared.clone();
        let chosen = |n: u64| matches!(who, Who::All) || who == Who::One(n);
        let registry = self.registry.clone();
        let late = |what: &str| Error::new(Status::TIMED_OUT, what, "a network adapter does not let go of the memory");
        // For a client of another host the memory need not move.
        let remote = shared.clients().iter().any(|c| c.remote.is_some() && chosen(c.id));
        let order = |done| Order::Revoke { export: id, who, reason: reason.to_owned(), done };
        if remote && !registry.order(&order, &mut self.beats()) {
            return Err(late("revoke access"));
        }
        if !self.conns.iter().any(|c| c.is_client_of(id) && chosen(c.id)) {
            return match who {
                Who::One(n) if !remote => Err(Error::new(
                    Status::NOT_FOUND,
                    format!("revoke client {n}"),
                    "there is no such client (any more)",
                )),
                _ => Ok(()),
            };
        }
        // Whoever registers memory looks at this first, and whoever has registered it is told next.
        shared.set_moving(true);
        let held = registry.order(&|done| Order::Hold { export: id, done }, &mut self.beats());
        let result =
            if held { self.relocate(id, who, reason, quiesced) } else { Err(late("move the exported memory")) };
        shared.set_moving(false);
        registry.ports().iter().for_each(|p| p.tell(Order::Resume { export: id }));
        result
    }

    fn relocate(&mut self, id: u64, who: Who, reason: &str, quiesced: bool) -> Result<()> {
        let host = self.exports.iter_mut().find(|e| e.shared.id == id);
        let host = host.ok_or_else(|| Error::of(Status::NOT_FOUND, "revoke access"))?;
        // Copying counts beats of its own from here; the next tick goes on above them.
        let result = revoke(&mut host.home, &mut self.conns, id, who, reason, quiesced, self.beat);
        host.shared.set_generation(host.home.generation);
        self.beat += 1 << 32;
        result
    }

    fn accept(&mut self, ready: &[bool]) {
        for (host, _) in self.exports.iter().zip(ready).filter(|(_, r)| **r) {
            for _ in 0..ACCEPTS {
                let fd = match socket::accept(host.listener.as_fd()) {
                    Ok(fd) => fd,
                    Err(e) if e.is_exhaustion() => {
                        self.accept_after = now() + PAUSE_NS;
                        break;
                    }
                    Err(_) => break,
                };
                // Who is it? Before a byte of his is read.
                let Ok(peer) = socket::peer(fd.as_fd()) else { continue };
                let mut c = Conn::new(self.registry.id(), host.shared.id, peer, fd);
                if !host.admits(peer.uid) {
                    c.refuse(Status::PERMISSION, format!("user {} is not admitted", peer.uid));
                } else if self.conns.len() >= MAX_CONNS {
                    c.refuse(Status::NO_RESOURCES, "too many clients");
                } else {
                    self.conns.push(c);
                    continue;
                }
                c.last_event(Some(&host.shared.name)).into_iter().for_each(|e| self.registry.note(e));
            }
        }
    }

    fn read(&mut self, ready: &[bool]) {
        for i in 0..ready.len().min(self.conns.len()) {
            if ready.get(i) != Some(&true) {
                continue;
            }
            let mut turn = 0;
            while let Some(m) = self.conns.get_mut(i).and_then(|c| c.next(&mut turn)) {
                self.answer(i, m);
            }
        }
    }

    fn answer(&mut self, i: usize, m: Message) {
        let reply = match (self.conns.get(i).map(|c| c.phase), m) {
            (Some(Phase::Greeting), Message::Hello { min, max }) => return self.greet(i, min, max),
            (Some(Phase::Ready), Message::Open { name, want }) => return self.open(i, &name, want),
            (Some(Phase::Ready | Phase::Open), Message::List { start }) => self.names(i, start),
            (Some(Phase::Ready | Phase::Open), Message::Ping { token }) => Message::Pong { token },
            (Some(Phase::Open), Message::DeviceFlush { .. }) => {
                Message::error(Status::NOT_SUPPORTED, "this region is not accelerator memory")
            }
            (_, m) => {
                if let Some(c) = self.conns.get_mut(i) {
                    match m {
                        Message::Close => c.gone = true,
                        _ => c.refuse(Status::PROTOCOL, "a message that does not fit here"),
                    }
                }
                return;
            }
        };
        if let Some(c) = self.conns.get_mut(i) {
            c.say(&reply, &[]);
        }
    }

    fn greet(&mut self, i: usize, min: u16, max: u16) {
        let Some(c) = self.conns.get_mut(i) else { return };
        match mgmt::negotiate(min, max) {
            Some(version) => {
                c.phase = Phase::Ready;
                c.say(&Message::Welcome { version, pid: std::process::id() }, &[]);
            }
            None => {
                let ours = format!("{} to {}", mgmt::VERSION_MIN, mgmt::VERSION_MAX);
                c.refuse(Status::PROTOCOL, format!("you speak versions {min} to {max}, this exporter {ours}"));
            }
        }
    }

    /// The exports this client may open, from the `start`-th on.
    fn names(&self, i: usize, start: u32) -> Message {
        let uid = self.conns.get(i).map_or(u32::MAX, |c| c.peer.uid);
        let visible = self.exports.iter().filter(|e| e.admits(uid)).skip(start as usize);
        let mut regions: Vec<RegionDesc> = visible.take(MAX_NAMES + 1).map(|e| e.shared.describe()).collect();
        let more = regions.len() > MAX_NAMES;
        regions.truncate(MAX_NAMES);
        Message::Names { next: if more { start.saturating_add(MAX_NAMES as u32) } else { 0 }, regions }
    }

    fn open(&mut self, i: usize, name: &str, want: Access) {
        let Some(c) = self.conns.get(i) else { return };
        let Some(host) = self.exports.iter().find(|e| e.shared.id == c.export) else { return };
        let refusal = if host.shared.name != name {
            Some((Status::NOT_FOUND, "no such region here".to_owned()))
        } else if want > host.options.access {
            Some((Status::PERMISSION, format!("\"{name}\" is exported read-only")))
        } else {
            None
        };
        if let Some((status, text)) = refusal {
            if let Some(c) = self.conns.get_mut(i) {
                c.refuse(status, text);
            }
            return;
        }
        let generation = host.home.generation;
        if let Some(c) = self.conns.get_mut(i) {
            match c.make_page(generation) {
                Ok(()) => c.opened(want),
                Err(e) => return c.refuse(Status::NO_RESOURCES, format!("control page: {e}")),
            }
        }
        // Before the answer: whoever has been told that it is open is in the list.
        self.publish();
        if let Some(c) = self.conns.get(i) {
            self.registry.note(c.event(What::Grant, "opened", Some(name)));
        }
        self.hand_over(i, want);
    }

    fn hand_over(&mut self, i: usize, want: Access) {
        let Some(c) = self.conns.get(i) else { return };
        let Some(host) = self.exports.iter().find(|e| e.shared.id == c.export) else { return };
        let opened = Message::Opened { region: RegionDesc { access: want, ..host.shared.describe() } };
        let Some(c) = self.conns.get_mut(i) else { return };
        match want {
            Access::ReadWrite => c.hand_over(&opened, host.home.fd()),
            Access::ReadOnly => match host.home.read_only_fd() {
                Ok(fd) => c.hand_over(&opened, fd),
                Err(e) => c.refuse(Status::NO_RESOURCES, format!("read-only descriptor: {e}")),
            },
        }
    }

    /// Tells the public part who has what open.
    fn publish(&self) {
        for e in &self.exports {
            e.shared.set_clients(self.conns.iter().filter(|c| c.is_client_of(e.shared.id)).map(Conn::info).collect());
        }
    }

    fn tick(&mut self) {
        self.beat += 1;
        for c in &mut self.conns {
            c.beat(self.beat);
            c.tick();
        }
    }

    fn sweep(&mut self) {
        if self.conns.iter().any(|c| c.gone) {
            for c in self.conns.extract_if(.., |c| c.gone) {
                let host = self.exports.iter().find(|e| e.shared.id == c.export);
                let event = c.last_event(host.map(|e| &*e.shared.name));
                event.into_iter().for_each(|e| self.registry.note(e));
            }
            self.publish();
        }
    }
}
