//! The direction of `use`: data goes down, results come back as return values, nothing calls upwards.

use smc_conformance::repo::{self, SourceFile};
use smc_conformance::source::{What, facts};

/// How far a layer may use another.
enum May {
    /// Everything.
    All,
    /// Only these modules of it.
    Only(&'static [&'static str]),
    /// Only names of types, and everything in these modules.
    Types(&'static [&'static str]),
}
use May::{All, Only, Types};

/// Row: (layer, what it may use besides itself). What is not named is forbidden.
const TABLE: &[(&str, &[(&str, May)])] = &[
    (
        "interpose",
        &[
            ("policy", All),
            ("core", All),
            ("base", All),
            (
                "sys",
                Only(&[
                    "log",
                    "descriptor",
                    "dl",
                    "tls",
                    "errno",
                    "Errno",
                    "follow",
                    "kept",
                    "mem",
                    "process",
                    "reserve",
                    "sync",
                    "thread",
                ]),
            ),
        ],
    ),
    ("capi", &[("core", All), ("link", Types(&[])), ("base", All), ("sys", All)]),
    ("policy", &[("core", Types(&["options"])), ("link", Types(&[])), ("base", All)]),
    ("core", &[("link", All), ("sys", All), ("base", All)]),
    ("link", &[("sys", All), ("base", All)]),
    ("sys", &[("base", All)]),
    ("base", &[]),
];

/// Parts of std that a pure decision has no use for.
const IMPURE: &[&str] = &["time", "fs", "env", "net", "io", "process", "thread"];

/// Layer of a file; `None` for what may use anything.
fn layer(path: &str) -> Option<&str> {
    if path.starts_with("interpose/src/") {
        return Some("interpose");
    }
    let inner = path.strip_prefix("src/")?;
    let first = inner.split('/').next().unwrap_or(inner);
    (first != "bin" && inner != "lib.rs").then(|| first.trim_end_matches(".rs"))
}

fn allowed(may: &May, rest: &[String]) -> bool {
    let first = rest.first().map_or("", String::as_str);
    match may {
        All => true,
        Only(modules) => modules.contains(&first),
        Types(modules) => {
            modules.contains(&first) || rest.iter().any(|s| s.starts_with(|c: char| c.is_ascii_uppercase()))
        }
    }
}

/// What is wrong with one path that a file of `layer` names, if anything.
fn edge(layer: &str, path: &[String]) -> Option<String> {
    // An address is a plain value; sockets are what a policy must not have.
    let address = path.get(2).is_some_and(|s| s.starts_with("Ip"));
    if layer == "policy" && path[0] == "std" && IMPURE.contains(&path[1].as_str()) && !address {
        return Some("a policy has no clock, no files, no environment".into());
    }
    let inside = if layer == "interpose" { "smc_engine" } else { "crate" };
    if path[0] != inside {
        return None;
    }
    let target = path[1].as_str();
    if target == "*" {
        return Some("imports the whole crate".into());
    }
    // The root holds nothing but layers; another name there is an item of the file's own crate root.
    if target == layer || !TABLE.iter().any(|(name, _)| *name == target) {
        return None;
    }
    let row = TABLE.iter().find(|(name, _)| *name == layer).map_or(&[][..], |(_, row)| row);
    match row.iter().find(|(name, _)| *name == target) {
        Some((_, may)) if allowed(may, &path[2..]) => None,
        Some(_) => Some(format!("{layer} may use only part of {target}")),
        None => Some(format!("{layer} may not use {target}")),
    }
}

fn check_file(file: &SourceFile) -> Vec<String> {
    let Some(layer) = layer(&file.path) else { return Vec::new() };
    if !TABLE.iter().any(|(name, _)| *name == layer) {
        return vec![format!("{}: `{layer}` is not a layer", file.path)];
    }
    let facts = match facts(file) {
        Ok(facts) => facts,
        Err(e) => return vec![e],
    };
    let mut wrong = Vec::new();
    for f in facts {
        match &f.what {
            What::Path(p) => {
                if let Some(why) = edge(layer, p) {
                    wrong.push(format!("{}:{}: {}: {why}", file.path, f.line, p.join("::")));
                }
            }
            What::Unsafe if layer == "policy" => wrong.push(format!("{}:{}: unsafe in a policy", file.path, f.line)),
            _ => {}
        }
    }
    wrong
}

/// The compiler must refuse unsafe code in policy, so that no macro brings it in unseen.
fn policy_forbids_unsafe(files: &[SourceFile]) -> bool {
    let compact = |path: &str| {
        let file = files.iter().find(|f| f.path == path);
        file.map(|f| f.text.split_whitespace().collect::<String>()).unwrap_or_default()
    };
    let has_code = files.iter().any(|f| {
        let line_of_code = |l: &str| !l.trim().is_empty() && !l.trim_start().starts_with("//");
        f.path.starts_with("src/policy") && f.text.lines().any(line_of_code)
    });
    !has_code
        || compact("src/policy/mod.rs").contains("#![forbid(unsafe_code)]")
        || compact("src/lib.rs").contains("#[forbid(unsafe_code)]pubmodpolicy")
}

#[test]
fn nothing_calls_upwards() {
    let files = repo::files();
    let rust: Vec<_> = files.iter().filter(|f| f.is_rust()).collect();
    assert!(rust.iter().filter(|f| layer(&f.path).is_some()).count() >= 10, "the layers were not found");
    let wrong: Vec<String> = rust.iter().flat_map(|f| check_file(f)).collect();
    assert!(wrong.is_empty(), "edges against the layering:\n{}", wrong.join("\n"));
    assert!(policy_forbids_unsafe(&files), "src/policy/mod.rs needs #![forbid(unsafe_code)]");
}

#[test]
fn planted_violations_are_found() {
    for (path, text) in [
        ("src/base/a.rs", "use crate::sys::Errno;"),
        ("src/sys/a.rs", "fn f() { crate::link::open() }"),
        ("src/sys/a.rs", "use super::super::core::engine::Engine;"),
        ("src/link/a.rs", "use crate::{base::Status, core::options::Policy};"),
        ("src/core/a.rs", "use crate::policy::decide;"),
        ("src/core/fault/a.rs", "type T = crate::capi::smc_region;"),
        ("src/core/mod.rs", "mod inner { use super::super::policy; }"),
        ("src/core/a.rs", "#[cfg(test)] mod tests { use crate::capi::smc_map; }"),
        ("src/core/a.rs", "use crate::*;"),
        ("src/policy/a.rs", "use crate::core::engine::run;"),
        ("src/policy/a.rs", "use crate::sys::log;"),
        ("src/policy/a.rs", "use std::time::Instant;"),
        ("src/policy/a.rs", "use std::{collections::BTreeMap, fs::File};"),
        ("src/policy/a.rs", "fn f() { unsafe { g() } }"),
        ("src/capi/a.rs", "use crate::policy::Call;"),
        ("src/capi/a.rs", "fn f() { crate::link::connect() }"),
        ("interpose/src/lib.rs", "use smc_engine::link::Access;"),
        ("interpose/src/lib.rs", "use smc_engine::sys::uffd;"),
        ("src/extra.rs", "fn f() {}"),
    ] {
        assert_eq!(check_file(&SourceFile::planted(path, text)).len(), 1, "not found: {path}: {text}");
    }
    let bare = [SourceFile::planted("src/policy/mod.rs", "//! Policy\npub fn f() {}")];
    assert!(!policy_forbids_unsafe(&bare));
}

#[test]
fn permitted_edges_pass() {
    for (path, text) in [
        ("src/core/a.rs", "use crate::link::Link; use crate::sys::mem; use super::options::Policy; // crate::capi\n"),
        (
            "src/policy/a.rs",
            "use crate::core::options::Policy; use crate::link::Access; use std::collections::BTreeMap;",
        ),
        ("src/capi/a.rs", "use crate::link::Access; use crate::core::engine::Engine;"),
        ("interpose/src/lib.rs", "use smc_engine as _; use smc_engine::sys::{errno, mem}; use crate::link::x;"),
        ("src/bin/smc/main.rs", "use smc_engine::link::Access;"),
        ("src/lib.rs", "pub mod capi; pub use crate::base::Status;"),
    ] {
        assert_eq!(check_file(&SourceFile::planted(path, text)), Vec::<String>::new());
    }
}
