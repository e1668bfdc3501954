//! `smc-tasks`: repository tasks.
fn main() {}
