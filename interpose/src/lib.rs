//! `libsmc.so.1`: the engine, the C API, and the hooks that act when the library is preloaded.
//!
//! This crate is the outermost layer: C in, C out. It holds the table of hooked names (`table`, `slot`) and their self-test
//! (`selftest`), the way to the real functions, the descriptor table of `/smc/` files (`files`) and the conversion between
//! C's world and the engine's (`convert`). What a call means is decided in `smc_engine::policy`; what it does is done by `smc_engine::core`.
//!
//! Rules for everything here:
//! * A process that opens no region gets no thread, no descriptor, no file and no output, and its calls go to the real
//!   functions after at most one relaxed load.
//! * A hook never panics and never allocates from the application's heap (`heap`). It leaves `errno` alone on success.
//! * Own system calls go through `sys::errno::syscall`, so no hook ever sees the library's own work.
//! * No `thread_local!`: its destructors and `__tls_get_addr` have no place under `malloc`.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use smc_engine as _;

mod blocking;
mod bounce;
mod children;
mod convert;
mod ctor;
mod descriptors;
mod direct;
mod dl;
mod elf;
mod exec;
mod files;
mod find_object;
mod heap;
mod io;
mod malloc;
mod maps;
mod memory;
mod messages;
mod meta;
mod paths;
mod report;
mod selftest;
mod signal_waits;
mod signals;
mod slot;
mod stdio;
mod table;
mod touch;
mod transfer;
mod users;
mod views;
mod waits;
