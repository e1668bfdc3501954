//! Which device and which port: a choice that says why it was made.

use super::device::{Device, Table, number};
use crate::base::config::DeviceWish;
use crate::base::{Error, Result, Status};
use crate::link::mgmt::message::Endpoint;
use crate::sys::Errno;
use crate::sys::errno::around;
use ibverbs_sys as ib;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Most GIDs of a device that are looked at.
const GIDS: usize = 1024;

/// A usable port and the address to use on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// 1 to the device's number of ports.
    pub number: u8,
    /// Place of the address in the device's table.
    pub gid_index: u8,
    /// The address.
    pub gid: [u8; 16],
    /// Address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Largest packet: 1 (256 bytes) to 5 (4096).
    pub mtu: u8,
}

impl Port {
    /// A queue pair of this port, as the other side must know it.
    pub fn endpoint(&self, qpn: u32, psn: u32, reads: u8) -> Endpoint {
        Endpoint { qpn, psn, gid: self.gid, lid: self.lid, mtu: self.mtu, reads }
    }

    /// Whether it has a link now.
    pub(super) fn is_active(&self, device: &Device) -> bool {
        device.at_hand().is_ok()
            && attributes(device, self.number).is_ok_and(|a| a.state == ib::ibv_port_state::IBV_PORT_ACTIVE)
    }

    /// Bytes of the largest packet.
    pub fn mtu_bytes(&self) -> u32 {
        128 << self.mtu.clamp(1, 5)
    }
}

/// An open device, its ports to be used, and why these.
#[derive(Debug)]
pub struct Choice {
    /// Open.
    pub device: Arc<Device>,
    /// At least one.
    pub ports: Vec<Port>,
    /// One line for people.
    pub reason: String,
}

/// How well a port's address suits; the order is the order of preference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fit {
    /// The address that the management path comes from.
    SameAddress,
    /// RoCE v2 over IPv4.
    RoceV4,
    /// RoCE v2 over IPv6.
    RoceV6,
    /// An InfiniBand port with a LID.
    Infiniband,
    /// The user named it.
    Named,
}

impl Fit {
    fn why(self) -> &'static str {
        match self {
            Fit::SameAddress => "its address is the one that the management path uses",
            Fit::RoceV4 => "the first active port with a RoCE v2 address (IPv4)",
            Fit::RoceV6 => "the first active port with a RoCE v2 address (IPv6)",
            Fit::Infiniband => "the first active InfiniBand port",
            Fit::Named => "LIBSMC_GID_INDEX names its address",
        }
    }
}

/// An IP address as RoCE v2 has it in a GID.
fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

fn show(gid: [u8; 16]) -> String {
    let a = Ipv6Addr::from(gid);
    a.to_ipv4_mapped().map_or_else(|| a.to_string(), |v4| v4.to_string())
}

/// What was found of one device's ports: the fitting ones, and the others with why they do not fit.
type Looked = (Vec<(Fit, Port)>, Vec<String>);

fn gids(device: &Device) -> Vec<ib::ibv_gid_entry> {
    let none = ib::ibv_gid_entry {
        gid: ib::ibv_gid { raw: [0; 16] },
        gid_index: 0,
        port_num: 0,
        gid_type: 0,
        ndev_ifindex: 0,
    };
    let mut all = vec![none; GIDS];
    let size = size_of::<ib::ibv_gid_entry>();
    // SAFETY: room for so many entries of that size.
    let (n, _) = around(|| unsafe { (device.lib.gid_table)(device.ctx(), all.as_mut_ptr(), all.len(), 0, size) });
    all.truncate(usize::try_from(n).unwrap_or(0));
    all
}

fn attributes(device: &Device, number_: u8) -> std::result::Result<ib::ibv_port_attr, Errno> {
    let mut attr = MaybeUninit::<ib::ibv_port_attr>::zeroed();
    // SAFETY: an open context; the attribute is writable and larger than what this version of the function fills.
    number(around(|| unsafe { (device.lib.query_port)(device.ctx(), number_, attr.as_mut_ptr()) }))?;
    // SAFETY: zeroed, then filled in; plain numbers.
    Ok(unsafe { attr.assume_init() })
}

/// Looks at the ports of a device.
fn look(device: &Device, wish: &DeviceWish, local: Option<IpAddr>) -> Looked {
    let (mut fit, mut unfit) = (Vec::new(), Vec::new());
    let table = gids(device);
    for n in 1..=device.ports() {
        let name = format!("{}:{n}", device.name());
        if !wish.ports.is_empty() && !wish.ports.contains(&n) {
            continue;
        }
        let attr = match attributes(device, n) {
            Ok(a) if a.state == ib::ibv_port_state::IBV_PORT_ACTIVE => a,
            Ok(_) => {
                unfit.push(format!("{name} has no link"));
                continue;
            }
            Err(e) => {
                unfit.push(format!("{name}: {e}"));
                continue;
            }
        };
        let best =
            table.iter().filter(|g| g.port_num == u32::from(n)).filter_map(|g| rate(g, &attr, wish, local)).min();
        match best {
            Some((f, index, gid)) => {
                let mtu = attr.active_mtu.clamp(1, 5) as u8;
                fit.push((f, Port { number: n, gid_index: index, gid, lid: attr.lid, mtu }));
            }
            None if wish.gid_index.is_some() => unfit.push(format!("{name} has no GID of that index")),
            None => unfit.push(format!("{name} has neither a RoCE v2 address nor a LID")),
        }
    }
    (fit, unfit)
}

/// How well one GID of a port suits, if at all.
fn rate(
    g: &ib::ibv_gid_entry,
    attr: &ib::ibv_port_attr,
    wish: &DeviceWish,
    local: Option<IpAddr>,
) -> Option<(Fit, u8, [u8; 16])> {
    let index = u8::try_from(g.gid_index).ok()?;
    // SAFETY: both variants of the union are the same sixteen bytes.
    let gid = unsafe { g.gid.raw };
    let v2 = g.gid_type == ib::IBV_GID_TYPE_ROCE_V2;
    let fit = match wish.gid_index {
        Some(i) if i == g.gid_index => Fit::Named,
        Some(_) => return None,
        None if gid == [0; 16] => return None,
        None if v2 && local.is_some_and(|ip| gid_of(ip) == gid) => Fit::SameAddress,
        None if v2 && Ipv6Addr::from(gid).to_ipv4_mapped().is_some() => Fit::RoceV4,
        None if v2 => Fit::RoceV6,
        None if attr.lid != 0 => Fit::Infiniband,
        None => return None,
    };
    Some((fit, index, gid))
}

/// Chooses a device and its ports. `local`: this host's address on the management path, which tells which network reaches the
/// other side. Without wishes it is one port; with several ports named it is those.
///
/// `NOT_FOUND` when no port fits, with what was seen and why not; what [`Device::open`] says.
pub fn choose(wish: &DeviceWish, local: Option<IpAddr>, table: Table) -> Result<Choice> {
    let names = Device::names()?;
    let attempt = || match &wish.name {
        Some(n) => format!("use RDMA device {n}"),
        None => "find an RDMA device".to_owned(),
    };
    let (mut best, mut rejected): (Option<(Fit, Choice)>, _) = (None, Vec::new());
    for name in names.iter().filter(|n| wish.name.as_ref().is_none_or(|w| w == *n)) {
        let device = match Device::open(name, table) {
            Ok(d) => d,
            Err(e) => {
                rejected.push(format!("{name}: {}", e.why));
                continue;
            }
        };
        let (mut fit, unfit) = look(&device, wish, local);
        rejected.extend(unfit);
        fit.sort_by_key(|(f, p)| (*f, p.number));
        if wish.ports.len() < 2 {
            fit.truncate(1);
        }
        let Some((f, first)) = fit.first().copied() else { continue };
        if best.as_ref().is_some_and(|(b, _)| *b <= f) {
            continue;
        }
        let ports: Vec<Port> = fit.into_iter().map(|(_, p)| p).collect();
        let reason = explain(&device, &ports, &first, if wish.name.is_some() { "it was named" } else { f.why() });
        best = Some((f, Choice { device, ports, reason }));
    }
    if let Some((_, choice)) = best {
        return Ok(choice);
    }
    let why = match (names.is_empty(), rejected.is_empty()) {
        (true, _) => "this host has no RDMA device".to_owned(),
        (_, true) => format!("there is none of that name; there are {}", names.join(", ")),
        _ => rejected.join("; "),
    };
    let remedy = "see `smc doctor` and `ibv_devinfo`; LIBSMC_DEVICE=NAME:PORT and LIBSMC_GID_INDEX choose by hand";
    Err(Error::new(Status::NOT_FOUND, attempt(), why).remedy(remedy))
}

fn explain(device: &Device, ports: &[Port], first: &Port, why: &str) -> String {
    let numbers = ports.iter().map(|p| p.number.to_string()).collect::<Vec<_>>().join("+");
    let (gid, index, mtu) = (show(first.gid), first.gid_index, first.mtu_bytes());
    format!("{}:{numbers}, GID {index} ({gid}), MTU {mtu}: {why}", device.name())
}
