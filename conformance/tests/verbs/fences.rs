//! Fences of the client link: a READ or a FLUSH of their own.

use super::client::{op, pair, pattern, post, soon};
use super::{control, on_hca, on_hca_with_control};
use smc_engine::base::Status;
use smc_engine::link::Link;
use std::time::Duration;

#[test]
fn a_fence_does_not_return_before_another_ones_read() {
    if !on_hca_with_control("fences::a_fence_does_not_return_before_another_ones_read", &[]) {
        return;
    }
    let (_e, link, k) = pair();
    let bytes = pattern(4096, 5);
    assert_eq!(post(&link, k, &[op(&bytes, 0)]), Status::OK);
    control("delay=400000000");
    std::thread::scope(|s| {
        let first = s.spawn(|| link.fence(k, soon()));
        std::thread::sleep(Duration::from_millis(50));
        let began = std::time::Instant::now();
        assert_eq!(link.fence(k, soon()), Status::OK);
        // Nothing comes back sooner than the wire is long; without a READ of its own it would be at once.
        assert!(began.elapsed() >= Duration::from_millis(200), "after {:?}", began.elapsed());
        assert_eq!(first.join().unwrap(), Status::OK);
    });
    control("");
    let began = std::time::Instant::now();
    assert_eq!(link.fence(k, soon()), Status::OK, "after {:?}", began.elapsed());
}

#[test]
fn fences_flush_where_both_sides_have_it() {
    if !on_hca("fences::fences_flush_where_both_sides_have_it", &[("LIBSOFTHCA_FLUSH", "on")]) {
        return;
    }
    let (e, link, k) = pair();
    let bytes = pattern(4096, 9);
    for round in 1..=3 {
        assert_eq!(post(&link, k, &[op(&bytes, 0)]), Status::OK);
        assert_eq!(link.fence(k, soon()), Status::OK);
        assert_eq!(link.stats().flushes.get(), round, "one lane was written");
        assert_eq!(link.fence(k, soon()), Status::OK);
        assert_eq!(link.stats().flushes.get(), round, "nothing was written since");
    }
    assert!(e.home[..4096] == bytes);
}

#[test]
fn fences_read_where_a_device_has_no_flush() {
    if !on_hca("fences::fences_read_where_a_device_has_no_flush", &[("LIBSOFTHCA_FLUSH", "off")]) {
        return;
    }
    let (_e, link, k) = pair();
    assert_eq!(post(&link, k, &[op(&pattern(64, 1), 0)]), Status::OK);
    assert_eq!((link.fence(k, soon()), link.stats().flushes.get()), (Status::OK, 0));
}
