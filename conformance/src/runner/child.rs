//! The side of the runner that is inside the case's own process.

use super::{Case, Ctx, Effort, Verdict};
use std::path::{Path, PathBuf};

/// Name of the file in the scratch directory that holds the verdict.
const VERDICT: &str = ".verdict";

/// Runs one case in this process and writes its verdict. A panic in any thread is a failing verdict.
pub fn run(case: &Case, seed: u64, effort: Effort, scratch: PathBuf) -> std::io::Result<()> {
    let dir = scratch.clone();
    std::panic::set_hook(Box::new(move |info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("a panic without a text");
        let at = info.location().map(|l| format!(" at {l}")).unwrap_or_default();
        eprintln!("panic: {text}{at}");
        let _ = write(&dir, &Verdict::Fail(format!("panic: {text}{at}")));
        std::process::exit(101);
    }));
    let mut ctx = Ctx::new(seed, effort, scratch.clone());
    let verdict = (case.run)(&mut ctx);
    write(&scratch, &verdict)
}

fn write(scratch: &Path, verdict: &Verdict) -> std::io::Result<()> {
    let text = match verdict {
        Verdict::Pass => "pass".to_string(),
        Verdict::Fail(t) => format!("fail\n{t}"),
        Verdict::Skip(t) => format!("skip\n{t}"),
    };
    std::fs::write(scratch.join(VERDICT), text)
}

/// The verdict a case left in its scratch directory, if it came that far.
pub fn read(scratch: &Path) -> Option<Verdict> {
    let text = std::fs::read_to_string(scratch.join(VERDICT)).ok()?;
    match text.split_once('\n').unwrap_or((&text, "")) {
        ("pass", _) => Some(Verdict::Pass),
        ("fail", t) => Some(Verdict::Fail(t.to_string())),
        ("skip", t) => Some(Verdict::Skip(t.to_string())),
        _ => None,
    }
}
