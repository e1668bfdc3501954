//! The soft HCA under the distribution's own verbs programs.

mod softhca_support;

use softhca_support::{on_hca, output, pair, programs_installed, success};

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
        let said = softhca_support::text(&out.stdout);
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
