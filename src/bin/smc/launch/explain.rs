//! `smc run --explain`: what would be done, and why, without doing it.

use super::{Plan, Source};
use crate::launch::program::Verdict;
use crate::out;
use serde_json::{Value, json};

/// `yes`, or why not.
fn covered(v: &Verdict) -> (Value, String) {
    match v {
        Verdict::Covered => (true.into(), "yes".into()),
        Verdict::Unknown(why) => (Value::Null, format!("cannot tell: {why}")),
        Verdict::Not(why, _) => (false.into(), format!("no: {why}")),
    }
}

impl Source {
    fn text(&self) -> String {
        match self {
            Source::Option(o) => (*o).to_owned(),
            Source::Environment => "environment".to_owned(),
            Source::File(path, line) => format!("{}:{line}", path.display()),
            Source::Own(why) => (*why).to_owned(),
        }
    }
}

pub fn show(p: &Plan, as_json: bool) {
    let (is, why) = covered(&p.program.verdict);
    let through: Vec<String> = p.program.through.iter().map(|t| t.display().to_string()).collect();
    let config = p.config.as_ref().map(|c| c.display().to_string());
    if as_json {
        let variables: Vec<Value> = p
            .variables
            .iter()
            .map(|v| json!({"name": v.name, "value": v.value.to_string_lossy(), "from": v.from.text()}))
            .collect();
        out::json(
            &json!({"program": p.program.file.display().to_string(), "through": through, "covered": is, "why": why,
                    "library": p.library.display().to_string(), "config": config, "variables": variables}),
        );
        return;
    }
    let mut rows = vec![vec!["program".into(), p.program.file.display().to_string()]];
    rows.extend(through.into_iter().map(|t| vec!["run by".into(), t]));
    rows.push(vec!["covered".into(), why]);
    rows.push(vec!["library".into(), p.library.display().to_string()]);
    rows.push(vec!["settings".into(), config.unwrap_or_else(|| "no file".into())]);
    out::line(out::table(&rows, &[]));
    let mut rows = vec![["VARIABLE", "VALUE", "FROM"].map(String::from).to_vec()];
    rows.extend(p.variables.iter().map(|v| vec![v.name.into(), v.value.to_string_lossy().into_owned(), v.from.text()]));
    out::line(out::table(&rows, &[]).trim_end());
}
