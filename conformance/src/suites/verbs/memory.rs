//! Registered memory: what may be locked, what is refused, and what a fork child finds next to it.

use super::{Far, Stopped, far};
use crate::rig::{Home, Rig, policy};
use crate::runner::{Case, Cost, Ctx, Effort, Verdict};
use smc_engine::base::{HomeOff, PAGE, Status};
use smc_engine::core::options::{MapOptions, Policy};
use smc_engine::link::verbs::{Device, Table};
use smc_engine::link::{Access, WriteOp};
use smc_engine::sys::clock::Deadline;
use smc_engine::sys::mem::{Mapping, RW};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("verbs_registrations_are_refused", |c| far(c, 1, refused)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_little_memory_may_be_locked", little).verbs_only().cost(Cost::Quick).timeout(120),
    Case::new("verbs_a_forked_child_reads_its_data", |c| far(c, 1, forked)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_a_fork_next_to_a_registration", |c| far(c, 1, next_to)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_fork_safe_next_to_a_registration", |c| fork_safe(c, next_to)).verbs_only().cost(Cost::Quick),
    Case::new("verbs_fork_safe_and_many_small_writes", |c| fork_safe(c, many_small)).verbs_only().cost(Cost::Quick),
];

fn soon() -> Deadline {
    Deadline::in_ms(20_000)
}

/// A device that registers nothing (RLIMIT_MEMLOCK, as a rule): an error that names the cause, and no crash; later it works.
fn refused(f: &Far) -> Stopped {
    let home = f.home(4);
    f.wire.refuse_registrations(libc::ENOMEM)?;
    let link = f.link(f.exporters[0].port());
    let error = link.open(&home.region, Access::ReadWrite, Deadline::in_ms(3000)).expect_err("an open without memory");
    println!("{error}");
    assert!(error.to_string().to_lowercase().contains("memlock"), "the limit is not named: {error}");
    f.wire.refuse_registrations(0)?;
    let r = f.rig(home, policy(Policy::Byte));
    r.store(8, 5);
    r.release();
    r.home_is(8, 5);
    Ok(())
}

/// The case as a program whose libibverbs keeps registered pages from fork children.
fn fork_safe(c: &mut Ctx, body: fn(&Far) -> Stopped) -> Verdict {
    // SAFETY: the process has one thread yet.
    unsafe { std::env::set_var("RDMAV_FORK_SAFE", "1") };
    far(c, 1, body)
}

/// What the library says goes to a file of the case from now on.
fn little(c: &mut Ctx) -> Verdict {
    // SAFETY: the process has one thread yet.
    unsafe { std::env::set_var("LIBSMC_LOG", "info") };
    far(c, 1, small_limits)
}

/// As a user whom no privilege helps, with little memory that may be locked: regions of twice the limit, and a working set of three times
/// the limit in pieces. Where registering is refused bytes are copied; the message names the limit, the program sees no error.
fn small_limits(f: &Far) -> Stopped {
    if Device::open(&f.wire.devices()[1], Table::Program).is_ok_and(|d| d.caps().on_demand) {
        return Err("the device brings pages on demand, and so locks none past the limit".into());
    }
    let said = f.ctx.scratch().join("said");
    let file = std::fs::File::create(&said).map_err(|e| e.to_string())?;
    let mut hard = libc::RLIM_INFINITY;
    // As root, who may; another user has what he has.
    if set_limit(8 << 20, hard).is_err() {
        hard = hard_limit();
    }
    // The largest takes an emulated machine long.
    let most = if f.wire.patience() > 1 && f.ctx.effort == Effort::Quick { 8 << 20 } else { 64 << 20 };
    let tried = |l: &usize| *l as u64 <= hard && *l <= most;
    let limits: Vec<usize> = [64 << 20, 8 << 20, 64 << 10].into_iter().filter(tried).collect();
    println!("hard limit {hard}, tried: {limits:?}");
    // Exported to root: looking at them takes his rights.
    let homes: Vec<(Home, Vec<Home>)> =
        limits.iter().map(|l| (f.home(2 * l / PAGE), pieces_of(f, l / 8 * 3))).collect();
    if !f.wire.count_locked()? {
        become_nobody(f.ctx.scratch())?;
    }
    // SAFETY: two descriptors of our own.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), 2) }, 2);
    for (limit, (twice, mut pieces)) in limits.into_iter().zip(homes) {
        set_limit(limit as u64, hard)?;
        let before = std::fs::read_to_string(&said).unwrap_or_default().len();
        // So much may not be registered at all.
        let twice = f.rig(twice, opts());
        all_arrives(&twice, limit);
        let own = registered(&twice);
        assert!(own < 2 * limit as u64, "{limit}: {own} bytes were registered");
        drop(twice);
        let last = pieces.pop().ok_or("no piece")?;
        in_pieces(f, pieces, last, limit);
        let text = std::fs::read_to_string(&said).unwrap_or_default();
        let named = format!("RLIMIT_MEMLOCK is {limit} bytes");
        assert!(text[before..].contains(&named), "{limit}: not named in {:?}", &text[before..]);
    }
    Ok(())
}

/// Pieces by one device: the first are registered, the others are refused, and work as well.
fn in_pieces(f: &Far, pieces: Vec<Home>, last: Home, limit: usize) {
    let pieces: Vec<Rig> = pieces.into_iter().map(|h| f.rig(h, opts())).collect();
    pieces.iter().for_each(|r| all_arrives(r, limit));
    let own = pieces.iter().filter(|r| registered(r) == r.home.len as u64).count();
    println!("limit {limit}: {own} of {} pieces have memory of their own registered", pieces.len());
    let least = if limit < 1 << 20 { 0 } else { 1 };
    assert!((least..3).contains(&own), "{limit}: {own} times 3/8 of it were registered");
    drop(pieces);
    // Nothing idle stays: what was closed makes room.
    let again = f.rig(last, opts());
    all_arrives(&again, limit);
    assert!(limit < 1 << 20 || registered(&again) == again.home.len as u64, "{limit}: what was closed is in the way");
}

/// Three times the limit and one more, in homes that are reached by one link.
fn pieces_of(f: &Far, len: usize) -> Vec<Home> {
    let first = f.home(len / PAGE);
    let link = first.link.clone();
    let next = |_| f.exporters[0].export_far(len, |_| link.clone());
    std::iter::once(first).chain((1..9).map(next)).collect()
}

fn set_limit(soft: u64, hard: u64) -> Stopped {
    let l = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: a valid limit.
    match unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const l) } {
        0 => Ok(()),
        _ => Err(format!("setrlimit {soft} of {hard}: {}", std::io::Error::last_os_error())),
    }
}

fn hard_limit() -> u64 {
    let mut l = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid out pointer.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut l) };
    l.rlim_max
}

fn opts() -> MapOptions {
    policy(Policy::Byte)
}

/// Bytes that were registered for the region, its own or a pool.
fn registered(r: &Rig) -> u64 {
    r.region.stats().registered_bytes.get()
}

/// Loads and stores all over the region, and what the home has of it.
fn all_arrives(r: &Rig, limit: usize) {
    let len = r.home.len;
    let places = || (0..len).step_by((len / 8).next_multiple_of(PAGE));
    places().for_each(|at| r.store(at, (at + limit) as u64));
    r.release();
    places().for_each(|at| r.home_is(at, (at + limit) as u64));
    assert_eq!(r.region.status(), Status::OK, "{}: limit {limit}", r.tag);
    assert_eq!(r.region.stats().fetch_errors.get() + r.region.stats().write_errors.get(), 0, "{}", r.tag);
}

/// An ordinary user from now on, as one who was never root: without privilege, and with a process that is his own.
/// He has `scratch`, where the case says how it ended.
fn become_nobody(scratch: &Path) -> Stopped {
    const NOBODY: u32 = 65534;
    // SAFETY: numbers only.
    let root = unsafe { libc::geteuid() } == 0;
    if root {
        std::os::unix::fs::chown(scratch, Some(NOBODY), Some(NOBODY)).map_err(|e| e.to_string())?;
    }
    // SAFETY: numbers only.
    let group = || unsafe { libc::setresgid(NOBODY, NOBODY, NOBODY) };
    // SAFETY: numbers only; the case has one thread, so no other one is left behind with the old user.
    let user = || unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
    if root && (group() != 0 || user() != 0) {
        return Err(format!("setresuid: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    let probe = scratch.join("probe");
    std::fs::write(&probe, "").map_err(|e| format!("{} cannot be reached by other users: {e}", probe.display()))
}

/// Memory that the library registered is its own: a fork child finds the program's data, next to any of it, as it was.
fn forked(f: &Far) -> Stopped {
    let r = f.rig(f.home(16), policy(Policy::Byte));
    let data: Vec<Box<[u64; 500]>> = (0..200).map(|i| Box::new([i; 500])).collect();
    (0..16).for_each(|p| r.store(p * PAGE, 7));
    r.release();
    // SAFETY: the child calls nothing that could need a lock of the other threads.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let right = data.iter().enumerate().all(|(i, d)| d.iter().all(|w| *w == i as u64));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: our own child; status is a valid out pointer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(status, 0, "the child ended with {status:#x}");
    (0..16).for_each(|p| r.store(p * PAGE + 8, 8));
    r.release();
    (0..16).for_each(|p| r.home_is(p * PAGE + 8, 8));
    Ok(())
}

/// Runs `right` in a fork child; what it says.
fn in_child(right: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls nothing that could need a lock of the other threads.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(!right());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = -1;
    // SAFETY: our own child; status is a valid out pointer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    println!("the child ended with {status:#x}");
    status == 0
}

/// Half a page is registered, sent from and given back; then a fork child reads and writes both halves. Then the same in a program that
/// has given nothing back but the region: what the library keeps registered while it is idle is memory of its own.
fn next_to(f: &Far) -> Stopped {
    let home = f.home(16);
    let link = home.link.clone();
    let key = link.open(&home.region, Access::ReadWrite, soon()).expect("open").key;
    let page = Mapping::anonymous(PAGE, RW).expect("a page");
    // SAFETY: a page of this case, which nobody else looks at.
    let bytes = unsafe { std::slice::from_raw_parts_mut(page.ptr(), PAGE) };
    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    let half = PAGE / 2;
    for round in 0..3 {
        // SAFETY: the page outlives the registration.
        let r = unsafe { link.register(page.ptr().wrapping_add(half), half) }.expect("register half a page");
        // SAFETY: half a page of the case.
        let s = unsafe { link.put(key, HomeOff(0), page.ptr().wrapping_add(half), half, soon()) };
        assert_eq!((s, home.bytes(0, half)), (Status::OK, bytes[half..].to_vec()));
        link.deregister(r);
        let want = bytes.to_vec();
        let both = in_child(|| {
            let read = bytes == want;
            bytes.fill(round);
            read && bytes.iter().all(|b| *b == round)
        });
        assert!(both, "round {round}: the child does not find its page");
    }
    let own = Mapping::anonymous(64 * PAGE, RW).expect("memory");
    let r = f.rig(Home::seen(link.clone(), home.region.clone(), 16 * PAGE), policy(Policy::Byte));
    // SAFETY: memory of this case, as above.
    let data = unsafe { std::slice::from_raw_parts_mut(own.ptr(), own.len()) };
    data.fill(9);
    // Neither of these is the library's.
    r.pwrite(0, &data[..PAGE]);
    r.release();
    let right = |data: &mut [u8]| {
        let read = data.iter().all(|b| *b == 9);
        data.fill(1);
        read && data.iter().all(|b| *b == 1)
    };
    assert!(in_child(|| right(data)), "the child does not find its data beside a region");
    drop(r);
    assert!(in_child(|| right(data)), "the child does not find its data beside what is idle");
    link.close(key);
    Ok(())
}

/// How many mappings the process has.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().count()
}

/// Small writes from as many pages as a process may have mappings, and more: none fails, and mappings stay as few as they were.
fn many_small(f: &Far) -> Stopped {
    const SIZE: usize = 300;
    let slow = f.wire.patience() > 1;
    let pages = f.ctx.scale(if slow { 7_000 } else { 70_000 }, 70_000, 70_000) as usize;
    let home = f.home(16);
    let link = home.link.clone();
    let key = link.open(&home.region, Access::ReadWrite, soon()).expect("open").key;
    let from = Mapping::anonymous(pages * PAGE, RW).expect("memory");
    let write = |page: usize, n: usize| {
        let src = from.ptr().wrapping_add(page * PAGE);
        // SAFETY: the first bytes of a page of the mapping.
        unsafe { src.cast::<[u8; SIZE]>().write([page as u8; SIZE]) };
        WriteOp { src, len: SIZE, off: HomeOff((n % 100 * SIZE) as u64) }
    };
    let before = mappings();
    let mut most = before;
    for first in (0..pages).step_by(100) {
        let ops: Vec<WriteOp> = (first..pages.min(first + 100)).enumerate().map(|(n, page)| write(page, n)).collect();
        // SAFETY: the mapping outlives the wait.
        let ticket = unsafe { link.post(key, &ops) }.expect("a ticket");
        assert_eq!(link.wait(key, ticket, soon()), Status::OK, "writes from page {first} on");
        let one = &ops[0];
        // SAFETY: as above.
        assert_eq!(unsafe { link.put(key, one.off, one.src, one.len, soon()) }, Status::OK, "page {first}");
        if first % 1000 == 0 {
            most = most.max(mappings());
        }
    }
    assert_eq!(link.fence(key, soon()), Status::OK);
    let last = (pages - 100) as u8;
    assert_eq!(home.bytes(0, SIZE), vec![last; SIZE]);
    println!("{pages} pages, {before} mappings before, {most} at most");
    assert!(most <= before + 16, "mappings: {before}, at most {most}");
    link.close(key);
    Ok(())
}
