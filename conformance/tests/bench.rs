//! `smc bench verbs` on the soft HCA: what it does without a device, what it counts, that its table is whole.

mod softhca_support;

use serde_json::Value;
use softhca_support::{on_hca, output, target, text};
use std::process::{Command, Output};

fn bench(args: &[&str], env: &[(&str, &str)]) -> Command {
    let smc = std::env::var("SMC_BIN").map_or_else(|_| target().join("release/smc"), Into::into);
    let mut c = on_hca(smc.to_str().expect("UTF-8"), &["bench"]);
    c.args(args).envs(env.iter().copied()).env("LIBSMC_FAULT", "sigbus");
    c
}

/// Every figure of a run that must succeed, by name.
fn figures(out: &Output) -> Vec<(String, Value)> {
    assert!(out.status.success(), "{}: {}", out.status, text(&out.stderr));
    let all = text(&out.stdout);
    let parse = |l: &str| serde_json::from_str::<Value>(l).unwrap_or_else(|e| panic!("{l}: {e}"));
    all.lines().map(parse).map(|v| (v["name"].as_str().expect("a name").to_owned(), v)).collect()
}

fn number(all: &[(String, Value)], name: &str, field: &str) -> f64 {
    let found = all.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no figure {name}"));
    found.1[field].as_f64().unwrap_or_else(|| panic!("{name}: {field}"))
}

/// What must be the same on every device.
fn counts_are_right(all: &[(String, Value)]) {
    assert_eq!(number(all, "verbs.count.fetches", "value"), 1024.0);
    for name in ["verbs.count.bulk", "verbs.count.random64"] {
        assert!(number(all, name, "value") <= 64.0, "{name}");
    }
    assert!(number(all, "verbs.count.random64.bytes", "ratio") <= 1.0);
    assert_eq!(number(all, "verbs.count.registrations", "value"), 1.0);
}

#[test]
fn without_a_device_it_says_so() {
    let out = output(bench(&["verbs", "--quick"], &[("LIBSOFTHCA_DEVICES", "0")]));
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("this host has no RDMA device") && said.contains("smc doctor"), "{said}");
    let out = output(bench(&["verbs", "--device", "mlx5_9"], &[]));
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("mlx5_9") && said.contains("softhca0"), "{said}");
}

#[test]
fn without_a_cost_model_it_counts() {
    let out = output(bench(&["verbs", "--quick", "--json"], &[("LIBSOFTHCA_MODEL", "off")]));
    let all = figures(&out);
    counts_are_right(&all);
    assert!(all.iter().all(|(_, v)| v["emulated"] == true && v["modelled"] == false), "{all:?}");
    assert!(all.iter().all(|(n, _)| n.starts_with("verbs.count.")), "times of a device of software: {all:?}");
}

#[test]
fn the_table_is_whole() {
    let plot = target().join(format!("bench-{}.svg", std::process::id()));
    let path = plot.to_str().expect("UTF-8");
    let env = [("LIBSOFTHCA_MODEL", "on")];
    let all = figures(&output(bench(&["verbs", "--quick", "--json", "--device", "softhca0", "--plot", path], &env)));
    assert!(all.iter().all(|(_, v)| v["modelled"] == true && v["emulated"] == false), "{all:?}");
    counts_are_right(&all);
    for load in ["verbs.bulk.4MiB", "verbs.store.random64"] {
        for path in ["", ".plain", ".staged", ".byte"] {
            assert!(number(&all, &format!("{load}{path}"), "value") > 0.0);
            assert!(number(&all, &format!("{load}{path}.latency"), "value") > 0.0);
        }
    }
    // Far from the bound, so that a busy host does not matter.
    assert!(number(&all, "verbs.store.random64", "ratio") >= 17.0);
    assert!(number(&all, "verbs.register_once.region", "value") == 1.0);
    for name in ["verbs.first_touch", "verbs.register_once", "verbs.register_once.huge", "verbs.raw.write_bw.4MiB"] {
        assert!(number(&all, name, "value") > 0.0, "{name}");
    }
    let drawn = std::fs::read_to_string(&plot).expect("the plot");
    let _ = std::fs::remove_file(&plot);
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{drawn}");
    for word in ["staged copy", "plain RDMA", "SMC mapping", "modelled"] {
        assert!(drawn.contains(word), "no {word} in the plot");
    }
}
