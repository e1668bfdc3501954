//! Exports told to other hosts: the management path over TCP.
//!
//! Members, who have the pre-shared key, may list what this process exports; whom the exports admit on this host makes no
//! difference to them. Opening a region is answered by `NOT_SUPPORTED`: no link moves bytes over a network yet.
//!
//! A thread of its own ("smc-net") and not the one that serves this host: what strangers make it do delays nobody
//! here, and it has neither sockets of clients nor memory of exports in its descriptor table.

use super::Exporter;
use super::registry::Registry;
use crate::base::{Error, Result, Status};
use crate::link::mgmt::Message;
use crate::link::mgmt::key::Key;
use crate::link::mgmt::message::MAX_NAMES;
use crate::link::mgmt::tcp::{Limits, Server};
use crate::sys::channel::{Sender, channel};
use crate::sys::clock::{nap, now};
use crate::sys::poll::{PollFd, poll};
use crate::sys::thread::{self, ForkMark, OwnThread, Wake};
use crate::sys::{Errno, reserve};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Longest sleep: nothing depends on it.
const SLEEP_NS: u64 = 60_000_000_000;

/// A listening management path. Dropping it closes it and every connection that came by it.
#[derive(Debug)]
pub struct Network {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<OwnThread>,
    mark: ForkMark,
}

impl Exporter {
    /// Tells members on other hosts what this process exports, now and later. `at` is an address of this host and a port; with port 0 any
    /// free one, see [`Network::address`].
    ///
    /// `EXISTS` when somebody listens there, `FORKED`, `SYSTEM`, `NO_RESOURCES`.
    pub fn listen(&self, at: SocketAddr, key: Key) -> Result<Network> {
        let attempt = || format!("listen on {at}");
        if self.mark.in_child() {
            return Err(Error::of(Status::FORKED, attempt()));
        }
        reserve::at_hand().map_err(|s| Error::of(s, attempt()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (tx, answer) = channel();
        let (registry, ends) = (self.registry.clone(), stop.clone());
        let thread = thread::spawn("smc-net", move |wake| serve(&at, key, &registry, &wake, &ends, &tx))
            .map_err(|e| Error::new(Status::NO_RESOURCES, attempt(), format!("cannot start a thread: {e}")))?;
        match answer.until_the_end().next() {
            Some(Ok(address)) => Ok(Network { address, stop, thread: Some(thread), mark: ForkMark::new() }),
            Some(Err(e)) => {
                thread.join();
                let status = if e == Errno::ADDRINUSE { Status::EXISTS } else { Status::SYSTEM };
                Err(Error::new(status, attempt(), e.to_string()))
            }
            None => Err(Error::new(Status::INTERNAL, attempt(), "the thread has ended")),
        }
    }
}

impl Network {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.mark.in_child() {
            // The thread lives in the parent only.
            return std::mem::forget(thread);
        }
        self.stop.store(true, SeqCst);
        thread.wake();
        thread.join();
    }
}

type Bound = std::result::Result<SocketAddr, Errno>;

fn serve(at: &SocketAddr, key: Key, registry: &Registry, wake: &Wake, stop: &AtomicBool, reply: &Sender<Bound>) {
    let mut server = match Server::bind(at, key, Limits::default()) {
        Ok(s) => s,
        Err(e) => {
            let _ = reply.send(Err(e));
            return;
        }
    };
    let _ = reply.send(Ok(server.address()));
    while !stop.load(SeqCst) {
        let mut fds = vec![PollFd::readable(wake.fd())];
        server.watch(&mut fds);
        let left = server.moment().saturating_sub(now()).min(SLEEP_NS);
        if poll(&mut fds, left.div_ceil(1_000_000)).is_err() {
            nap(10_000_000);
        }
        wake.clear();
        server.turn(fds.get(1..).unwrap_or_default(), &mut |m| answer(registry, &m));
    }
}

fn answer(registry: &Registry, m: &Message) -> Message {
    match m {
        Message::List { start } => {
            let (regions, more) = registry.part(*start as usize, MAX_NAMES);
            Message::Names { next: if more { start.saturating_add(MAX_NAMES as u32) } else { 0 }, regions }
        }
        _ => Message::error(Status::NOT_SUPPORTED, "regions can be listed over a network, but not opened yet"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{ExportOptions, Memory};
    use super::*;
    use crate::link::Access;
    use crate::link::mgmt::tcp::Client;
    use crate::sys::clock::Deadline;

    fn client(at: SocketAddr, key: &Key) -> Result<Client> {
        Client::connect(&[at], key, "there", Deadline::in_ms(10_000))
    }

    #[test]
    fn members_see_the_exports_as_they_are() {
        let (e, key) = (Exporter::get().unwrap(), Key::generate().unwrap());
        let any = "127.0.0.1:0".parse().unwrap();
        let net = e.listen(any, key.clone()).unwrap();
        assert_eq!(e.listen(net.address(), key.clone()).unwrap_err().status, Status::EXISTS);
        let mine = format!("net-{}-", std::process::id());
        let export = |n: u32| {
            let options = ExportOptions { access: Access::ReadOnly, incarnation: 77, ..ExportOptions::default() };
            e.export(&format!("{mine}{n:03}"), Memory::New(8192), options).unwrap()
        };
        let seen = |c: &mut Client| -> Vec<_> {
            c.list().unwrap().into_iter().filter(|r| r.name.starts_with(&mine)).collect()
        };
        let mut c = client(net.address(), &key).unwrap();
        assert!(seen(&mut c).is_empty());
        // More than one answer holds.
        let all: Vec<_> = (0..40).map(export).collect();
        let list = seen(&mut c);
        assert_eq!(list.len(), 40);
        let (r, pid) = (&list[39], std::process::id());
        assert_eq!((&*r.name, r.len, r.access, r.pid), (all[39].name(), 8192, Access::ReadOnly, pid));
        assert_eq!((r.incarnation, r.clients), (77, 0));
        drop(all);
        assert!(seen(&mut c).is_empty());
        let open = c.ask(&Message::Open { name: "x".into(), want: Access::ReadOnly });
        assert_eq!(open.unwrap_err().status, Status::NOT_SUPPORTED);
        assert_eq!(client(net.address(), &Key::generate().unwrap()).unwrap_err().status, Status::REFUSED);
        let at = net.address();
        drop(net);
        assert_eq!(c.list().unwrap_err().status, Status::LINK_DOWN);
        assert_eq!(client(at, &key).unwrap_err().status, Status::LINK_DOWN);
        // The port is free at once.
        drop(e.listen(at, key).unwrap());
    }
}
