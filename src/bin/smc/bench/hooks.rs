//! What the preloaded library costs a program that uses no region: the same child with and without it, by turns.

use super::Plan;
use super::report::{Report, Target, Truth};
use crate::launch::find_library;
use smc_engine::base::{Error, Result, Status};
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What a child measures, its unit, and how much more it may take with the library.
const PROBES: [(&str, &str, f64); 3] = [("malloc", "ns", 1.0), ("read", "ns", 10.0), ("write", "ns", 10.0)];
/// Microseconds that the start and end of a program may take longer.
const EXEC_MORE: f64 = 150.0;

fn failed(attempt: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Status::SYSTEM, attempt, why.to_string())
}

/// Runs the suite. Noise only ever makes a child slower: the fastest of many speaks for the code, and for a whole
/// program, where the kernel's work dominates, the median.
pub fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let lib = find_library(None)?;
    let rounds = if plan.quick { 10 } else { 30 };
    for (name, unit, more) in PROBES {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            without.push(child(name, None)?);
            with.push(child(name, Some(&lib))?);
        }
        let note = "baseline: the same child without the library, by turns; the fastest of each";
        put(report, &format!("hook.{name}"), unit, [with, without], 0.0, more, note);
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..rounds * 10 {
        without.push(start_and_end(None)?);
        with.push(start_and_end(Some(&lib))?);
    }
    let note = "start and end of /bin/true; baseline: without the library, by turns; medians";
    put(report, "hook.exec", "us", [with, without], 0.5, EXEC_MORE, note);
    Ok(())
}

fn put(report: &mut Report, name: &str, unit: &'static str, all: [Vec<f64>; 2], q: f64, more: f64, note: &str) {
    let [with, without] = all.map(super::report::Samples::new);
    let spread = (with.len(), with.median(), with.at(0.99));
    report.put(
        name,
        unit,
        with.at(q),
        without.at(q),
        spread,
        ("none", Truth::Measured),
        Target::AtMostMore(more),
        note,
    );
}

fn preloaded(mut c: Command, lib: Option<&Path>) -> Command {
    match lib {
        Some(lib) => c.env("LD_PRELOAD", lib),
        None => c.env_remove("LD_PRELOAD"),
    };
    c
}

/// What a child of this program measures.
fn child(name: &str, lib: Option<&Path>) -> Result<f64> {
    let attempt = "run a bench child";
    let exe = std::env::current_exe().map_err(|e| failed(attempt, e))?;
    let mut c = preloaded(Command::new(exe), lib);
    let out = c.args(["bench", "--probe", name]).output().map_err(|e| failed(attempt, e))?;
    let said = String::from_utf8_lossy(&out.stdout);
    said.trim().parse().map_err(|e| failed(attempt, format!("it said {said:?}: {e}")))
}

fn start_and_end(lib: Option<&Path>) -> Result<f64> {
    let mut c = preloaded(Command::new("/bin/true"), lib);
    let start = Instant::now();
    c.stdin(Stdio::null()).status().map_err(|e| failed("run /bin/true", e))?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

/// Body of the child: prints the nanoseconds of one operation, the fastest of many batches. False for an unknown name.
pub fn probe(name: &str) -> bool {
    let (zero, null) = (std::fs::File::open("/dev/zero"), std::fs::File::create("/dev/null"));
    let (Ok(zero), Ok(null)) = (zero, null) else { return false };
    use std::io::{Read, Write};
    let ns = match name {
        "malloc" => best(20_000, || drop(black_box(Vec::<u8>::with_capacity(black_box(64))))),
        "read" => best(2_000, || {
            let mut byte = [0u8];
            let _ = black_box((&zero).read(&mut byte));
        }),
        "write" => best(2_000, || _ = black_box((&null).write(b"x"))),
        _ => return false,
    };
    println!("{ns:.3}");
    true
}

fn best(batch: u32, mut f: impl FnMut()) -> f64 {
    let one = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..batch).for_each(|_| f());
        start.elapsed().as_nanos() as f64 / f64::from(batch)
    };
    (0..40).map(|_| one(&mut f)).fold(f64::INFINITY, f64::min)
}
