//! The rules of the paging engine on bare kernel objects, each beside the wrong order, which must be seen to lose data.
//! A control that does not lose here would say nothing about the rule.

use crate::runner::{Case, Cost, Ctx, Verdict};
use smc_engine::base::PAGE;
use smc_engine::sys::mem::{self, Mapping};
use smc_engine::sys::pagemap::{Pagemap, Run};
use smc_engine::sys::uffd::{self, Uffd};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("controls_copy_then_protect_loses", |c| on(c, copy_then_protect)).cost(Cost::Quick),
    Case::new("controls_scan_then_drop_loses", |c| on(c, scan_then_drop)).cost(Cost::Quick),
    Case::new("controls_private_harvest_loses", |c| on(c, private_harvest)).cost(Cost::Quick),
    Case::new("controls_mask_present_misses", |c| on(c, mask_present)).cost(Cost::Quick),
    Case::new("controls_unprotected_holes_look_written", |c| on(c, unprotected_holes)).cost(Cost::Quick),
    Case::new("controls_refetch_overwrites", |c| on(c, refetch)).cost(Cost::Quick),
    Case::new("controls_continue_eexist_does_not_wake", |c| on(c, eexist)).timeout(20).cost(Cost::Quick),
    Case::new("controls_continue_unprotected_is_dirty", |c| on(c, admitted_dirty)).cost(Cost::Quick),
    Case::new("controls_poison_meets_marker", |c| on(c, poison_marker)).cost(Cost::Quick),
];

const ASYNC: u64 =
    uffd::FEATURE_MINOR_SHMEM | uffd::FEATURE_WP_SHMEM | uffd::FEATURE_WP_UNPOPULATED | uffd::FEATURE_WP_ASYNC;

/// Skips where the kernel has not what the rules are about.
fn on(_: &mut Ctx, body: fn()) -> Verdict {
    if let Err(e) = Uffd::open_user_only(ASYNC | uffd::FEATURE_SIGBUS | uffd::FEATURE_POISON) {
        return Verdict::Skip(format!("needs userfaultfd with asynchronous write protection: {e}"));
    }
    body();
    Verdict::Pass
}

/// A memory file, its two mappings, and what watches one of them.
struct Raw {
    a: Mapping,
    v: Mapping,
    uffd: Uffd,
    pagemap: Pagemap,
}

impl Raw {
    /// Watched, and every page of the view protected.
    fn new(pages: usize, features: u64) -> Raw {
        let r = Raw::watched(pages, features);
        r.uffd.write_protect(r.v.addr(), r.v.len(), true).expect("write-protect");
        r
    }

    fn watched(pages: usize, features: u64) -> Raw {
        let fd = mem::memfd(c"control", (pages * PAGE) as u64).expect("a memory file");
        let map = || Mapping::shared(fd.as_fd(), 0, pages * PAGE, mem::RW).expect("a mapping");
        let (a, v) = (map(), map());
        (0..pages).for_each(|p| put(&a, p, 0));
        let uffd = Uffd::open_user_only(features).expect("a userfaultfd");
        // SAFETY: v is a fresh mapping of the memory file.
        unsafe { uffd.register(v.addr(), v.len()) }.expect("register");
        Raw { a, v, uffd, pagemap: Pagemap::open().expect("pagemap") }
    }

    fn tracked(pages: usize) -> Raw {
        Raw::new(pages, ASYNC | uffd::FEATURE_SIGBUS)
    }

    fn at(&self, page: usize) -> usize {
        self.v.addr() + page * PAGE
    }

    fn show(&self, page: usize, clean: bool) {
        self.uffd.admit(self.at(page), PAGE, clean).expect("continue");
    }

    /// Written pages; with `protect` they are clean afterwards.
    fn scan(&self, protect: bool) -> Vec<usize> {
        let mut runs = [Run::default(); 16];
        let end = self.v.addr() + self.v.len();
        let (n, _) = self.pagemap.scan(self.v.addr(), end, protect, &mut runs).expect("scan");
        let page = |at: u64| (at as usize - self.v.addr()) / PAGE;
        runs[..n].iter().flat_map(|r| page(r.start)..page(r.end)).collect()
    }

    fn drop_page(&self, page: usize) {
        self.v.advise(page * PAGE, PAGE, mem::DONTNEED).expect("drop");
    }
}

fn put(m: &Mapping, page: usize, value: u64) {
    // SAFETY: the page lies inside the mapping; a view's page is shown first.
    unsafe { m.ptr().wrapping_add(page * PAGE).cast::<u64>().write_volatile(value) };
}

fn get(m: &Mapping, page: usize) -> u64 {
    // SAFETY: as in `put`.
    unsafe { m.ptr().wrapping_add(page * PAGE).cast::<u64>().read_volatile() }
}

/// Rule 1: protect, then read. The store falls between the two steps of each order.
fn copy_then_protect() {
    let sync = |right: bool| {
        let r = Raw::tracked(1);
        r.show(0, true);
        put(&r.v, 0, 1);
        let mut home = 0;
        if right {
            assert_eq!(r.scan(true), [0]);
            put(&r.v, 0, 2);
            home = get(&r.a, 0);
        } else {
            home += get(&r.a, 0);
            put(&r.v, 0, 2);
            assert_eq!(r.scan(true), [0]);
        }
        // The next synchronisation sends what is marked.
        if r.scan(true) == [0] {
            home = get(&r.a, 0);
        }
        home
    };
    assert_eq!(sync(true), 2, "protect, then read");
    assert_eq!(sync(false), 1, "the control does not lose: it tests nothing");
}

/// Rule 2: drop, then scan. The mark of a dirty page survives the dropping, and a clean page gets none from it.
fn scan_then_drop() {
    let r = Raw::tracked(2);
    (0..2).for_each(|p| r.show(p, true));
    assert_eq!(r.scan(true), [0usize; 0]);
    put(&r.v, 0, 5);
    (0..2).for_each(|p| r.drop_page(p));
    assert_eq!(r.scan(true), [0], "the mark survives, alone");
    assert_eq!(get(&r.a, 0), 5, "and so do the bytes");
    // The wrong order: clean when asked, written, dropped, forgotten.
    r.show(1, true);
    let clean = r.scan(true).is_empty();
    put(&r.v, 1, 7);
    r.drop_page(1);
    assert!(clean, "the control does not lose: the scan knew of the store");
}

/// Rule 3: marks leave the kernel into books that the evictor reads too.
fn private_harvest() {
    let evicted = |shared: bool| {
        let r = Raw::tracked(1);
        let mut home = 0;
        r.show(0, true);
        put(&r.v, 0, 9);
        let harvested = r.scan(true);
        let books = if shared { harvested.clone() } else { Vec::new() };
        // The evictor, before the syncer has sent anything.
        r.drop_page(0);
        if r.scan(true).contains(&0) || books.contains(&0) {
            home = get(&r.a, 0);
        }
        // A fault brings the page back.
        put(&r.a, 0, home);
        r.show(0, true);
        // The syncer goes on with its list.
        harvested.iter().for_each(|p| home = get(&r.a, *p));
        home
    };
    assert_eq!(evicted(true), 9, "with common books");
    assert_eq!(evicted(false), 0, "the control does not lose: it tests nothing");
}

const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const WRITTEN: u64 = 2;
const PRESENT: u64 = 8;

/// PAGEMAP_SCAN with another mask than the engine's; answers the number of runs.
fn scan_with(r: &Raw, mask: u64) -> i32 {
    let mut runs = [Run::default(); 16];
    let (start, end) = (r.v.addr() as u64, (r.v.addr() + r.v.len()) as u64);
    // size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof, return
    let mut arg: [u64; 12] = [96, 0, start, end, 0, runs.as_mut_ptr() as u64, 16, 0, 0, mask, 0, mask];
    // SAFETY: arg has the layout of pm_scan_arg, and runs is as long as it says.
    unsafe { libc::ioctl(r.pagemap.raw_fd(), PAGEMAP_SCAN, arg.as_mut_ptr()) }
}

/// Rule 4: a dirty page whose mapping went is written and not present.
fn mask_present() {
    let r = Raw::tracked(2);
    r.show(0, true);
    put(&r.v, 0, 5);
    assert_eq!(scan_with(&r, WRITTEN | PRESENT), 1, "while it is mapped both masks see it");
    r.drop_page(0);
    assert_eq!(scan_with(&r, WRITTEN), 1);
    assert_eq!(scan_with(&r, WRITTEN | PRESENT), 0, "the control does not miss it: it tests nothing");
}

/// Rule 5: pages never touched need a marker, or they look written as soon as a neighbour's page table exists.
fn unprotected_holes() {
    let with = Raw::tracked(4);
    with.show(0, true);
    assert_eq!(with.scan(false), [0usize; 0], "with markers nothing looks written");
    put(&with.v, 0, 1);
    assert_eq!(with.scan(false), [0]);
    let without = Raw::watched(4, ASYNC | uffd::FEATURE_SIGBUS);
    without.show(0, true);
    assert_eq!(without.scan(false), [1, 2, 3], "the control shows no false mark: it tests nothing");
}

/// Rule 6: a minor fault on a page that is here must not fetch it again.
fn refetch() {
    let r = Raw::tracked(1);
    let home = 3;
    put(&r.a, 0, home);
    r.show(0, true);
    put(&r.v, 0, 4);
    // Reclaim takes the mapping; the next touch is a minor fault.
    r.drop_page(0);
    r.show(0, false);
    assert_eq!((get(&r.v, 0), r.scan(false)), (4, vec![0]), "shown again as written");
    r.drop_page(0);
    put(&r.a, 0, home);
    r.show(0, true);
    assert_eq!(get(&r.v, 0), home, "the control does not lose the store: it tests nothing");
}

/// CONTINUE by number, with a mode the engine never uses: map and let everybody sleep.
fn continue_raw(r: &Raw, page: usize, mode: u64) -> Result<(), i32> {
    const CONTINUE: libc::c_ulong = 0xc020_aa07;
    let mut arg: [u64; 4] = [r.at(page) as u64, PAGE as u64, mode, 0];
    // SAFETY: arg has the layout of uffdio_continue.
    let n = unsafe { libc::ioctl(r.uffd.fd().as_raw_fd(), CONTINUE, arg.as_mut_ptr()) };
    if n == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
}

/// Rule 7: a CONTINUE that finds the page there wakes nobody; the engine's own way does.
fn eexist() {
    const DONTWAKE: u64 = 1;
    let r = Raw::new(1, ASYNC);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            assert_eq!(get(&r.v, 0), 0);
            done.store(true, SeqCst);
        });
        let mut messages = [uffd::Msg::default(); 4];
        let start = Instant::now();
        while !matches!(r.uffd.read(&mut messages), Ok(n) if n > 0) {
            assert!(start.elapsed() < Duration::from_secs(5), "no fault was reported");
            std::thread::yield_now();
        }
        assert_eq!(continue_raw(&r, 0, DONTWAKE), Ok(()));
        assert_eq!(continue_raw(&r, 0, 0), Err(libc::EEXIST));
        std::thread::sleep(Duration::from_millis(200));
        let slept = !done.load(SeqCst);
        // The engine's admit meets the same EEXIST, and wakes.
        r.show(0, true);
        let start = Instant::now();
        while !done.load(SeqCst) {
            assert!(start.elapsed() < Duration::from_secs(5), "admit did not wake the toucher");
            std::thread::yield_now();
        }
        assert!(slept, "the control was woken by EEXIST: it tests nothing");
    });
}

/// A page shown without protection counts as written: a clean one must be shown with it.
fn admitted_dirty() {
    let r = Raw::tracked(2);
    r.show(0, true);
    r.show(1, false);
    assert_eq!(r.scan(false), [1]);
}

/// Poison does not replace a write-protect marker, and says EEXIST; without the marker it holds.
fn poison_marker() {
    const POISON: libc::c_ulong = 0xc020_aa08;
    let r = Raw::new(1, ASYNC | uffd::FEATURE_SIGBUS | uffd::FEATURE_POISON);
    let poison = || {
        let mut arg: [u64; 4] = [r.at(0) as u64, PAGE as u64, 0, 0];
        // SAFETY: arg has the layout of uffdio_poison.
        unsafe { libc::ioctl(r.uffd.fd().as_raw_fd(), POISON, arg.as_mut_ptr()) }
    };
    assert_eq!(poison(), -1, "the control poisons a marked page: it tests nothing");
    r.uffd.write_protect(r.at(0), PAGE, false).expect("unprotect");
    assert_eq!(poison(), 0);
    r.drop_page(0);
    assert_eq!(r.scan(true), [0], "a poisoned page leaves a bare hole");
    assert_eq!(r.scan(true), [0usize; 0], "which the scan marks again");
}
