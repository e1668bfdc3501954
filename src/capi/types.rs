//! Types of the C API: codes, enumerations, attribute structures, opaque handles.

use std::ffi::{c_char, c_void};

/// Result of a call: 0 is success, every other value names one cause. 1xx: the call or the local side is at fault;
/// 2xx: the mapping; 3xx: the peer or the way to it; 4xx: this host or the library. A later version may add codes:
/// treat one you do not know as a failure. smc_last_error() has the whole story.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum smc_status {
    /// Success.
    Ok = 0,
    /// An argument is outside its documented range; nothing was done.
    InvalidArgument = 100,
    /// The call is right but this host, link or build cannot do it.
    NotSupported = 101,
    /// Memory, address space, descriptors or another local resource is exhausted.
    NoResources = 102,
    /// No exporter offers that name, or no such object is open.
    NotFound = 103,
    /// The name is exported already.
    Exists = 104,
    /// The peer or the operating system refused by permission.
    Permission = 105,
    /// The object is in use and cannot change now.
    Busy = 106,
    /// The time given ran out; nothing is known to be lost.
    TimedOut = 107,
    /// The calling process is a fork child of the one that made the object.
    Forked = 108,
    /// The range is not inside one mapped region.
    OutOfRange = 200,
    /// The range holds stores that were not released.
    Dirty = 201,
    /// The range holds pages that show the error value.
    Poisoned = 202,
    /// Stores were given up; the error text names the ranges.
    Lost = 203,
    /// The link is down; it may come back.
    LinkDown = 300,
    /// The peer process has ended.
    PeerDead = 301,
    /// The exporter has revoked this client's access.
    Revoked = 302,
    /// The peer answered, and refused.
    Refused = 303,
    /// The peer speaks another version or sent nonsense.
    Protocol = 304,
    /// The exporter came back with other memory under the same name: map it again.
    Stale = 305,
    /// The operating system refused a call; the error text names it.
    System = 400,
    /// No fault back end works on this host; `smc doctor` says why.
    NoBackend = 401,
    /// A bug in libsmc; the error text says where.
    Internal = 402,
}

/// What a process may do with a region.
#[repr(u32)]
pub enum smc_access {
    /// Load only.
    ReadOnly = 1,
    /// Load and store.
    ReadWrite = 2,
}

/// What memory is.
#[repr(u32)]
pub enum smc_memory {
    /// Ordinary system memory.
    System = 1,
    /// Page-locked system memory.
    Pinned = 2,
    /// Accelerator memory.
    Device = 3,
}

/// What write-back sends for a page that was stored into.
#[repr(u32)]
pub enum smc_policy {
    /// Exactly the bytes that changed (default): two processes may write different bytes of one page or line.
    Byte = 1,
    /// Every 64-byte line with a changed byte: fewer messages; a line must have one writer.
    Line = 2,
    /// The whole page, sent without a copy: a page must have one writer.
    Page = 3,
}

/// Whether stores reach the home without a release.
#[repr(u32)]
pub enum smc_through {
    /// Write-back (default): at release, flush, eviction, or past a limit.
    Off = 1,
    /// A thread sends what was stored: on its way to the home within 1 ms.
    Bounded = 2,
    /// The store instruction returns when its bytes are at the home. Slow: microseconds per store.
    Exact = 3,
}

/// What a load sees when the home cannot be reached.
#[repr(u32)]
pub enum smc_on_error {
    /// Wait up to `wait_ms`, then the error value (default).
    WaitValue = 1,
    /// Wait up to `wait_ms`, then SIGBUS.
    WaitSigbus = 2,
    /// The error value at once.
    Value = 3,
    /// SIGBUS at once.
    Sigbus = 4,
}

/// How page faults reach the library.
#[repr(u32)]
pub enum smc_fault {
    /// userfaultfd, served by an own thread: system calls on region memory just work.
    Thread = 1,
    /// userfaultfd by SIGBUS in the faulting thread: lowest latency, needs no privilege.
    Sigbus = 2,
    /// userfaultfd with synchronous write-protect faults: kernels before 6.7.
    Sync = 3,
    /// SIGSEGV and mprotect: no userfaultfd at all.
    Mprotect = 4,
}

/// What the library writes to stderr.
#[repr(u32)]
pub enum smc_log {
    /// Nothing.
    Off = 1,
    /// What a user must know (default).
    Error = 2,
    /// Decisions too.
    Info = 3,
    /// Everything.
    Debug = 4,
}

/// How smc_wait_until() compares the word at the home with the value (unsigned).
#[repr(u32)]
pub enum smc_cmp {
    /// Equal.
    Eq = 1,
    /// Not equal.
    Ne = 2,
    /// Less than.
    Lt = 3,
    /// Less than or equal.
    Le = 4,
    /// Greater than.
    Gt = 5,
    /// Greater than or equal.
    Ge = 6,
}

/// Answer of smc_is_active().
#[repr(u32)]
pub enum smc_active {
    /// The library's hooks do not stand before libc's functions: it was opened by dlopen(). The functions of this header
    /// work; paths under /smc/ do not.
    No = 0,
    /// The hooks are there and pass everything through: LIBSMC_DISABLE=1.
    Disabled = 1,
    /// The hooks act: open("/smc/...") and mmap() of it work (the library is preloaded, or linked before libc).
    Yes = 2,
}

/// smc_release: also visible to kernels that run on the accelerator already.
pub const SMC_RELEASE_DEVICE: u32 = 1;
/// smc_export, smc_register_region: users other than this process's and root may connect.
pub const SMC_EXPORT_ANY_USER: u32 = 1;
/// smc_register_region: clients may only load. (smc_export has `access` for that.)
pub const SMC_EXPORT_READ_ONLY: u32 = 2;
/// smc_register_region: lock the memory into RAM (mlock) for the life of the registration.
pub const SMC_EXPORT_PIN: u32 = 4;
/// smc_export, smc_register_region: clients of this host only, also when the process listens (smc_listen).
pub const SMC_EXPORT_HOST_ONLY: u32 = 8;
/// smc_export_revoke: no thread of this process stores into the memory during the call.
pub const SMC_REVOKE_QUIESCED: u32 = 1;

/// A process's use of the library. See smc_init().
pub struct smc_context {
    _opaque: [u8; 0],
}

/// A host with exporters. See smc_connect().
pub struct smc_peer {
    _opaque: [u8; 0],
}

/// A mapped remote region. See smc_map().
pub struct smc_region {
    _opaque: [u8; 0],
}

/// A place where clients of other hosts come in. See smc_listen().
pub struct smc_listener {
    _opaque: [u8; 0],
}

/// Memory of this process offered to others. See smc_export() and smc_register_region().
pub struct smc_export_t {
    _opaque: [u8; 0],
}

/// Settings of smc_init(). Zero in a field takes the environment's setting, or the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_config {
    /// sizeof(smc_config).
    pub struct_size: usize,
    /// enum smc_fault to insist on one (LIBSMC_FAULT); 0: a self-test chooses.
    pub fault: u32,
    /// enum smc_log (LIBSMC_LOG).
    pub log: u32,
    /// Longest wait for the next answer of the home in milliseconds, 1 to 3600000 (LIBSMC_WAIT).
    pub wait_ms: u64,
    /// Bytes of local memory one region may keep, at least 65536 (LIBSMC_RESIDENT); larger regions are paged.
    pub resident_limit: u64,
}

/// Attributes of smc_export().
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_export_attr {
    /// sizeof(smc_export_attr).
    pub struct_size: usize,
    /// Name for clients: 1 to 200 bytes of [A-Za-z0-9._-], not starting with a dot; unique on the host. Copied.
    pub name: *const c_char,
    /// First byte, page aligned; NULL: the library allocates zeroed memory.
    pub address: *mut c_void,
    /// Bytes; whole pages when `address` is given, else rounded up to them.
    pub length: usize,
    /// enum smc_access: the most a client gets; 0: read and write.
    pub access: u32,
    /// enum smc_memory: what you believe the memory to be, checked; 0: find out.
    pub kind: u32,
    /// SMC_EXPORT_ANY_USER, SMC_EXPORT_HOST_ONLY or 0.
    pub flags: u32,
    /// Entries of `allow_uids`; at most 1024.
    pub allow_uid_count: u32,
    /// Users admitted beside this process's own and root; copied. May be NULL when the count is 0.
    pub allow_uids: *const u32,
    /// Names the content: clients that lose this exporter go on with a later export of the same name, length and number. Give
    /// the same number only when the memory holds every byte that the earlier export held at its end. 0: unlike any other.
    pub incarnation: u64,
    /// Clients of other hosts, when the process listens: NULL: everybody who has a key. Else those with these names in their
    /// keys and nobody else, each as "NAME:ro" (may only load), "NAME:rw" or "NAME" (as `access`). Copied.
    pub allow_clients: *const *const c_char,
    /// Entries of `allow_clients`; at most 1024. With 0 and `allow_clients` not NULL: nobody.
    pub allow_client_count: u32,
    /// 0.
    pub reserved: u32,
}

/// What a peer says about one region.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_region_info {
    /// Bytes that the library filled in; may exceed your sizeof(smc_region_info).
    pub struct_size: usize,
    /// Its name; valid during the callback.
    pub name: *const c_char,
    /// Bytes.
    pub length: u64,
    /// enum smc_access: the most you can get.
    pub access: u32,
    /// enum smc_memory.
    pub kind: u32,
    /// Clients connected now.
    pub clients: u32,
    /// Process id of the exporter.
    pub pid: u32,
}

/// Attributes of smc_map(). Zero in a field takes the default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_map_attr {
    /// sizeof(smc_map_attr).
    pub struct_size: usize,
    /// enum smc_access; 0: read and write.
    pub access: u32,
    /// enum smc_policy; 0: by bytes.
    pub policy: u32,
    /// enum smc_through; 0: write-back.
    pub through: u32,
    /// enum smc_on_error; 0: wait, then the error value.
    pub on_error: u32,
    /// First byte of the region to map, a multiple of 4096.
    pub offset: u64,
    /// Bytes to map, rounded up to whole pages; 0: to the end.
    pub length: u64,
    /// Where to map; a wish, as in mmap() without MAP_FIXED. NULL: anywhere.
    pub address_hint: *mut c_void,
    /// Unit of fetch and eviction in bytes: a power of two, 4096 to 2097152; 0: 4096.
    pub page_unit: u64,
    /// Bytes of local memory this region may keep, at least 65536; 0: the context's setting.
    pub resident_limit: u64,
    /// Write back in the background once this many bytes of pages are dirty; 0: off.
    pub dirty_limit: u64,
    /// Write back in the background what is dirty for longer than this, in milliseconds; 0: off.
    pub age_ms: u64,
    /// Drop clean pages older than this, in milliseconds, so that a program that only loads makes progress; 0: off.
    pub acquire_ms: u64,
    /// Longest wait for the next answer of the home in milliseconds, up to 3600000; 0: the context's setting.
    pub wait_ms: u64,
    /// Longest read-ahead window in pages, 1 to 256; 0: 256.
    pub window: u32,
    /// Byte shown by pages that could not be fetched: 0x100 + the byte; 0: 0xFF (not a number to a float reader).
    pub error_byte: u32,
    /// Pages that a thread of the library brings ahead of a sequential reader, 1 to 4096; 0: none.
    pub readahead: u32,
    /// Failures in a row after which the region is unavailable and no access waits any more, 1 to 1000000; 0: 8.
    pub fail_limit: u32,
    /// A second path, "PEER/NAME" with PEER as for smc_connect(): the same region by another way, or a replica of it that you
    /// keep equal. Taken when the first fails, and kept until it fails itself; nothing is mapped anew. Stores that are not
    /// released stay and go over the new path; released ones are where they were. NULL: none. Copied.
    pub second: *const c_char,
}

/// Counters of one region since it was mapped; see smc_region_stats(). They only grow, except for the local_ ones.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct smc_stats {
    /// sizeof(smc_stats); set it before the call.
    pub struct_size: usize,
    /// Faults served by fetching from the home.
    pub faults: u64,
    /// Faults on pages that were here already.
    pub spurious_faults: u64,
    /// Pages brought from the home.
    pub pages_fetched: u64,
    /// Pages brought without having been touched.
    pub pages_prefetched: u64,
    /// Fetches that failed.
    pub fetch_errors: u64,
    /// Pages filled with the error value.
    pub pages_poisoned: u64,
    /// Pages dropped by acquire, invalidate or eviction.
    pub pages_dropped: u64,
    /// Pages evicted to stay within the resident limit.
    pub pages_evicted: u64,
    /// Pages found dirty.
    pub pages_dirtied: u64,
    /// Pages sent by release, flush, eviction or the write-back thread.
    pub pages_pushed: u64,
    /// Messages sent to the home by write-back and write-through.
    pub messages: u64,
    /// Bytes sent to the home by write-back and write-through.
    pub bytes_written: u64,
    /// Bytes brought from the home.
    pub bytes_fetched: u64,
    /// Dirty pages in which nothing had changed: nothing sent.
    pub pages_unchanged: u64,
    /// Release calls.
    pub releases: u64,
    /// Acquire calls.
    pub acquires: u64,
    /// Operations performed at the home.
    pub home_ops: u64,
    /// Write-backs that failed.
    pub write_errors: u64,
    /// Bytes of local memory in use now.
    pub local_bytes: u64,
    /// Bytes of local memory that may be used; 0 when the region is kept whole.
    pub local_limit: u64,
}

/// Called by smc_list() for each region; another result than 0 ends the list.
pub type smc_list_fn = Option<unsafe extern "C" fn(info: *const smc_region_info, user: *mut c_void) -> i32>;
/// Called by smc_stats_each() for each counter; another result than 0 ends the list. The strings are valid during the call.
pub type smc_stat_fn =
    Option<unsafe extern "C" fn(name: *const c_char, meaning: *const c_char, value: u64, user: *mut c_void) -> i32>;
/// Called by smc_backend_trials() for each back end tried: its name, why it does not work (NULL when it does); another
/// result than 0 ends the list. The strings are valid during the call.
pub type smc_trial_fn =
    Option<unsafe extern "C" fn(name: *const c_char, why_not: *const c_char, user: *mut c_void) -> i32>;
/// Called when a region's status changes; see smc_set_error_handler().
pub type smc_error_fn = Option<unsafe extern "C" fn(region: *mut smc_region, status: smc_status, user: *mut c_void)>;
