// smc.h - remote accelerator memory by plain load and store. Interface version 0.x: it may still change.
//
// Generated from src/capi; do not edit. To change it, change the Rust source and run `smc-tasks header`.
//
// A process *exports* memory under a name; other processes *map* it and use it by plain loads and stores. A page is fetched
// from its *home* (the exporter's memory) when it is touched; stores go to a local copy and reach the home as the table says.
//
// MEMORY MODEL
//
//   operation                    promise
//   ---------------------------  --------------------------------------------------------------------------------------
//   load                         the home's bytes as of this process's last acquire or later, and this process's own
//                                stores
//   store, write-back            visible in this process at once, at the home by the next release at the latest;
//                                earlier when the page is evicted or passes dirty_limit or age_ms
//   store, write-through         SMC_THROUGH_EXACT: at the home when the store instruction has returned;
//                                SMC_THROUGH_BOUNDED: on its way within 1 ms
//   smc_flush                    starts write-back and returns
//   smc_release                  all earlier stores in the range are readable at the home when it returns OK
//   smc_acquire                  later loads in the range see the home as of the call or later; own stores that were not
//                                released survive
//   smc_invalidate               drops clean pages, fails with DIRTY on others
//   smc_barrier                  release, then acquire
//   smc_load_u64, smc_wait_until read at the home, past every local copy: flags and locks without guessing when to acquire
//   smc_store_u64, smc_fetch_add, smc_compare_swap
//                                performed at the home, one after the other for all processes; a later write-back never
//                                undoes them
//   smc_release with SMC_RELEASE_DEVICE
//                                also visible to kernels that run on the exporter's accelerator already
//
// To pass data: the writer stores, calls smc_release(), then sets a flag with smc_store_u64(); the reader waits for the flag
// with smc_wait_until(), calls smc_acquire(), then loads. Without a release and an acquire between them nothing is promised
// about when, or in which order, one process sees another's stores; a byte is never torn, an aligned word may be.
//
// Different processes may store to different bytes of one page, or one cache line, with SMC_POLICY_BYTE: both survive.
// Two that store to the same byte without synchronising leave one of the two values. A byte that is stored with the value it
// had already is not sent. smc_map() acquires; smc_unmap(), and the exit of a process in which the library is preloaded
// or linked, release. Threads of one process share the local copy: among them the machine's own memory model holds.
// The exporter's own loads and stores go to the home itself.
//
// A load that cannot be served because the home is not reachable waits up to wait_ms, then shows the error value (bytes of
// 0xFF) or raises SIGBUS: smc_on_error. A page that shows the error value is never written back and is fetched again after
// recovery. Stores that could not be delivered are kept, and sent by the next release, or by the library when the home is back;
// smc_ranges() names them, and those that are lost. smc_region_condition() says how bad it is. A region whose exporter ends
// goes on when the exporter comes back with the same memory (`incarnation`), and says STALE when it comes back with other memory.
//
// CONVENTIONS
//
// Names: functions and types smc_*, constants SMC_*. A function that can fail returns smc_status; one that returns a pointer, a
//   length or a descriptor says what failure looks like. Nothing sets errno by contract.
// Outputs: last or next to last arguments; written on success only, unless the function says otherwise. Inputs are const, and copied:
//   they are yours again when the call returns.
// NULL: INVALID_ARGUMENT wherever it is not said to be allowed.
// Numbers: sizes and offsets in bytes, times in milliseconds unless the name says _ns. An unknown number of an enumeration, an unknown
//   flag and a value out of range are INVALID_ARGUMENT; nothing was done then.
// Structures: the first field is struct_size. Start from all zeros (zero is the default everywhere), set struct_size to sizeof, then
//   what you want. A program built against an older header works; one built against a newer header works as long as the
//   fields this library does not know are zero, else it gets INVALID_ARGUMENT.
// Handles: smc_context, smc_peer, smc_region and smc_export_t are opaque: numbers in the shape of pointers, never followed. One
//   that was closed, or is of another kind, is refused with INVALID_ARGUMENT.
// Ownership: who opens closes: smc_init/smc_shutdown, smc_connect/smc_peer_close, smc_map/smc_unmap,
//   smc_export or smc_register_region/smc_unexport. The library never frees what is yours and you never free what is the library's.
// Threads: every function may be called by any thread at any time, but closing an object that another thread is using is
//   an error of the program (smc_unexport waits). Callbacks run in the calling thread, unless they say otherwise.
// Signals: in a signal handler call only the functions marked async-signal-safe. Loads and stores to mapped memory are allowed
//   there, also while the interrupted thread is inside a function of the library.
// Fork: mapped regions are absent in a fork child (a touch is SIGSEGV), and every call with an object of the parent answers FORKED.
//   A child that needs the library calls exec first.
// Panics: none cross this border. A bug that the library finds in itself ends the process with a message.
// Failures in words: smc_last_error().
//
// EXAMPLE: AN EXPORTER
//
//   #include <smc.h>
//   #include <stdio.h>
//   #include <unistd.h>
//
//   static int fail(const char *what) {
//       char text[512];
//       smc_last_error(text, sizeof text);
//       fprintf(stderr, "%s: %s\n", what, text);
//       return 1;
//   }
//
//   int main(void) {
//       smc_context *ctx;
//       smc_export_t *exported;
//       smc_export_attr attr = {0};
//       attr.struct_size = sizeof attr;
//       attr.name = "grads";
//       attr.length = 1 << 20;
//       if (smc_init(NULL, &ctx)) return fail("smc_init");
//       if (smc_export(ctx, &attr, &exported)) return fail("smc_export");
//       volatile double *grads = smc_export_address(exported);
//       grads[1] = 0.5;
//       puts("serving grads");
//       fflush(stdout);
//       while (__atomic_load_n((uint64_t *)grads, __ATOMIC_ACQUIRE) == 0) usleep(1000);
//       printf("a client stored %g\n", grads[1]);
//       if (smc_unexport(exported)) return fail("smc_unexport");
//       return smc_shutdown(ctx) ? fail("smc_shutdown") : 0;
//   }
//
// EXAMPLE: A CLIENT (fail() as above)
//
//   int main(void) {
//       smc_context *ctx;
//       smc_peer *host;
//       smc_region *region;
//       if (smc_init(NULL, &ctx)) return fail("smc_init");
//       if (smc_connect(ctx, NULL, &host)) return fail("smc_connect");
//       if (smc_map(host, "grads", NULL, &region)) return fail("smc_map");
//       double *grads = smc_address(region);
//       grads[1] += 1.0;
//       if (smc_release(region, 8, 8, 0)) return fail("smc_release");
//       if (smc_store_u64(region, 0, 1)) return fail("smc_store_u64");
//       if (smc_unmap(region)) return fail("smc_unmap");
//       if (smc_peer_close(host)) return fail("smc_peer_close");
//       return smc_shutdown(ctx) ? fail("smc_shutdown") : 0;
//   }
//
// Build either with `cc example.c -lsmc`.


#ifndef SMC_H
#define SMC_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>

// Marks a function of the library.
#ifndef SMC_API
#if defined(__GNUC__)
#define SMC_API __attribute__((visibility("default")))
#else
#define SMC_API
#endif
#endif


// smc_release: also visible to kernels that run on the accelerator already.
#define SMC_RELEASE_DEVICE 1

// smc_export, smc_register_region: users other than this process's and root may connect.
#define SMC_EXPORT_ANY_USER 1

// smc_register_region: clients may only load. (smc_export has `access` for that.)
#define SMC_EXPORT_READ_ONLY 2

// smc_register_region: lock the memory into RAM (mlock) for the life of the registration.
#define SMC_EXPORT_PIN 4

// smc_export, smc_register_region: clients of this host only, also when the process listens (smc_listen).
#define SMC_EXPORT_HOST_ONLY 8

// smc_export_revoke: no thread of this process stores into the memory during the call.
#define SMC_REVOKE_QUIESCED 1

// Result of a call: 0 is success, every other value names one cause. 1xx: the call or the local side is at fault;
// 2xx: the mapping; 3xx: the peer or the way to it; 4xx: this host or the library. A later version may add codes:
// treat one you do not know as a failure. smc_last_error() has the whole story.
enum smc_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Success.
    SMC_STATUS_OK = 0,
    // An argument is outside its documented range; nothing was done.
    SMC_STATUS_INVALID_ARGUMENT = 100,
    // The call is right but this host, link or build cannot do it.
    SMC_STATUS_NOT_SUPPORTED = 101,
    // Memory, address space, descriptors or another local resource is exhausted.
    SMC_STATUS_NO_RESOURCES = 102,
    // No exporter offers that name, or no such object is open.
    SMC_STATUS_NOT_FOUND = 103,
    // The name is exported already.
    SMC_STATUS_EXISTS = 104,
    // The peer or the operating system refused by permission.
    SMC_STATUS_PERMISSION = 105,
    // The object is in use and cannot change now.
    SMC_STATUS_BUSY = 106,
    // The time given ran out; nothing is known to be lost.
    SMC_STATUS_TIMED_OUT = 107,
    // The calling process is a fork child of the one that made the object.
    SMC_STATUS_FORKED = 108,
    // The range is not inside one mapped region.
    SMC_STATUS_OUT_OF_RANGE = 200,
    // The range holds stores that were not released.
    SMC_STATUS_DIRTY = 201,
    // The range holds pages that show the error value.
    SMC_STATUS_POISONED = 202,
    // Stores were given up; the error text names the ranges.
    SMC_STATUS_LOST = 203,
    // The link is down; it may come back.
    SMC_STATUS_LINK_DOWN = 300,
    // The peer process has ended.
    SMC_STATUS_PEER_DEAD = 301,
    // The exporter has revoked this client's access.
    SMC_STATUS_REVOKED = 302,
    // The peer answered, and refused.
    SMC_STATUS_REFUSED = 303,
    // The peer speaks another version or sent nonsense.
    SMC_STATUS_PROTOCOL = 304,
    // The exporter came back with other memory under the same name: map it again.
    SMC_STATUS_STALE = 305,
    // The operating system refused a call; the error text names it.
    SMC_STATUS_SYSTEM = 400,
    // No fault back end works on this host; `smc doctor` says why.
    SMC_STATUS_NO_BACKEND = 401,
    // A bug in libsmc; the error text says where.
    SMC_STATUS_INTERNAL = 402,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_status smc_status;
#else
typedef int32_t smc_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a process may do with a region.
enum smc_access
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Load only.
    SMC_ACCESS_READ_ONLY = 1,
    // Load and store.
    SMC_ACCESS_READ_WRITE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_access smc_access;
#else
typedef uint32_t smc_access;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What memory is.
enum smc_memory
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Ordinary system memory.
    SMC_MEMORY_SYSTEM = 1,
    // Page-locked system memory.
    SMC_MEMORY_PINNED = 2,
    // Accelerator memory.
    SMC_MEMORY_DEVICE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_memory smc_memory;
#else
typedef uint32_t smc_memory;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What write-back sends for a page that was stored into.
enum smc_policy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Exactly the bytes that changed (default): two processes may write different bytes of one page or line.
    SMC_POLICY_BYTE = 1,
    // Every 64-byte line with a changed byte: fewer messages; a line must have one writer.
    SMC_POLICY_LINE = 2,
    // The whole page, sent without a copy: a page must have one writer.
    SMC_POLICY_PAGE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_policy smc_policy;
#else
typedef uint32_t smc_policy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Whether stores reach the home without a release.
enum smc_through
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Write-back (default): at release, flush, eviction, or past a limit.
    SMC_THROUGH_OFF = 1,
    // A thread sends what was stored: on its way to the home within 1 ms.
    SMC_THROUGH_BOUNDED = 2,
    // The store instruction returns when its bytes are at the home. Slow: microseconds per store.
    SMC_THROUGH_EXACT = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_through smc_through;
#else
typedef uint32_t smc_through;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a load sees when the home cannot be reached.
enum smc_on_error
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Wait up to `wait_ms`, then the error value (default).
    SMC_ON_ERROR_WAIT_VALUE = 1,
    // Wait up to `wait_ms`, then SIGBUS.
    SMC_ON_ERROR_WAIT_SIGBUS = 2,
    // The error value at once.
    SMC_ON_ERROR_VALUE = 3,
    // SIGBUS at once.
    SMC_ON_ERROR_SIGBUS = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_on_error smc_on_error;
#else
typedef uint32_t smc_on_error;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How page faults reach the library.
enum smc_fault
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // userfaultfd, served by an own thread: system calls on region memory just work.
    SMC_FAULT_THREAD = 1,
    // userfaultfd by SIGBUS in the faulting thread: lowest latency, needs no privilege.
    SMC_FAULT_SIGBUS = 2,
    // userfaultfd with synchronous write-protect faults: kernels before 6.7.
    SMC_FAULT_SYNC = 3,
    // SIGSEGV and mprotect: no userfaultfd at all.
    SMC_FAULT_MPROTECT = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_fault smc_fault;
#else
typedef uint32_t smc_fault;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What the library writes to stderr.
enum smc_log
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Nothing.
    SMC_LOG_OFF = 1,
    // What a user must know (default).
    SMC_LOG_ERROR = 2,
    // Decisions too.
    SMC_LOG_INFO = 3,
    // Everything.
    SMC_LOG_DEBUG = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_log smc_log;
#else
typedef uint32_t smc_log;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How smc_wait_until() compares the word at the home with the value (unsigned).
enum smc_cmp
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Equal.
    SMC_CMP_EQ = 1,
    // Not equal.
    SMC_CMP_NE = 2,
    // Less than.
    SMC_CMP_LT = 3,
    // Less than or equal.
    SMC_CMP_LE = 4,
    // Greater than.
    SMC_CMP_GT = 5,
    // Greater than or equal.
    SMC_CMP_GE = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_cmp smc_cmp;
#else
typedef uint32_t smc_cmp;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Answer of smc_is_active().
enum smc_active
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // The library's hooks do not stand before libc's functions: it was opened by dlopen(). The functions of this header
    // work; paths under /smc/ do not.
    SMC_ACTIVE_NO = 0,
    // The hooks are there and pass everything through: LIBSMC_DISABLE=1.
    SMC_ACTIVE_DISABLED = 1,
    // The hooks act: open("/smc/...") and mmap() of it work (the library is preloaded, or linked before libc).
    SMC_ACTIVE_YES = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_active smc_active;
#else
typedef uint32_t smc_active;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What the self-test has found for one hooked function; see smc_hooks_each().
enum smc_hook_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // It has not run.
    SMC_HOOK_STATE_UNTESTED = 0,
    // The program's calls reach the hook: one was made, and the hook saw it.
    SMC_HOOK_STATE_FIRES = 1,
    // The name leads to the hook; no call without effect exists, so none was made.
    SMC_HOOK_STATE_BOUND = 2,
    // Another object has the name and passes the calls on to the hook.
    SMC_HOOK_STATE_FORWARDED = 3,
    // Another object has the name, and the hook was not seen to get its calls. A name that cannot be tried counts as such.
    SMC_HOOK_STATE_SHADOWED = 4,
    // This libc does not have the function.
    SMC_HOOK_STATE_ABSENT = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_hook_state smc_hook_state;
#else
typedef uint32_t smc_hook_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What is switched off because a hook is not reached: without it stores would be lost silently.
enum smc_hook_off
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Nothing.
    SMC_HOOK_OFF_NOTHING = 0,
    // open(), fopen() and their relatives of names under /smc/ fail with EOPNOTSUPP.
    SMC_HOOK_OFF_OPENING = 1,
    // mmap() of files under /smc/ fails with EOPNOTSUPP; read() and write() work.
    SMC_HOOK_OFF_MAPPING = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_hook_off smc_hook_off;
#else
typedef uint32_t smc_hook_off;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How a region is doing; see smc_region_condition().
enum smc_condition
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Accesses work.
    SMC_CONDITION_OK = 1,
    // An access or call has failed, and none has worked since. It may recover by itself.
    SMC_CONDITION_DEGRADED = 2,
    // `fail_limit` of them have failed in a row, and none waits any more; or it will not come back.
    SMC_CONDITION_UNAVAILABLE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_condition smc_condition;
#else
typedef uint32_t smc_condition;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which ranges smc_ranges() tells of.
enum smc_which
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Stores that were found and could not be delivered yet: kept, and sent again.
    SMC_WHICH_UNRELEASED = 1,
    // Stores that were given up since the region was mapped: they are nowhere.
    SMC_WHICH_LOST = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum smc_which smc_which;
#else
typedef uint32_t smc_which;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A process's use of the library. See smc_init().
typedef struct smc_context smc_context;

// Memory of this process offered to others. See smc_export() and smc_register_region().
typedef struct smc_export_t smc_export_t;

// A place where clients of other hosts come in. See smc_listen().
typedef struct smc_listener smc_listener;

// A host with exporters. See smc_connect().
typedef struct smc_peer smc_peer;

// A mapped remote region. See smc_map().
typedef struct smc_region smc_region;

// A client of an export.
typedef struct smc_client {
    // Bytes that the library filled in; may exceed your sizeof(smc_client).
    size_t struct_size;
    // Names it for smc_export_revoke(); never 0, never used twice in one process.
    uint64_t id;
    // When it opened, nanoseconds of CLOCK_MONOTONIC.
    uint64_t since_ns;
    // Its process; 0 when it lives in another pid namespace or on another host.
    uint32_t pid;
    // Its user; 0xffffffff on another host.
    uint32_t uid;
    // enum smc_access.
    uint32_t access;
    // 0.
    uint32_t reserved;
    // The name in its key; NULL on this host and for a key without a name. This and the next two are valid during the callback.
    const char *name;
    // Where it calls from, as "ADDRESS:PORT"; NULL on this host.
    const char *address;
    // The RDMA device of this host by which it reaches the memory; NULL on this host and until it has connected.
    const char *device;
} smc_client;

// Called by smc_export_clients() for each client; another result than 0 ends the list.
typedef int32_t (*smc_client_fn)(const struct smc_client *client, void *user);

// Settings of smc_init(). Zero in a field takes the environment's setting, or the default.
typedef struct smc_config {
    // sizeof(smc_config).
    size_t struct_size;
    // enum smc_fault to insist on one (LIBSMC_FAULT); 0: a self-test chooses.
    uint32_t fault;
    // enum smc_log (LIBSMC_LOG).
    uint32_t log;
    // Longest wait for the next answer of the home in milliseconds, 1 to 3600000 (LIBSMC_WAIT).
    uint64_t wait_ms;
    // Bytes of local memory one region may keep, at least 65536 (LIBSMC_RESIDENT); larger regions are paged.
    uint64_t resident_limit;
} smc_config;

// Called by smc_backend_trials() for each back end tried: its name, why it does not work (NULL when it does); another
// result than 0 ends the list. The strings are valid during the call.
typedef int32_t (*smc_trial_fn)(const char *name, const char *why_not, void *user);

// One hooked function; see smc_hooks_each(). Strings are valid during the callback.
typedef struct smc_hook_info {
    // Bytes that the library filled in; may exceed your sizeof(smc_hook_info).
    size_t struct_size;
    // The function.
    const char *name;
    // What it belongs to: "heap", "paths", "files", "maps", "buffers", "stdio", "loader".
    const char *family;
    // What the hook tells the library's tables, and whether before or after the real call; NULL for nothing.
    const char *announces;
    // The object that has the name instead; NULL when none has.
    const char *by;
    // What the program loses, in words; NULL when the hook is reached.
    const char *lost;
    // Calls that the library acted on. Those that went straight to the real function are not counted.
    uint64_t hits;
    // enum smc_hook_state.
    uint32_t state;
    // enum smc_hook_off.
    uint32_t off;
    // 1: every supported libc has the function.
    uint32_t required;
    // 0.
    uint32_t reserved;
} smc_hook_info;

// Called by smc_hooks_each() for each hooked function; another result than 0 ends the list.
typedef int32_t (*smc_hook_fn)(const struct smc_hook_info *hook, void *user);

// Called by smc_stats_each() for each counter; another result than 0 ends the list. The strings are valid during the call.
typedef int32_t (*smc_stat_fn)(const char *name, const char *meaning, uint64_t value, void *user);

// Attributes of smc_export().
typedef struct smc_export_attr {
    // sizeof(smc_export_attr).
    size_t struct_size;
    // Name for clients: 1 to 200 bytes of [A-Za-z0-9._-], not starting with a dot; unique on the host. Copied.
    const char *name;
    // First byte, page aligned; NULL: the library allocates zeroed memory.
    void *address;
    // Bytes; whole pages when `address` is given, else rounded up to them.
    size_t length;
    // enum smc_access: the most a client gets; 0: read and write.
    uint32_t access;
    // enum smc_memory: what you believe the memory to be, checked; 0: find out.
    uint32_t kind;
    // SMC_EXPORT_ANY_USER, SMC_EXPORT_HOST_ONLY or 0.
    uint32_t flags;
    // Entries of `allow_uids`; at most 1024.
    uint32_t allow_uid_count;
    // Users admitted beside this process's own and root; copied. May be NULL when the count is 0.
    const uint32_t *allow_uids;
    // Names the content: clients that lose this exporter go on with a later export of the same name, length and number. Give
    // the same number only when the memory holds every byte that the earlier export held at its end. 0: unlike any other.
    uint64_t incarnation;
    // Clients of other hosts, when the process listens: NULL: everybody who has a key. Else those with these names in their
    // keys and nobody else, each as "NAME:ro" (may only load), "NAME:rw" or "NAME" (as `access`). Copied.
    const char *const *allow_clients;
    // Entries of `allow_clients`; at most 1024. With 0 and `allow_clients` not NULL: nobody.
    uint32_t allow_client_count;
    // 0.
    uint32_t reserved;
} smc_export_attr;

// A range of bytes of a region.
typedef struct smc_range {
    // First byte.
    uint64_t offset;
    // Bytes.
    uint64_t length;
} smc_range;

// Attributes of smc_listen().
typedef struct smc_listen_attr {
    // sizeof(smc_listen_attr).
    size_t struct_size;
    // Address of this host and port, in numbers: "10.0.0.7:7471", "0.0.0.0:7471", or of IPv6 in brackets. With port 0 any free one.
    const char *address;
    // File with the keys of the clients, one in each line, or a folder of such files; `smc keygen` makes them. It must belong to this process's
    // user or root, and nobody else may have a right to it (mode 0600).
    const char *keys;
    // RDMA device by which clients reach the memory: "NAME", "NAME:PORT", "NAME:PORT+PORT". NULL: LIBSMC_DEVICE, or else the device
    // of the address that a client calls.
    const char *device;
} smc_listen_attr;

// Attributes of smc_map(). Zero in a field takes the default.
typedef struct smc_map_attr {
    // sizeof(smc_map_attr).
    size_t struct_size;
    // enum smc_access; 0: read and write.
    uint32_t access;
    // enum smc_policy; 0: by bytes.
    uint32_t policy;
    // enum smc_through; 0: write-back.
    uint32_t through;
    // enum smc_on_error; 0: wait, then the error value.
    uint32_t on_error;
    // First byte of the region to map, a multiple of 4096.
    uint64_t offset;
    // Bytes to map, rounded up to whole pages; 0: to the end.
    uint64_t length;
    // Where to map; a wish, as in mmap() without MAP_FIXED. NULL: anywhere.
    void *address_hint;
    // Unit of fetch and eviction in bytes: a power of two, 4096 to 2097152; 0: 4096.
    uint64_t page_unit;
    // Bytes of local memory this region may keep, at least 65536; 0: the context's setting.
    uint64_t resident_limit;
    // Write back in the background once this many bytes of pages are dirty; 0: off.
    uint64_t dirty_limit;
    // Write back in the background what is dirty for longer than this, in milliseconds; 0: off.
    uint64_t age_ms;
    // Drop clean pages older than this, in milliseconds, so that a program that only loads makes progress; 0: off.
    uint64_t acquire_ms;
    // Longest wait for the next answer of the home in milliseconds, up to 3600000; 0: the context's setting.
    uint64_t wait_ms;
    // Longest read-ahead window in pages, 1 to 256; 0: 256.
    uint32_t window;
    // Byte shown by pages that could not be fetched: 0x100 + the byte; 0: 0xFF (not a number to a float reader).
    uint32_t error_byte;
    // Pages that a thread of the library brings ahead of a sequential reader, 1 to 4096; 0: none.
    uint32_t readahead;
    // Failures in a row after which the region is unavailable and no access waits any more, 1 to 1000000; 0: 8.
    uint32_t fail_limit;
    // A second path, "PEER/NAME" with PEER as for smc_connect(): the same region by another way, or a replica of it that you
    // keep equal. Taken when the first fails, and kept until it fails itself; nothing is mapped anew. Stores that are not
    // released stay and go over the new path; released ones are where they were. NULL: none. Copied.
    const char *second;
} smc_map_attr;

// What a peer says about one region.
typedef struct smc_region_info {
    // Bytes that the library filled in; may exceed your sizeof(smc_region_info).
    size_t struct_size;
    // Its name; valid during the callback.
    const char *name;
    // Bytes.
    uint64_t length;
    // enum smc_access: the most you can get.
    uint32_t access;
    // enum smc_memory.
    uint32_t kind;
    // Clients connected now.
    uint32_t clients;
    // Process id of the exporter.
    uint32_t pid;
} smc_region_info;

// Called by smc_list() for each region; another result than 0 ends the list.
typedef int32_t (*smc_list_fn)(const struct smc_region_info *info, void *user);

// Called when a region's status changes; see smc_set_error_handler().
typedef void (*smc_error_fn)(struct smc_region *region, smc_status status, void *user);

// Counters of one region since it was mapped; see smc_region_stats(). They only grow, except for the local_ ones.
typedef struct smc_stats {
    // sizeof(smc_stats); set it before the call.
    size_t struct_size;
    // Faults served by fetching from the home.
    uint64_t faults;
    // Faults on pages that were here already.
    uint64_t spurious_faults;
    // Pages brought from the home.
    uint64_t pages_fetched;
    // Pages brought without having been touched.
    uint64_t pages_prefetched;
    // Fetches that failed.
    uint64_t fetch_errors;
    // Pages filled with the error value.
    uint64_t pages_poisoned;
    // Pages dropped by acquire, invalidate or eviction.
    uint64_t pages_dropped;
    // Pages evicted to stay within the resident limit.
    uint64_t pages_evicted;
    // Pages found dirty.
    uint64_t pages_dirtied;
    // Pages sent by release, flush, eviction or the write-back thread.
    uint64_t pages_pushed;
    // Messages sent to the home by write-back and write-through.
    uint64_t messages;
    // Bytes sent to the home by write-back and write-through.
    uint64_t bytes_written;
    // Bytes brought from the home.
    uint64_t bytes_fetched;
    // Dirty pages in which nothing had changed: nothing sent.
    uint64_t pages_unchanged;
    // Release calls.
    uint64_t releases;
    // Acquire calls.
    uint64_t acquires;
    // Operations performed at the home.
    uint64_t home_ops;
    // Write-backs that failed.
    uint64_t write_errors;
    // Bytes of local memory in use now.
    uint64_t local_bytes;
    // Bytes of local memory that may be used; 0 when the region is kept whole.
    uint64_t local_limit;
} smc_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Calls `each` for every client that has the export open now, in the calling thread. The list is complete before the first
// call: `each` may use the library. Errors: INVALID_ARGUMENT, FORKED. Any thread.
//
// # Safety
// `each` may be called with `user`.
SMC_API
smc_status smc_export_clients(struct smc_export_t *exported,
                              smc_client_fn each,
                              void *user);

// Takes the memory away from one client, or from all (`client_id` 0). When it returns OK, nothing that a revoked client
// holds reads or writes the exported bytes. For a client of this host they have moved to other pages, at the same address here, and the old ones are
// zero; for one of another host his key is good for nothing any more. Other clients go on.
//
// `reason` is shown to the client; NULL: none. `flags`: SMC_REVOKE_QUIESCED says that no thread of this process stores into the
// memory during the call; needed only where userfaultfd is not available, and then BUSY without it. Takes about a second per 4 GB of
// touched memory, and twice that memory for the time.
//
// Errors: INVALID_ARGUMENT, NOT_FOUND (no such client any more), BUSY, NO_RESOURCES (the client keeps his access), FORKED.
//
// # Safety
// `reason` is NULL or NUL-terminated.
SMC_API
smc_status smc_export_revoke(struct smc_export_t *exported,
                             uint64_t client_id,
                             const char *reason,
                             uint32_t flags);

// Opens a context: a program's, or a library's, use of libsmc. Every other object is made with one.
//
// `config` NULL takes all settings from the environment (LIBSMC_FAULT, LIBSMC_WAIT, LIBSMC_RESIDENT, LIBSMC_LOG; the
// environment is not read in set-user-id programs). A process may have many contexts; they share one engine, whose `fault`
// and `log` are those of the first: asking for others later is BUSY. `wait_ms` and `resident_limit` are per context. Starts
// no thread and opens no descriptor: the first export or map does. Errors: INVALID_ARGUMENT, BUSY, FORKED (a child of
// a process that used libsmc; exec first), NO_RESOURCES. Any thread. The context is yours until smc_shutdown().
//
// # Safety
// `config` is NULL or holds `struct_size` readable bytes; `ctx` is writable.
SMC_API
smc_status smc_init(const struct smc_config *config,
                    struct smc_context **ctx);

// Closes a context. BUSY, and nothing done, while a peer, region or export made with it is open; INVALID_ARGUMENT when it is
// not an open context; FORKED in a fork child. Regions that a preloaded program has open through /smc/ paths are not
// concerned.
SMC_API
smc_status smc_shutdown(struct smc_context *ctx);

// Whether this library's hooks stand before libc's functions in this process: enum smc_active.
//
// To ask without needing the library at all, declare it weak:
//     extern uint32_t smc_is_active(void) __attribute__((weak));
//     if (smc_is_active && smc_is_active() == SMC_ACTIVE_YES) ...
// Needs no context. Any thread; not in a signal handler.
SMC_API uint32_t smc_is_active(void);

// The fault back end in use, as text: its name ("thread", "sigbus", "sync", "mprotect") and why it was chosen.
//
// The first call tries them, which takes some milliseconds. Each text is cut to fit and ends in NUL; a buffer may be NULL
// when its length is 0. NO_BACKEND when none works: `reason` then says why, and `name` is empty. Any thread.
//
// # Safety
// `name` is writable for `name_len` bytes, `reason` for `reason_len`.
SMC_API
smc_status smc_backend(struct smc_context *ctx,
                       char *name,
                       size_t name_len,
                       char *reason,
                       size_t reason_len);

// Calls `each` for every back end that was tried, in order. The self-test ends with the first that works.
//
// # Safety
// `each` may be called with `user`.
SMC_API smc_status smc_backend_trials(struct smc_context *ctx, smc_trial_fn each, void *user);

// Calls `each` for every libc function that the library hooks, and says whether this program's calls reach the hook.
//
// The first call tests the hooks, if the first region has not done so: each name is resolved as the program resolves it,
// and a call without effect (close(-1), stat("")) is made through it. That takes about 0.3 ms and the loader's lock, does not
// use the heap of the program, and keeps errno. Without the preloaded library (smc_is_active() = SMC_ACTIVE_NO) every name
// is libc's, and is reported so. Needs no context. Any thread, also in a fork child; not in a signal handler. Errors:
// INVALID_ARGUMENT when `each` is NULL; NOT_SUPPORTED where the engine is linked without the hooks.
//
// # Safety
// `each` may be called with `user`.
SMC_API
smc_status smc_hooks_each(smc_hook_fn each,
                          void *user);

// Calls `each` for every reason for which hooked calls were passed to the real function unchanged: name, meaning, number of
// calls. Only calls that a hook had to look at are counted; those of a process that has no region are not.
//
// Needs no context. Any thread, also in a fork child; not in a signal handler. Errors: INVALID_ARGUMENT when `each` is NULL.
//
// # Safety
// `each` may be called with `user`.
SMC_API
smc_status smc_pass_through_each(smc_stat_fn each,
                                 void *user);

// Publishes: all stores of this process in the range, made before the call by this thread or by threads synchronised
// with it, are readable at the home when it returns OK.
//
// `offset` and `length` are bytes of the region (not of the view); a length of 0 means to the end. Stores beyond the range
// may be published too, never undone. On failure every byte that was not delivered is still dirty and goes out with the next
// release. `flags`: 0, or SMC_RELEASE_DEVICE: also visible to kernels already running on the exporter's accelerator; for
// system memory that is the same. POISONED, once for each store: everything else was delivered, but stores in the range went
// to pages that showed the error value, and are nowhere.
//
// Errors: INVALID_ARGUMENT, OUT_OF_RANGE, NOT_SUPPORTED, TIMED_OUT, LINK_DOWN, PEER_DEAD, REVOKED, PERMISSION, SYSTEM,
// FORKED. Any thread; blocks up to `wait_ms`; not in a signal handler (a handler may touch region memory meanwhile).
SMC_API
smc_status smc_release(struct smc_region *region,
                       uint64_t offset,
                       uint64_t length,
                       uint32_t flags);

// smc_release() of `length` bytes at an address inside any mapped region, one made by mmap() of a /smc/ path too. OUT_OF_RANGE
// when the address is in no region or the range leaves it. Here a length of 0 does nothing.
SMC_API
smc_status smc_release_at(const void *address,
                          size_t length);

// Subscribes: later loads in the range see the home as of this call or later. Own stores that were not released survive.
//
// `offset`, `length`, errors and threads as for smc_release(). When it fails, pages of the range may still show what they
// showed before.
SMC_API
smc_status smc_acquire(struct smc_region *region,
                       uint64_t offset,
                       uint64_t length);

// smc_acquire() of `length` bytes at an address, as smc_release_at().
SMC_API smc_status smc_acquire_at(const void *address, size_t length);

// smc_release(), then smc_acquire(), of the whole region. Errors and threads as for these.
SMC_API smc_status smc_barrier(struct smc_region *region);

// Starts write-back of the range and returns: no promise, but the next release has less to do. Range, errors and threads as
// for smc_release().
SMC_API
smc_status smc_flush(struct smc_region *region,
                     uint64_t offset,
                     uint64_t length);

// Starts to bring the range in and returns. A hint: what does not fit the resident limit, or fails, comes when it is
// touched. Range and threads as for smc_release(). Errors: INVALID_ARGUMENT, OUT_OF_RANGE, FORKED.
SMC_API
smc_status smc_prefetch(struct smc_region *region,
                        uint64_t offset,
                        uint64_t length);

// Drops the clean pages of the range. DIRTY when it holds stores that were not released: they stay, all other pages of the
// range are dropped. smc_acquire() is what programs want; this one is for those that must know. Range, other errors and
// threads as for smc_release().
SMC_API
smc_status smc_invalidate(struct smc_region *region,
                          uint64_t offset,
                          uint64_t length);

// Says that something the library cannot see (a device) has stored into the range of a view: the next release
// examines it. Brings absent pages in first, so call it before the device writes as well. PERMISSION when the region was
// mapped for loads only. Range, other errors and threads as for smc_release().
SMC_API
smc_status smc_mark_dirty(struct smc_region *region,
                          uint64_t offset,
                          uint64_t length);

// One English sentence for a status, without a full stop; "unknown status" for a number this version does not know.
// Constant, never NULL, not to be freed. Async-signal-safe.
SMC_API
const char *smc_strerror(int32_t status);

// Name of a status as in this header without its prefix ("LINK_DOWN"); "UNKNOWN" for a number this version does not know.
// Constant, never NULL, not to be freed. Async-signal-safe.
SMC_API
const char *smc_status_name(int32_t status);

// The calling thread's last failure in words: what was attempted, why it failed, what to do.
//
// Copies the text, cut to fit, with a NUL to `buf` when `len` is not 0, and returns the text's whole length in bytes
// without the NUL (at most 512); 0 when this thread has no failure on record. A successful call does not clear it, so
// look at it after a call has failed and before the next one. The last 64 failures of all threads are kept. Needs no
// context. Works in a fork child, where the record may be empty. `buf` may be NULL when `len` is 0.
//
// # Safety
// `buf` is writable for `len` bytes.
SMC_API
size_t smc_last_error(char *buf,
                      size_t len);

// Offers memory to other processes under a name.
//
// `attr->address` NULL: the library allocates `length` bytes of zeroed memory, rounded up to whole pages. Otherwise the memory is
// yours: whole pages of private anonymous memory (malloc, mmap). It is moved in place onto memory that can be shared: address
// and content stay; it is private again after smc_unexport(). Until then do not unmap, remap, mprotect or register it with a
// device; other processes change it at any moment. Threads that store into it sleep during the move; where userfaultfd is
// not available none may store into it during smc_export() and smc_unexport().
//
// Clients on this host map it by name at once. Admitted are this process's user and root, and who `allow_uids` and
// SMC_EXPORT_ANY_USER name. Clients of other hosts open it when the process listens (smc_listen), as far as `allow_clients` and
// SMC_EXPORT_HOST_ONLY let them; the memory is registered with the RDMA device for each of them, and pinned.
//
// Errors: INVALID_ARGUMENT, EXISTS (the name is taken on this host), NOT_SUPPORTED (memory of another kind; accelerator
// memory), NO_RESOURCES, SYSTEM, TIMED_OUT, FORKED. Any thread; takes about a second per 4 GB of touched memory. The first
// export starts one thread. A fork child must not use the memory. The export is yours until smc_unexport(); after its end, or that
// of the process, clients get PEER_DEAD, and go on if the name comes back with the same `incarnation`.
//
// # Safety
// `attr` holds `struct_size` readable bytes and valid pointers; `exported` is writable; the memory is as described.
SMC_API
smc_status smc_export(struct smc_context *ctx,
                      const struct smc_export_attr *attr,
                      struct smc_export_t **exported);

// First byte of exported memory; NULL when `exported` is not open (or this is a fork child). Constant until smc_unexport().
SMC_API
void *smc_export_address(struct smc_export_t *exported);

// Bytes of exported memory, whole pages; 0 when `exported` is not open (or this is a fork child).
SMC_API size_t smc_export_length(struct smc_export_t *exported);

// Ends an export: no client reaches the memory any more (PEER_DEAD), the name is free, memory of the caller is private again and keeps its content, memory of
// the library is unmapped. Waits for calls of other threads with it. INVALID_ARGUMENT when it is not open, FORKED in a fork
// child.
SMC_API
smc_status smc_unexport(struct smc_export_t *exported);

// How the region is doing: enum smc_condition in `*condition`, and in `*failures` (may be NULL) how many accesses and calls
// have failed since the last one that worked.
//
// SMC_CONDITION_DEGRADED: the home could not be reached within the wait. SMC_CONDITION_UNAVAILABLE: so many failures in a row
// (`fail_limit` of smc_map_attr; and for one `wait_ms` at least, where accesses wait) that no access waits any more, or the
// region will not come back (REVOKED, STALE): go over to your other path. The library asks the home again in the background: a
// region that can come back does so by itself.
// Errors: INVALID_ARGUMENT, FORKED. Any thread; never blocks.
//
// # Safety
// `condition` is writable; `failures` is NULL or writable.
SMC_API
smc_status smc_region_condition(struct smc_region *region,
                                uint32_t *condition,
                                uint32_t *failures);

// Names stores that have not reached the home: up to `most` ranges of bytes of the region, in order, in `ranges`, and in
// `*count` how many they are. `which`: enum smc_which.
//
// SMC_WHICH_UNRELEASED: found by a release, flush or background write-back that failed; they are kept, and sent again. The
// exact bytes, except with SMC_POLICY_PAGE: whole pages. SMC_WHICH_LOST: given up since the region was mapped: stores to
// pages that showed the error value (whole pages), and, when the region will not come back, all that is unreleased.
// `ranges` may be NULL when `most` is 0. `*count` = `most` may mean that there are more. Errors: INVALID_ARGUMENT, FORKED.
// Any thread.
//
// # Safety
// `ranges` is writable for `most` entries; `count` is writable.
SMC_API
smc_status smc_ranges(struct smc_region *region,
                      uint32_t which,
                      struct smc_range *ranges,
                      size_t most,
                      size_t *count);

// Reads the 8-byte word at `offset` (a multiple of 8) at the home, past every local copy, into `*value`.
//
// Words that processes share as flags, counters or locks are used by the operations of this group, at every node: then each
// sees the others at once, and a later write-back never undoes them. The exporter itself uses its own atomic instructions.
// Do not store to such a word through the view: the two would race.
//
// Errors: INVALID_ARGUMENT, OUT_OF_RANGE, PERMISSION, TIMED_OUT, LINK_DOWN, PEER_DEAD, REVOKED, INTERNAL (the
// library cannot tell whether it happened), FORKED. Any thread; blocks up to `wait_ms`.
//
// # Safety
// `value` is writable.
SMC_API
smc_status smc_load_u64(struct smc_region *region,
                        uint64_t offset,
                        uint64_t *value);

// Replaces the word at the home. Not ordered after ordinary stores: release what it announces first. As smc_load_u64().
SMC_API
smc_status smc_store_u64(struct smc_region *region,
                         uint64_t offset,
                         uint64_t value);

// Adds `value` to the word at the home, wrapping, and answers the old value in `*old` (may be NULL). As smc_load_u64().
//
// # Safety
// `old` is NULL or writable.
SMC_API
smc_status smc_fetch_add(struct smc_region *region,
                         uint64_t offset,
                         uint64_t value,
                         uint64_t *old);

// Replaces the word at the home by `desired` if it is `expected`. `*swapped` says whether it was (may be NULL), `*old` what
// was there (may be NULL). OK in both cases. As smc_load_u64().
//
// # Safety
// `swapped` and `old` are NULL or writable.
SMC_API
smc_status smc_compare_swap(struct smc_region *region,
                            uint64_t offset,
                            uint64_t expected,
                            uint64_t desired,
                            bool *swapped,
                            uint64_t *old);

// Reads the word at the home until it compares with `value` as `cmp` (enum smc_cmp) says, and answers it in `*seen` (may be
// NULL). TIMED_OUT after `timeout_ms` milliseconds; 0 looks once. Looks hard at first, then at least every 200 us. What the
// other side released before it set the word is seen after smc_acquire(). Errors and threads as for smc_load_u64().
//
// # Safety
// `seen` is NULL or writable.
SMC_API
smc_status smc_wait_until(struct smc_region *region,
                          uint64_t offset,
                          uint32_t cmp,
                          uint64_t value,
                          uint64_t timeout_ms,
                          uint64_t *seen);

// Lets clients of other hosts list, open and reach what this process exports, now and later, as far as each export's `allow_clients` and SMC_EXPORT_HOST_ONLY
// let them. Who has no key learns nothing, not even what is exported; everything that is said is encrypted. Bytes go by
// RDMA, and are not encrypted: each client has a protection domain and a key of his own for each region, good on his connection only.
//
// The exports' own lists of users (`allow_uids`) are of no meaning to clients of other hosts: they are known by their keys. Where no RDMA device
// is found, regions can be listed and opened, and clients are told what is missing when they connect.
//
// Starts one thread. Errors: INVALID_ARGUMENT, NOT_FOUND and PERMISSION (the keys), EXISTS (somebody listens there), SYSTEM,
// NO_RESOURCES, FORKED. Any thread; may block. The listener is yours until smc_unlisten().
//
// # Safety
// `attr` holds `struct_size` readable bytes and valid texts; `listener` is writable.
SMC_API
smc_status smc_listen(struct smc_context *ctx,
                      const struct smc_listen_attr *attr,
                      struct smc_listener **listener);

// Writes where it listens into `[buffer, buffer + length)`, as "ADDRESS:PORT" and a NUL, cut if it does not fit; 64 bytes are enough. It
// tells the port when any free one was asked for. INVALID_ARGUMENT, FORKED. Any thread.
//
// # Safety
// `buffer` is NULL or writable for `length` bytes.
SMC_API
smc_status smc_listener_address(struct smc_listener *listener,
                                char *buffer,
                                size_t length);

// Reads the keys anew: those that were added are good from now on; clients whose key has gone have lost their access when it returns,
// as by smc_export_revoke(). When the keys cannot be used nothing changes.
//
// Errors: INVALID_ARGUMENT, NOT_FOUND, PERMISSION, SYSTEM, TIMED_OUT, FORKED. Any thread; may block.
SMC_API
smc_status smc_listener_reload(struct smc_listener *listener);

// Ends it: clients of other hosts that came by it reach nothing any more when it returns, and the port is free. The exports stay.
// Waits for calls of other threads with it. INVALID_ARGUMENT when it is not open, FORKED in a fork child.
SMC_API
smc_status smc_unlisten(struct smc_listener *listener);

// Maps a peer's region into this process. From here on its bytes are plain memory at smc_address().
//
// `name` is the region's name at the exporter; `attr` NULL takes every default. The home's bytes arrive on touch.
// A second call for the same name with the same attributes (but for offset, length, hint) gives a second view of the same
// pages: a store through one is seen through the other at once. Other attributes give pages of their own. Opening acquires.
//
// Errors: INVALID_ARGUMENT, NOT_FOUND (nobody exports that name), PERMISSION (the exporter grants less), OUT_OF_RANGE,
// NO_RESOURCES (at most 1024 views in a process), NO_BACKEND, TIMED_OUT, LINK_DOWN, SYSTEM, FORKED. Any thread; may block
// for `wait_ms`. The first region starts one or two threads. A fork child does not have the mapping. Do not munmap(),
// mprotect() or mremap() it. The region is yours until smc_unmap().
//
// # Safety
// `name` is NUL-terminated; `attr` is NULL or holds `struct_size` readable bytes; `region` is writable.
SMC_API
smc_status smc_map(struct smc_peer *peer,
                   const char *name,
                   const struct smc_map_attr *attr,
                   struct smc_region **region);

// Ends a view: releases what is dirty in it, then unmaps it. The handle and every pointer into the view are dead
// afterwards, whatever the result, except for INVALID_ARGUMENT, BUSY and FORKED, which do nothing.
//
// OK: everything stored is at the home. LOST: stores could not be delivered and no other view holds them;
// smc_last_error() names their offsets. Another status: they could not be delivered, and another view of the same pages keeps
// them for a later release. To keep the data for a later try, call smc_release() first and unmap when it is OK. BUSY:
// called from the region's own error handler. INVALID_ARGUMENT: not mapped (or unmapped already). FORKED: a fork child. May
// block for `wait_ms`. No other thread may be using the view.
SMC_API
smc_status smc_unmap(struct smc_region *region);

// First byte of a view; NULL when `region` is not mapped (or this is a fork child). Constant until smc_unmap().
SMC_API
void *smc_address(struct smc_region *region);

// Bytes of a view that exist at the home; 0 when `region` is not mapped (or this is a fork child). The rest of the last page
// can be touched, but goes nowhere.
SMC_API
uint64_t smc_length(struct smc_region *region);

// Makes a peer known. `address`: NULL or "local" for exporters on this host, else "HOST:PORT" (an IPv6 address in brackets) of a
// management port.
//
// Errors: INVALID_ARGUMENT; for another host NOT_FOUND (this process has no key file, see LIBSMC_KEY) and PERMISSION (others can use
// it too); FORKED. Nobody is asked yet: that the peer is there, knows the key and can be reached by RDMA, smc_list() and
// smc_map() find out. The peer is yours until smc_peer_close(). Any thread; may block.
//
// # Safety
// `address` is NULL or NUL-terminated; `peer` is writable.
SMC_API
smc_status smc_connect(struct smc_context *ctx,
                       const char *address,
                       struct smc_peer **peer);

// Closes a peer. Regions mapped through it stay mapped. INVALID_ARGUMENT when it is not open, FORKED in a fork child.
SMC_API
smc_status smc_peer_close(struct smc_peer *peer);

// Calls `each` for every region the peer offers to this user, sorted by name, in the calling thread. The list is complete
// before the first call: `each` may use the library.
//
// Errors: INVALID_ARGUMENT, LINK_DOWN, TIMED_OUT, FORKED. Any thread; may block up to LIBSMC_WAIT.
//
// # Safety
// `each` may be called with `user`.
SMC_API
smc_status smc_list(struct smc_peer *peer,
                    smc_list_fn each,
                    void *user);

// Registers memory of this process as a region that peers can map: classifies it, pins it when asked, binds it to a port,
// and from then on describes it to every client that connects.
//
// `address`, `length`: whole pages, as for smc_export(). `kind`: enum smc_memory, checked against what the memory is; 0: find
// out. `endpoint`: the port of an RDMA device, as "DEVICE:PORT" or "DEVICE:PORT:GIDINDEX", by which clients of other hosts reach the
// memory once the process listens (smc_listen()); NULL: the process's (LIBSMC_DEVICE, or the one that fits the client's way).
// `protection_domain`: a struct ibv_pd of the program's, in which the memory is registered as well, so that the program's own queue pairs
// can use it: see smc_region_keys(). It must stay until smc_unexport(). Clients get a domain each all the same. NULL: none. `flags`:
// SMC_EXPORT_PIN locks the memory into RAM for the life of the registration (and unlocks it then), SMC_EXPORT_READ_ONLY,
// SMC_EXPORT_ANY_USER, SMC_EXPORT_HOST_ONLY. Undone with smc_unexport(), which returns when no client reaches the memory any more.
//
// Errors: as for smc_export(); NOT_FOUND when there is no such device or its port has no link, NOT_SUPPORTED without libibverbs;
// INVALID_ARGUMENT for a domain that is none; NO_RESOURCES when RLIMIT_MEMLOCK is too small to pin or register (the text names the limit).
//
// # Safety
// Texts are NUL-terminated; `exported` is writable; the memory is as described for smc_export().
SMC_API
smc_status smc_register_region(struct smc_context *ctx,
                               void *address,
                               size_t length,
                               uint32_t kind,
                               const char *endpoint,
                               void *protection_domain,
                               const char *name,
                               uint32_t flags,
                               struct smc_export_t **exported);

// The keys under which memory is registered in the protection domain that smc_register_region() was given: `lkey` for requests of
// the program's own queue pairs of that domain, `rkey` for those of their other sides, who may write unless the region is read-only. The
// address is smc_export_address(). smc_export_revoke() changes both: ask again after it; requests under way meanwhile fail.
//
// Errors: INVALID_ARGUMENT, NOT_FOUND when it is registered in no domain of the program's, FORKED. Any thread.
//
// # Safety
// `lkey` and `rkey` are writable.
SMC_API
smc_status smc_region_keys(struct smc_export_t *exported,
                           uint32_t *lkey,
                           uint32_t *rkey);

// OK, or why accesses to the region fail now: LINK_DOWN, PEER_DEAD and the like while it may come back, REVOKED or STALE
// for good. INVALID_ARGUMENT when `region` is not mapped, FORKED in a fork child. Any thread; never blocks.
SMC_API
smc_status smc_region_status(struct smc_region *region);

// Sets the function called when the region's status changes; NULL takes it away.
//
// It runs on a thread of the library with all signals blocked, one call at a time, with a descriptor table of that
// thread's own: hand the news to your own threads rather than working there. It may use the region, but smc_unmap() and
// smc_set_error_handler() of it answer BUSY. When NULL was set, or the region unmapped, it is not running any more.
// There is one function for all views of the same pages: the last one set. Errors: INVALID_ARGUMENT, BUSY, FORKED.
//
// # Safety
// `handler` may be called on another thread with `user` until it is taken away.
SMC_API
smc_status smc_set_error_handler(struct smc_region *region,
                                 smc_error_fn handler,
                                 void *user);

// A descriptor for poll() or select() that becomes readable when the region's status changes; read 8 bytes from it to rearm
// it. -1 when `region` is not mapped or this is a fork child. The region's own: do not close it, do not use it after
// smc_unmap(). The same for all views of the same pages. Any thread.
SMC_API
int32_t smc_event_fd(struct smc_region *region);

// Reads the region's counters. Set `stats->struct_size` to sizeof(smc_stats) first; it stays. Counters are read one by one
// while others count. Errors: INVALID_ARGUMENT, FORKED. Any thread.
//
// # Safety
// `stats` holds `struct_size` writable bytes.
SMC_API
smc_status smc_region_stats(struct smc_region *region,
                            struct smc_stats *stats);

// Calls `each` for every counter of the region and, with names that begin with "link_", of its link (which other regions may
// share): name, meaning, value. More counters than smc_stats has, and those of later versions. Errors: INVALID_ARGUMENT,
// FORKED.
//
// # Safety
// `each` may be called with `user`.
SMC_API
smc_status smc_stats_each(struct smc_region *region,
                          smc_stat_fn each,
                          void *user);

// Version of the running library as `major << 16 | minor << 8 | patch`.
//
// A program compares it with the version it was built against: the same major number means that every function and
// structure it knows is there and unchanged. Never fails, never blocks; may be called at any time in any thread, in a
// signal handler too.
SMC_API
uint32_t smc_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SMC_H */
