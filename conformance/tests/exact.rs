//! Exact write-through: the home has the bytes when the store instruction has returned.

use smc_engine::base::config::Backend;
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, Through};
use smc_engine::core::region::{Parts, Region};
use smc_engine::link::faulty::{Faulty, Plan};
use smc_engine::link::loopback::Loopback;
use smc_engine::link::{Access, Link};
use smc_engine::sys::clock::Deadline;
use std::sync::Arc;

const PAGES: usize = 8;

fn rig(backend: Backend, wrap: impl Fn(Arc<Loopback>) -> Arc<dyn Link>) -> (Arc<Loopback>, Arc<Region>, *mut u8) {
    let home = Arc::new(Loopback::new(PAGES * PAGE).unwrap());
    let link = wrap(home.clone());
    let opened = link.open("t", Access::ReadWrite, Deadline::in_ms(1000)).unwrap();
    let opts = MapOptions { through: Through::Exact, wait_ms: 300, resident_limit: 1 << 30, ..Default::default() };
    let region = Region::new(Parts { link, opened, opts, backend }).unwrap();
    let v = region.map_view(0, false, 0, PAGES * PAGE, true).unwrap();
    (home, region, v as *mut u8)
}

const BACKENDS: [Backend; 2] = [Backend::Sync, Backend::Mprotect];

#[test]
fn every_store_is_at_the_home_when_it_returns() {
    for b in BACKENDS {
        let (home, region, v) = rig(b, |h| h);
        for i in 0..2000usize {
            let at = (i * 67) % (PAGES * PAGE - 8);
            // SAFETY: inside the view.
            unsafe { v.wrapping_add(at).cast::<u64>().write_unaligned(i as u64 * 0x0101_0101) };
            let at_home = u64::from_le_bytes(home.bytes(at, 8).try_into().unwrap());
            assert_eq!(at_home, i as u64 * 0x0101_0101, "{b:?} store {i}");
        }
        assert!(region.stats().stores_emulated.get() >= 2000);
        assert_eq!(region.stats().stores_stepped.get(), 0);
        assert_eq!(region.unmap_view(v as usize, PAGES * PAGE), Status::OK);
    }
}

#[test]
fn memcpy_and_memset_need_no_step() {
    for b in BACKENDS {
        let (home, region, v) = rig(b, |h| h);
        let src: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + 1) as u8).collect();
        for n in (1..600).chain((600..20_000).step_by(613)) {
            let at = n % 97;
            // SAFETY: at + n lies inside the view.
            unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), v.wrapping_add(at), n) };
            assert_eq!(home.bytes(at, n), src[..n], "{b:?} copy of {n}");
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(v.wrapping_add(at), n as u8, n) };
            assert_eq!(home.bytes(at, n), vec![n as u8; n], "{b:?} fill of {n}");
        }
        assert_eq!(region.stats().stores_stepped.get(), 0);
        assert_eq!(region.unmap_view(v as usize, PAGES * PAGE), Status::OK);
    }
}

/// fxsave stores 512 bytes and is in no table.
#[test]
fn what_is_not_in_the_tables_is_stepped_and_arrives() {
    #[repr(align(64))]
    struct Area([u8; 512]);
    for b in BACKENDS {
        let (home, region, v) = rig(b, |h| h);
        for page in 0..PAGES {
            let mut here = Area([0; 512]);
            let (there, here_at) = (v.wrapping_add(page * PAGE), here.0.as_mut_ptr());
            // SAFETY: both areas are 512 bytes and aligned; fxsave changes nothing else.
            unsafe { std::arch::asm!("fxsave64 [{0}]", "fxsave64 [{1}]", in(reg) there, in(reg) here_at) };
            // The instruction pointer field differs between the two saves.
            let got = home.bytes(page * PAGE, 512);
            assert_eq!(got[32..416], here.0[32..416], "{b:?} page {page}");
            assert_ne!(got[32..416], [0u8; 384][..], "the state saved is not all zero");
        }
        assert_eq!(region.stats().stores_stepped.get(), PAGES as u64);
        // Protected again afterwards: the next store is seen.
        // SAFETY: inside the view.
        unsafe { v.wrapping_add(3).write_volatile(9) };
        assert_eq!(home.bytes(3, 1), [9]);
        assert_eq!(region.unmap_view(v as usize, PAGES * PAGE), Status::OK);
    }
}

#[test]
fn locked_counters_of_four_threads_add_up() {
    for b in BACKENDS {
        let (home, region, v) = rig(b, |h| h);
        let at = v as usize;
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(move || {
                    // SAFETY: an aligned word inside the view, used atomically only.
                    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(at as *mut u64) };
                    (0..2500).for_each(|_| _ = word.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
                });
            }
        });
        assert_eq!(home.bytes(0, 8), 10_000u64.to_le_bytes(), "{b:?}");
        assert_eq!(region.unmap_view(v as usize, PAGES * PAGE), Status::OK);
    }
}

#[test]
fn a_store_that_cannot_be_delivered_is_kept_and_sent_by_release() {
    for b in BACKENDS {
        // The fetch of the page is operation 0; then the link is down for a while.
        let plan = Plan { down: Some((1, 400)), ..Plan::default() };
        let (home, region, v) = rig(b, |h| Arc::new(Faulty::new(h, plan.clone())));
        // SAFETY: inside the view.
        unsafe { v.write_volatile(5) };
        assert_eq!(home.bytes(0, 1), [5], "{b:?}: a short drop is ridden out");
        let plan = Plan { down: Some((1, 100_000)), ..Plan::default() };
        let (home, region2, v2) = rig(b, |h| Arc::new(Faulty::new(h, plan.clone())));
        // SAFETY: inside the view.
        unsafe { v2.write_volatile(6) };
        assert_eq!(home.bytes(0, 1), [0]);
        assert!(!region2.status().is_ok(), "the failure shows in the status");
        // SAFETY: inside the view.
        assert_eq!(unsafe { v2.read_volatile() }, 6, "the store happened here");
        assert_eq!(region.unmap_view(v as usize, PAGES * PAGE), Status::OK);
        assert!(!region2.release(0, 0).is_ok());
        let _ = region2.unmap_view(v2 as usize, PAGES * PAGE);
    }
}
