//! The verbs parts of the engine, on the soft HCA.
//!
//! The library is looked up at run time, so a test runs itself again as a child whose loader finds the soft HCA first.

mod client;
mod end_to_end;
mod fake;
mod fences;
mod home;
mod own;
mod parts;
mod pool;

#[path = "../softhca_support/mod.rs"]
mod softhca_support;

#[path = "../tool_support/mod.rs"]
mod tool_support;

use softhca_support::programs as preload_support;
use std::process::Command;

/// Marks the child.
const CHILD: &str = "SMC_TEST_ON_HCA";

/// Runs the test named `name` again on the soft HCA, with `env`; answers true in the child, which is to run its body.
pub fn on_hca(name: &str, env: &[(&str, &str)]) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut c = softhca_support::on_hca(
        std::env::current_exe().expect("this program").to_str().expect("UTF-8"),
        &[name, "--exact", "--nocapture"],
    );
    c.env(CHILD, "1").envs(env.iter().copied());
    let out = softhca_support::output(c);
    let said = softhca_support::success(name, &out);
    assert!(said.contains("1 passed"), "{name} did not run: {said}");
    false
}

/// A command that runs a test again without the soft HCA, with another libibverbs or none.
pub fn again(name: &str) -> Command {
    let me = std::env::current_exe().expect("this program");
    let mut c = softhca_support::limited(me.to_str().expect("UTF-8"), &[name, "--exact", "--nocapture"]);
    c.env(CHILD, "1");
    c
}

/// Where the child reads the soft HCA's faults.
const CONTROL: &str = "SMC_TEST_FAULTS";

/// As [`on_hca`], with faults that the child may change: see [`control`].
pub fn on_hca_with_control(name: &str, env: &[(&str, &str)]) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    softhca_support::hca();
    let file =
        softhca_support::target().join(format!("softhca/faults.{name}.{}", std::process::id()).replace("::", "-"));
    std::fs::write(&file, "").expect("make the control file");
    let path = file.to_str().expect("UTF-8");
    on_hca(name, &[&[("LIBSOFTHCA_FAULTS", path), (CONTROL, path)], env].concat());
    std::fs::remove_file(&file).expect("clean up");
    false
}

/// Puts these faults in force, and waits until they are.
pub fn control(faults: &str) {
    let file = std::env::var_os(CONTROL).expect("a child with faults");
    std::fs::write(file, faults).expect("change the faults");
    std::thread::sleep(std::time::Duration::from_millis(50));
}
