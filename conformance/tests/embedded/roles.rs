//! What the other processes do.

use crate::child::{Client, arg, limit_life, listen, say, soon};
use crate::manners::Raw;
use smc_engine::core::export::{ExportOptions, Exporter, Memory};
use smc_engine::link::embedded::EmbeddedLink;
use smc_engine::link::mgmt::Message;
use smc_engine::link::{Access, AtomicOp, Link};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

pub fn run(role: &str) {
    limit_life();
    match role {
        "transfer" => transfer(),
        "adder" => adder(),
        "many" => many(),
        "exporter" => exporter(),
        "open-as-nobody" => open_as_nobody(),
        "impolite" => impolite(),
        "fork-client" => fork_client(),
        "idle" => idle(),
        "squat-as-nobody" => squat_as_nobody(),
        "stuck" => stuck(),
        "handler" => handler(),
        "late-setuid" => late_setuid(),
        other => panic!("no role {other}"),
    }
}

/// Reads what the exporter wrote, answers, adds.
fn transfer() {
    let c = Client::open(&arg(0), Access::ReadWrite);
    let mut buf = vec![0u8; 3 << 20];
    assert!(c.fetch(0, &mut buf).is_ok());
    say(buf.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
    buf.iter_mut().for_each(|b| *b = b.wrapping_add(1));
    assert!(c.put(0, &buf).is_ok());
    say(c.atomic((4 << 20) - 8, AtomicOp::FetchAdd(5)).unwrap());
    listen();
    c.link.close(c.key);
    say("closed");
    listen();
}

fn adder() {
    let c = Client::open(&arg(0), Access::ReadWrite);
    let n: u64 = arg(1).parse().unwrap();
    say("ready");
    listen();
    for _ in 0..n {
        c.atomic(64, AtomicOp::FetchAdd(1)).unwrap();
    }
    say("done");
    listen();
}

/// Several links, each with the region open and a word of its own.
fn many() {
    let first: u64 = arg(1).parse().unwrap();
    let clients: Vec<Client> = (0..16).map(|_| Client::open(&arg(0), Access::ReadWrite)).collect();
    say("ready");
    listen();
    for (i, c) in clients.iter().enumerate() {
        let off = 8 * (first + i as u64);
        assert!(c.put(off, &(off + 1).to_le_bytes()).is_ok());
    }
    say("done");
    listen();
}

/// Exports until it is killed; argument 1 says what else it does.
fn exporter() {
    let e = Exporter::get().unwrap().export(&arg(0), Memory::New(1 << 20), ExportOptions::default());
    let e = match e {
        Ok(e) => e,
        Err(e) => return say(e.status.name()),
    };
    // SAFETY: the export's own first byte.
    unsafe { e.base().write_volatile(42) };
    match &*arg(1) {
        // A fork child that outlives us must not keep our connections open.
        "fork" => fork_sleeper(),
        "close-range" => {
            // SAFETY: what a daemon does; stdin, stdout and stderr stay.
            unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
        }
        _ => {}
    }
    say("ready");
    listen();
}

/// A fork child that outlives us must not keep our connections open.
fn fork_sleeper() {
    // SAFETY: the child only sleeps and exits.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: safe in a fork child.
        unsafe { libc::sleep(20) };
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
}

/// Drops root and tries to open read-write, then read-only, as an ordinary client; then by hand.
fn open_as_nobody() {
    // SAFETY: changes only this process's user.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
    let link = EmbeddedLink::connect_local();
    for want in [Access::ReadWrite, Access::ReadOnly] {
        match link.open(&arg(0), want, soon()) {
            Ok(_) => say("open"),
            Err(e) => say(e.status.name()),
        }
    }
    if arg(1) == "reopen" {
        let raw = Raw::open(&arg(0), Access::ReadOnly);
        say(raw.can_write_somehow());
    }
    listen();
}

/// Speaks the protocol by hand, ignores the gate, keeps its mapping and descriptor, and goes on writing.
fn impolite() {
    let raw = Raw::open(&arg(0), Access::ReadWrite);
    let base = raw.map_home();
    say("ready");
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let (flag, addr) = (stop.clone(), base as usize);
    let writer = std::thread::spawn(move || {
        let mut n = 0u64;
        while !flag.load(SeqCst) {
            n += 1;
            // SAFETY: the first word of the home, mapped by us for ever.
            unsafe { (addr as *mut u64).write_volatile(n) };
        }
    });
    listen();
    // SAFETY: the second page of the home, mapped by us for ever.
    say(unsafe { base.wrapping_add(4096).cast::<u64>().read_volatile() });
    // A second mapping of the descriptor shows no more than the first.
    let again = raw.map_home();
    // SAFETY: as above.
    say(unsafe { again.wrapping_add(4096).cast::<u64>().read_volatile() });
    // SAFETY: as above; a write that must not arrive anywhere.
    unsafe { base.wrapping_add(4096).cast::<u64>().write_volatile(0xdead) };
    let mut told = String::new();
    while let Some(m) = raw.recv() {
        if let Message::Revoked { reason } = m {
            told = reason;
        }
    }
    say(told);
    listen();
    stop.store(true, SeqCst);
    writer.join().unwrap();
}

/// A fork child of a client must not touch anything of the link.
fn fork_client() {
    let c = Client::open(&arg(0), Access::ReadWrite);
    assert_eq!(c.word(0), Ok(7));
    // SAFETY: the child calls only functions that answer at once, then exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let forked = smc_engine::base::Status::FORKED;
        let ok = c.word(0) == Err(forked)
            && c.put(0, &[1]) == forked
            && c.link.open("x", Access::ReadOnly, soon()).is_err_and(|e| e.status == forked);
        drop(c);
        // SAFETY: ends the fork child without running exit handlers.
        unsafe { libc::_exit(if ok { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    say(status);
    say(c.word(0).unwrap());
    listen();
}

/// Counts threads and descriptors before and after the first use.
fn idle() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let before = (count("task"), count("fd"));
    let link = EmbeddedLink::connect_local();
    let exporter = Exporter::get().unwrap();
    assert_eq!(exporter.names(), Vec::<String>::new());
    assert_eq!((count("task"), count("fd")), before, "something was started before the first use");
    let e = exporter.export(&arg(0), Memory::New(4096), ExportOptions::default()).unwrap();
    let o = link.open(&arg(0), Access::ReadWrite, soon()).unwrap();
    assert_eq!((count("task"), count("fd")), (before.0 + 2, before.1), "threads, descriptors");
    link.close(o.key);
    drop(e);
    drop(link);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(count("task"), before.0 + 1, "the link's thread ends with the link");
    say("ok");
}

/// Exports as another user.
fn squat_as_nobody() {
    // SAFETY: changes only this process's user.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
    let options = ExportOptions { allow_any: true, ..Default::default() };
    let _e = Exporter::get().unwrap().export(&arg(0), Memory::New(4096), options).unwrap();
    say("ready");
    listen();
}

/// Says for ever that a write is under way.
fn stuck() {
    let raw = Raw::open(&arg(0), Access::ReadWrite);
    raw.control().inflight.store(1, SeqCst);
    say("ready");
    listen();
}

static IN_HANDLER: OnceLock<Client> = OnceLock::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);
static BAD: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: i32) {
    if let Some(c) = IN_HANDLER.get() {
        match c.word(4096) {
            Ok(0x7777) => HANDLED.fetch_add(1, SeqCst),
            _ => BAD.fetch_add(1, SeqCst),
        };
    }
}

/// Fetches in a signal handler that interrupts operations on the same region, while the memory moves.
fn handler() {
    let c = IN_HANDLER.get_or_init(|| Client::open(&arg(0), Access::ReadWrite));
    // SAFETY: on_signal uses the fault face and atomics only.
    unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
    // SAFETY: pthread_self has no preconditions.
    let me = unsafe { libc::pthread_self() } as usize;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(SeqCst) {
                // SAFETY: the thread lives longer than this scope.
                unsafe { libc::pthread_kill(me as libc::pthread_t, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(150));
            }
        });
        say("ready");
        let waiter = s.spawn(listen);
        let mut n = 0u64;
        // Large, so that most signals arrive in the middle of a copy.
        let mut big = vec![0u8; 4 << 20];
        while !waiter.is_finished() {
            assert_eq!(c.atomic(0, AtomicOp::FetchAdd(1)), Ok(n));
            n += 1;
            assert!(c.put(8192, &big).is_ok());
            assert!(c.fetch(8192, &mut big).is_ok());
        }
        stop.store(true, SeqCst);
        say(n);
    });
    say(BAD.load(SeqCst));
    say(HANDLED.load(SeqCst) > 100);
    listen();
}

/// Changes the user while both of the library's threads run: the C library waits for every thread to follow.
fn late_setuid() {
    let e = Exporter::get().unwrap().export(&arg(0), Memory::New(4096), ExportOptions::default()).unwrap();
    let c = Client::open(e.name(), Access::ReadWrite);
    // SAFETY: changes only this process's user.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
    assert!(c.put(0, &[9]).is_ok());
    say("ok");
    listen();
}
