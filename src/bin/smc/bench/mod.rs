//! `smc bench`: every figure is a ratio inside one run against a named baseline of [`baseline`].

mod ab;
mod baseline;
mod bulk;
mod fault;
mod hooks;
mod plot;
mod read;
mod release;
mod report;
mod rig;
mod store;
mod threads;
mod through;
mod units;
mod verbs;

use report::Report;
use smc_engine::base::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measures libsmc against bare baselines in the same run.
///
/// Over the wire model (2 us one way, 10 ns between messages, 100 Gb/s unless --wire says otherwise) figures are marked
/// modelled; over the bare embedded link they are this machine's. The suite `verbs` starts an exporter of its own (a child, with a fresh key)
/// and runs over the RDMA device of --device, or the one that the library would choose; with a device made of software (rxe) it counts
/// messages and measures no times. Without a device it is left out, unless it was named.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  smc bench                     every suite\n  smc bench fault store --quick  two suites, under a minute\n  \
    smc bench --json > run.jsonl  one object per figure\n  smc bench bulk --wire latency_ns=1000,gbps=400\n  \
    smc bench verbs --device mlx5_0 --plot verbs.svg\n\n\
    Exit status: 0 measured, whether targets were met or not; 1 an error; 2 usage; 3 the suite verbs was named, and this host has \
    no usable RDMA device."
)]
pub struct Args {
    /// Suites to run; all when none is named: fault, read, release, store, bulk, through, units, threads, hooks, ab, verbs
    suites: Vec<String>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
    /// Fewer rounds and smaller regions: all suites within 60 s
    #[arg(long)]
    quick: bool,
    /// Wire model, as in LIBSMC_LINK after `wire,`
    #[arg(long, value_name = "KEY=VALUE,..")]
    wire: Option<String>,
    /// RDMA device of the suite verbs: NAME or NAME:PORT [default: LIBSMC_DEVICE, or else as the library chooses]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Draw the table of the suite verbs
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Measure one operation in this process; what the suite `hooks` runs its children with
    #[arg(long, hide = true, value_name = "NAME")]
    probe: Option<String>,
    /// List the suites and what they measure
    #[arg(long)]
    list: bool,
}

/// Exit status when the suite `verbs` was named and there is no device.
const NO_DEVICE: u8 = 3;

/// What every suite gets.
pub struct Plan {
    /// Smaller and shorter.
    pub quick: bool,
    /// Text of the wire model.
    pub wire: String,
    /// Device that was named.
    pub device: Option<String>,
}

type Suite = (&'static str, &'static str, fn(&Plan, &mut Report) -> Result<()>);

const SUITES: &[Suite] = &[
    ("fault", "first touch of a page against the smallest handler that does the same copy", fault::run),
    ("read", "one thread sums a region against memcpy and the same sum", read::run),
    ("release", "release of a clean and of a sparsely dirty region against one bare scan; amplification", release::run),
    ("store", "64 B stores and one release against one completed put per store", store::run),
    ("bulk", "fill and release 4 MiB against fill and one put", bulk::run),
    ("through", "exact write-through against the bare emulation loop plus one put", through::run),
    ("units", "page units 4K to 2M on both loads", units::run),
    ("threads", "1 to 8 threads touching and storing", threads::run),
    ("hooks", "malloc, read, write and exec with the library preloaded against without", hooks::run),
    ("ab", "staged copy, one put per store, SMC mapping: the A/B table", ab::run),
    ("verbs", "over an RDMA device: staged copy, plain WRITE, SMC mapping; first touch; registrations", verbs::run),
];

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        SUITES.iter().for_each(|(n, what, _)| println!("{n:10} {what}"));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &args.probe {
        if name == verbs::PROBE {
            return verbs::serve(args.device.as_deref()).map(|()| ExitCode::SUCCESS);
        }
        return Ok(if hooks::probe(name) { ExitCode::SUCCESS } else { ExitCode::from(2) });
    }
    for name in &args.suites {
        if !SUITES.iter().any(|(n, ..)| n == name) {
            eprintln!("smc: no suite is named {name}; see smc bench --list");
            return Ok(ExitCode::from(2));
        }
    }
    let wire = args.wire.as_ref().map_or("wire".to_string(), |w| format!("wire,{w}"));
    let plan = Plan { quick: args.quick, wire, device: args.device.clone() };
    let wanted = |name: &str| args.suites.is_empty() || args.suites.iter().any(|s| s == name);
    let _key = match wanted("verbs") {
        // SAFETY: this process has one thread until the first suite runs.
        true => Some(unsafe { verbs::Fresh::prepare(args.device.as_deref()) }?),
        false => None,
    };
    let mut report = Report::new(args.json);
    let mut status = ExitCode::SUCCESS;
    for (name, _, f) in SUITES {
        if wanted(name) {
            report.begin(name);
            if *name == "verbs"
                && let Err(e) = verbs::usable(args.device.as_deref())
            {
                eprintln!("smc: the suite verbs was not run: {e}");
                status = if args.suites.is_empty() { status } else { ExitCode::from(NO_DEVICE) };
                continue;
            }
            f(&plan, &mut report)?;
        }
    }
    report.finish();
    if let Some(file) = &args.plot {
        plot::draw(&report, file)?;
    }
    Ok(status)
}
