//! The same figures by perftest, where it is installed: a check of our own verbs loop in the same run.

use smc_engine::link::verbs::Choice;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest run of one program.
const LIMIT: Duration = Duration::from_secs(60);

/// What a program says: column `column` of its line of results. `None` where it is not installed or does not work here.
fn figure(choice: &Choice, program: &str, extra: &[&str], column: usize) -> Option<f64> {
    let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port().to_string();
    let start = |address: Option<&str>| {
        let mut c = Command::new(program);
        c.args(["-d", choice.device.name(), "-F", "-p", &port]).args(extra);
        if let Some(p) = choice.ports.first() {
            c.args(["-i", &p.number.to_string()]);
            if p.lid == 0 {
                c.args(["-x", &p.gid_index.to_string()]);
            }
        }
        c.args(address).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
    };
    let mut server = start(None)?;
    std::thread::sleep(Duration::from_millis(300));
    let out = start(Some("127.0.0.1")).and_then(finish);
    let _ = server.kill();
    let _ = server.wait();
    value(&out?, column)
}

fn finish(mut c: Child) -> Option<String> {
    let started = Instant::now();
    while c.try_wait().ok()?.is_none() {
        if started.elapsed() > LIMIT {
            let _ = c.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = c.wait_with_output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn value(said: &str, column: usize) -> Option<f64> {
    let line = said.lines().skip_while(|l| !l.contains("#bytes")).nth(1)?;
    line.split_whitespace().nth(column)?.parse().ok()
}

/// Bytes per second of 4 MiB WRITEs in a queue.
pub fn write_bandwidth(choice: &Choice, count: usize) -> Option<f64> {
    let args = ["-s", "4194304", "-n", &count.to_string(), "-t", "8"];
    // MB there are 2^20 bytes.
    figure(choice, "ib_write_bw", &args, 3).map(|mb| mb * f64::from(1 << 20))
}

/// Nanoseconds from a 64-byte WRITE to the peer's seeing it: half of a round of two.
pub fn write_latency(choice: &Choice, count: usize) -> Option<f64> {
    figure(choice, "ib_write_lat", &["-s", "64", "-n", &count.to_string()], 4).map(|us| us * 1000.0)
}

/// Nanoseconds of a completed READ of 4 KiB.
pub fn read_latency(choice: &Choice, count: usize) -> Option<f64> {
    figure(choice, "ib_read_lat", &["-s", "4096", "-n", &count.to_string()], 4).map(|us| us * 1000.0)
}
