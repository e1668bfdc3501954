//! The board of counters under stress. Alone in its process: it closes a descriptor that all regions share.

mod preload_support;
mod tool_support;

use smc_engine::base::Status;
use smc_engine::core::options::{MapOptions, PeerName};
use std::fs;
use std::time::{Duration, Instant};
use tool_support::{Serve, engine, json, posted, run, unique};

/// More regions than places, and a program that closes descriptors it does not know.
#[test]
fn the_board_survives_crowds_and_closed_descriptors() {
    let name = unique("crowd");
    let mut s = Serve::start(&["--name", &name, "--size", "64K"]);
    s.line();
    let open = |window: usize, age: u64| {
        // Other options are another region.
        let opts = MapOptions { window, age_ms: age, ..MapOptions::default() };
        engine().open(&PeerName::Local, &name, &opts).expect("open")
    };
    // One after the other: places of closed regions are used again.
    for i in 0..70 {
        let r = open(1, 100_000 + i);
        assert_eq!(r.release(0, 0), Status::OK);
    }
    let last = open(2, 0);
    assert_eq!(last.release(0, 0), Status::OK);
    posted(&name, |r| r["open"] == true);
    // All at once: those that find no place are counted.
    let many: Vec<_> = (0..64).map(|i| open(3, 200_000 + i)).collect();
    let me = std::process::id().to_string();
    let end = Instant::now() + Duration::from_secs(10);
    while json(&run(&["stat", &me, "--json"]))[0]["unlisted"].as_u64().is_none_or(|n| n == 0) {
        assert!(Instant::now() < end, "nothing is counted as unlisted");
    }
    drop(many);
    // The program closes what it does not know: the region's thread still holds it.
    let fds = fs::read_dir("/proc/self/fd").expect("own descriptors").filter_map(Result::ok);
    let board =
        fds.map(|e| e.path()).find(|p| fs::read_link(p).is_ok_and(|l| l.to_string_lossy().contains("libsmc-stats")));
    let board: i32 = board.and_then(|p| p.file_name()?.to_str()?.parse().ok()).expect("the board");
    // SAFETY: descriptors of this test; nobody else uses them.
    assert_eq!(unsafe { libc::close(board) }, 0);
    let last_opened = posted(&name, |r| r["open"] == true && r["counters"]["releases"] == 1)["opened_ns"].as_u64();

    // Its number may be another file's by now; a new region's thread must not hold that open.
    let mut ends = [0; 2];
    // SAFETY: descriptors of this test; nobody else uses them.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::dup2(ends[1], board) }, board);
    let late = open(4, 0);
    posted(&name, |r| r["open"] == true && r["opened_ns"].as_u64() > last_opened);
    // SAFETY: descriptors of this test; nobody else uses them.
    unsafe { libc::close(board) };
    if ends[1] != board {
        // SAFETY: descriptors of this test; nobody else uses them.
        unsafe { libc::close(ends[1]) };
    }
    let mut p = libc::pollfd { fd: ends[0], events: libc::POLLIN, revents: 0 };
    // SAFETY: descriptors of this test; nobody else uses them.
    assert_eq!(unsafe { libc::poll(&raw mut p, 1, 5000) }, 1, "somebody holds the program's pipe open");
    drop(late);
}
