//! Cases that may not be skipped: a list of names, one a line, for the place where the run is made.
//!
//! A skip is honest where something is missing. Where everything is there by construction, as in a guest that was made for
//! the run, it would hide that nothing was tested.

use super::process::Outcome;
use super::{Case, Effort, Verdict};
use std::path::Path;
use std::time::Duration;

/// The names that `file` lists; `#` begins a comment.
pub fn read(file: &Path) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    Ok(parse(&text))
}

fn parse(text: &str) -> Vec<String> {
    let plain = |l: &str| l.split('#').next().unwrap_or_default().trim().to_string();
    text.lines().map(plain).filter(|l| !l.is_empty()).collect()
}

/// Turns the skips of listed cases into failures, and adds a failure for each listed case that was not run. One that a
/// run of this effort leaves out is not missed.
pub fn enforce(list: &[String], cases: &[Case], effort: Effort, outcomes: &mut Vec<Outcome>) {
    for o in outcomes.iter_mut() {
        if let Verdict::Skip(why) = &o.verdict
            && list.iter().any(|n| n == o.name)
        {
            o.verdict = Verdict::Fail(format!("may not be skipped here: {why}"));
        }
    }
    for name in list {
        let why = match cases.iter().find(|c| c.name == *name) {
            None => "must run here, and no case has this name",
            Some(c) if !c.runs_at(effort) || outcomes.iter().any(|o| o.name == c.name) => continue,
            Some(_) => "must run here, and is not among the chosen cases",
        };
        let (name, verdict) = (String::leak(name.clone()), Verdict::Fail(why.into()));
        outcomes.push(Outcome { name, verdict, took: Duration::ZERO, output: String::new() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cost;
    use super::*;

    #[test]
    fn a_listed_case_that_did_not_run_is_a_failure() {
        let case = |name| Case::new(name, |_| Verdict::Pass);
        let cases = [case("a_ran"), case("a_skipped"), case("a_left_out"), case("a_long").cost(Cost::Long)];
        let outcome = |name, verdict| Outcome { name, verdict, took: Duration::ZERO, output: String::new() };
        let mut seen = vec![
            outcome("a_ran", Verdict::Pass),
            outcome("a_skipped", Verdict::Skip("no card".into())),
            outcome("a_free", Verdict::Skip("no card".into())),
        ];
        let list = parse("# here\na_ran\n a_skipped # always\n\na_left_out\na_long\na_gone\n");
        enforce(&list, &cases, Effort::Normal, &mut seen);
        let failed: Vec<_> = seen.iter().filter(|o| matches!(o.verdict, Verdict::Fail(_))).map(|o| o.name).collect();
        assert_eq!(failed, ["a_skipped", "a_left_out", "a_gone"]);
        assert!(matches!(&seen[1].verdict, Verdict::Fail(t) if t.contains("no card")));
        assert!(matches!(seen[2].verdict, Verdict::Skip(_)));
    }
}
