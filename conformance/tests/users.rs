//! Programs that change user while a region is mapped: the library's threads change with them.

mod preload_support;

use preload_support::exporter::{Exporter, good};
use preload_support::{app, installed, library, output, preloaded, text};

/// Only root has another user to become.
fn root() -> bool {
    let uid = std::process::Command::new("id").arg("-u").output().expect("run id");
    let root = text(&uid.stdout) == "0\n";
    if !root {
        eprintln!("skipped: not root");
    }
    root
}

const BACKENDS: [&str; 4] = ["thread", "sigbus", "sync", "mprotect"];

#[test]
fn every_thread_follows_on_every_back_end() {
    if !root() {
        return;
    }
    let program = app("change_user", &[]);
    let Some(e) = Exporter::start() else { return };
    for backend in BACKENDS {
        let mut probe = preloaded("stat", &[&e.path()]);
        probe.env("LIBSMC_FAULT", backend);
        if !output(probe).status.success() {
            eprintln!("skipped: back end {backend} does not work here");
            continue;
        }
        for how in ["steps", "secure-bits", "for-a-while", "at-once"] {
            // Pages of zeros.
            let fresh = Exporter::start().expect("as the first");
            // Opened and closed again and again: a region of its own, with threads that come and go.
            let other = format!("{}?policy=byte", e.path());
            let mut c = preloaded(program.to_str().expect("UTF-8"), &[&fresh.path(), how, &other]);
            c.env("LIBSMC_FAULT", backend);
            assert_eq!(good(c), "user changed\n", "{backend} {how}");
        }
    }
}

/// The control: a program that changes past the hooks leaves the library's threads behind, and the check sees it.
#[test]
fn threads_that_stay_behind_are_seen() {
    if !root() {
        return;
    }
    let program = app("change_user", &[]);
    let Some(e) = Exporter::start() else { return };
    let out = output(preloaded(program.to_str().expect("UTF-8"), &[&e.path(), "alone"]));
    assert!(!out.status.success() && text(&out.stderr).contains("threads differ"), "{out:?}");
}

/// util-linux's setpriv: keeps capabilities, changes user, then groups, then drops the capabilities, then starts a program.
#[test]
fn setpriv_with_a_region_starts_its_program() {
    if !root() || !installed("setpriv") {
        return;
    }
    let object = app("region_object", &["-shared", "-fPIC"]);
    let Some(e) = Exporter::start() else { return };
    for backend in BACKENDS {
        for ids in [
            &["--reuid=65534", "--regid=65534", "--clear-groups"][..],
            &["--reuid=65534", "--regid=65534", "--init-groups"],
        ] {
            let args = [ids, &["--inh-caps=-all", "id", "-u"]].concat();
            let mut c = preloaded("setpriv", &args);
            let preload = format!("{}:{}", library().display(), object.display());
            // The program behind it runs as another user, to whom this exporter is closed.
            c.env("LD_PRELOAD", preload).env("MATRIX_REGION", e.path()).env("LIBSMC_FAULT", backend);
            assert_eq!(good(c), "65534\n", "{backend} {ids:?}");
        }
    }
}
