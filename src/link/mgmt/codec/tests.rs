//! Every message there and back, and everything that is none.

use super::*;
use proptest::prelude::*;

fn region() -> impl Strategy<Value = RegionDesc> {
    let kinds = prop_oneof![Just(MemoryKind::System), Just(MemoryKind::Pinned), Just(MemoryKind::Device)];
    ("[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", any::<u64>(), access(), kinds, any::<u32>(), any::<u32>(), any::<[u64; 2]>())
        .prop_map(|(name, len, access, kind, pid, clients, [generation, incarnation])| RegionDesc {
            name,
            len,
            access,
            kind,
            pid,
            clients,
            generation,
            incarnation,
        })
}
fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::ReadOnly), Just(Access::ReadWrite)]
}
fn lanes() -> impl Strategy<Value = Vec<Endpoint>> {
    let lane = (0u32..1 << 24, 0u32..1 << 24, any::<[u8; 16]>(), any::<u16>(), 1u8..=5, any::<u8>())
        .prop_map(|(qpn, psn, gid, lid, mtu, reads)| Endpoint { qpn, psn, gid, lid, mtu, reads });
    proptest::collection::vec(lane, 1..=MAX_LANES)
}
fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u16>(), any::<u16>()).prop_map(|(min, max)| Message::Hello { min, max }),
        (any::<u16>(), any::<u32>()).prop_map(|(version, pid)| Message::Welcome { version, pid }),
        (any::<i32>(), ".{0,100}").prop_map(|(s, text)| Message::Error { status: Status(s), text }),
        any::<u32>().prop_map(|start| Message::List { start }),
        (any::<u32>(), proptest::collection::vec(region(), 0..=MAX_NAMES))
            .prop_map(|(next, regions)| Message::Names { next, regions }),
        ("[a-z][a-z.]{0,9}", access()).prop_map(|(name, want)| Message::Open { name, want }),
        region().prop_map(|region| Message::Opened { region }),
        Just(Message::Close),
        Just(Message::Ended),
        any::<u64>().prop_map(|generation| Message::Moved { generation }),
        ".{0,100}".prop_map(|reason| Message::Revoked { reason }),
        any::<u64>().prop_map(|token| Message::Ping { token }),
        any::<u64>().prop_map(|token| Message::Pong { token }),
        (any::<u64>(), any::<u64>()).prop_map(|(off, len)| Message::DeviceFlush { off, len }),
        lanes().prop_map(|lanes| Message::Connect { lanes }),
        (any::<u64>(), any::<u32>(), any::<bool>(), lanes())
            .prop_map(|(addr, rkey, flush, lanes)| Message::Connected { addr, rkey, flush, lanes }),
        (1..=MAX_LANES as u8).prop_map(|lanes| Message::Arrange { lanes }),
        (any::<u64>(), any::<u32>(), any::<bool>(), any::<[u8; 16]>(), 1u16.., any::<[u8; 16]>())
            .prop_map(|(addr, rkey, flush, at, port, token)| Message::Arranged { addr, rkey, flush, at, port, token }),
    ]
}

proptest! {
    #[test]
    fn round_trip(m in message()) {
        let b = encode(&m);
        prop_assert!(b.len() <= MAX_FRAME);
        prop_assert_eq!(frame_len(&b), Ok(Some(b.len())));
        prop_assert_eq!(decode(&b), Ok(m));
    }

    #[test]
    fn truncated_or_longer_is_refused(m in message(), cut in any::<prop::sample::Index>()) {
        let mut b = encode(&m);
        prop_assert!(decode(&b[..cut.index(b.len())]).is_err());
        b.push(0);
        prop_assert!(decode(&b).is_err());
    }

    #[test]
    fn mutated_is_refused_or_canonical(m in message(), at in any::<prop::sample::Index>(), x in 1u8..) {
        let mut b = encode(&m);
        let i = at.index(b.len());
        b[i] ^= x;
        // The version of a greeting is not looked at; everything else that is accepted must be what encode writes.
        if let Ok(d) = decode(&b) && !(4..6).contains(&i) {
            prop_assert_eq!(encode(&d), b);
        }
    }

    #[test]
    fn random_bytes_do_not_panic(mut b in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u16..20) {
        let _ = decode(&b);
        if b.len() >= HEADER {
            let n = (b.len() - HEADER) as u32;
            b[..4].copy_from_slice(&MAGIC.to_le_bytes());
            b[4..6].copy_from_slice(&super::super::VERSION_MAX.to_le_bytes());
            b[6..8].copy_from_slice(&kind.to_le_bytes());
            b[8..12].copy_from_slice(&n.to_le_bytes());
            b[12..16].fill(0);
            if let Ok(d) = decode(&b) {
                prop_assert_eq!(encode(&d), b);
            }
        }
    }
}

#[test]
fn the_largest_messages_fit() {
    let d = RegionDesc {
        name: "n".repeat(MAX_NAME),
        len: 0,
        access: Access::ReadOnly,
        kind: MemoryKind::System,
        pid: 0,
        clients: 0,
        generation: 0,
        incarnation: 0,
    };
    assert!(encode(&Message::Names { next: 0, regions: vec![d; MAX_NAMES] }).len() <= MAX_FRAME);
    assert!(encode(&Message::Connect { lanes: vec![Endpoint::default(); MAX_LANES] }).len() <= MAX_FRAME);
    let long = Message::Revoked { reason: "ä".repeat(4000) };
    assert!(decode(&encode(&long)).is_ok());
}

#[test]
fn names() {
    for bad in ["", ".x", "a/b", "a b", "a~", "ä", &"a".repeat(201)] {
        assert!(!valid_name(bad), "{bad}");
    }
    assert!(valid_name("grads.0-a_b") && valid_name(&"a".repeat(200)));
}

/// A flag has one form for each value: what is read is what would be written.
#[test]
fn a_flag_is_zero_or_one() {
    let message = Message::Arranged { addr: 1, rkey: 2, flush: true, at: [0; 16], port: 9, token: [7; 16] };
    let mut bytes = encode(&message);
    let at = 16 + 8 + 4;
    assert_eq!((bytes[at], decode(&bytes)), (1, Ok(message)));
    bytes[at] = 3;
    assert_eq!(decode(&bytes), Err(CodecError::Field));
}
