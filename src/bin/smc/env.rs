//! `smc env`: the environment variables.

use crate::out;
use serde_json::json;
use smc_engine::base::Error;
use smc_engine::base::config::{Config, VARS};
use std::process::ExitCode;

/// List the environment variables that the library reads
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  smc env\n  smc env --json | jq -r '.[].name'")]
pub struct Args {
    /// One JSON array
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// A Markdown table without the values set here
    #[arg(long)]
    markdown: bool,
}

pub fn run(a: &Args) -> Result<ExitCode, Error> {
    let now = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
    if a.json {
        let all = VARS
            .iter()
            .map(|v| json!({"name": v.name, "default": v.default, "meaning": v.meaning, "value": now(v.name)}));
        out::json(&all.collect::<Vec<_>>().into());
        return Ok(ExitCode::SUCCESS);
    }
    if a.markdown {
        out::line("| Variable | Default | Meaning |\n|---|---|---|");
        for v in VARS {
            out::line(format!("| `{}` | {} | {} |", v.name, v.default, v.meaning.replace('|', "\\|")));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["VARIABLE", "SET TO", "DEFAULT", "MEANING"].map(String::from).to_vec()];
    for v in VARS {
        let set = now(v.name).unwrap_or_else(|| "-".into());
        rows.push(vec![v.name.into(), set, v.default.into(), v.meaning.into()]);
    }
    out::line(out::table(&rows, &[]).trim_end());
    for c in Config::parse(|v| std::env::var(v).ok()).complaints {
        eprintln!("smc: {c}");
    }
    Ok(ExitCode::SUCCESS)
}
