//! Region pages behave like memory in the situations that a program can create, or it is told loudly that they do not.
//!
//! The programs are in `conformance/apps/situations`; each case is a process of its own, on every back end that works here.

mod preload_support;
mod situations_support;

use situations_support::everywhere;

/// Buffers in absent, clean and dirty pages; bad addresses beside good ones; long buffers.
#[test]
fn system_calls() {
    everywhere("calls", &["files", "stdio", "sockets", "waiting", "processes"], "");
    everywhere("edges", &["checked", "big", "bad"], "");
}

/// The same where pages are driven out all the time.
#[test]
fn system_calls_on_a_region_larger_than_its_limit() {
    everywhere("calls", &["files", "sockets", "waiting", "processes"], "?resident=1m");
    everywhere("edges", &["big", "bad"], "?resident=1m");
}

/// mlock and its relatives, mincore, and what would change a view behind the library.
#[test]
fn memory_calls() {
    everywhere("memory", &["locks", "all", "refusals"], "");
    everywhere("memory", &["locks", "all"], "?resident=1m");
}

/// fork, clone, vfork, posix_spawn, exec.
#[test]
fn processes() {
    everywhere("family", &["forked", "busy", "sharing", "exec"], "");
}
