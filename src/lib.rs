//! libsmc's engine: remote memory by plain load and store.
//!
//! One idea carries everything: **a page of a region is here, or it is elsewhere, and it arrives on touch.** *Elsewhere*
//! is its *home*, the exporter's memory, reached over a *link*. A fault brings a page, the kernel notes which pages were
//! stored into, and write-back sends the bytes that changed. Programs see memory; the C API and the preloaded
//! hooks are two ways in, and both end in the same engine.
//!
//! # Layers
//!
//! ```text
//!   a C program             an unmodified program        a shell
//!        | smc.h                 | open, mmap, read           |
//!   +----v------+    +-----------v-----------+    +-----------v---+
//!   |   capi    |    |       interpose       |    |  src/bin/smc  |   C in, C out
//!   +----+------+    +-----------+-----------+    +-----------+---+
//!        |              +--------v--------+                   |
//!        |              |     policy      |                   |       pure decisions: what does a call mean?
//!        |              +--------+--------+                   |
//!   +----v-----------------------v----------------------------v---+
//!   |                            core                             |   regions, pages, faults, write-back, exports:
//!   +----------------------------+--------------------------------+   all state, all locks
//!   |                            link                             |   moves bytes between here and a home
//!   +----------------------------+--------------------------------+
//!   |                            sys                              |   all that is asked of the machine: libc is here
//!   +----------------------------+--------------------------------+
//!   |                            base                             |   plain types that everybody uses
//!   +-------------------------------------------------------------+
//! ```
//!
//! Data goes down as plain values, results come back as return values, and nothing calls upwards. Who may use whom:
//!
//! | layer | may use |
//! |---|---|
//! | [`base`] | nothing |
//! | [`sys`] | base |
//! | [`link`] | sys, base |
//! | [`crate::core`] | link, sys, base |
//! | [`policy`] | base, the types of link, `core::options`; no unsafe code, no clock, no input or output |
//! | [`capi`] | core, sys, base, the types of link |
//! | `interpose` (a crate of its own: `libsmc.so`) | policy, core, base, and of sys the parts a hook may use |
//!
//! `conformance/tests/layering.rs` reads the sources and fails on any other edge.
//!
//! # Invariants
//!
//! What every change must keep. Each has a test that fails without it; those of the paging engine also have a
//! *control* in `conformance/src/suites/controls.rs`, which does it in the wrong order and must be seen to lose data.
//!
//! 1. **The home is reached by the link's operations only.** No view of the application is ever a mapping of the home, so
//!    the link's counters are the whole truth about what was moved ([`link`]).
//! 2. **Views are never dereferenced here.** The engine reads and writes its own mapping of the same pages, which
//!    nobody protects or hides, and the twin ([`crate::core::region`]).
//! 3. **Page states change in one place.** [`crate::core::pages::state`] is a pure function, [`crate::core::pages::table`]
//!    applies it atomically, and nothing else writes a state.
//! 4. **Protect, then read.** Write-back protects a page before it reads it: a store after that is marked again and belongs
//!    to the next push ([`crate::core::writeback`]).
//! 5. **Lock, hide, then harvest.** A page is given up in this order, so that a store comes before the hiding and is found, or
//!    after it and faults ([`crate::core::acquire`]).
//! 6. **Only what was stored is sent,** and it is sent from the twin, never from the page, unless the user chose whole pages
//!    ([`crate::core::pages::diff`]).
//! 7. **Nothing dirty is dropped.** What could not be delivered stays dirty; when it must be given up, the ranges are named
//!    ([`crate::core::unsent`], [`crate::core::losses`]).
//! 8. **The error value goes nowhere.** A page that shows it is never compared, never written back, and fetched again.
//! 9. **The fault path is a signal handler.** It does not allocate or panic, every wait has a limit, and a lock that it
//!    takes is held with signals blocked everywhere else ([`crate::core::fault`], [`sys::sync`]).
//! 10. **The program's world stays its own.** No use of its errno, heap, signals or descriptor table; own system calls never
//!     meet our own hooks; a process that opens no region gets no thread, no descriptor and no output ([`sys`]).
//!
//! # Reading order
//!
//! 1. `include/smc.h`: the memory model, which is the contract of all this.
//! 2. [`base::status`], [`link`] (the trait and its rules), [`link::embedded`]; over a network [`link::verbs`].
//! 3. [`crate::core::options`], [`crate::core::pages::state`], [`crate::core::region`].
//! 4. A load: [`crate::core::handler`], [`crate::core::fault`], [`crate::core::tracker`].
//! 5. A store on its way home: [`crate::core::writeback`], [`crate::core::pages::diff`]; exact write-through:
//!    [`crate::core::exact`], [`crate::core::emulate`].
//! 6. Giving pages up: [`crate::core::acquire`], [`crate::core::keeper`].
//! 7. Signals that a back end needs, and the program too: [`crate::core::disposition`], [`crate::core::sigmask`],
//!    [`crate::core::delivery`], [`crate::core::inherit`], and their hooks.
//! 8. Failure: [`crate::core::condition`], [`crate::core::poison`], [`crate::core::unsent`], [`crate::core::losses`],
//!    [`link::failover`].
//! 9. The other side: [`crate::core::export`]; as other hosts see it: [`link::mgmt::secure`], [`link::mgmt::tcp`].
//! 10. The ways in: [`capi`], [`policy::path`], [`policy::posix`], then `interpose/src/lib.rs`.
//!
//! # Lints
//!
//! The workspace denies undocumented items, unsafe operations outside an unsafe block, and unsafe blocks without their
//! reason. In code that runs in other people's programs an `unwrap` is a bug: it is warned of here and denied in `interpose`.
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod base;
pub mod sys;

pub mod link;

pub mod core;

pub mod policy;

pub mod capi;
