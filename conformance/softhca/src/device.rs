//! The devices of this host: how many, their names, addresses and limits.
//!
//! `LIBSOFTHCA_DEVICES` is `N` or `NxP`: N devices (0 to 16, default 1) of P ports each (1 to 4, default 1). What does
//! not read as that counts as the default. Every process of a host must be given the same value: a device is the same
//! device everywhere. Ports are Ethernet ports with two RoCE v2 GIDs: index 0 link-local, index 1 the IPv4-mapped
//! loopback address 127.0.0.(1 + number of the port on this host).
//!
//! `LIBSOFTHCA_FLUSH=on` gives all of them FLUSH, which few devices have.

use ibverbs_sys as sys;
use std::sync::OnceLock;

/// Most devices and most ports of one.
pub const MAX_DEVICES: u32 = 16;
/// Most ports of one device.
pub const MAX_PORTS: u32 = 4;
/// GIDs of a port.
pub const GIDS: usize = 2;
/// Largest message.
pub const MAX_MSG: u32 = 1 << 30;
/// Deepest send, receive and shared receive queue.
pub const MAX_WR: u32 = 16384;
/// Most pieces of one request.
pub const MAX_SGE: u32 = 32;
/// Largest completion queue.
pub const MAX_CQE: u32 = 4_194_303;
/// Most bytes of inline data.
pub const MAX_INLINE: u32 = 1024;
/// Most READs and atomics under way of one queue pair, as either side.
pub const MAX_RD_ATOMIC: u8 = 16;

/// How many devices there are and how many ports each has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Devices.
    pub devices: u32,
    /// Ports of each.
    pub ports: u32,
}

impl Plan {
    /// Reads `N` or `NxP`.
    pub fn parse(text: &str) -> Option<Plan> {
        let (n, p) = text.split_once('x').unwrap_or((text, "1"));
        let plan = Plan { devices: n.trim().parse().ok()?, ports: p.trim().parse().ok()? };
        (plan.devices <= MAX_DEVICES && (1..=MAX_PORTS).contains(&plan.ports)).then_some(plan)
    }

    /// What the environment asks for; read once.
    pub fn of_host() -> Plan {
        static PLAN: OnceLock<Plan> = OnceLock::new();
        *PLAN.get_or_init(|| {
            let wish = std::env::var("LIBSOFTHCA_DEVICES").ok().and_then(|t| Plan::parse(&t));
            wish.unwrap_or(Plan { devices: 1, ports: 1 })
        })
    }
}

/// Node GUID of a device, as a number.
pub fn guid(device: u32) -> u64 {
    0x0253_43ff_fe00_0000 | u64::from(device)
}

/// A GID of a port (from 1), if the index exists.
pub fn gid(device: u32, port: u32, index: usize) -> Option<[u8; 16]> {
    let number = device * MAX_PORTS + port - 1;
    let mut g = [0u8; 16];
    match index {
        0 => {
            g[0] = 0xfe;
            g[1] = 0x80;
            g[8..].copy_from_slice(&(guid(device) | u64::from(port - 1) << 8).to_be_bytes());
        }
        1 => {
            g[10] = 0xff;
            g[11] = 0xff;
            g[12..].copy_from_slice(&[127, 0, 0, 1 + number as u8]);
        }
        _ => return None,
    }
    Some(g)
}

/// Whether the device has FLUSH: `LIBSOFTHCA_FLUSH=on`. Few have.
pub fn flushes() -> bool {
    static WISH: OnceLock<bool> = OnceLock::new();
    *WISH.get_or_init(|| std::env::var("LIBSOFTHCA_FLUSH").is_ok_and(|t| t == "on"))
}

/// Device and port that a GID belongs to.
pub fn find_gid(wanted: &[u8; 16]) -> Option<(u32, u32)> {
    let plan = Plan::of_host();
    let all = (0..plan.devices).flat_map(|d| (1..=plan.ports).map(move |p| (d, p)));
    all.into_iter().find(|&(d, p)| (0..GIDS).any(|i| gid(d, p, i).as_ref() == Some(wanted)))
}

/// What `ibv_query_device` says.
pub fn attributes(device: u32) -> sys::ibv_device_attr {
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as _;
    }
    let caps = sys::IBV_DEVICE_RC_RNR_NAK_GEN
        | sys::IBV_DEVICE_SYS_IMAGE_GUID
        | sys::IBV_DEVICE_PORT_ACTIVE_EVENT
        | sys::IBV_DEVICE_SRQ_RESIZE
        | sys::IBV_DEVICE_MEM_WINDOW
        | sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | sys::IBV_DEVICE_MEM_MGT_EXTENSIONS;
    sys::ibv_device_attr {
        fw_ver,
        node_guid: guid(device).to_be(),
        sys_image_guid: guid(device).to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: 0xff_ff_ff,
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: 4095,
        max_qp_wr: MAX_WR as i32,
        device_cap_flags: caps,
        max_sge: MAX_SGE as i32,
        max_sge_rd: MAX_SGE as i32,
        max_cq: 65536,
        max_cqe: MAX_CQE as i32,
        max_mr: 1 << 20,
        max_pd: 65536,
        max_qp_rd_atom: i32::from(MAX_RD_ATOMIC),
        max_ee_rd_atom: 0,
        max_res_rd_atom: 4095 * i32::from(MAX_RD_ATOMIC),
        max_qp_init_rd_atom: i32::from(MAX_RD_ATOMIC),
        max_ee_init_rd_atom: 0,
        atomic_cap: sys::IBV_ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: 1 << 20,
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 65536,
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: 65536,
        max_srq_wr: MAX_WR as i32,
        max_srq_sge: MAX_SGE as i32,
        max_pkeys: 1,
        local_ca_ack_delay: 0,
        phys_port_cnt: Plan::of_host().ports as u8,
    }
}

/// What `ibv_query_port` says; `up` is whether the port has a link.
pub fn port(up: bool) -> sys::ibv_port_attr {
    use sys::ibv_port_state::{IBV_PORT_ACTIVE, IBV_PORT_DOWN};
    sys::ibv_port_attr {
        state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: sys::IBV_MTU_4096,
        active_mtu: sys::IBV_MTU_4096,
        gid_tbl_len: GIDS as i32,
        port_cap_flags: 1 << 16, // communication management
        max_msg_sz: MAX_MSG,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: 1,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: 2,  // 4x
        active_speed: 32, // 25 Gb/s a lane
        phys_state: if up { 5 } else { 3 },
        link_layer: sys::IBV_LINK_LAYER_ETHERNET as u8,
        flags: 0,
        port_cap_flags2: 0,
        active_speed_ex: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_read() {
        assert_eq!(Plan::parse("2"), Some(Plan { devices: 2, ports: 1 }));
        assert_eq!(Plan::parse("3x2"), Some(Plan { devices: 3, ports: 2 }));
        assert_eq!(Plan::parse("0"), Some(Plan { devices: 0, ports: 1 }));
        for bad in ["", "x", "17", "1x0", "1x5", "-1", "two"] {
            assert_eq!(Plan::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_gid_names_one_port() {
        let mut seen = std::collections::HashSet::new();
        for (d, p) in (0..MAX_DEVICES).flat_map(|d| (1..=MAX_PORTS).map(move |p| (d, p))) {
            for i in 0..GIDS {
                assert!(seen.insert(gid(d, p, i)), "device {d} port {p} index {i}");
            }
        }
        assert_eq!(find_gid(&gid(0, 1, 1).expect("index 1 exists")), Some((0, 1)));
        assert_eq!(gid(0, 1, GIDS), None);
    }
}
