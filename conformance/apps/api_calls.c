/* Every call of the API on its right path: exporter and client as two processes. */
#include "api.h"
#include <poll.h>
#include <stdbool.h>

#define PAGES 64
#define LEN (PAGES * PAGE)

static char name[64], own_name[64], pinned_name[64];

static int count_client(const smc_client *c, void *user) {
    TRUE(c->struct_size >= sizeof *c && c->id != 0 && c->access == SMC_ACCESS_READ_WRITE && c->pid == (uint32_t)getppid());
    TRUE(c->uid == getuid() && c->since_ns > 0);
    ++*(int *)user;
    return 0;
}

static void exporter(struct ends e) {
    smc_context *ctx;
    smc_export_t *made, *own, *pinned;
    smc_config config = { .struct_size = sizeof config, .wait_ms = 3000, .resident_limit = 1 << 30, .log = SMC_LOG_ERROR };
    OK(smc_init(&config, &ctx));
    smc_export_attr attr = { .struct_size = sizeof attr, .name = name, .length = LEN - 100 };
    OK(smc_export(ctx, &attr, &made));
    unsigned char *home = smc_export_address(made);
    TRUE(home && smc_export_length(made) == LEN && home[LEN - 1] == 0);
    for (int p = 0; p < PAGES; p++) home[p * PAGE] = (unsigned char)p;

    unsigned char *mine = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mine[0] = 77;
    attr = (smc_export_attr){ .struct_size = sizeof attr, .name = own_name, .length = 4 * PAGE, .address = mine };
    attr.access = SMC_ACCESS_READ_ONLY;
    attr.kind = SMC_MEMORY_SYSTEM;
    uint32_t uids[2] = { 12345, 54321 };
    attr.allow_uids = uids;
    attr.allow_uid_count = 2;
    OK(smc_export(ctx, &attr, &own));
    TRUE(smc_export_address(own) == mine && mine[0] == 77);

    unsigned char *locked = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OK(smc_register_region(ctx, locked, 2 * PAGE, 0, NULL, NULL, pinned_name, SMC_EXPORT_PIN, &pinned));
    IS(smc_shutdown(ctx), SMC_STATUS_BUSY);

    say(e, 'r');
    hear(e, 'm'); /* mapped, stored, released */
    TRUE(home[8] == 200 && home[5 * PAGE + 3] == 201 && home[5 * PAGE] == 5);
    int clients = 0;
    OK(smc_export_clients(made, count_client, &clients));
    TRUE(clients == 1);
    home[7 * PAGE] = 99;
    uint64_t *flag = (uint64_t *)(home + 2 * PAGE);
    TRUE(__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 15);
    say(e, 's');
    usleep(50000);
    __atomic_store_n(flag, 1000, __ATOMIC_SEQ_CST);
    hear(e, 'w'); /* the client has what it waited for */
    OK(smc_export_revoke(made, 0, "enough", 0));
    say(e, 'v');
    hear(e, 'x');
    TRUE(home[7 * PAGE + 8] == 0); /* what the revoked client stored afterwards is nowhere */
    clients = 0;
    OK(smc_export_clients(made, count_client, &clients));
    TRUE(clients == 0);
    OK(smc_unexport(made));
    OK(smc_unexport(own));
    OK(smc_unexport(pinned));
    TRUE(mine[0] == 77);
    mine[0] = 78;
    OK(smc_shutdown(ctx));
    say(e, 'd');
}

struct seen { int made, own, pinned; };

static int find(const smc_region_info *i, void *user) {
    struct seen *s = user;
    TRUE(i->struct_size >= sizeof *i);
    if (!strcmp(i->name, name)) s->made += i->length == LEN && i->access == SMC_ACCESS_READ_WRITE && i->kind == SMC_MEMORY_SYSTEM;
    if (!strcmp(i->name, own_name)) s->own += i->length == 4 * PAGE && i->access == SMC_ACCESS_READ_ONLY;
    if (!strcmp(i->name, pinned_name)) s->pinned += i->kind == SMC_MEMORY_PINNED && i->pid != 0;
    return 0;
}

static int stop_at_once(const smc_region_info *i, void *user) {
    (void)i;
    ++*(int *)user;
    return 1;
}

static int sum_stat(const char *n, const char *meaning, uint64_t v, void *user) {
    TRUE(strlen(n) > 3 && strlen(meaning) > 3);
    if (!strcmp(n, "messages")) *(uint64_t *)user += v;
    return 0;
}

static int count_trial(const char *n, const char *why_not, void *user) {
    TRUE(n != NULL);
    if (!why_not) ++*(int *)user;
    return 0;
}

static volatile int told;
static volatile smc_status told_status, told_unmap;

static void on_error(smc_region *region, smc_status status, void *user) {
    TRUE(user == (void *)&told);
    told_status = status;
    told_unmap = smc_unmap(region);
    told = 1;
}

static void back_end(smc_context *ctx) {
    char text[64], why[512], small[4];
    OK(smc_backend(ctx, text, sizeof text, why, sizeof why));
    TRUE(strlen(text) > 3 && strlen(why) > 3);
    OK(smc_backend(ctx, small, sizeof small, NULL, 0));
    TRUE(strlen(small) == 3 && !strncmp(small, text, 3));
    int works = 0;
    OK(smc_backend_trials(ctx, count_trial, &works));
    TRUE(works == 1);
}

static void words(smc_region *r) {
    uint64_t v = 0, old = 0, at = 2 * PAGE;
    bool swapped = false;
    OK(smc_store_u64(r, at, 5));
    OK(smc_load_u64(r, at, &v));
    TRUE(v == 5);
    OK(smc_fetch_add(r, at, 7, &old));
    TRUE(old == 5);
    OK(smc_fetch_add(r, at, 1, NULL));
    OK(smc_compare_swap(r, at, 13, 14, &swapped, &old));
    TRUE(swapped && old == 13);
    OK(smc_compare_swap(r, at, 13, 99, &swapped, &old));
    TRUE(!swapped && old == 14);
    OK(smc_compare_swap(r, at, 14, 15, NULL, NULL));
    OK(smc_wait_until(r, at, SMC_CMP_EQ, 15, 0, &v));
    OK(smc_wait_until(r, at, SMC_CMP_GT, 14, 0, NULL));
    v = 7;
    IS(smc_wait_until(r, at, SMC_CMP_NE, 15, 20, &v), SMC_STATUS_TIMED_OUT);
    TRUE(v == 7);
}

static void client(struct ends e) {
    smc_context *ctx, *second;
    smc_peer *host;
    smc_region *r, *view, *whole;
    hear(e, 'r');
    OK(smc_init(NULL, &ctx));
    OK(smc_init(NULL, &second));
    OK(smc_shutdown(second));
    back_end(ctx);
    OK(smc_connect(ctx, "local", &host));
    struct seen seen = { 0, 0, 0 };
    OK(smc_list(host, find, &seen));
    TRUE(seen.made == 1 && seen.own == 1 && seen.pinned == 1);
    int once = 0;
    OK(smc_list(host, stop_at_once, &once));
    TRUE(once == 1);

    OK(smc_map(host, name, NULL, &r));
    unsigned char *m = smc_address(r);
    TRUE(m && smc_length(r) == LEN);
    for (int p = 0; p < PAGES; p++) TRUE(m[p * PAGE] == p);
    smc_map_attr attr = { .struct_size = sizeof attr, .offset = 4 * PAGE, .length = 2 * PAGE };
    OK(smc_map(host, name, &attr, &view));
    unsigned char *v = smc_address(view);
    TRUE(v && v != m + 4 * PAGE && smc_length(view) == 2 * PAGE && v[PAGE] == 5);
    v[PAGE + 3] = 201; /* one pages, two views */
    TRUE(m[5 * PAGE + 3] == 201);
    m[8] = 200;
    OK(smc_flush(r, 0, 0));
    OK(smc_release(r, 0, 4096, SMC_RELEASE_DEVICE));
    OK(smc_release_at(v + PAGE, 4));
    words(r);
    say(e, 'm');
    hear(e, 's');
    TRUE(m[7 * PAGE] == 7);
    OK(smc_acquire(r, 7 * PAGE, 1));
    TRUE(m[7 * PAGE] == 99);
    OK(smc_acquire_at(m, 1));
    m[9] = 1;
    IS(smc_invalidate(r, 0, PAGE), SMC_STATUS_DIRTY);
    TRUE(m[9] == 1);
    OK(smc_barrier(r));
    OK(smc_invalidate(r, 0, PAGE));
    OK(smc_prefetch(r, 10 * PAGE, 20 * PAGE));
    OK(smc_mark_dirty(r, 3 * PAGE, 10));
    OK(smc_release(r, 0, 0, 0));
    uint64_t got = 0;
    OK(smc_wait_until(r, 2 * PAGE, SMC_CMP_GE, 1000, 5000, &got));
    TRUE(got == 1000);

    smc_stats stats = { .struct_size = sizeof stats };
    OK(smc_region_stats(r, &stats));
    TRUE(stats.struct_size == sizeof stats && stats.pages_fetched > 0 && stats.releases >= 3 && stats.home_ops > 5 && stats.local_bytes > 0);
    uint64_t messages = 0;
    OK(smc_stats_each(r, sum_stat, &messages));
    TRUE(messages >= 2);

    smc_region *ro;
    smc_map_attr read_only = { .struct_size = sizeof read_only, .access = SMC_ACCESS_READ_ONLY };
    OK(smc_map(host, own_name, &read_only, &ro));
    TRUE(*(unsigned char *)smc_address(ro) == 77);
    IS(smc_store_u64(ro, 0, 1), SMC_STATUS_PERMISSION);
    IS(smc_mark_dirty(ro, 0, 1), SMC_STATUS_PERMISSION);
    OK(smc_unmap(ro));

    smc_map_attr all = { .struct_size = sizeof all, .access = SMC_ACCESS_READ_WRITE, .policy = SMC_POLICY_LINE, .through = SMC_THROUGH_BOUNDED,
        .on_error = SMC_ON_ERROR_VALUE, .page_unit = 65536, .resident_limit = 1 << 20, .dirty_limit = 1 << 16, .age_ms = 50, .acquire_ms = 1000,
        .wait_ms = 500, .window = 8, .error_byte = 0x1ab };
    OK(smc_map(host, name, &all, &whole));
    TRUE(((unsigned char *)smc_address(whole))[7 * PAGE] == 99);
    OK(smc_unmap(whole));

    OK(smc_peer_close(host)); /* regions stay */
    OK(smc_region_status(r));
    OK(smc_set_error_handler(r, on_error, (void *)&told));
    struct pollfd p = { .fd = smc_event_fd(r), .events = POLLIN };
    TRUE(p.fd >= 0);
    TRUE(m[7 * PAGE] == 99); /* here before the exporter takes the rest away */
    say(e, 'w');
    hear(e, 'v');
    m[7 * PAGE + 8] = 222;
    IS(smc_release(r, 0, 0, 0), SMC_STATUS_REVOKED);
    TRUE(strstr(last(), name));
    IS(smc_region_status(r), SMC_STATUS_REVOKED);
    TRUE(poll(&p, 1, 5000) == 1);
    for (int i = 0; i < 500 && !told; i++) usleep(10000);
    TRUE(told && told_status == SMC_STATUS_REVOKED && told_unmap == SMC_STATUS_BUSY);
    IS(smc_unmap(view), SMC_STATUS_OK); /* nothing dirty in its pages, and not the last */
    IS(smc_unmap(r), SMC_STATUS_LOST);
    TRUE(strstr(last(), "28680..28681"));
    BAD(smc_unmap(r));
    say(e, 'x');
    hear(e, 'd');
    OK(smc_shutdown(ctx));
}

int main(void) {
    alarm(50);
    strcpy(name, unique("calls"));
    strcpy(own_name, unique("own"));
    strcpy(pinned_name, unique("pinned"));
    return two_processes(exporter, client);
}
