//! Everything asked of the machine, and the only layer that knows libc.
//!
//! Common preconditions: every function here issues the system call itself (never a libc wrapper that our own hooks
//! replace), returns an [`Errno`] instead of touching `errno`, and does not allocate unless its text says so.
//! Functions that may be called in a signal handler say "async-signal-safe".

pub mod borrow;
pub mod channel;
pub mod clock;
pub mod descriptor;
pub mod dl;
pub mod errno;
pub mod event;
pub mod follow;
pub mod freeze;
pub mod identity;
pub mod inet;
#[cfg(feature = "inject")]
pub mod inject;
pub mod kept;
pub mod mem;
pub mod memfile;
pub mod pagemap;
pub mod poll;
pub mod process;
pub mod procfs;
pub mod pthread;
pub mod rdma_cm;
pub mod reserve;
pub mod secret;
pub mod sigframe;
pub mod signal;
pub mod socket;
pub mod stack;
pub mod sync;
pub mod thread;
pub mod uffd;

pub use errno::Errno;
