//! The soft HCA under the distribution's own verbs programs.

mod softhca_support;

use softhca_support::{hca, on_hca, output, pair, programs_installed, root, run_app, success, target, text};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn devices_are_listed_and_described() {
    if !programs_installed() {
        return;
    }
    let list = success("ibv_devices", &output(on_hca("ibv_devices", &[])));
    assert!(list.contains("softhca0") && list.contains("025343fffe000000"), "{list}");
    let info = success("ibv_devinfo", &output(on_hca("ibv_devinfo", &["-v"])));
    for line in ["PORT_ACTIVE (4)", "Ethernet", "ATOMIC_HCA", "::ffff:127.0.0.1, RoCE v2", "4096 (5)"] {
        assert!(info.contains(line), "no {line} in:\n{info}");
    }
}

#[test]
fn the_environment_says_how_many_devices() {
    if !programs_installed() {
        return;
    }
    for (wish, devices, ports) in [("0", 0, 0), ("1", 1, 1), ("3x2", 3, 6), ("nonsense", 1, 1)] {
        let mut c = on_hca("ibv_devinfo", &[]);
        c.env("LIBSOFTHCA_DEVICES", wish);
        let out = output(c);
        let said = text(&out.stdout);
        let count = |what| said.matches(what).count();
        assert_eq!((count("hca_id:"), count("link_layer:")), (devices, ports), "{wish}: {out:?}");
    }
}

#[test]
fn pingpong_runs_on_every_transport() {
    if !programs_installed() {
        return;
    }
    for (program, extra) in [
        ("ibv_rc_pingpong", &["-c"][..]),
        ("ibv_rc_pingpong", &["-c", "-e"]),
        ("ibv_rc_pingpong", &["-c", "-N"]),
        ("ibv_rc_pingpong", &["-s", "1000000", "-n", "20", "-r", "10"]),
        ("ibv_uc_pingpong", &["-e"]),
        ("ibv_ud_pingpong", &["-e"]),
        ("ibv_srq_pingpong", &["-e"]),
        ("ibv_srq_pingpong", &[]),
    ] {
        let (server, client) = pair(program, &[&["-g", "1"], extra].concat(), &[]);
        assert!(server.contains("iters in") && client.contains("iters in"), "{program} {extra:?}:\n{server}\n{client}");
    }
}

#[test]
fn perftest_runs() {
    if !programs_installed() {
        return;
    }
    for (program, extra) in [
        ("ib_write_bw", &["-n", "200"][..]),
        ("ib_write_bw", &["-n", "200", "-q", "4"]),
        ("ib_write_bw", &["-s", "4194304", "-n", "5"]),
        ("ib_write_lat", &["-n", "100"]),
        ("ib_read_bw", &["-n", "200"]),
        ("ib_read_lat", &["-n", "100"]),
        ("ib_send_bw", &["-n", "200", "-b"]),
        ("ib_send_bw", &["-n", "200", "-c", "UD", "-s", "2048"]),
        ("ib_send_lat", &["-n", "100"]),
        ("ib_send_lat", &["-n", "100", "--use_old_post_send"]),
        ("ib_atomic_lat", &["-n", "100"]),
        ("ib_atomic_bw", &["-n", "200", "-A", "CMP_AND_SWAP"]),
    ] {
        let (_, client) = pair(program, &[&["-F"], extra].concat(), &[]);
        // The line of results has at least a size and a count before its numbers.
        let size = client.lines().skip_while(|l| !l.contains("#bytes")).nth(1).unwrap_or_default();
        assert!(size.split_whitespace().count() >= 5, "{program} {extra:?}:\n{client}");
    }
}

#[test]
fn ucx_runs_where_there_is_a_device_node() {
    let script = root().join("conformance/apps/verbs/with_device_node.sh");
    let script = script.to_str().expect("UTF-8");
    let allowed = Command::new("bash").args([script, "true"]).status().is_ok_and(|s| s.success());
    if !allowed || !softhca_support::installed("ucx_perftest") {
        eprintln!("skipped: no UCX, or no user namespaces");
        return;
    }
    for (transport, test) in
        [("rc_verbs,ud_verbs", "tag_bw"), ("rc_verbs,ud_verbs", "ucp_get"), ("ud_verbs", "tag_lat")]
    {
        let env = [("UCX_TLS", transport), ("UCX_NET_DEVICES", "softhca0:1"), ("UCX_IB_GID_INDEX", "1")];
        let server = [script, "ucx_perftest"];
        let client = [script, "ucx_perftest", "-t", test, "-n", "50", "-w", "5", "-s", "20000"];
        let (_, said) = softhca_support::pair_of("bash", [&server, &client], &env);
        assert!(said.contains("Final:"), "{transport} {test}: {said}");
    }
}

#[test]
fn programs_on_the_device_do_not_notice_the_library() {
    let library = softhca_support::programs::library();
    let env = [("LD_PRELOAD", library.to_str().expect("UTF-8"))];
    for (name, args) in [("errors", &[][..]), ("features", &[]), ("blind", &[]), ("peers", &["traffic", "1"])] {
        run_app(name, args, &env);
    }
}

#[test]
fn every_error_is_the_one_of_hardware() {
    run_app("errors", &[], &[]);
}

#[test]
fn every_feature_works() {
    run_app("features", &[], &[]);
}

#[test]
fn the_device_is_blind_to_protection_and_userfaultfd() {
    run_app("blind", &[], &[]);
}

#[test]
fn two_processes_share_nothing_but_addresses() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_millis());
    run_app("peers", &["traffic", &seed.to_string()], &[]);
}

#[test]
fn threads_do_what_comes_to_mind() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_millis());
    run_app("storm", &[&seed.to_string(), "2"], &[]);
}

#[test]
fn devices_and_ports_reach_each_other() {
    if !programs_installed() {
        return;
    }
    let env = [("LIBSOFTHCA_DEVICES", "2x2")];
    for (program, extra) in [
        ("ibv_rc_pingpong", &["-d", "softhca1", "-i", "2", "-g", "0"][..]),
        ("ib_write_lat", &["-d", "softhca1", "-i", "2", "-n", "50", "-F"]),
    ] {
        pair(program, extra, &env);
    }
    let between: [&[&str]; 2] = [&["-g", "1", "-d", "softhca0"], &["-g", "1", "-d", "softhca1"]];
    softhca_support::pair_of("ibv_rc_pingpong", between, &env);
}

#[test]
fn a_peer_that_dies_is_a_retry_error() {
    run_app("peers", &["death"], &[]);
    // A child that holds its descriptors does not keep it alive.
    run_app("peers", &["orphan"], &[]);
}

#[test]
fn what_is_lost_is_sent_again_and_done_once() {
    for faults in ["lose-requests=5", "lose-answers=3", "lose-requests=5 lose-answers=7"] {
        run_app("faults", &["lossy"], &[("LIBSOFTHCA_FAULTS", faults)]);
    }
}

#[test]
fn faults_come_and_go_with_the_control_file() {
    let file = target().join("softhca").join(format!("faults.{}", std::process::id()));
    hca();
    std::fs::write(&file, "").expect("make the control file");
    run_app("faults", &["control"], &[("LIBSOFTHCA_FAULTS", file.to_str().expect("UTF-8"))]);
    std::fs::remove_file(file).expect("clean up");
}

#[test]
fn nothing_is_faster_than_the_model() {
    run_app("faults", &["model", "2000", "12500", "30000", "300"], &[("LIBSOFTHCA_MODEL", "on")]);
    // Far slower than any host, so that it is the model that is seen.
    let slow = "latency=3000000,bandwidth=100,register=20000000,page=20000";
    run_app("faults", &["model", "3000000", "100", "20000000", "20000"], &[("LIBSOFTHCA_MODEL", slow)]);
}

/// Names with their default versions that a library exports.
fn exports(library: &Path) -> BTreeSet<(String, String)> {
    let out = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library).output().expect("run readelf");
    let said = text(&out.stdout);
    let defined = said.lines().filter(|l| !l.contains(" UND ") && l.contains(" FUNC "));
    let names = defined.filter_map(|l| l.split_whitespace().last()?.split_once("@@"));
    names.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

#[test]
fn every_symbol_of_the_distributions_library_is_there_in_its_version() {
    let real = Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
    if !real.exists() || !softhca_support::installed("readelf") {
        return;
    }
    let (own, real) = (exports(&hca().join("libibverbs.so.1")), exports(real));
    assert!(real.len() > 100, "{real:?}");
    let missing: Vec<_> = real.difference(&own).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
}
