//! The paging engine against a home in this process, under every back end this host allows.

use smc_engine::base::PAGE;
use smc_engine::base::Status;
use smc_engine::base::config::Backend;
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::core::region::{Parts, Region};
use smc_engine::core::selftest;
use smc_engine::link::loopback::Loopback;
use smc_engine::link::{Access, AtomicOp, Link};
use smc_engine::sys::clock::Deadline;
use std::sync::Arc;

struct Rig {
    link: Arc<Loopback>,
    region: Arc<Region>,
    v: *mut u8,
}

impl Rig {
    fn new(backend: Backend, pages: usize, opts: MapOptions) -> Rig {
        let link = Arc::new(Loopback::new(pages * PAGE).unwrap());
        for p in 0..pages {
            link.poke(p * PAGE, &(p as u64).to_le_bytes());
        }
        let opened = link.open("t", Access::ReadWrite, Deadline::in_ms(1000)).unwrap();
        let opts = MapOptions {
            wait_ms: 2000,
            resident_limit: if opts.resident_limit == 0 { 1 << 30 } else { opts.resident_limit },
            ..opts
        };
        let region = Region::new(Parts { link: link.clone(), opened, opts, backend }).unwrap();
        let v = region.map_view(0, false, 0, pages * PAGE, true).unwrap() as *mut u8;
        Rig { link, region, v }
    }
    fn load(&self, at: usize) -> u64 {
        unsafe { self.v.add(at).cast::<u64>().read_volatile() }
    }
    fn store(&self, at: usize, b: u64) {
        unsafe { self.v.add(at).cast::<u64>().write_volatile(b) }
    }
    fn home(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.link.bytes(at, 8).try_into().unwrap())
    }
    fn end(self, pages: usize) {
        assert_eq!(self.region.unmap_view(self.v as usize, pages * PAGE), Status::OK);
    }
}

fn backends() -> Vec<Backend> {
    Backend::ALL
        .into_iter()
        .filter(|b| {
            let t = selftest::try_backend(*b);
            println!("{}: {:?}", b.name(), t.outcome);
            t.outcome.is_ok()
        })
        .collect()
}

const POLICIES: [Policy; 3] = [Policy::Byte, Policy::Line, Policy::Page];

#[test]
fn every_backend_works_here() {
    assert_eq!(backends().len(), 4);
}

#[test]
fn load_store_release_acquire() {
    for b in backends() {
        for policy in POLICIES {
            let r = Rig::new(b, 300, MapOptions { policy, ..Default::default() });
            for p in 0..300 {
                assert_eq!(r.load(p * PAGE), p as u64, "{b:?} {policy:?}");
            }
            for p in (0..300).step_by(3) {
                r.store(p * PAGE + 8, 1000 + p as u64);
            }
            assert_eq!(r.home(8), 0);
            assert_eq!(r.region.release(0, 0), Status::OK);
            for p in 0..300 {
                assert_eq!(r.home(p * PAGE + 8), if p % 3 == 0 { 1000 + p as u64 } else { 0 });
            }
            r.link.poke(5 * PAGE, &77u64.to_le_bytes());
            assert_eq!(r.load(5 * PAGE), 5, "a reader is stale until it acquires");
            r.store(9 * PAGE, 99);
            r.link.poke(9 * PAGE + 16, &55u64.to_le_bytes());
            assert_eq!(r.region.acquire(0, 0), Status::OK);
            assert_eq!(r.load(5 * PAGE), 77);
            assert_eq!(r.load(9 * PAGE), 99, "own stores survive an acquire");
            if policy == Policy::Byte {
                assert_eq!(r.load(9 * PAGE + 16), 55);
            }
            assert_eq!(r.home(9 * PAGE), 9);
            assert_eq!(r.region.release(0, 0), Status::OK);
            assert_eq!(r.home(9 * PAGE), 99);
            r.end(300);
        }
    }
}

#[test]
fn many_rounds_turn_hot_and_stay_right() {
    for b in backends() {
        for policy in POLICIES {
            let r = Rig::new(b, 64, MapOptions { policy, ..Default::default() });
            for round in 0..200u64 {
                for p in 0..64 {
                    if p % 5 != 0 || round % 7 == 0 {
                        r.store(p * PAGE + 64, round * 100 + p as u64);
                    }
                }
                assert_eq!(r.region.release(0, 0), Status::OK);
                for p in 0..64 {
                    assert_eq!(r.home(p * PAGE + 64), r.load(p * PAGE + 64), "{b:?} {policy:?} round {round} page {p}");
                }
            }
            r.end(64);
        }
    }
}

#[test]
fn larger_than_memory() {
    for b in backends() {
        for policy in POLICIES {
            let pages = 2048;
            let r = Rig::new(b, pages, MapOptions { policy, resident_limit: 1 << 20, ..Default::default() });
            for p in 0..pages {
                r.store(p * PAGE + 8, p as u64 * 3);
                let limit = r.region.local_limit().unwrap();
                assert!(r.region.local_bytes() <= limit + limit / 10, "{} > {limit}", r.region.local_bytes());
            }
            for p in (0..pages).rev() {
                assert_eq!(r.load(p * PAGE + 8), p as u64 * 3, "{b:?} {policy:?} page {p}");
            }
            assert_eq!(r.region.release(0, 0), Status::OK);
            for p in 0..pages {
                assert_eq!(r.home(p * PAGE + 8), p as u64 * 3);
            }
            r.end(pages);
        }
    }
}

#[test]
fn atomics_survive_write_back() {
    for b in backends() {
        for policy in POLICIES {
            let r = Rig::new(b, 2, MapOptions { policy, ..Default::default() });
            r.store(16, 1);
            assert_eq!(r.region.at_home(8, AtomicOp::FetchAdd(5)), Ok(0));
            r.link.poke(8, &50u64.to_le_bytes());
            assert_eq!(r.region.release(0, 0), Status::OK);
            assert_eq!(r.home(8), 50, "{b:?} {policy:?}: a write-back undid an atomic");
            assert_eq!(r.home(16), 1);
            r.end(2);
        }
    }
}

#[test]
fn threads_lose_no_byte() {
    for b in backends() {
        for policy in POLICIES {
            let r = Rig::new(b, 256, MapOptions { policy, resident_limit: 600 * 1024, ..Default::default() });
            let v = r.v as usize;
            let region = &r.region;
            std::thread::scope(|s| {
                for t in 0..4usize {
                    s.spawn(move || {
                        for i in 0..20_000usize {
                            let at = ((i * 7919 + t * 131) % 256) * PAGE + 512 + t * 8;
                            let w = (v + at) as *mut u64;
                            unsafe { w.write_volatile(w.read_volatile() + 1) };
                            if i % 1000 == 999 {
                                assert_eq!(region.release(0, 0), Status::OK);
                            }
                        }
                    });
                }
            });
            assert_eq!(r.region.release(0, 0), Status::OK);
            let total: u64 =
                (0..256).flat_map(|p| (0..4).map(move |t| (p, t))).map(|(p, t)| r.home(p * PAGE + 512 + t * 8)).sum();
            assert_eq!(total, 80_000, "{b:?} {policy:?}");
            r.end(256);
        }
    }
}
