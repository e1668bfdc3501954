//! How results look: tables for people, JSON for machines, and what both need.

use serde_json::Value;
use smc_engine::base::config::parse_size;
use smc_engine::base::{Error, Status};
use smc_engine::link::Access;
use std::fmt::Display;
use std::io::Write;

/// An error in the tool's own work: `cannot ATTEMPT: WHY; REMEDY`.
pub fn cannot(attempt: impl Into<String>, why: impl Display) -> Error {
    Error::new(Status::SYSTEM, attempt, why.to_string())
}

/// One line on stdout, at once. A reader that has gone is no reason to fail.
pub fn line(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// A JSON value as one line.
pub fn json(v: &Value) {
    line(v);
}

/// Columns padded to their widest cell; the first row is the heading. Columns named in `right` are numbers.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in rows {
        let cell = |(c, s): (usize, &String)| {
            let w = width(c);
            if right.contains(&c) { format!("{s:>w$}") } else { format!("{s:<w$}") }
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// `read-write` or `read-only`.
pub fn access(a: Access) -> &'static str {
    match a {
        Access::ReadOnly => "read-only",
        Access::ReadWrite => "read-write",
    }
}

/// Bytes for people: `1.5 GiB`; whole numbers without a fraction.
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = if n == 0 { 0 } else { (n.ilog2() / 10).min(5) };
    let unit = units.get(step as usize).unwrap_or(&"B");
    let scaled = n as f64 / (1u64 << (10 * step)) as f64;
    if scaled.fract() == 0.0 { format!("{scaled:.0} {unit}") } else { format!("{scaled:.1} {unit}") }
}

/// A size on the command line.
pub fn size_arg(s: &str) -> Result<u64, String> {
    parse_size(s)
        .filter(|n| *n > 0)
        .ok_or_else(|| "expected bytes with an optional suffix: 4096, 64K, 2MiB, 1GiB".into())
}
