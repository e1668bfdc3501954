//! Exports told to other hosts: the management path over TCP.
//!
//! Members, who have a key of this exporter, may list and open what [`ExportOptions::reach`] shows them; whom the exports admit on
//! this host makes no difference to them. One connection opens one region.
//!
//! A thread of its own ("smc-net") and not the one that serves this host: what strangers make it do delays nobody
//! here. It has no sockets of this host's clients and no memory files in its descriptor table. What it has registered of the
//! exports' memory it lets go when the service thread orders it (`orders`).
//!
//! [`ExportOptions::reach`]: super::ExportOptions::reach

mod desk;

pub use crate::link::mgmt::ring::Keyring;

use super::Exporter;
use super::orders::{Order, Port, wait};
use super::registry::Registry;
use crate::base::config::DeviceWish;
use crate::base::{Error, Result, Status};
use crate::link::mgmt::tcp::{Limits, Server};
use crate::sys::channel::{Receiver, Sender, channel};
use crate::sys::clock::{nap, now};
use crate::sys::poll::{PollFd, poll};
use crate::sys::thread::{self, ForkMark, Wake};
use crate::sys::{Errno, reserve};
use desk::Desk;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Longest sleep: nothing depends on it.
const SLEEP_NS: u64 = 60_000_000_000;
/// Longest time from the start of the thread to the order to serve, which follows at once.
const START: Duration = Duration::from_secs(60);

/// Settings of a listening exporter.
#[derive(Clone, Default, Debug)]
pub struct ListenOptions {
    /// What strangers and members may take.
    pub limits: Limits,
    /// The RDMA device by which clients reach the memory.
    pub device: DeviceWish,
}

/// A listening management path. Dropping it closes it and every connection that came by it: clients lose their regions as by the exporter's end.
#[derive(Debug)]
pub struct Network {
    address: SocketAddr,
    port: Arc<Port>,
    registry: Arc<Registry>,
    mark: ForkMark,
}

impl Exporter {
    /// Lets members on other hosts list and open what this process exports, now and later. `at` is an address of this host and a port; with port 0 any
    /// free one, see [`Network::address`]. Without an RDMA device regions can be listed and opened, and connecting is answered by an
    /// error that says what is missing.
    ///
    /// `EXISTS` when somebody listens there, `FORKED`, `SYSTEM`, `NO_RESOURCES`.
    pub fn listen(&self, at: SocketAddr, keys: Keyring) -> Result<Network> {
        self.listen_with(at, keys, ListenOptions::default())
    }

    /// [`Exporter::listen`] with other settings than the usual ones.
    pub fn listen_with(&self, at: SocketAddr, keys: Keyring, options: ListenOptions) -> Result<Network> {
        let attempt = || format!("listen on {at}");
        if self.mark.in_child() {
            return Err(Error::of(Status::FORKED, attempt()));
        }
        reserve::at_hand().map_err(|s| Error::of(s, attempt()))?;
        let ((tx, answer), (queue, orders)) = (channel(), channel());
        let registry = self.registry.clone();
        let serves = registry.clone();
        let ListenOptions { limits, device } = options;
        let body = move |wake: Wake| match Server::bind(&at, keys, limits) {
            Ok(server) => {
                let _ = tx.send(Ok(server.address()));
                drop(tx);
                serve(server, Desk::new(serves, device), &orders, &wake);
            }
            Err(e) => {
                let _ = tx.send(Err(e));
            }
        };
        let thread = thread::spawn("smc-net", body)
            .map_err(|e| Error::new(Status::NO_RESOURCES, attempt(), format!("cannot start a thread: {e}")))?;
        match answer.until_the_end().next() {
            Some(Ok(address)) => {
                let port = Arc::new(Port::new(queue, thread));
                // Known to the service thread before it serves anybody.
                registry.ports().push(port.clone());
                port.tell(Order::Start);
                Ok(Network { address, port, registry, mark: ForkMark::new() })
            }
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

    /// Takes these keys from now on, and no others. When it returns, clients whose key is no longer there have lost their access as
    /// by [`Export::revoke`](super::Export::revoke). `FORKED`, `TIMED_OUT`.
    pub fn take_keys(&self, keys: Keyring) -> Result<()> {
        let attempt = || format!("change the keys of {}", self.address);
        if self.mark.in_child() {
            return Err(Error::of(Status::FORKED, attempt()));
        }
        let (done, answer) = channel();
        self.port.tell(Order::Keys { keys, done });
        if wait(&answer, &mut || {}) { Ok(()) } else { Err(Error::of(Status::TIMED_OUT, attempt())) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if self.mark.in_child() {
            // The thread lives in the parent only.
            return std::mem::forget(self.port.take());
        }
        self.registry.ports().retain(|p| !Arc::ptr_eq(p, &self.port));
        self.port.tell(Order::Stop);
        if let Some(thread) = self.port.take() {
            thread.join();
        }
    }
}

fn serve(mut server: Server, mut desk: Desk, orders: &Receiver<Order>, wake: &Wake) {
    if !matches!(orders.wait(START), Some(Order::Start)) {
        return;
    }
    loop {
        let mut fds = vec![PollFd::readable(wake.fd())];
        desk.watch(&mut fds);
        let own = fds.len();
        server.watch(&mut fds);
        let left = server.moment().saturating_sub(now()).min(SLEEP_NS);
        if poll(&mut fds, left.div_ceil(1_000_000)).is_err() {
            nap(10_000_000);
        }
        wake.clear();
        while let Some(order) = orders.try_next() {
            if !desk.obey(order, &mut server) {
                return desk.close();
            }
        }
        if fds.get(1..own).is_some_and(|of_desk| of_desk.iter().any(PollFd::ready)) {
            desk.receive();
        }
        server.turn(fds.get(own..).unwrap_or_default(), &mut desk);
    }
}

/// Says that an order is done. Whoever gave it may have stopped waiting.
fn done(to: &Sender<()>) {
    let _ = to.send(());
}

#[cfg(test)]
mod tests;
