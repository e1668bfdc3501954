//! How a region is mapped: the attributes of `smc_map` and the options after `?` in a `/smc/` path.

pub use crate::link::Access;

/// What write-back sends for a dirty page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Policy {
    /// Exactly the bytes that differ from the twin (default): never writes what the program did not write.
    Byte = 1,
    /// Every 64-byte line that holds a changed byte: fewer messages; the line belongs to one writer.
    Line = 2,
    /// The whole page, without a twin: this process is the page's only writer.
    Page = 3,
}

/// Whether stores reach the home by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Through {
    /// Write-back: at release, flush, eviction or a limit.
    Off = 1,
    /// A thread harvests in a loop: at the home within a stated bound.
    Bounded = 2,
    /// Each store instruction returns when its bytes are at the home.
    Exact = 3,
}

/// What a load sees when the home cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum OnError {
    /// Wait up to the deadline, then the error value.
    WaitValue = 1,
    /// Wait up to the deadline, then SIGBUS.
    WaitSigbus = 2,
    /// The error value at once.
    Value = 3,
    /// SIGBUS at once.
    Sigbus = 4,
}

/// Attributes of a mapping. Zero in a numeric field means "the default".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapOptions {
    /// Access asked from the exporter.
    pub access: Access,
    /// Write-back policy.
    pub policy: Policy,
    /// Write-through mode.
    pub through: Through,
    /// Fetch and eviction unit in bytes: a power of two, 4 KiB to 2 MiB.
    pub page_unit: usize,
    /// Longest read window in pages, 1 to 256; 0 = default.
    pub window: usize,
    /// Pages that an own thread brings ahead of a sequential reader, 0 to 4096; 0 = off.
    pub readahead: usize,
    /// Local memory this region may keep, in bytes.
    pub resident_limit: u64,
    /// Write back in the background once this many bytes of pages are dirty; 0 = off.
    pub dirty_limit: u64,
    /// Write back in the background what is dirty for longer than this; 0 = off.
    pub age_ms: u64,
    /// Drop clean pages older than this so that a pure reader makes progress; 0 = off.
    pub acquire_ms: u64,
    /// What a failing load sees.
    pub on_error: OnError,
    /// Longest wait for the home in milliseconds; 0 = `LIBSMC_WAIT`.
    pub wait_ms: u64,
    /// Byte that fills a page showing the error value.
    pub error_byte: u8,
    /// A second path, taken when the first fails: see [`crate::link::failover`].
    pub second: Option<SecondPath>,
    /// Failures in a row after which the region is unavailable; 0 = [`super::condition::FAIL_LIMIT`].
    pub fail_limit: u32,
}

impl Default for MapOptions {
    fn default() -> MapOptions {
        MapOptions {
            access: Access::ReadWrite,
            policy: Policy::Byte,
            through: Through::Off,
            page_unit: crate::base::PAGE,
            window: 0,
            readahead: 0,
            resident_limit: 0,
            dirty_limit: 0,
            age_ms: 0,
            acquire_ms: 0,
            on_error: OnError::WaitValue,
            wait_ms: 0,
            error_byte: 0xff,
            second: None,
            fail_limit: 0,
        }
    }
}

/// Another way to the same region, or to a replica of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecondPath {
    /// Where it is exported.
    pub peer: PeerName,
    /// Its name there.
    pub name: String,
}

/// The peer part of a region's address.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PeerName {
    /// An exporter on this host, found by the region's name.
    Local,
    /// A host and management port.
    Net {
        /// Host name or address.
        host: String,
        /// Port of the management path.
        port: u16,
    },
}
