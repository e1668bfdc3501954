//! The rendezvous by the kernel's RDMA connection manager: what both sides of it share.
//!
//! Ordinarily a client and an exporter tell each other the numbers and addresses of their queue pairs over the management connection
//! (`Connect`, `Connected`). There are networks on which that is not enough, because somebody else decides what a queue pair is
//! connected with: InfiniBand with path records of a subnet manager (service levels, partitions, other subnets), RoCE with a traffic class that
//! the administrator has given the connection manager. With `LIBSMC_RENDEZVOUS=rdma_cm` the numbers are left to it:
//!
//! ```text
//! client                                                    exporter
//!   Arrange { lanes }          ── management connection ──►   registers the memory, listens, draws a token
//!                              ◄── Arranged { address, port, token, where the region lies }
//!   address, route, queue pair of each lane in INIT
//!   request { token, lane }    ═════ connection manager ═══►  good token, this lane not yet: queue pair to RTS, accepts
//!                              ◄════════════ response ═════   anything else: rejected, counted
//!   queue pair to RTS          ════════ ready to use ══════►
//! ```
//! Keys, names, rights, what is said of moves and revocations stay on the management connection, encrypted. The token is what ties
//! a request, which is not, to the client to whom it was told: it is random, good for each lane once, for [`PATIENCE_NS`], and only on
//! the device that the client's memory is registered with. Whoever has none is rejected without anything being made for him.
//!
//! Each side's ids live in the thread that looks after the region ("smc-verbs", "smc-net"), in a file of its descriptor table. When
//! the connection manager says that a lane is disconnected, the client makes it anew like a lane that has failed, and the exporter drops it.
//! Ids of lanes that have failed end when their successors are connected, and not before: the end of an id is told the other side, and there are
//! devices (rxe) that never send for the connection manager again once they were to send for it while they had no link.
//!
//! # Limits
//! * The device is chosen as ever ([`port::choose`](super::port::choose)); where the connection manager would take another one, the error
//!   says so. All lanes take its first port, whatever ports are named.
//! * The exporter listens on the address of its port (RoCE), or on the one that the client has called (InfiniBand: an address of IPoIB).
//! * iWARP has no other rendezvous. The sequence is made for it too, but a device is chosen by a RoCE v2 address or a LID, which iWARP has not; it
//!   was never tried.

use super::queue::{QueuePair, RETRIES};
use crate::base::{Error, Result, Status};
use crate::link::mgmt::message::TOKEN;
use crate::sys::Errno;
use crate::sys::rdma_cm::{AhAttr, ConnectionManager, DATA, FILE, Id, QpAttr, Terms};
use ibverbs_sys as ib;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// How long an exporter expects what was arranged.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// What a request begins with.
const MAGIC: [u8; 4] = *b"SMCQ";
/// Bytes of a request.
const LENGTH: usize = 4 + TOKEN + 1;

/// Opens the connection manager. `NOT_SUPPORTED` where the kernel has none, `PERMISSION`, `NO_RESOURCES`, `SYSTEM`.
pub fn open() -> Result<ConnectionManager> {
    ConnectionManager::open().map_err(|e| {
        let (status, remedy) = match e {
            Errno::NOENT | Errno::NODEV | Errno(6) => (Status::NOT_SUPPORTED, "load the kernel's module rdma_ucm"),
            Errno::ACCES | Errno::PERM => (Status::PERMISSION, "let this user read and write that file"),
            e if e.is_exhaustion() => (Status::NO_RESOURCES, "let the process open more files (ulimit -n)"),
            _ => (Status::SYSTEM, "see what is there"),
        };
        let e = Error::new(status, "use the RDMA connection manager", format!("{FILE}: {e}"));
        e.remedy(format!("{remedy}, or do without: LIBSMC_RENDEZVOUS=tcp"))
    })
}

/// What a request for a lane carries.
pub fn request(token: &[u8; TOKEN], lane: u8) -> [u8; LENGTH] {
    let mut all = [lane; LENGTH];
    all.iter_mut().zip(MAGIC.iter().chain(token)).for_each(|(to, from)| *to = *from);
    all
}

/// The reverse; `None` for what no client of ours has sent.
pub(super) fn requested(data: &[u8; DATA]) -> Option<([u8; TOKEN], u8)> {
    let rest = data.strip_prefix(&MAGIC)?;
    let (token, rest) = rest.split_first_chunk::<TOKEN>()?;
    Some((*token, *rest.first()?))
}

/// The address in a GID of RoCE v2; `None` where a GID is none: on InfiniBand, and where it is good on one link only.
pub(super) fn address(gid: [u8; 16], lid: u16) -> Option<IpAddr> {
    let ip = Ipv6Addr::from(gid);
    let good = lid == 0 && !ip.is_unspecified() && !ip.is_unicast_link_local();
    good.then(|| IpAddr::V6(ip).to_canonical())
}

/// An address as messages have it; `None` is zeros.
pub(super) fn to_message(ip: Option<IpAddr>) -> [u8; 16] {
    match ip {
        None => [0; 16],
        Some(IpAddr::V4(a)) => a.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(a)) => a.octets(),
    }
}

/// The reverse: what is connected to, by a client who has called `called`.
pub(super) fn to_connect(at: [u8; 16], port: u16, called: IpAddr) -> SocketAddr {
    let ip = Ipv6Addr::from(at);
    SocketAddr::new(if ip.is_unspecified() { called } else { IpAddr::V6(ip).to_canonical() }, port)
}

/// Terms for a queue pair of ours that answers and asks so many READs and atomics at a time.
pub(super) fn terms<'a>(pair: &QueuePair, answers: u8, asks: u8, data: &'a [u8]) -> Terms<'a> {
    Terms { qp_num: pair.number(), answers, asks, retries: RETRIES, data }
}

/// Brings a queue pair to a state by what the connection manager says of it; `change` has the last word. On a network whose device
/// does that by itself (iWARP) nothing is said of it, and nothing done.
pub(super) fn bring_up(
    manager: &ConnectionManager,
    id: Id,
    pair: &QueuePair,
    state: u32,
    change: impl FnOnce(&mut ib::ibv_qp_attr, &mut u32),
) -> Result<()> {
    let said = manager.attributes(id, state).map_err(|e| failed("ask how to connect a queue pair", e))?;
    let (mut attr, mut mask) = (attributes(&said), said.qp_attr_mask);
    attr.qp_state = state;
    change(&mut attr, &mut mask);
    if mask & ib::ibv_qp_attr_mask::IBV_QP_STATE.0 == 0 { Ok(()) } else { pair.apply(&mut attr, mask) }
}

/// A command that failed.
pub(super) fn failed(attempt: impl Into<String>, e: Errno) -> Error {
    let (status, why) = match e.0 {
        19 => (Status::NOT_FOUND, format!("{e}: no RDMA device has that address, or the way there leaves by none")),
        99 => (Status::NOT_FOUND, format!("{e}: this host has no such address")),
        101 | 113 => (Status::LINK_DOWN, format!("{e}: there is no way to that address")),
        110 => (Status::TIMED_OUT, format!("{e}: nobody has that address, or no subnet manager answers")),
        111 => (Status::LINK_DOWN, format!("{e}: nobody expects this there")),
        13 => (Status::LINK_DOWN, format!("{e}: the process has changed its user since it opened {FILE}")),
        12 => (Status::NO_RESOURCES, e.to_string()),
        _ => (Status::LINK_DOWN, e.to_string()),
    };
    Error::new(status, attempt, why)
}

fn way(a: &AhAttr) -> ib::ibv_ah_attr {
    // SAFETY: numbers and bytes only; zero is a value of each.
    let mut to = unsafe { MaybeUninit::<ib::ibv_ah_attr>::zeroed().assume_init() };
    to.grh.dgid = ib::ibv_gid { raw: a.dgid };
    to.grh.flow_label = a.flow_label;
    to.grh.sgid_index = a.sgid_index;
    to.grh.hop_limit = a.hop_limit;
    to.grh.traffic_class = a.traffic_class;
    to.dlid = a.dlid;
    to.sl = a.sl;
    to.src_path_bits = a.src_path_bits;
    to.static_rate = a.static_rate;
    to.is_global = a.is_global;
    to.port_num = a.port_num;
    to
}

/// The kernel's form of attributes in that of the verbs.
fn attributes(q: &QpAttr) -> ib::ibv_qp_attr {
    // SAFETY: numbers and bytes only; zero is a value of each.
    let mut to = unsafe { MaybeUninit::<ib::ibv_qp_attr>::zeroed().assume_init() };
    to.qp_state = q.qp_state;
    to.cur_qp_state = q.cur_qp_state;
    to.path_mtu = q.path_mtu;
    to.path_mig_state = q.path_mig_state;
    to.qkey = q.qkey;
    to.rq_psn = q.rq_psn;
    to.sq_psn = q.sq_psn;
    to.dest_qp_num = q.dest_qp_num;
    to.qp_access_flags = q.qp_access_flags;
    to.ah_attr = way(&q.ah_attr);
    to.alt_ah_attr = way(&q.alt_ah_attr);
    to.pkey_index = q.pkey_index;
    to.alt_pkey_index = q.alt_pkey_index;
    to.max_rd_atomic = q.max_rd_atomic;
    to.max_dest_rd_atomic = q.max_dest_rd_atomic;
    to.min_rnr_timer = q.min_rnr_timer;
    to.port_num = q.port_num;
    to.timeout = q.timeout;
    to.retry_cnt = q.retry_cnt;
    to.rnr_retry = q.rnr_retry;
    to.alt_port_num = q.alt_port_num;
    to.alt_timeout = q.alt_timeout;
    to
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_request_is_told_from_others() {
        let mut data = [0; DATA];
        let token = std::array::from_fn(|i| i as u8 + 100);
        let sent = request(&token, 7);
        data[..sent.len()].copy_from_slice(&sent);
        assert_eq!(requested(&data), Some((token, 7)));
        for at in 0..MAGIC.len() {
            let mut other = data;
            other[at] ^= 1;
            assert_eq!(requested(&other), None);
        }
        assert_eq!(requested(&[0; DATA]), None);
    }

    #[test]
    fn addresses_go_there_and_back() {
        let called: IpAddr = "192.0.2.7".parse().unwrap();
        for (gid, lid, want) in [
            ("::ffff:10.77.0.1", 0, Some("10.77.0.1")),
            ("2001:db8::7", 0, Some("2001:db8::7")),
            ("fe80::7", 0, None),
            ("fe80::7", 3, None),
            ("2001:db8::7", 3, None),
            ("::", 0, None),
        ] {
            let gid: Ipv6Addr = gid.parse().unwrap();
            let found = address(gid.octets(), lid);
            assert_eq!(found, want.map(|w| w.parse().unwrap()), "{gid} {lid}");
            let there = to_connect(to_message(found), 9, called);
            assert_eq!(there, SocketAddr::new(found.unwrap_or(called), 9));
        }
    }
}
