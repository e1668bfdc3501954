//! Names and conversions.

use std::ffi::{CStr, c_char};

const STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory bind operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"operation aborted",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const EVENT: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const PORT: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// (rate number, multiple of 2.5 Gbit/s, Mbit/s)
const RATES: [(i32, i32, i32); 23] = [
    (2, 1, 2500),
    (5, 2, 5000),
    (3, 4, 10000),
    (6, 8, 20000),
    (4, 12, 30000),
    (7, 16, 40000),
    (8, 24, 60000),
    (9, 32, 80000),
    (10, 48, 120_000),
    (11, 6, 14062),
    (12, 22, 56250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28125),
    (20, 20, 53125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

fn name(table: &[&'static CStr], at: i32, other: &'static CStr) -> *const c_char {
    usize::try_from(at).ok().and_then(|i| table.get(i)).unwrap_or(&other).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_wc_status_str(status: i32) -> *const c_char {
    name(&STATUS, status, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_event_type_str(event: i32) -> *const c_char {
    name(&EVENT, event, c"unknown")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_port_state_str(state: i32) -> *const c_char {
    name(&PORT, state, c"invalid state")
}

#[unsafe(no_mangle)]
extern "C" fn ibv_node_type_str(node: i32) -> *const c_char {
    if node == 1 { c"InfiniBand channel adapter".as_ptr() } else { c"unknown".as_ptr() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: i32) -> i32 {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: i32) -> i32 {
    RATES.iter().find(|r| r.1 == mult).map_or(0, |r| r.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: i32) -> i32 {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: i32) -> i32 {
    RATES.iter().find(|r| r.2 == mbps).map_or(0, |r| r.0)
}
