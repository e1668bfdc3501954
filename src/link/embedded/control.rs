//! The control page: one memory file per (client, region), shared by exporter and client.
//!
//! It is how the exporter stops a polite client without a message: the client looks at the gate around every
//! operation. An impolite client only fools himself: the memory moves away from under him all the same.
//!
//! Protocol. A write: `inflight += 1`, look, copy, look again, `inflight -= 1`. A read: look, copy, look again. *Look*
//! means: the gate is open and the generation is that of the mapping in use. The exporter closes the gate, waits until
//! `inflight` is 0, moves, sets the new generation and opens. All of it is sequentially consistent, so either the client
//! sees the closed gate or the exporter sees him in flight. Reads are not counted: one that overlaps the move fails its
//! second look and is repeated.

use memoffset::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// First word of the page.
pub const MAGIC: u64 = 0x3163_6567_6170_6d73;
/// Layout version.
pub const LAYOUT: u32 = 1;
/// Bytes of the file.
pub const LEN: usize = crate::base::PAGE;

/// Operations may go on.
pub const GATE_OPEN: u32 = 1;
/// The memory is moving; wait.
pub const GATE_CLOSED: u32 = 2;
/// This client has no access any more.
pub const GATE_REVOKED: u32 = 3;
/// The export has ended; the name may come back.
pub const GATE_ENDED: u32 = 4;

/// The page's content. Both sides write it, so neither trusts it with his own safety.
#[derive(Debug)]
#[repr(C)]
pub struct Control {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: AtomicU32,
    /// One of the GATE values; written by the exporter.
    pub gate: AtomicU32,
    /// How often the memory has moved; written by the exporter.
    pub generation: AtomicU64,
    /// Counts up once a second while the exporter lives.
    pub heartbeat: AtomicU64,
    pad: [u64; 4],
    /// Writes of the client that are under way; written by the client, on a line of its own.
    pub inflight: AtomicU64,
}

const _: () = assert!(offset_of!(Control, gate) == 12);
const _: () = assert!(offset_of!(Control, generation) == 16);
const _: () = assert!(offset_of!(Control, heartbeat) == 24);
const _: () = assert!(offset_of!(Control, inflight) == 64);
const _: () = assert!(std::mem::size_of::<Control>() == 72);

impl Control {
    /// Fills a fresh page; the gate is open.
    pub fn init(&self, generation: u64) {
        self.layout.store(LAYOUT, SeqCst);
        self.generation.store(generation, SeqCst);
        self.gate.store(GATE_OPEN, SeqCst);
        self.magic.store(MAGIC, SeqCst);
    }

    /// True when the page is one this build understands.
    pub fn is_ours(&self) -> bool {
        self.magic.load(SeqCst) == MAGIC && self.layout.load(SeqCst) == LAYOUT
    }

    /// The look of the module text. The gate is read first: a gate that has opened again implies the new generation.
    pub fn passable(&self, generation: u64) -> bool {
        self.gate.load(SeqCst) == GATE_OPEN && self.generation.load(SeqCst) == generation
    }
}
