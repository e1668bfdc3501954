//! The kernel's words, as `rdma/rdma_user_cm.h` and `rdma/ib_user_verbs.h` have them (version 4 of the interface, the only one since 2008). What
//! later kernels added at the end of some of them (ECE) is left out: the kernel takes both lengths.

/// Bytes of private data that the kernel's words have room for. What a connection request carries is less: [`super::DATA`].
pub const ROOM: usize = 256;
/// Bytes of a sockaddr_in6.
pub const ADDRESS: usize = 28;

/// A command: its number and what follows it, which the kernel reads in one piece.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Command<T> {
    pub number: u32,
    /// Bytes of the body.
    pub length: u16,
    /// Bytes of room for the answer.
    pub room: u16,
    pub body: T,
}

/// A command's body, and its number.
pub trait Body: Copy {
    const NUMBER: u32;
}

macro_rules! words {
    ($($(#[doc = $doc:literal])* $name:ident $(= $number:literal)? { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Clone, Copy, Debug)]
            #[allow(missing_docs, reason = "the header says what they are")]
            #[repr(C)]
            pub struct $name { $(pub $field: $type),* }
            $(impl Body for $name { const NUMBER: u32 = $number; })?
        )*
        /// Sizes and places of all of them, to be compared with the header's.
        #[cfg(test)]
        pub fn layout() -> Vec<(&'static str, usize, Vec<usize>)> {
            vec![$((stringify!($name), size_of::<$name>(), vec![$(std::mem::offset_of!($name, $field)),*])),*]
        }
    };
}

words! {
    CreateId = 0 { uid: u64, response: u64, port_space: u16, qp_type: u8, reserved: [u8; 5] }
    CreateIdAnswer { id: u32 }
    DestroyId = 1 { response: u64, id: u32, reserved: u32 }
    DestroyIdAnswer { events_reported: u32 }
    BindIp = 2 { response: u64, addr: [u8; ADDRESS], id: u32 }
    ResolveIp = 3 { src_addr: [u8; ADDRESS], dst_addr: [u8; ADDRESS], id: u32, timeout_ms: u32 }
    ResolveRoute = 4 { id: u32, timeout_ms: u32 }
    Query = 5 { response: u64, id: u32, option: u32 }
    QueryRouteAnswer {
        node_guid: u64,
        ib_route: [[u32; 16]; 2],
        src_addr: [u8; ADDRESS],
        dst_addr: [u8; ADDRESS],
        num_paths: u32,
        port_num: u8,
        reserved: [u8; 3],
        ibdev_index: u32,
        reserved1: u32,
    }
    ConnParam {
        qp_num: u32,
        qkey: u32,
        private_data: [u8; ROOM],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }
    Connect = 6 { conn_param: ConnParam, id: u32, reserved: u32 }
    Listen = 7 { id: u32, backlog: u32 }
    Accept = 8 { uid: u64, conn_param: ConnParam, id: u32, reserved: u32 }
    Reject = 9 { id: u32, private_data_len: u8, reason: u8, reserved: [u8; 2], private_data: [u8; ROOM] }
    Disconnect = 10 { id: u32 }
    InitQpAttr = 11 { response: u64, id: u32, qp_state: u32 }
    GetEvent = 12 { response: u64 }
    EventAnswer { uid: u64, id: u32, event: u32, status: u32, conn: ConnParam, more: [u32; 8], reserved: u32, ece: [u32; 2] }
    /// The way to a port, in the attributes of a queue pair.
    AhAttr {
        dgid: [u8; 16],
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        reserved: u8,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
        reserved1: u8,
    }
    /// Attributes of a queue pair; which of them count, `qp_attr_mask` says in the bits of `ibv_modify_qp`.
    QpAttr {
        qp_attr_mask: u32,
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        reserved: [u8; 5],
    }
}

/// The answers, which are whole for every bit pattern.
pub trait Answer: Copy {}
impl Answer for CreateIdAnswer {}
impl Answer for DestroyIdAnswer {}
impl Answer for QueryRouteAnswer {}
impl Answer for EventAnswer {}
impl Answer for QpAttr {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::process::Command as Program;

    /// The header's struct for each of ours, and its fields in order.
    const HEADER: &[(&str, &str, &str)] = &[
        ("CreateId", "rdma_ucm_create_id", "uid response ps qp_type reserved"),
        ("CreateIdAnswer", "rdma_ucm_create_id_resp", "id"),
        ("DestroyId", "rdma_ucm_destroy_id", "response id reserved"),
        ("DestroyIdAnswer", "rdma_ucm_destroy_id_resp", "events_reported"),
        ("BindIp", "rdma_ucm_bind_ip", "response addr id"),
        ("ResolveIp", "rdma_ucm_resolve_ip", "src_addr dst_addr id timeout_ms"),
        ("ResolveRoute", "rdma_ucm_resolve_route", "id timeout_ms"),
        ("Query", "rdma_ucm_query", "response id option"),
        (
            "QueryRouteAnswer",
            "rdma_ucm_query_route_resp",
            "node_guid ib_route src_addr dst_addr num_paths port_num reserved ibdev_index reserved1",
        ),
        (
            "ConnParam",
            "rdma_ucm_conn_param",
            "qp_num qkey private_data private_data_len srq responder_resources initiator_depth flow_control retry_count \
             rnr_retry_count valid",
        ),
        ("Connect", "rdma_ucm_connect", "conn_param id reserved"),
        ("Listen", "rdma_ucm_listen", "id backlog"),
        ("Accept", "rdma_ucm_accept", "uid conn_param id reserved"),
        ("Reject", "rdma_ucm_reject", "id private_data_len reason reserved private_data"),
        ("Disconnect", "rdma_ucm_disconnect", "id"),
        ("InitQpAttr", "rdma_ucm_init_qp_attr", "response id qp_state"),
        ("GetEvent", "rdma_ucm_get_event", "response"),
        (
            "EventAnswer",
            "rdma_ucm_event_resp",
            "uid id event status param.conn param.ud.private_data[232] reserved ece",
        ),
        (
            "AhAttr",
            "ib_uverbs_ah_attr",
            "grh.dgid grh.flow_label grh.sgid_index grh.hop_limit grh.traffic_class grh.reserved dlid sl src_path_bits static_rate \
             is_global port_num reserved",
        ),
        (
            "QpAttr",
            "ib_uverbs_qp_attr",
            "qp_attr_mask qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags ah_attr \
             alt_ah_attr max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data pkey_index alt_pkey_index \
             en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry \
             alt_port_num alt_timeout reserved",
        ),
    ];

    /// What the kernel's own header says. Its later additions at the end (ECE) we do not send.
    fn by_the_header() -> Option<Vec<(usize, Vec<usize>)>> {
        let dir = std::env::temp_dir().join(format!("smc-ucm-{}", std::process::id()));
        std::fs::create_dir_all(&dir).ok()?;
        let body: String = HEADER
            .iter()
            .map(|(_, name, fields)| {
                let places: String =
                    fields.split(' ').map(|f| format!("printf(\" %zu\", offsetof(struct {name}, {f}));\n")).collect();
                format!("printf(\"%zu\", sizeof(struct {name}));\n{places} puts(\"\");\n")
            })
            .collect();
        let text = format!(
            "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {{\n{body}\nreturn 0; }}\n"
        );
        let (source, program) = (dir.join("layout.c"), dir.join("layout"));
        std::fs::write(&source, text).ok()?;
        let built = Program::new("cc").arg("-o").args([&program, &source]).output();
        let out = built.ok().filter(|o| o.status.success()).and_then(|_| Program::new(&program).output().ok());
        let _ = std::fs::remove_dir_all(&dir);
        let text = String::from_utf8(out?.stdout).ok()?;
        let line = |l: &str| {
            let mut numbers = l.split_whitespace().map(|n| n.parse().unwrap());
            (numbers.next().unwrap(), numbers.collect())
        };
        Some(text.lines().map(line).collect())
    }

    #[test]
    fn the_words_are_laid_out_as_in_the_kernels_header() {
        let Some(theirs) = by_the_header() else {
            return println!("skipped: no C compiler here, or no rdma/rdma_user_cm.h of Linux 5.9 or newer");
        };
        assert_eq!(theirs.len(), HEADER.len());
        let ours = layout();
        assert_eq!(ours.iter().map(|l| l.0).collect::<Vec<_>>(), HEADER.iter().map(|h| h.0).collect::<Vec<_>>());
        for ((name, size, places), (their_size, their_places)) in ours.iter().zip(&theirs) {
            assert_eq!(places, their_places, "{name}");
            let ece = if matches!(*name, "Connect" | "Accept") { 8 } else { 0 };
            assert_eq!(size + ece, *their_size, "{name}");
        }
        assert_eq!(std::mem::offset_of!(Command<GetEvent>, body), 8);
    }
}
