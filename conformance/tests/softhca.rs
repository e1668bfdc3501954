//! The soft HCA under the distribution's own verbs programs.

mod softhca_support;

use softhca_support::{on_hca, output, programs_installed, success};

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
