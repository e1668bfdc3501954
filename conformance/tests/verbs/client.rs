//! The client link against a small exporter in the same process, on the soft HCA.

use super::fake::{Exporter, NAME, Order};
use super::{control, on_hca, on_hca_with_control};
use smc_engine::base::config::{DeviceWish, LogLevel};
use smc_engine::base::{HomeOff, Status};
use smc_engine::link::mgmt::key::Key;
use smc_engine::link::verbs::VerbsLink;
use smc_engine::link::{Access, AtomicOp, Health, Link, Opened, RegionKey, WriteOp};
use smc_engine::sys::clock::{Deadline, now};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

const LEN: usize = 8 << 20;

fn key() -> &'static Key {
    static KEY: OnceLock<Key> = OnceLock::new();
    KEY.get_or_init(|| Key::generate(None).unwrap())
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn soon() -> Deadline {
    Deadline::in_ms(20_000)
}

fn link_to(at: SocketAddr) -> VerbsLink {
    VerbsLink::with_key("127.0.0.1", at.port(), key().clone(), DeviceWish::default(), None, LogLevel::Off)
}

fn open(link: &VerbsLink) -> Opened {
    link.open(NAME, Access::ReadWrite, soon()).unwrap()
}

pub fn pair() -> (Exporter, VerbsLink, RegionKey) {
    let e = Exporter::start(any(), key(), LEN, 7);
    let link = link_to(e.address);
    let opened = open(&link);
    assert_eq!((opened.info.len, opened.info.incarnation), (LEN as u64, 7));
    (e, link, opened.key)
}

fn fetch(link: &VerbsLink, k: RegionKey, off: usize, to: &mut [u8], deadline: Deadline) -> Status {
    // SAFETY: a buffer of that length.
    unsafe { link.fetch(k, HomeOff(off as u64), to.as_mut_ptr(), to.len(), deadline) }
}

fn put(link: &VerbsLink, k: RegionKey, off: usize, from: &[u8]) -> Status {
    // SAFETY: as above.
    unsafe { link.put(k, HomeOff(off as u64), from.as_ptr(), from.len(), soon()) }
}

/// Posts the writes and waits for them.
pub fn post(link: &VerbsLink, k: RegionKey, ops: &[WriteOp]) -> Status {
    // SAFETY: the sources outlive the wait.
    match unsafe { link.post(k, ops) } {
        Ok(ticket) => link.wait(k, ticket, soon()),
        Err(s) => s,
    }
}

pub fn op(from: &[u8], off: usize) -> WriteOp {
    WriteOp { src: from.as_ptr(), len: from.len(), off: HomeOff(off as u64) }
}

/// Waits until the region's health is as wanted.
fn until(link: &VerbsLink, k: RegionKey, what: &str, wanted: impl Fn(Health) -> bool) {
    let end = soon();
    while !wanted(link.health(k)) {
        assert!(!end.passed(), "not {what}: {:?}", link.health(k));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn until_up(link: &VerbsLink, k: RegionKey) {
    until(link, k, "up", |h| h == Health::Up);
}

/// A fetch that works within the time; failures before must be of the passing kind.
fn fetch_again(link: &VerbsLink, k: RegionKey, off: usize, to: &mut [u8]) {
    let end = soon();
    loop {
        match fetch(link, k, off, to, end) {
            Status::OK => return,
            s => assert!(s.is_transient() && !end.passed(), "{s:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn every_operation_does_what_it_says() {
    if !on_hca("client::every_operation_does_what_it_says", &[]) {
        return;
    }
    let (e, link, k) = pair();
    let big = smc_engine::sys::mem::Mapping::anonymous(4 << 20, smc_engine::sys::mem::RW).unwrap();
    // SAFETY: the mapping outlives the registration.
    let known = unsafe { link.register(big.ptr(), big.len()) }.unwrap();
    // SAFETY: a mapping of this test alone.
    let registered = unsafe { std::slice::from_raw_parts_mut(big.ptr(), big.len()) };
    e.home.copy_from_slice(&pattern(LEN, 3));
    // Fetches: registered and not, of all sizes.
    for len in [1, 8, 4096, 65536, 65537, 1 << 20, 3_000_000, 4 << 20] {
        let mut plain = vec![0; len];
        assert_eq!(fetch(&link, k, 4097, &mut plain, soon()), Status::OK, "{len}");
        assert_eq!(fetch(&link, k, 4097, &mut registered[..len], soon()), Status::OK, "{len}");
        assert!(plain == e.home[4097..4097 + len] && plain == registered[..len], "{len} bytes differ");
    }
    // Puts and posts: inline, registered, bounced, striped.
    for (n, len) in [1, 100, 256, 300, 4096, 70_000, 1 << 20, 4 << 20].into_iter().enumerate() {
        let bytes = pattern(len, n as u8);
        assert_eq!(put(&link, k, 5, &bytes), Status::OK);
        assert!(e.home[5..5 + len] == bytes, "a put of {len} is not at the home");
        registered[..len].fill(n as u8 ^ 0x55);
        assert_eq!(put(&link, k, 11, &registered[..len]), Status::OK);
        assert!(e.home[11..11 + len] == registered[..len], "a registered put of {len}");
        let at = LEN / 2;
        let (first, second) = bytes.split_at(len / 2);
        let ops = [op(&registered[..len], 0), op(first, at), op(second, at + first.len())];
        let ops: Vec<_> = ops.into_iter().filter(|o| o.len > 0).collect();
        assert_eq!(post(&link, k, &ops), Status::OK);
        assert_eq!(link.fence(k, soon()), Status::OK);
        assert!(e.home[..len] == registered[..len] && e.home[at..at + len] == bytes, "a post of {len}");
    }
    assert_eq!(post(&link, k, &[]), Status::OK);
    // Many small ones.
    let many: Vec<_> = (0..3000).map(|i| op(&registered[i * 64..i * 64 + 48], i * 64)).collect();
    e.home[..3000 * 64].fill(0);
    assert_eq!((post(&link, k, &many), link.fence(k, soon())), (Status::OK, Status::OK));
    assert!((0..3000).all(|i| e.home[i * 64..i * 64 + 48] == registered[i * 64..i * 64 + 48]));
    // Atomics.
    e.home[64..72].copy_from_slice(&5u64.to_ne_bytes());
    let atomic = |op| link.atomic(k, HomeOff(64), op, soon());
    assert_eq!((atomic(AtomicOp::Load), atomic(AtomicOp::FetchAdd(2))), (Ok(5), Ok(5)));
    assert_eq!(atomic(AtomicOp::CompareSwap { expected: 1, new: 9 }), Ok(7));
    assert_eq!((atomic(AtomicOp::CompareSwap { expected: 7, new: 9 }), atomic(AtomicOp::Store(1))), (Ok(7), Ok(9)));
    assert_eq!(e.home[64..72], 1u64.to_ne_bytes());
    // Refusals.
    let mut byte = [0];
    assert_eq!(fetch(&link, k, LEN, &mut byte, soon()), Status::OUT_OF_RANGE);
    assert_eq!(put(&link, k, LEN, &byte), Status::OUT_OF_RANGE);
    assert_eq!(link.atomic(k, HomeOff(4), AtomicOp::Load, soon()), Err(Status::INVALID_ARGUMENT));
    let ro = link.open(NAME, Access::ReadOnly, soon()).unwrap();
    assert_eq!(put(&link, ro.key, 0, &byte), Status::PERMISSION);
    assert_eq!(fetch(&link, ro.key, 0, &mut byte, soon()), Status::OK);
    link.close(ro.key);
    assert_eq!(fetch(&link, ro.key, 0, &mut byte, soon()), Status::NOT_FOUND);
    assert_eq!(link.open("absent", Access::ReadOnly, soon()).unwrap_err().status, Status::NOT_FOUND);
    let stats = link.stats();
    assert_eq!((stats.fetches.get(), stats.fences.get(), stats.atomics.get()), (17, 9, 5));
    assert_eq!((link.attachments(k), link.list(soon()).unwrap().len()), (1, 1));
    link.deregister(known);
}

#[test]
fn threads_share_the_lanes() {
    if !on_hca("client::threads_share_the_lanes", &[]) {
        return;
    }
    let (e, link, k) = pair();
    let each = LEN / 8;
    let end = Deadline::in_ms(1500);
    std::thread::scope(|s| {
        for t in 0..8usize {
            let link = &link;
            s.spawn(move || {
                let mut seed = 0x9e37_79b9u64 ^ t as u64;
                let mut model = vec![0u8; each];
                let mut rounds = 0u32;
                while !end.passed() {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let (at, len) = ((seed >> 33) as usize % (each - 9000), (seed >> 20) as usize % 9000 + 1);
                    let bytes = pattern(len, seed as u8);
                    model[at..at + len].copy_from_slice(&bytes);
                    let off = t * each;
                    let status = match seed >> 60 {
                        0..=7 => post(
                            link,
                            k,
                            &[op(&bytes[..len / 2], off + at), op(&bytes[len / 2..], off + at + len / 2)]
                                .into_iter()
                                .filter(|o| o.len > 0)
                                .collect::<Vec<_>>(),
                        ),
                        _ => put(link, k, off + at, &bytes),
                    };
                    assert_eq!(status, Status::OK);
                    assert_eq!(link.fence(k, soon()), Status::OK);
                    let mut back = vec![0; len];
                    assert_eq!(fetch(link, k, off + at, &mut back, soon()), Status::OK);
                    let wrong = back.iter().zip(&bytes).filter(|(a, b)| a != b).count();
                    let first = back.iter().zip(&bytes).position(|(a, b)| a != b);
                    assert_eq!(
                        (wrong, first),
                        (0, None),
                        "thread {t}, round {rounds}: {len} bytes at {at}, way {}",
                        seed >> 60
                    );
                    rounds += 1;
                }
                let mut all = vec![0; each];
                assert_eq!(fetch(link, k, t * each, &mut all, soon()), Status::OK);
                assert!(all == model, "thread {t} after {rounds} rounds");
                assert!(rounds > 3, "thread {t}: {rounds} rounds");
            });
        }
    });
    drop(e);
}

#[test]
fn a_flap_is_ridden_out() {
    if !on_hca("client::a_flap_is_ridden_out", &[]) {
        return;
    }
    let (e, link, k) = pair();
    e.home.fill(1);
    let mut page = vec![0; 4096];
    for n in 0..5u8 {
        e.ask(Order::Flap);
        fetch_again(&link, k, 0, &mut page);
        until_up(&link, k);
        // Writes may fail with the flap; what is said to have arrived has.
        let bytes = vec![n; 100_000];
        while post(&link, k, &[op(&bytes, 4096)]) != Status::OK || link.fence(k, soon()) != Status::OK {}
        assert!(e.home[4096..104_096] == bytes, "flap {n}");
    }
    assert_eq!(link.attachments(k), 1, "the exporter was there all the time");
    // Without any use the keep-alive notices.
    e.ask(Order::Flap);
    until(&link, k, "noticed", |h| h == Health::Retrying(Status::LINK_DOWN));
    until_up(&link, k);
}

#[test]
fn a_home_that_moves_is_followed() {
    if !on_hca("client::a_home_that_moves_is_followed", &[]) {
        return;
    }
    let (e, link, k) = pair();
    assert_eq!(put(&link, k, 0, &pattern(LEN, 9)), Status::OK);
    for _ in 0..3 {
        e.ask(Order::Move);
        let mut all = vec![0; LEN];
        fetch_again(&link, k, 0, &mut all);
        assert!(all == pattern(LEN, 9), "the old place was read");
    }
    // Nobody notices who writes meanwhile: what was said to have arrived has moved along.
    let end = Deadline::in_ms(2000);
    let write = |t: usize| {
        let (link, mut n) = (&link, 0u32);
        move || {
            while !end.passed() {
                n += 1;
                let bytes = pattern(150_000, n as u8);
                let off = t << 20;
                assert_eq!((post(link, k, &[op(&bytes, off)]), link.fence(k, soon())), (Status::OK, Status::OK), "{n}");
                let mut back = vec![0; bytes.len()];
                assert_eq!(fetch(link, k, off, &mut back, soon()), Status::OK);
                assert!(back == bytes, "thread {t}: write {n} was lost");
            }
            n
        }
    };
    let written: Vec<u32> = std::thread::scope(|s| {
        let writers: Vec<_> = (0..3).map(|t| s.spawn(write(t))).collect();
        while !end.passed() {
            std::thread::sleep(Duration::from_millis(60));
            e.ask(Order::Move);
        }
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    assert!(written.iter().all(|n| *n > 5), "{written:?}");
    assert_eq!(link.attachments(k), 1);
}

#[test]
fn lanes_use_all_ports_that_are_named() {
    if !on_hca("client::lanes_use_all_ports_that_are_named", &[("LIBSOFTHCA_DEVICES", "1x2")]) {
        return;
    }
    let e = Exporter::start(any(), key(), LEN, 7);
    let wish = DeviceWish::parse("softhca0:1+2").unwrap();
    let link = VerbsLink::with_key("127.0.0.1", e.address.port(), key().clone(), wish, Some(4), LogLevel::Off);
    let k = open(&link).key;
    let bytes = pattern(4 << 20, 1);
    assert_eq!((post(&link, k, &[op(&bytes, 0)]), link.fence(k, soon())), (Status::OK, Status::OK));
    assert!(e.home[..bytes.len()] == bytes);
}

#[test]
fn regions_come_and_go() {
    if !on_hca("client::regions_come_and_go", &[]) {
        return;
    }
    let e = Exporter::start(any(), key(), 8192, 7);
    let link = link_to(e.address);
    let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut page = [0; 4096];
    let (mut threads, mut files) = (0, 0);
    for n in 0..40 {
        let k = open(&link).key;
        assert_eq!(fetch(&link, k, 0, &mut page, soon()), Status::OK);
        link.close(k);
        assert_eq!(fetch(&link, k, 0, &mut page, soon()), Status::NOT_FOUND);
        // The thread ends by itself, a little later.
        let end = soon();
        while n > 1 && tasks() > threads {
            assert!(!end.passed(), "{} threads after {n} regions, {threads} at first", tasks());
            std::thread::sleep(Duration::from_millis(1));
        }
        if n == 1 {
            std::thread::sleep(Duration::from_millis(100));
            (threads, files) = (tasks(), open_files());
        }
    }
    assert!(open_files() <= files, "{} files, {files} at first", open_files());
    // A fork child has nothing of it, and breaks nothing.
    let k = open(&link).key;
    // SAFETY: the child calls what a child may call, and leaves at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = fetch(&link, k, 0, &mut page, soon()) == Status::FORKED
            && link.open(NAME, Access::ReadOnly, soon()).is_err_and(|e| e.status == Status::FORKED);
        drop(link);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!forked)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(fetch(&link, k, 0, &mut page, soon()), Status::OK);
}

#[test]
fn a_revoked_client_stays_out() {
    if !on_hca("client::a_revoked_client_stays_out", &[]) {
        return;
    }
    let (e, link, k) = pair();
    e.ask(Order::Revoke);
    until(&link, k, "revoked", |h| h == Health::Down(Status::REVOKED));
    let mut byte = [0];
    assert_eq!(fetch(&link, k, 0, &mut byte, soon()), Status::REVOKED);
    assert_eq!(post(&link, k, &[op(&byte, 0)]), Status::REVOKED);
    assert_eq!(link.fence(k, soon()), Status::REVOKED);
    assert_eq!(link.atomic(k, HomeOff(0), AtomicOp::FetchAdd(1), soon()), Err(Status::REVOKED));
    link.close(k);
    // A new opening is a new client.
    let again = open(&link);
    assert_eq!(fetch(&link, again.key, 0, &mut byte, soon()), Status::OK);
}

#[test]
fn the_same_memory_is_attached_again_and_other_memory_is_stale() {
    if !on_hca("client::the_same_memory_is_attached_again_and_other_memory_is_stale", &[]) {
        return;
    }
    let (e, link, k) = pair();
    let at = e.address;
    e.ask(Order::End);
    until(&link, k, "ended", |h| matches!(h, Health::Retrying(_)));
    drop(e);
    let mut byte = [0];
    let began = now();
    assert!(!fetch(&link, k, 0, &mut byte, Deadline::in_ms(3000)).is_ok());
    assert!(now() - began < 2_000_000_000, "an exporter that is gone was waited for");
    let e = Exporter::start(at, key(), LEN, 7);
    e.home.fill(0x77);
    until_up(&link, k);
    assert_eq!((fetch(&link, k, 0, &mut byte, soon()), byte, link.attachments(k)), (Status::OK, [0x77], 2));
    drop(e);
    until(&link, k, "gone", |h| matches!(h, Health::Retrying(_)));
    let _e = Exporter::start(at, key(), LEN, 8);
    until(&link, k, "stale", |h| h == Health::Down(Status::STALE));
    assert_eq!(fetch(&link, k, 0, &mut byte, soon()), Status::STALE);
}

#[test]
fn what_is_given_up_touches_nothing_afterwards() {
    if !on_hca_with_control("client::what_is_given_up_touches_nothing_afterwards", &[]) {
        return;
    }
    let (e, link, k) = pair();
    let big = smc_engine::sys::mem::Mapping::anonymous(1 << 20, smc_engine::sys::mem::RW).unwrap();
    // SAFETY: the mapping outlives the link.
    let known = unsafe { link.register(big.ptr(), big.len()) }.unwrap();
    // SAFETY: a mapping of this test alone.
    let page = unsafe { std::slice::from_raw_parts_mut(big.ptr(), 4096) };
    e.home.fill(1);
    assert_eq!(fetch(&link, k, 0, page, soon()), Status::OK);
    for faults in ["lose-requests=1", "delay=400000000"] {
        control(faults);
        page.fill(2);
        let began = now();
        let s = fetch(&link, k, 0, page, Deadline::in_ms(150));
        let took = now() - began;
        assert!(s == Status::TIMED_OUT, "{faults}: {s:?}");
        assert!((140_000_000..2_000_000_000).contains(&took), "{faults}: {took} ns");
        assert!(page.iter().all(|b| *b == 2), "{faults}: an answer came before");
        let ticket = [op(page, 8192)];
        let s = post(&link, k, &ticket);
        // What is late arrives within the time of a post.
        assert!(!s.is_ok() || faults.starts_with("delay"), "{faults}: {s:?}");
        page.fill(3);
        control("");
        std::thread::sleep(Duration::from_millis(600));
        assert!(page.iter().all(|b| *b == 3), "{faults}: memory was touched after the operation had returned");
        fetch_again(&link, k, 0, page);
        assert!(page.iter().all(|b| *b == 1));
    }
    link.deregister(known);
}

#[test]
fn a_device_that_was_removed_is_opened_again() {
    if !on_hca_with_control("client::a_device_that_was_removed_is_opened_again", &[]) {
        return;
    }
    let (e, link, k) = pair();
    let big = smc_engine::sys::mem::Mapping::anonymous(1 << 20, smc_engine::sys::mem::RW).unwrap();
    // SAFETY: the mapping outlives the link.
    let _known = unsafe { link.register(big.ptr(), big.len()) }.unwrap();
    let mut page = vec![0; 4096];
    assert_eq!(fetch(&link, k, 0, &mut page, soon()), Status::OK);
    control("remove");
    until(&link, k, "noticed", |h| matches!(h, Health::Retrying(_)));
    drop(e);
    control("");
    let at = link_address(&link);
    let e = Exporter::start(at, key(), LEN, 7);
    e.home.fill(4);
    until_up(&link, k);
    fetch_again(&link, k, 0, &mut page);
    assert!(page.iter().all(|b| *b == 4));
    // SAFETY: a mapping of this test alone.
    let direct = unsafe { std::slice::from_raw_parts_mut(big.ptr(), big.len()) };
    fetch_again(&link, k, 0, direct);
    assert!(direct.iter().all(|b| *b == 4));
}

/// The buffer by which everything goes that is not registered cannot be registered when the device comes back: the link is not up before
/// it can.
#[test]
fn a_device_that_takes_no_registrations_is_not_up() {
    let name = "client::a_device_that_takes_no_registrations_is_not_up";
    if !on_hca_with_control(name, &[("LIBSOFTHCA_DEVICES", "2")]) {
        return;
    }
    let e = Exporter::start(any(), key(), LEN, 7);
    let wish = DeviceWish::parse("softhca1").unwrap();
    let link = VerbsLink::with_key("127.0.0.1", e.address.port(), key().clone(), wish, None, LogLevel::Off);
    let k = open(&link).key;
    let mut page = vec![0; 4096];
    assert_eq!(fetch(&link, k, 0, &mut page, soon()), Status::OK);
    control("remove device=1");
    until(&link, k, "noticed", |h| matches!(h, Health::Retrying(_)));
    control("register=12 device=1");
    for _ in 0..200 {
        let health = link.health(k);
        assert!(
            matches!(health, Health::Retrying(_)),
            "{health:?}, and a fetch: {:?}",
            fetch(&link, k, 0, &mut page, soon())
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    control("");
    until_up(&link, k);
    fetch_again(&link, k, 0, &mut page);
}

fn link_address(link: &VerbsLink) -> SocketAddr {
    SocketAddr::new("127.0.0.1".parse().unwrap(), link.port())
}

#[test]
fn errors_say_what_to_do() {
    if !on_hca("client::errors_say_what_to_do", &[]) {
        return;
    }
    let e = Exporter::start(any(), key(), 8192, 1);
    let other = Key::generate(None).unwrap();
    let with = |key: Key, device: &str| {
        let wish = DeviceWish::parse(device).unwrap_or_default();
        VerbsLink::with_key("127.0.0.1", e.address.port(), key, wish, None, LogLevel::Off)
    };
    let error = |link: VerbsLink| link.open(NAME, Access::ReadOnly, Deadline::in_ms(5000)).unwrap_err();
    let wrong = error(with(other, ""));
    assert!(wrong.status == Status::REFUSED && wrong.remedy.contains("fingerprints"), "{wrong}");
    let absent = error(with(key().clone(), "mlx5_9"));
    assert!(absent.status == Status::NOT_FOUND && absent.to_string().contains("softhca0"), "{absent}");
    let port = super::softhca_support::free_port();
    let nobody = link_to(SocketAddr::new("127.0.0.1".parse().unwrap(), port));
    assert_eq!(nobody.open(NAME, Access::ReadOnly, Deadline::in_ms(5000)).unwrap_err().status, Status::LINK_DOWN);
    // More regions than there are places.
    let link = link_to(e.address);
    assert_eq!(link.open(".", Access::ReadOnly, soon()).unwrap_err().status, Status::INVALID_ARGUMENT);
}
