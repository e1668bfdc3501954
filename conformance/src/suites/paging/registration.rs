//! What a region registers with hardware, what passes through registered buffers, and what happens where that is refused.

use crate::cases;
use crate::rig::{Bench, Card, Home, POLICIES, Rig, policy};
use smc_engine::base::stats::RegionStats;
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::core::regcache::{Buffer, Held, RegCache};
use smc_engine::link::Access;
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::mem::{Mapping, RW};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

cases!(CASES, "paging",
    pinned_is_registered_once: Quick, 60;
    paged_passes_the_pool: Quick, 60;
    refused_registration_is_no_error: Quick, 60;
    threads_share_few_buffers: Normal, 60;
    registrations_add_up: Quick, 60;
);

const PAGES: usize = 512;

fn carded(b: &Bench, limit: u64, opts: MapOptions) -> (Rig, Arc<Card>) {
    let (home, card) = Home::loopback(PAGES * PAGE, 0).numbered().with_card(limit);
    (b.rig(home, opts), card)
}

/// Every page is loaded and stored to, the home has all of it, and what was loaded was right.
fn all_arrives(r: &Rig) {
    for i in 0..PAGES {
        r.loads(i * PAGE, i as u64 + 1);
        r.store(i * PAGE + 8, i as u64 * 7);
    }
    r.release();
    (0..PAGES).for_each(|i| r.home_is(i * PAGE + 8, i as u64 * 7));
    (0..PAGES).for_each(|i| r.loads(i * PAGE + 8, i as u64 * 7));
}

/// One registration, for as long as the region lives; nothing is copied on the way.
fn pinned_is_registered_once(b: &Bench) {
    for p in POLICIES {
        let (r, card) = carded(b, 1 << 30, policy(p));
        all_arrives(&r);
        let s = r.region.stats();
        assert_eq!((s.registrations.get(), s.registered_bytes.get()), (1, (PAGES * PAGE) as u64), "{}", r.tag);
        assert_eq!((s.registrations_refused.get(), s.bytes_staged.get()), (0, 0), "{}", r.tag);
        assert_eq!((card.registered.load(SeqCst), card.bounced.load(SeqCst)), (1, 0), "{}", r.tag);
        assert_eq!(card.held(), (PAGES * PAGE) as u64, "{}", r.tag);
        drop(r);
        assert_eq!(card.held(), 0, "{p:?}: a registration outlived its region");
    }
}

/// A region that gives pages back registers none of them: everything passes buffers that were registered once.
fn paged_passes_the_pool(b: &Bench) {
    for p in POLICIES {
        let (r, card) = carded(b, 1 << 30, MapOptions { resident_limit: 256 << 10, ..policy(p) });
        all_arrives(&r);
        let s = r.region.stats();
        assert!(s.pages_evicted.get() > 0, "{}: it was not paged", r.tag);
        assert_eq!((s.registrations.get(), s.registrations_refused.get()), (1, 0), "{}", r.tag);
        assert!(s.registrations_reused.get() > 16, "{}: buffers were not used again", r.tag);
        assert!(s.bytes_staged.get() >= s.bytes_fetched.get() + s.bytes_written.get(), "{}: not all passed", r.tag);
        assert_eq!(card.bounced.load(SeqCst), 0, "{}: the link had to copy", r.tag);
        drop(r);
        assert_eq!(card.held(), 0, "{p:?}: the pool outlived its link's last region");
    }
}

/// Where the whole region is refused it passes the pool; a pool that is refused is halved until it is granted; where
/// nothing is granted the link copies by itself. None of it is an error.
fn refused_registration_is_no_error(b: &Bench) {
    for (limit, pool, refusals) in [(1 << 20, 1 << 20, 5), (100 << 10, 64 << 10, 9), (0, 0, 10)] {
        for p in [Policy::Byte, Policy::Page] {
            let (r, card) = carded(b, limit, policy(p));
            all_arrives(&r);
            let s = r.region.stats();
            assert_eq!(s.registered_bytes.get(), pool, "{}: limit {limit}", r.tag);
            assert_eq!(s.registrations_refused.get(), refusals, "{}: limit {limit}", r.tag);
            assert_eq!(card.bounced.load(SeqCst) > 0, pool == 0, "{}: limit {limit}", r.tag);
            assert_eq!(r.region.status(), Status::OK, "{}: limit {limit}", r.tag);
        }
    }
}

/// More threads than buffers: whoever finds none is served by the link.
fn threads_share_few_buffers(b: &Bench) {
    let (r, card) = carded(b, 128 << 10, policy(Policy::Byte));
    let v = r.v;
    std::thread::scope(|s| {
        for t in 0..8 {
            s.spawn(move || {
                for i in (t..PAGES).step_by(8) {
                    assert_eq!(crate::rig::load(v + i * PAGE), i as u64 + 1, "page {i}");
                    crate::rig::store(v + i * PAGE + 8, i as u64);
                }
            });
        }
    });
    r.release();
    (0..PAGES).for_each(|i| r.home_is(i * PAGE + 8, i as u64));
    assert!(r.region.stats().registrations_reused.get() > 0);
    assert_eq!(r.region.stats().registered_bytes.get(), 128 << 10);
    assert_eq!(card.held(), 128 << 10);
}

/// Random holding, letting go, taking and giving back, against a model: the books agree with the card's at every step.
fn registrations_add_up(b: &Bench) {
    for round in 0..b.ctx.scale(20, 100, 1000) {
        let mut rng = b.ctx.rng(round);
        let home = Home::loopback(PAGES * PAGE, 0).numbered();
        let key = home.link.open(&home.region, Access::ReadWrite, Deadline::in_ms(1000)).expect("open").key;
        let card = Arc::new(Card::new(home.link.clone(), rng.u64(0..4 << 20)));
        let cache = RegCache::with_limit(card.clone(), rng.u64(0..2 << 20));
        let stats = RegionStats::new();
        let mut held: Vec<(Held, Mapping)> = Vec::new();
        let mut taken: Vec<Buffer> = Vec::new();
        let (mut granted, mut refused, mut pool) = (0, 0, 0);
        for step in 0..200 {
            let at = format!("round {round}, step {step}, seed {}", b.ctx.seed);
            match rng.u8(0..6) {
                0 | 1 => {
                    let m = Mapping::anonymous(rng.usize(1..64) * PAGE, RW).expect("memory");
                    // SAFETY: `m` is kept beside the answer, and dropped after it.
                    match unsafe { cache.hold(&m, &stats) } {
                        Ok(h) => {
                            held.push((h, m));
                            granted += 1;
                        }
                        Err(_) => refused += 1,
                    }
                }
                2 if !held.is_empty() => drop(held.swap_remove(rng.usize(0..held.len()))),
                3 => {
                    let (before, no) = (cache.held_bytes(), card.refused.load(SeqCst));
                    cache.fill(&stats);
                    let made = cache.held_bytes() - before;
                    granted += u64::from(made > 0);
                    refused += card.refused.load(SeqCst) - no;
                    pool += made;
                }
                4 => taken.extend(cache.take(&stats)),
                _ if !taken.is_empty() => drop(taken.swap_remove(rng.usize(0..taken.len()))),
                _ => {}
            }
            let own: u64 = held.iter().map(|(_, m)| m.len() as u64).sum();
            assert_eq!(cache.held_bytes(), own + pool, "{at}: bytes held");
            assert_eq!(card.held(), own + pool, "{at}: what the card has");
            assert_eq!(stats.registrations.get(), granted, "{at}: granted");
            assert_eq!(stats.registrations_refused.get(), refused, "{at}: refused");
            assert!(pool == 0 || cache.buffer_size() as u64 <= pool, "{at}: a buffer larger than the pool");
            let mut starts: Vec<usize> = taken.iter().map(|t| t.ptr() as usize).collect();
            starts.sort_unstable();
            assert!(starts.windows(2).all(|w| w[1] - w[0] >= cache.buffer_size()), "{at}: buffers overlap");
        }
        // With whatever buffers are left, bytes arrive in both places.
        let (mut one, mut two) = (vec![0u8; 40 * PAGE], vec![0u8; 40 * PAGE]);
        let to = [Some(one.as_mut_ptr()), Some(two.as_mut_ptr())];
        // SAFETY: both are 40 pages of our own.
        let s = unsafe { cache.fetch((key, HomeOff(PAGE as u64)), to, 40 * PAGE, Deadline::in_ms(1000), &stats) };
        assert_eq!(s, Status::OK);
        assert!(one == home.bytes(PAGE, 40 * PAGE) && one == two, "round {round}, seed {}: other bytes", b.ctx.seed);
        drop((taken, held, cache));
        assert_eq!(card.held(), 0, "round {round}, seed {}: registrations left behind", b.ctx.seed);
    }
}
