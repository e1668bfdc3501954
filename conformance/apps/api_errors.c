/* Every call of the API with arguments that cannot be, and what is left of the library in a fork child. */
#include "api.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/resource.h>

static smc_context *ctx;
static smc_peer *host;
static smc_export_t *home;
static smc_region *r;
static const char *name;

/* Nothing works before smc_init, and nothing but what needs no context crashes. */
static void before(void) {
    smc_peer *p = (void *)1;
    BAD(smc_connect(NULL, NULL, &p));
    TRUE(p == (void *)1);
    BAD(smc_unmap(NULL));
    TRUE(strstr(last(), "smc_init"));
    TRUE(smc_address(NULL) == NULL && smc_event_fd(NULL) == -1);
    TRUE(!strcmp(smc_strerror(0), "success") && !strcmp(smc_strerror(-5), "unknown status"));
    TRUE(!strcmp(smc_status_name(300), "LINK_DOWN") && !strcmp(smc_status_name(1), "UNKNOWN"));
    TRUE(smc_last_error(NULL, 0) > 0);
}

static void contexts(void) {
    smc_config c = { .struct_size = sizeof c };
    smc_context *out = (void *)7;
    BAD(smc_init(NULL, NULL));
    c.struct_size = sizeof c - 1;
    BAD(smc_init(&c, &out));
    c.struct_size = 0;
    BAD(smc_init(&c, &out));
    c.struct_size = 1 << 20;
    BAD(smc_init(&c, &out));
    struct { smc_config c; uint64_t later; } grown = { .c = { .struct_size = sizeof grown }, .later = 1 };
    BAD(smc_init(&grown.c, &out));
    TRUE(strstr(last(), "does not know"));
    c.struct_size = sizeof c;
    c.fault = 5;
    BAD(smc_init(&c, &out));
    c.fault = 0;
    c.log = 99;
    BAD(smc_init(&c, &out));
    c.log = 0;
    c.wait_ms = 3600001;
    BAD(smc_init(&c, &out));
    c.wait_ms = 0;
    c.resident_limit = 100;
    BAD(smc_init(&c, &out));
    TRUE(out == (void *)7);
    grown.later = 0; /* a newer structure without its new field is fine */
    OK(smc_init(&grown.c, &ctx));
    char text[8];
    OK(smc_backend(ctx, text, sizeof text, NULL, 0));
    c.resident_limit = 0;
    c.fault = !strcmp(text, "mprotect") ? SMC_FAULT_SYNC : SMC_FAULT_MPROTECT;
    IS(smc_init(&c, &out), SMC_STATUS_BUSY);
    BAD(smc_shutdown(NULL));
    BAD(smc_shutdown((smc_context *)&c));
    BAD(smc_backend(NULL, text, sizeof text, NULL, 0));
    BAD(smc_backend(ctx, NULL, 3, NULL, 0));
    BAD(smc_backend_trials(ctx, NULL, NULL));
}

static void listeners(void) {
    smc_listener *l = (void *)7;
    char text[64];
    smc_listen_attr a = { .struct_size = sizeof a, .address = "127.0.0.1:0", .keys = "/nowhere/key" };
    IS(smc_listen(ctx, &a, &l), SMC_STATUS_NOT_FOUND);
    BAD(smc_listen(NULL, &a, &l));
    BAD(smc_listen(ctx, NULL, &l));
    BAD(smc_listen(ctx, &a, NULL));
    a.struct_size = 8;
    BAD(smc_listen(ctx, &a, &l));
    a.struct_size = sizeof a;
    a.keys = NULL;
    BAD(smc_listen(ctx, &a, &l));
    a.keys = "/nowhere/key";
    const char *bad[] = { "", "7471", "localhost:7471", "127.0.0.1", "127.0.0.1:70000", "::1:7471", "\xff:1" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a.address = bad[i];
        BAD(smc_listen(ctx, &a, &l));
    }
    a.address = "127.0.0.1:0";
    a.device = "mlx5_0:";
    BAD(smc_listen(ctx, &a, &l));
    TRUE(l == (void *)7);
    BAD(smc_listener_address(NULL, text, sizeof text));
    BAD(smc_listener_reload((smc_listener *)ctx));
    BAD(smc_unlisten(NULL));
}

static void exports(void) {
    listeners();
    smc_export_t *e = (void *)7;
    smc_export_attr a = { .struct_size = sizeof a, .name = name, .length = 16 * PAGE };
    OK(smc_export(ctx, &a, &home));
    IS(smc_export(ctx, &a, &e), SMC_STATUS_EXISTS);
    BAD(smc_export(NULL, &a, &e));
    BAD(smc_export(ctx, NULL, &e));
    BAD(smc_export(ctx, &a, NULL));
    a.name = NULL;
    BAD(smc_export(ctx, &a, &e));
    a.name = "no/slash";
    BAD(smc_export(ctx, &a, &e));
    a.name = "\xff\xfe";
    BAD(smc_export(ctx, &a, &e));
    a.name = unique("other");
    a.length = 0;
    BAD(smc_export(ctx, &a, &e));
    a.length = PAGE;
    a.access = 3;
    BAD(smc_export(ctx, &a, &e));
    a.access = 0;
    a.flags = 2;
    BAD(smc_export(ctx, &a, &e));
    a.flags = 0;
    a.kind = 4;
    BAD(smc_export(ctx, &a, &e));
    a.kind = SMC_MEMORY_DEVICE;
    IS(smc_export(ctx, &a, &e), SMC_STATUS_NOT_SUPPORTED);
    a.kind = SMC_MEMORY_PINNED;
    BAD(smc_export(ctx, &a, &e));
    a.kind = 0;
    a.allow_uid_count = 1;
    BAD(smc_export(ctx, &a, &e));
    a.allow_uid_count = 5000;
    BAD(smc_export(ctx, &a, &e));
    a.allow_uid_count = 0;
    a.allow_client_count = 1;
    BAD(smc_export(ctx, &a, &e));
    const char *who[2] = { "node7:all", NULL };
    a.allow_clients = who;
    BAD(smc_export(ctx, &a, &e));
    who[0] = NULL;
    BAD(smc_export(ctx, &a, &e));
    who[0] = "node7:ro";
    a.allow_client_count = 2;
    BAD(smc_export(ctx, &a, &e));
    a.allow_client_count = 5000;
    BAD(smc_export(ctx, &a, &e));
    a.allow_client_count = 1;
    a.flags = SMC_EXPORT_HOST_ONLY;
    BAD(smc_export(ctx, &a, &e));
    a.flags = 0;
    a.reserved = 1;
    BAD(smc_export(ctx, &a, &e));
    a.reserved = 0;
    a.allow_client_count = 0;
    a.allow_clients = NULL;
    a.address = (void *)8;
    BAD(smc_export(ctx, &a, &e));
    unsigned char *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    a.address = shared;
    IS(smc_export(ctx, &a, &e), SMC_STATUS_NOT_SUPPORTED);
    BAD(smc_unexport(NULL));
    BAD(smc_unexport((smc_export_t *)ctx));
    BAD(smc_export_clients(home, NULL, NULL));
    IS(smc_export_revoke(home, 4711, NULL, 0), SMC_STATUS_NOT_FOUND);
    BAD(smc_export_revoke(home, 0, NULL, 8));
    TRUE(smc_export_address(NULL) == NULL && smc_export_length((smc_export_t *)r) == 0);

    unsigned char *m = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const char *n = unique("reg");
    // Without libibverbs the one, without a device of that name the other.
    smc_status absent = smc_register_region(ctx, m, PAGE, 0, "no_such_device:1", NULL, n, 0, &e);
    TRUE(absent == SMC_STATUS_NOT_SUPPORTED || absent == SMC_STATUS_NOT_FOUND);
    TRUE(strstr(last(), "no_such_device") || strstr(last(), "RDMA"));
    BAD(smc_register_region(ctx, m, PAGE, 0, "no_such_device", NULL, n, 0, &e));
    BAD(smc_register_region(ctx, m, PAGE, 0, "no_such_device:0", NULL, n, 0, &e));
    BAD(smc_register_region(ctx, m, PAGE, 0, "no_such_device:1:x", NULL, n, 0, &e));
    BAD(smc_register_region(ctx, m, PAGE, 0, "no_such_device:1:1:1", NULL, n, 0, &e));
    // Zeros are no domain, and nothing is left behind.
    smc_status none = smc_register_region(ctx, m, PAGE, 0, NULL, m, n, 0, &e);
    TRUE(none == SMC_STATUS_NOT_SUPPORTED || none == SMC_STATUS_INVALID_ARGUMENT);
    uint32_t lkey = 7, rkey = 7;
    IS(smc_region_keys(home, &lkey, &rkey), SMC_STATUS_NOT_FOUND);
    BAD(smc_region_keys(home, NULL, &rkey));
    BAD(smc_region_keys(NULL, &lkey, &rkey));
    TRUE(lkey == 7 && rkey == 7);
    IS(smc_register_region(ctx, m, PAGE, SMC_MEMORY_DEVICE, NULL, NULL, n, 0, &e), SMC_STATUS_NOT_SUPPORTED);
    BAD(smc_register_region(ctx, m, PAGE, 9, NULL, NULL, n, 0, &e));
    BAD(smc_register_region(ctx, m, PAGE, 0, NULL, NULL, n, 64, &e));
    BAD(smc_register_region(ctx, NULL, PAGE, 0, NULL, NULL, n, 0, &e));
    BAD(smc_register_region(ctx, m, PAGE, 0, NULL, NULL, NULL, 0, &e));
    BAD(smc_register_region(ctx, m, PAGE + 1, 0, NULL, NULL, n, 0, &e));
    BAD(smc_register_region(ctx, m, PAGE, SMC_MEMORY_PINNED, NULL, NULL, n, 0, &e));
    TRUE(e == (void *)7);
    if (geteuid() != 0 || getenv("API_NO_ROOT")) {
        struct rlimit low = { 0, 0 };
        TRUE(setrlimit(RLIMIT_MEMLOCK, &low) == 0);
        IS(smc_register_region(ctx, m, 64 * PAGE, 0, NULL, NULL, n, SMC_EXPORT_PIN, &e), SMC_STATUS_NO_RESOURCES);
        TRUE(strstr(last(), "RLIMIT_MEMLOCK is 0"));
    }
    OK(smc_register_region(ctx, m, PAGE, 0, NULL, NULL, n, 0, &e)); /* the name is free after all these */
    OK(smc_unexport(e));
    BAD(smc_unexport(e));
    TRUE(smc_export_address(e) == NULL);
}

static int never(const smc_region_info *i, void *user) {
    (void)i;
    (void)user;
    return 0;
}

#define MAP_BAD(field, value) do { smc_map_attr a_ = { .struct_size = sizeof a_ }; a_.field = (value); BAD(smc_map(host, name, &a_, &out)); TRUE(strstr(last(), #field)); } while (0)

static void peers_and_maps(void) {
    smc_peer *p = (void *)7;
    BAD(smc_connect(ctx, "nonsense", &p));
    BAD(smc_connect(ctx, NULL, NULL));
    IS(smc_connect(ctx, "node1:7471", &p), SMC_STATUS_NOT_FOUND);
    BAD(smc_peer_close(NULL));
    TRUE(p == (void *)7);
    OK(smc_connect(ctx, NULL, &host));
    BAD(smc_list(host, NULL, NULL));
    BAD(smc_list((smc_peer *)ctx, never, NULL));

    smc_region *out = (void *)7;
    BAD(smc_map(NULL, name, NULL, &out));
    BAD(smc_map((smc_peer *)ctx, name, NULL, &out));
    BAD(smc_map(host, NULL, NULL, &out));
    BAD(smc_map(host, name, NULL, NULL));
    IS(smc_map(host, unique("nobody"), NULL, &out), SMC_STATUS_NOT_FOUND);
    TRUE(strstr(last(), "nobody"));
    MAP_BAD(access, 3);
    MAP_BAD(policy, 4);
    MAP_BAD(through, 9);
    MAP_BAD(on_error, 0x7fffffff);
    MAP_BAD(offset, 100);
    MAP_BAD(page_unit, 5000);
    MAP_BAD(page_unit, 4 << 20);
    MAP_BAD(window, 65);
    MAP_BAD(resident_limit, 4096);
    MAP_BAD(wait_ms, 1ull << 40);
    MAP_BAD(age_ms, 1ull << 40);
    MAP_BAD(error_byte, 0x42);
    smc_map_attr a = { .struct_size = 8 };
    BAD(smc_map(host, name, &a, &out));
    a.struct_size = sizeof a;
    a.offset = 16 * PAGE;
    IS(smc_map(host, name, &a, &out), SMC_STATUS_OUT_OF_RANGE);
    a.offset = PAGE;
    a.length = 16 * PAGE;
    IS(smc_map(host, name, &a, &out), SMC_STATUS_OUT_OF_RANGE);
    a.length = UINT64_MAX;
    IS(smc_map(host, name, &a, &out), SMC_STATUS_OUT_OF_RANGE);
    TRUE(out == (void *)7);
    OK(smc_map(host, name, NULL, &r));
}

static void data(void) {
    const uint64_t end = 16 * PAGE;
    uint64_t v = 3;
    bool b = true;
    int on_stack;
    smc_region *bad[] = { NULL, (smc_region *)&v, (smc_region *)ctx, (smc_region *)((uintptr_t)r + 16) };
    for (unsigned i = 0; i < 4; i++) {
        BAD(smc_release(bad[i], 0, 0, 0));
        BAD(smc_acquire(bad[i], 0, 0));
        BAD(smc_barrier(bad[i]));
        BAD(smc_load_u64(bad[i], 0, &v));
        BAD(smc_region_status(bad[i]));
        BAD(smc_unmap(bad[i]));
        TRUE(smc_address(bad[i]) == NULL && smc_length(bad[i]) == 0 && smc_event_fd(bad[i]) == -1);
    }
    BAD(smc_release(r, 0, 0, 2));
    IS(smc_release(r, end + 1, 0, 0), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_release(r, 0, end + 1, 0), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_release(r, UINT64_MAX, 2, 0), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_acquire(r, 8, UINT64_MAX), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_flush(r, end, 1), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_prefetch(r, end, 1), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_invalidate(r, end, 1), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_mark_dirty(r, end, 1), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_release_at(&on_stack, 1), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_acquire_at(NULL, 1), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_release_at((char *)smc_address(r) + end - 1, 2), SMC_STATUS_OUT_OF_RANGE);
    OK(smc_release_at(smc_address(r), 0));
    BAD(smc_load_u64(r, 0, NULL));
    BAD(smc_load_u64(r, 4, &v));
    IS(smc_load_u64(r, end, &v), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_store_u64(r, UINT64_MAX - 7, 1), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_fetch_add(r, end, 1, &v), SMC_STATUS_OUT_OF_RANGE);
    IS(smc_compare_swap(r, end, 1, 1, &b, &v), SMC_STATUS_OUT_OF_RANGE);
    BAD(smc_wait_until(r, 0, 0, 0, 0, &v));
    BAD(smc_wait_until(r, 0, 7, 0, 0, &v));
    TRUE(v == 3 && b);
    smc_stats s = { .struct_size = 16 };
    BAD(smc_region_stats(r, &s));
    BAD(smc_region_stats(r, NULL));
    BAD(smc_stats_each(r, NULL, NULL));
    struct { smc_stats s; uint64_t later[2]; } grown = { .s = { .struct_size = sizeof grown }, .later = { 5, 5 } };
    OK(smc_region_stats(r, &grown.s)); /* a newer structure: what we do not know is zero */
    TRUE(grown.s.struct_size == sizeof grown && grown.later[0] == 0 && grown.later[1] == 0);
    OK(smc_set_error_handler(r, NULL, NULL));
}

/* The text belongs to the thread. */
static void *other_thread(void *arg) {
    (void)arg;
    TRUE(smc_last_error(NULL, 0) == 0);
    BAD(smc_unmap(NULL));
    return NULL;
}

static void in_a_child(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        uint64_t v;
        smc_context *c;
        IS(smc_init(NULL, &c), SMC_STATUS_FORKED);
        IS(smc_release(r, 0, 0, 0), SMC_STATUS_FORKED);
        IS(smc_load_u64(r, 0, &v), SMC_STATUS_FORKED);
        IS(smc_unmap(r), SMC_STATUS_FORKED);
        IS(smc_region_status(r), SMC_STATUS_FORKED);
        IS(smc_export_revoke(home, 0, NULL, 0), SMC_STATUS_FORKED);
        IS(smc_unexport(home), SMC_STATUS_FORKED);
        IS(smc_list(host, never, NULL), SMC_STATUS_FORKED);
        IS(smc_shutdown(ctx), SMC_STATUS_FORKED);
        TRUE(smc_address(r) == NULL && smc_event_fd(r) == -1);
        TRUE(strstr(last(), "parent process"));
        _exit(0);
    }
    TRUE(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    alarm(50);
    name = strdup(unique("errors"));
    before();
    contexts();
    exports();
    peers_and_maps();
    data();
    const char *text = last();
    char kept[600];
    strcpy(kept, text);
    pthread_t t;
    TRUE(pthread_create(&t, NULL, other_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
    TRUE(!strcmp(kept, last()));
    in_a_child();
    OK(smc_release(r, 0, 0, 0)); /* the child has broken nothing */
    IS(smc_shutdown(ctx), SMC_STATUS_BUSY);
    OK(smc_unmap(r));
    BAD(smc_unmap(r));
    BAD(smc_release(r, 0, 0, 0));
    OK(smc_peer_close(host));
    BAD(smc_peer_close(host));
    OK(smc_unexport(home));
    OK(smc_shutdown(ctx));
    BAD(smc_shutdown(ctx));
    OK(smc_init(NULL, &ctx));
    OK(smc_shutdown(ctx));
    return 0;
}
