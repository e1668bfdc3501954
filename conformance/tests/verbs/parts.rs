//! The parts of `link::verbs`: choice, registration, queue pairs, requests.

use super::pool::Pool;
use super::{CHILD, again, on_hca, softhca_support};
use smc_engine::base::Status;
use smc_engine::base::config::DeviceWish;
use smc_engine::link::verbs::words::Outcome;
use smc_engine::link::verbs::*;
use smc_engine::sys::clock::Deadline;
use std::sync::Arc;

pub fn chosen() -> Choice {
    choose(&DeviceWish::default(), None, Table::Program).expect("a device")
}

/// Two ends of one connection, in two domains, and the memory behind each.
struct Ends {
    here: Arc<Domain>,
    cq: Arc<Completions>,
    pair: QueuePair,
    other: QueuePair,
}

fn ends(choice: &Choice) -> Ends {
    let port = &choice.ports[0];
    let (here, there) = (Domain::new(&choice.device).unwrap(), Domain::new(&choice.device).unwrap());
    let cq = Completions::new(&choice.device, 64).unwrap();
    let idle = Completions::new(&choice.device, 4).unwrap();
    let pair = QueuePair::new(&here, &cq, port, Depth { requests: 32, inline: 128 }, false).unwrap();
    let other = QueuePair::new(&there, &idle, port, Depth { requests: 1, inline: 0 }, true).unwrap();
    other.connect(&pair.endpoint()).unwrap();
    pair.connect(&other.endpoint()).unwrap();
    Ends { here, cq, pair, other }
}

/// The next completion.
pub fn next(cq: &Completions) -> Completion {
    let end = Deadline::in_ms(20_000);
    let mut got = None;
    while got.is_none() {
        assert!(!end.passed(), "nothing completes");
        cq.poll(|c| {
            assert!(got.is_none(), "two completions: {got:?}, {c:?}");
            got = Some(c);
        })
        .unwrap();
    }
    got.unwrap()
}

impl Ends {
    fn run(&self, requests: &[Request]) -> Completion {
        let mut batch = Batch::<8>::new();
        requests.iter().for_each(|r| assert!(batch.push(r)));
        // SAFETY: the tests' own memory, which outlives the completion.
        unsafe { batch.post(&self.pair) }.unwrap();
        next(&self.cq)
    }
}

/// Memory that stays where it is.
pub fn memory(bytes: usize) -> &'static mut [u8] {
    let m = smc_engine::sys::mem::Mapping::anonymous(bytes, smc_engine::sys::mem::RW).unwrap();
    let (ptr, len) = m.forget();
    // SAFETY: a fresh mapping that is never taken back.
    unsafe { std::slice::from_raw_parts_mut(ptr, len) }
}

#[test]
fn the_choice_explains_itself() {
    if !on_hca("parts::the_choice_explains_itself", &[("LIBSOFTHCA_DEVICES", "2x2")]) {
        return;
    }
    assert_eq!(Device::names().unwrap(), ["softhca0", "softhca1"]);
    let c = choose(&DeviceWish::default(), Some("127.0.0.1".parse().unwrap()), Table::Program).unwrap();
    assert_eq!(c.ports.len(), 1);
    assert!(c.reason.contains("127.0.0.1") && c.reason.contains("management path"), "{}", c.reason);
    let wish = |text: &str| DeviceWish::parse(text).unwrap();
    let c = choose(&wish("softhca1:1+2"), None, Table::Program).unwrap();
    assert_eq!((c.device.name(), c.ports.len()), ("softhca1", 2));
    assert!(c.reason.starts_with("softhca1:1+2, GID ") && c.reason.contains("it was named"), "{}", c.reason);
    let e = choose(&wish("mlx5_0"), None, Table::Program).unwrap_err();
    assert_eq!(e.status, Status::NOT_FOUND);
    assert!(e.to_string().contains("there are softhca0, softhca1"), "{e}");
    let e = choose(&DeviceWish { gid_index: Some(200), ..wish("softhca0") }, None, Table::Program).unwrap_err();
    assert!(e.to_string().contains("softhca0:1 has no GID of that index"), "{e}");
    let caps = c.device.caps();
    assert!(caps.atomics && caps.depth >= 64 && caps.asks > 0 && !caps.on_demand, "{caps:?}");
}

#[test]
fn a_port_without_link_is_not_taken() {
    if !on_hca("parts::a_port_without_link_is_not_taken", &[("LIBSOFTHCA_FAULTS", "port-down=1")]) {
        return;
    }
    let e = choose(&DeviceWish::default(), None, Table::Program).unwrap_err();
    assert_eq!(e.status, Status::NOT_FOUND);
    assert!(e.to_string().contains("softhca0:1 has no link"), "{e}");
}

#[test]
fn a_host_without_rdma_is_told_so() {
    if std::env::var_os(CHILD).is_none() {
        // The distribution's own library, where there is no kernel driver; and no usable library at all.
        let nowhere = softhca_support::target().join("softhca/nowhere");
        std::fs::create_dir_all(&nowhere).unwrap();
        std::fs::write(nowhere.join("libibverbs.so.1"), "no library").unwrap();
        let mut c = again("parts::a_host_without_rdma_is_told_so");
        c.env("LD_LIBRARY_PATH", &nowhere);
        softhca_support::success("without a library", &softhca_support::output(c));
        return;
    }
    let e = Device::names().unwrap_err();
    assert_eq!(e.status, Status::NOT_SUPPORTED, "{e}");
    let text = e.to_string();
    assert!(text.contains("libibverbs.so.1") && text.contains("install libibverbs"), "{text}");
}

#[test]
fn bytes_go_both_ways_and_atomics_are_performed() {
    if !on_hca("parts::bytes_go_both_ways_and_atomics_are_performed", &[]) {
        return;
    }
    let choice = chosen();
    let e = ends(&choice);
    let (mine, home) = (memory(8192), memory(8192));
    // SAFETY: never unmapped.
    let local = unsafe { e.here.register(mine.as_mut_ptr(), mine.len(), Rights::Local) }.unwrap();
    // SAFETY: as above.
    let remote = unsafe { e.other_domain().register(home.as_mut_ptr(), home.len(), Rights::Write) }.unwrap();
    let at = |off: usize| remote.base() as u64 + off as u64;
    let place = |off: usize, len: u32| Place { ptr: (local.base() + off) as *mut u8, len, lkey: local.lkey };
    let request =
        |id, verb, local, off, signalled| Request { id, verb, local, addr: at(off), rkey: remote.rkey, signalled };
    mine[..4096].fill(7);
    let inline = b"inline needs no registration".to_vec();
    let small = Place { ptr: inline.as_ptr().cast_mut(), len: inline.len() as u32, lkey: 0 };
    // Three requests, one doorbell, one completion: that of the last.
    let done = e.run(&[
        request(1, Verb::Write, place(0, 4096), 0, false),
        request(2, Verb::WriteInline, small, 4096, false),
        request(3, Verb::Read, place(4096, 4096), 4096, true),
    ]);
    assert_eq!(done, Completion { id: 3, outcome: Outcome(0) });
    assert!(home[..4096].iter().all(|b| *b == 7));
    assert_eq!(&mine[4096..4096 + inline.len()], &inline[..]);
    home[..8].copy_from_slice(&40u64.to_ne_bytes());
    assert_eq!(e.run(&[request(4, Verb::FetchAdd(2), place(0, 8), 0, true)]).outcome, Outcome(0));
    assert_eq!((&mine[..8], &home[..8]), (&40u64.to_ne_bytes()[..], &42u64.to_ne_bytes()[..]));
    let swap = Verb::CompareSwap { expected: 42, new: 1 };
    assert_eq!(e.run(&[request(5, swap, place(0, 8), 0, true)]).outcome, Outcome(0));
    assert_eq!((&mine[..8], &home[..8]), (&42u64.to_ne_bytes()[..], &1u64.to_ne_bytes()[..]));
    // A key that was given back is dead, and the queue pair with it.
    let (base, rkey) = (remote.base() as u64, remote.rkey);
    drop(remote);
    let dead = Request { addr: base, rkey, ..request_of(6, place(0, 8)) };
    let done = e.run(&[dead]);
    assert_eq!((done.id, done.outcome.status()), (6, Status::LINK_DOWN));
    assert!(done.outcome.to_string().contains("key does not allow"), "{}", done.outcome);
}

fn request_of(id: u64, local: Place) -> Request {
    Request { id, verb: Verb::Read, local, addr: 0, rkey: 0, signalled: true }
}

impl Ends {
    fn other_domain(&self) -> &Arc<Domain> {
        self.other.domain()
    }
}

#[test]
fn what_is_given_up_completes() {
    // A dead wire: nothing would ever complete but by being given up.
    if !on_hca("parts::what_is_given_up_completes", &[("LIBSOFTHCA_FAULTS", "lose-requests=1")]) {
        return;
    }
    let choice = chosen();
    let e = ends(&choice);
    let pool = Pool::new(&e.here, 1 << 20).unwrap();
    let local = Place { ptr: pool.ptr(), len: 64, lkey: pool.lkey() };
    let mut batch = Batch::<4>::new();
    assert!(batch.push(&request_of(1, local)) && batch.push(&request_of(2, local)));
    // SAFETY: the pool lives until the end of the test.
    unsafe { batch.post(&e.pair) }.unwrap();
    e.cq.poll(|c| panic!("{c:?}")).unwrap();
    e.pair.fail();
    let end = Deadline::in_ms(20_000);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        assert!(!end.passed(), "no flush: {seen:?}");
        e.cq.poll(|c| seen.push(c)).unwrap();
    }
    assert_eq!((seen[0].id, seen[1].id), (1, 2));
    assert!(seen.iter().all(|c| c.outcome.status() == Status::LINK_DOWN), "{seen:?}");
}

#[test]
fn a_registration_that_fails_names_the_limit() {
    if !on_hca("parts::a_registration_that_fails_names_the_limit", &[("LIBSOFTHCA_FAULTS", "register=12")]) {
        return;
    }
    let choice = chosen();
    let domain = Domain::new(&choice.device).unwrap();
    let e = Pool::new(&domain, 4 << 20).unwrap_err();
    assert_eq!(e.status, Status::NO_RESOURCES);
    let text = e.to_string();
    assert!(text.contains("RLIMIT_MEMLOCK") && text.contains("ulimit -l"), "{text}");
}

#[test]
fn own_threads_post_too() {
    if !on_hca("parts::own_threads_post_too", &[]) {
        return;
    }
    let choice = chosen();
    let e = ends(&choice);
    let pool = Pool::new(&e.here, 4096).unwrap();
    let home = memory(4096);
    home.fill(9);
    // SAFETY: never unmapped.
    let remote = unsafe { e.other_domain().register(home.as_mut_ptr(), home.len(), Rights::Read) }.unwrap();
    let (tx, rx) = smc_engine::sys::channel::channel();
    let device = choice.device.clone();
    let thread = smc_engine::sys::thread::spawn("smc-test", move |_| {
        let at_hand = device.at_hand();
        let local = Place { ptr: pool.ptr(), len: 4096, lkey: pool.lkey() };
        let done = e.run(&[Request { addr: remote.base() as u64, rkey: remote.rkey, ..request_of(1, local) }]);
        // SAFETY: the pool's first byte.
        let byte = unsafe { pool.ptr().read() };
        tx.send((at_hand, done.outcome, byte)).unwrap();
    })
    .unwrap();
    let answer = rx.wait(std::time::Duration::from_secs(20));
    thread.join();
    assert_eq!(answer, Some((Ok(()), Outcome(0), 9)));
}
