//! The table of the three paths, out of the figures of a run.

use crate::bench::report::{Figure, Report, human};

/// The paths: their name for people, and the end of the figure's name.
pub const PATHS: [(&str, &str); 3] = [("staged copy", ".staged"), ("plain RDMA", ".plain"), ("SMC mapping", "")];
/// The loads: their name for people, and the beginning of the figure's name.
const LOADS: [(&str, &str); 2] = [("4 MiB bulk", "verbs.bulk.4MiB"), ("64 B random", "verbs.store.random64")];

/// Latency and bandwidth of a path under a load (0: bulk, 1: random).
pub fn cell(report: &Report, load: usize, path: &str) -> Option<[f64; 2]> {
    let (_, stem) = LOADS.get(load)?;
    let value = |f: &Figure| f.value;
    let latency = report.figure(&format!("{stem}{path}.latency")).map(value)?;
    Some([latency, report.figure(&format!("{stem}{path}")).map(value)?])
}

/// Prints it.
pub fn print(report: &Report) {
    let header = ["load", "path", "latency", "bandwidth", "latency/plain", "bandwidth/plain"];
    let [a, b, c, d, e, f] = header;
    report.say(&format!("\n   {a:<13} {b:<13} {c:>12} {d:>12} {e:>14} {f:>16}"));
    for (load, (text, _)) in LOADS.iter().enumerate() {
        let Some(plain) = cell(report, load, ".plain") else { continue };
        for (name, path) in PATHS {
            let Some(own) = cell(report, load, path) else { continue };
            let ratios = [own[0] / plain[0], own[1] / plain[1]];
            let (latency, bandwidth) = (human(own[0], "ns"), human(own[1], "B/s"));
            report.say(&format!(
                "   {text:<13} {name:<13} {latency:>12} {bandwidth:>12} {:>14.3} {:>16.3}",
                ratios[0], ratios[1]
            ));
        }
    }
    report.say(
        "   A plain or staged store is at the home before the next one; the mapping's are there after the one release.\n",
    );
}
