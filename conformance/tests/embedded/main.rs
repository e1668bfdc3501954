//! The same-host data path and the management path, between real processes.
//!
//! Other processes are this binary again: `Child::start(role, args)` runs the test `child` in it, which does what the
//! role says and talks over stdin and stdout, a line at a time. Everything has a time limit.

mod admission;
mod child;
mod export;
mod manners;
mod revocation;
mod roles;
mod transfer;

/// Entry of the other processes; does nothing in the suite itself.
#[test]
fn child() {
    if let Ok(role) = std::env::var("SMC_TEST_ROLE") {
        roles::run(&role);
    }
}
