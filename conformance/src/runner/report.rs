//! What a run says: lines for people, TAP, JUnit XML, JSON, and the closing line.

use super::process::Outcome;
use super::{Over, Verdict};
use serde_json::json;
use std::fmt::Write;

/// Counts of a run.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that were skipped.
    pub skipped: usize,
}

impl Totals {
    /// Counts the outcomes.
    pub fn of(outcomes: &[Outcome]) -> Totals {
        let mut t = Totals::default();
        for o in outcomes {
            match o.verdict {
                Verdict::Pass => t.passed += 1,
                Verdict::Fail(_) => t.failed += 1,
                Verdict::Skip(_) => t.skipped += 1,
            }
        }
        t
    }
}

impl std::fmt::Display for Totals {
    /// The closing line of every run: `N passed, N failed, N skipped`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// One outcome for people; a failure carries the seed, the command that repeats it and the captured output.
pub fn line(o: &Outcome, seed: u64, over: Over) -> String {
    let took = o.took.as_secs_f64();
    match &o.verdict {
        Verdict::Pass => format!("pass {} ({took:.2} s)", o.name),
        Verdict::Skip(reason) => format!("skip {}: {reason}", o.name),
        Verdict::Fail(text) => {
            let mut s = format!("FAIL {} seed={seed} ({took:.2} s): {text}\n", o.name);
            let link = over.option();
            let _ = writeln!(s, "     repeat with: smc-conformance --filter ={} --seed {seed}{link}", o.name);
            for l in o.output.lines() {
                let _ = writeln!(s, "     | {l}");
            }
            s.truncate(s.trim_end().len());
            s
        }
    }
}

/// The run in the Test Anything Protocol, version 13.
pub fn tap(outcomes: &[Outcome], seed: u64) -> String {
    let mut s = format!("TAP version 13\n1..{}\n", outcomes.len());
    for (i, o) in outcomes.iter().enumerate() {
        let n = i + 1;
        match &o.verdict {
            Verdict::Pass => drop(writeln!(s, "ok {n} - {}", o.name)),
            Verdict::Skip(reason) => drop(writeln!(s, "ok {n} - {} # SKIP {}", o.name, one_line(reason))),
            Verdict::Fail(text) => {
                let _ = writeln!(s, "not ok {n} - {} # seed={seed} {}", o.name, one_line(text));
                for l in o.output.lines() {
                    let _ = writeln!(s, "# {l}");
                }
            }
        }
    }
    s
}

fn one_line(text: &str) -> String {
    text.replace('\n', "; ")
}

/// The run as JUnit XML, one test suite; the class is the case's family.
pub fn junit(outcomes: &[Outcome], seed: u64) -> String {
    let t = Totals::of(outcomes);
    let mut s = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        s,
        "<testsuite name=\"smc-conformance\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">",
        outcomes.len(),
        t.failed,
        t.skipped
    );
    for o in outcomes {
        let family = o.name.split('_').next().unwrap_or(o.name);
        let _ = write!(
            s,
            "  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\"",
            xml(family),
            xml(o.name),
            o.took.as_secs_f64()
        );
        let _ = match &o.verdict {
            Verdict::Pass => writeln!(s, "/>"),
            Verdict::Skip(reason) => writeln!(s, "><skipped message=\"{}\"/></testcase>", xml(reason)),
            Verdict::Fail(text) => writeln!(
                s,
                "><failure message=\"seed={seed} {}\"/><system-out>{}</system-out></testcase>",
                xml(text),
                xml(&o.output)
            ),
        };
    }
    s.push_str("</testsuite>\n");
    s
}

/// XML 1.0 text: the five entities, and a replacement for control characters it cannot carry.
fn xml(text: &str) -> String {
    let mut s = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => s.push_str("&amp;"),
            '<' => s.push_str("&lt;"),
            '>' => s.push_str("&gt;"),
            '"' => s.push_str("&quot;"),
            '\n' => s.push_str("&#10;"),
            '\t' => s.push('\t'),
            c if c < ' ' || ('\u{fffe}'..='\u{ffff}').contains(&c) => s.push('\u{fffd}'),
            c => s.push(c),
        }
    }
    s
}

/// The run as one JSON object.
pub fn json(outcomes: &[Outcome], seed: u64) -> String {
    let cases: Vec<_> = outcomes
        .iter()
        .map(|o| {
            let (verdict, text) = match &o.verdict {
                Verdict::Pass => ("pass", None),
                Verdict::Fail(t) => ("fail", Some(t)),
                Verdict::Skip(t) => ("skip", Some(t)),
            };
            let output = (verdict == "fail").then_some(&o.output);
            json!({ "name": o.name, "verdict": verdict, "text": text, "seconds": o.took.as_secs_f64(), "output": output })
        })
        .collect();
    let t = Totals::of(outcomes);
    json!({ "seed": seed, "passed": t.passed, "failed": t.failed, "skipped": t.skipped, "cases": cases }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sample() -> Vec<Outcome> {
        let o =
            |name, verdict| Outcome { name, verdict, took: Duration::from_millis(1500), output: "a < b\x1b\n".into() };
        vec![
            o("data_a", Verdict::Pass),
            o("data_b", Verdict::Fail("1 & 2\nmore".into())),
            o("stale_c", Verdict::Skip("no card".into())),
        ]
    }

    #[test]
    fn the_closing_line() {
        assert_eq!(Totals::of(&sample()).to_string(), "1 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_failure_names_seed_and_output() {
        let s = line(&sample()[1], 42, Over::Verbs);
        assert!(s.starts_with("FAIL data_b seed=42 (1.50 s): 1 & 2"), "{s}");
        assert!(s.contains("--filter =data_b --seed 42 --link verbs") && s.contains("| a < b"), "{s}");
    }

    #[test]
    fn machine_formats() {
        let all = sample();
        let t = tap(&all, 42);
        assert!(t.starts_with("TAP version 13\n1..3\nok 1 - data_a\nnot ok 2 - data_b # seed=42 1 & 2; more\n"), "{t}");
        assert!(t.contains("ok 3 - stale_c # SKIP no card"), "{t}");
        let x = junit(&all, 42);
        assert!(
            x.contains("tests=\"3\" failures=\"1\" skipped=\"1\"") && x.contains("seed=42 1 &amp; 2&#10;more"),
            "{x}"
        );
        assert!(x.contains("a &lt; b\u{fffd}") && !x.contains('\x1b'), "{x}");
        let j: serde_json::Value = serde_json::from_str(&json(&all, 42)).unwrap();
        assert_eq!(j["cases"][1]["verdict"], "fail");
        assert_eq!(j["failed"], 1);
    }
}
