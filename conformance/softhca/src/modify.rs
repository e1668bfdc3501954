//! State changes of queue pairs: which are allowed, with which attributes.

use crate::device::{self, MAX_RD_ATOMIC, Plan};
use crate::link::{Place, QPN_BITS};
use crate::qp::*;
use ibverbs_sys as sys;
use std::sync::Arc;

const STATE: u32 = 1;
const CUR_STATE: u32 = 1 << 1;
const SQD_NOTIFY: u32 = 1 << 2;
const ACCESS: u32 = 1 << 3;
const PKEY: u32 = 1 << 4;
const PORT: u32 = 1 << 5;
const QKEY: u32 = 1 << 6;
const AV: u32 = 1 << 7;
const MTU: u32 = 1 << 8;
const TIMEOUT: u32 = 1 << 9;
const RETRY: u32 = 1 << 10;
const RNR_RETRY: u32 = 1 << 11;
const RQ_PSN: u32 = 1 << 12;
const MAX_RD: u32 = 1 << 13;
const ALT: u32 = 1 << 14;
const MIN_RNR: u32 = 1 << 15;
const SQ_PSN: u32 = 1 << 16;
const MAX_DEST_RD: u32 = 1 << 17;
const PATH_MIG: u32 = 1 << 18;
const DEST: u32 = 1 << 20;

/// (from, to, transport, required, optional), after the table of the InfiniBand specification.
type Row = (u32, u32, Kind, u32, u32);

const TABLE: &[Row] = &[
    (IBV_QPS_RESET, IBV_QPS_INIT, Kind::Rc, PKEY | PORT | ACCESS, 0),
    (IBV_QPS_RESET, IBV_QPS_INIT, Kind::Uc, PKEY | PORT | ACCESS, 0),
    (IBV_QPS_RESET, IBV_QPS_INIT, Kind::Ud, PKEY | PORT | QKEY, 0),
    (IBV_QPS_INIT, IBV_QPS_INIT, Kind::Rc, 0, PKEY | PORT | ACCESS),
    (IBV_QPS_INIT, IBV_QPS_INIT, Kind::Uc, 0, PKEY | PORT | ACCESS),
    (IBV_QPS_INIT, IBV_QPS_INIT, Kind::Ud, 0, PKEY | PORT | QKEY),
    (IBV_QPS_INIT, IBV_QPS_RTR, Kind::Rc, AV | MTU | DEST | RQ_PSN | MAX_DEST_RD | MIN_RNR, ALT | ACCESS | PKEY),
    (IBV_QPS_INIT, IBV_QPS_RTR, Kind::Uc, AV | MTU | DEST | RQ_PSN, ALT | ACCESS | PKEY),
    (IBV_QPS_INIT, IBV_QPS_RTR, Kind::Ud, 0, PKEY | QKEY),
    (
        IBV_QPS_RTR,
        IBV_QPS_RTS,
        Kind::Rc,
        TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD,
        CUR_STATE | ALT | ACCESS | MIN_RNR | PATH_MIG,
    ),
    (IBV_QPS_RTR, IBV_QPS_RTS, Kind::Uc, SQ_PSN, CUR_STATE | ALT | ACCESS | PATH_MIG),
    (IBV_QPS_RTR, IBV_QPS_RTS, Kind::Ud, SQ_PSN, CUR_STATE | QKEY),
    (IBV_QPS_RTS, IBV_QPS_RTS, Kind::Rc, 0, CUR_STATE | ACCESS | ALT | PATH_MIG | MIN_RNR),
    (IBV_QPS_RTS, IBV_QPS_RTS, Kind::Uc, 0, CUR_STATE | ACCESS | ALT | PATH_MIG),
    (IBV_QPS_RTS, IBV_QPS_RTS, Kind::Ud, 0, CUR_STATE | QKEY),
    (IBV_QPS_RTS, IBV_QPS_SQD, Kind::Rc, 0, SQD_NOTIFY),
    (IBV_QPS_RTS, IBV_QPS_SQD, Kind::Uc, 0, SQD_NOTIFY),
    (IBV_QPS_RTS, IBV_QPS_SQD, Kind::Ud, 0, SQD_NOTIFY),
    (IBV_QPS_SQD, IBV_QPS_RTS, Kind::Rc, 0, CUR_STATE | ALT | ACCESS | MIN_RNR | PATH_MIG),
    (IBV_QPS_SQD, IBV_QPS_RTS, Kind::Uc, 0, CUR_STATE | ALT | ACCESS | PATH_MIG),
    (IBV_QPS_SQD, IBV_QPS_RTS, Kind::Ud, 0, CUR_STATE | QKEY),
    (
        IBV_QPS_SQD,
        IBV_QPS_SQD,
        Kind::Rc,
        0,
        PORT | AV | TIMEOUT | RETRY | RNR_RETRY | MAX_RD | ALT | ACCESS | PKEY | MIN_RNR | PATH_MIG | MAX_DEST_RD,
    ),
    (IBV_QPS_SQD, IBV_QPS_SQD, Kind::Uc, 0, AV | ALT | ACCESS | PKEY | PATH_MIG),
    (IBV_QPS_SQD, IBV_QPS_SQD, Kind::Ud, 0, PKEY | QKEY),
    (IBV_QPS_SQE, IBV_QPS_RTS, Kind::Uc, 0, CUR_STATE | ACCESS),
    (IBV_QPS_SQE, IBV_QPS_RTS, Kind::Ud, 0, CUR_STATE | QKEY),
];

/// Whether the step is one the specification knows, with these attributes.
fn allowed(from: u32, to: u32, kind: Kind, mask: u32) -> bool {
    let given = mask & !STATE;
    if to == IBV_QPS_RESET || to == IBV_QPS_ERR {
        return given == 0;
    }
    let row = TABLE.iter().find(|r| (r.0, r.1, r.2) == (from, to, kind));
    row.is_some_and(|&(.., required, optional)| given & required == required && given & !(required | optional) == 0)
}

/// Whether the values are ones this device has.
fn sensible(attr: &sys::ibv_qp_attr, mask: u32) -> bool {
    let has = |bit| mask & bit != 0;
    let ports = Plan::of_host().ports;
    let port = !has(PORT) || (1..=ports).contains(&u32::from(attr.port_num));
    let pkey = !has(PKEY) || attr.pkey_index == 0;
    let mtu = !has(MTU) || (1..=5).contains(&attr.path_mtu);
    // RoCE has no addresses but GIDs.
    let av = !has(AV) || address_is_sensible(&attr.ah_attr);
    let dest = !has(DEST) || attr.dest_qp_num < 1 << 24;
    let reads = (!has(MAX_RD) || attr.max_rd_atomic <= MAX_RD_ATOMIC)
        && (!has(MAX_DEST_RD) || attr.max_dest_rd_atomic <= MAX_RD_ATOMIC);
    let retries = (!has(RETRY) || attr.retry_cnt < 8) && (!has(RNR_RETRY) || attr.rnr_retry < 8);
    let timers = (!has(TIMEOUT) || attr.timeout < 32) && (!has(MIN_RNR) || attr.min_rnr_timer < 32);
    port && pkey && mtu && av && dest && reads && retries && timers && !has(ALT)
}

/// Whether an address can be one of a RoCE port.
pub fn address_is_sensible(ah: &sys::ibv_ah_attr) -> bool {
    let port = (1..=Plan::of_host().ports).contains(&u32::from(ah.port_num));
    ah.is_global == 1 && usize::from(ah.grh.sgid_index) < device::GIDS && port
}

/// The bytes of a GID.
pub fn gid_bytes(gid: &sys::ibv_gid) -> [u8; 16] {
    // SAFETY: both forms of the union are 16 plain bytes.
    unsafe { gid.raw }
}

fn store(to: &mut sys::ibv_qp_attr, attr: &sys::ibv_qp_attr, mask: u32) {
    macro_rules! copy {
        ($($bit:ident => $($field:ident),+;)*) => {
            $(if mask & $bit != 0 { $(to.$field = attr.$field;)+ })*
        };
    }
    copy! {
        SQD_NOTIFY => en_sqd_async_notify;
        ACCESS => qp_access_flags;
        PKEY => pkey_index;
        PORT => port_num;
        QKEY => qkey;
        AV => ah_attr;
        MTU => path_mtu;
        TIMEOUT => timeout;
        RETRY => retry_cnt;
        RNR_RETRY => rnr_retry;
        RQ_PSN => rq_psn;
        MAX_RD => max_rd_atomic;
        MIN_RNR => min_rnr_timer;
        SQ_PSN => sq_psn;
        MAX_DEST_RD => max_dest_rd_atomic;
        PATH_MIG => path_mig_state;
        DEST => dest_qp_num;
    }
}

/// `ibv_modify_qp`: all of it or nothing.
pub fn modify(qp: &Arc<Qp>, attr: &sys::ibv_qp_attr, mask: u32) -> Result<u32, i32> {
    let mut inner = qp.lock();
    let from = inner.state;
    let to = if mask & STATE != 0 { attr.qp_state } else { from };
    if mask & CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    if !allowed(from, to, qp.kind, mask) || !sensible(attr, mask) {
        return Err(libc::EINVAL);
    }
    if to == IBV_QPS_RESET {
        qp.reset(&mut inner);
        return Ok(to);
    }
    if to == IBV_QPS_ERR {
        if from == IBV_QPS_RESET {
            inner.state = IBV_QPS_ERR;
        }
        qp.fail(&mut inner, None);
        return Ok(to);
    }
    store(&mut inner.attr, attr, mask);
    if mask & AV != 0 {
        let found = device::find_gid(&gid_bytes(&inner.attr.ah_attr.grh.dgid));
        let number = inner.attr.dest_qp_num >> QPN_BITS;
        inner.peer = found.map(|(device, _)| Place { device, number });
    }
    if mask & RQ_PSN != 0 {
        inner.expected = attr.rq_psn & 0xff_ffff;
    }
    if mask & SQ_PSN != 0 {
        inner.next_seq = attr.sq_psn & 0xff_ffff;
    }
    if to == IBV_QPS_RTS && from != IBV_QPS_RTS {
        inner.progressed();
    }
    inner.state = to;
    if to == IBV_QPS_SQD && from == IBV_QPS_RTS {
        told_if_drained(qp, &mut inner);
    }
    Ok(to)
}

/// Tells a program that asked for it that a send queue in state SQD has drained.
pub fn told_if_drained(qp: &Arc<Qp>, inner: &mut Inner) {
    if inner.state == IBV_QPS_SQD && inner.next == 0 && !inner.begun && inner.attr.en_sqd_async_notify != 0 {
        inner.attr.en_sqd_async_notify = 0;
        qp.tell(sys::IBV_EVENT_SQ_DRAINED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_way_up_is_allowed_and_shortcuts_are_not() {
        let rtr = STATE | AV | MTU | DEST | RQ_PSN | MAX_DEST_RD | MIN_RNR;
        let rts = STATE | TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD;
        assert!(allowed(IBV_QPS_RESET, IBV_QPS_INIT, Kind::Rc, STATE | PKEY | PORT | ACCESS));
        assert!(allowed(IBV_QPS_INIT, IBV_QPS_RTR, Kind::Rc, rtr));
        assert!(allowed(IBV_QPS_RTR, IBV_QPS_RTS, Kind::Rc, rts));
        assert!(allowed(IBV_QPS_RTS, IBV_QPS_ERR, Kind::Rc, STATE));
        assert!(allowed(IBV_QPS_ERR, IBV_QPS_RESET, Kind::Rc, STATE));
        assert!(!allowed(IBV_QPS_RESET, IBV_QPS_RTR, Kind::Rc, rtr), "a shortcut");
        assert!(!allowed(IBV_QPS_ERR, IBV_QPS_RTS, Kind::Rc, rts), "out of error");
        for bit in (0..21).map(|n| 1 << n).filter(|b| b & rtr != 0 && *b != STATE) {
            assert!(!allowed(IBV_QPS_INIT, IBV_QPS_RTR, Kind::Rc, rtr & !bit), "without {bit:#x}");
        }
        assert!(!allowed(IBV_QPS_INIT, IBV_QPS_RTR, Kind::Rc, rtr | QKEY), "with something else");
    }
}
