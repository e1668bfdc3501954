// Failure as a C program sees it: conditions, named losses, a second path. Exporter and client are this one process.
#include <inttypes.h>
#include <poll.h>
#include "../../include/smc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int ok, const char *what, int line) {
    if (ok) return;
    char text[512] = "";
    smc_last_error(text, sizeof text);
    fprintf(stderr, "line %d: %s (last error: %s)\n", line, what, text);
    exit(1);
}
#define CHECK(x) check(!!(x), #x, __LINE__)

static smc_export_t *offer(smc_context *ctx, const char *name, uint64_t incarnation) {
    smc_export_attr attr = {0};
    attr.struct_size = sizeof attr;
    attr.name = name;
    attr.length = 1 << 20;
    attr.incarnation = incarnation;
    smc_export_t *e;
    CHECK(smc_export(ctx, &attr, &e) == SMC_STATUS_OK);
    return e;
}

static uint32_t condition(smc_region *r) {
    uint32_t c = 0, failures = 0;
    CHECK(smc_region_condition(r, &c, &failures) == SMC_STATUS_OK);
    CHECK(smc_region_condition(r, &c, NULL) == SMC_STATUS_OK);
    return c;
}

static void wait_for(smc_region *r, uint32_t want) {
    for (int i = 0; i < 5000 && condition(r) != want; i++) usleep(1000);
    CHECK(condition(r) == want);
}

int main(void) {
    char one[64], two[64], second[80];
    snprintf(one, sizeof one, "failure-%d-1", (int)getpid());
    snprintf(two, sizeof two, "failure-%d-2", (int)getpid());
    snprintf(second, sizeof second, "local/%s", two);
    smc_context *ctx;
    smc_peer *host;
    smc_region *r;
    CHECK(smc_init(NULL, &ctx) == SMC_STATUS_OK);
    CHECK(smc_connect(ctx, NULL, &host) == SMC_STATUS_OK);
    smc_map_attr attr = {0};
    attr.struct_size = sizeof attr;
    attr.on_error = SMC_ON_ERROR_VALUE;
    attr.fail_limit = 2;

    // Revoked: unavailable at once, and what was not released is named, byte by byte.
    smc_export_t *e = offer(ctx, one, 0);
    CHECK(smc_map(host, one, &attr, &r) == SMC_STATUS_OK);
    volatile uint8_t *p = smc_address(r);
    CHECK(condition(r) == SMC_CONDITION_OK);
    p[8] = 1;
    p[4096 * 3 + 5] = 2;
    p[4096 * 3 + 6] = 3;
    CHECK(smc_export_revoke(e, 0, "for the test", SMC_REVOKE_QUIESCED) == SMC_STATUS_OK);
    CHECK(smc_release(r, 0, 0, 0) == SMC_STATUS_REVOKED);
    CHECK(smc_region_status(r) == SMC_STATUS_REVOKED && condition(r) == SMC_CONDITION_UNAVAILABLE);
    struct pollfd event = {.fd = smc_event_fd(r), .events = POLLIN};
    CHECK(poll(&event, 1, 5000) == 1);
    smc_range ranges[8];
    size_t n = 99;
    CHECK(smc_ranges(r, SMC_WHICH_LOST, ranges, 8, &n) == SMC_STATUS_OK && n == 2);
    CHECK(ranges[0].offset == 8 && ranges[0].length == 1);
    CHECK(ranges[1].offset == 4096 * 3 + 5 && ranges[1].length == 2);
    CHECK(smc_ranges(r, SMC_WHICH_LOST, ranges, 1, &n) == SMC_STATUS_OK && n == 1);
    CHECK(smc_ranges(r, SMC_WHICH_LOST, NULL, 0, &n) == SMC_STATUS_OK && n == 0);
    CHECK(smc_ranges(r, 3, ranges, 8, &n) == SMC_STATUS_INVALID_ARGUMENT);
    CHECK(smc_ranges(r, SMC_WHICH_LOST, NULL, 8, &n) == SMC_STATUS_INVALID_ARGUMENT);
    CHECK(((uint8_t *)smc_export_address(e))[8] == 0);
    char text[512];
    CHECK(smc_unmap(r) == SMC_STATUS_LOST);
    CHECK(smc_last_error(text, sizeof text) > 0 && strstr(text, "8..9, 12293..12295"));
    CHECK(smc_unexport(e) == SMC_STATUS_OK);

    // The exporter ends and comes back with what it had, or with something else.
    for (int same = 1; same >= 0; same--) {
        e = offer(ctx, one, 42);
        CHECK(smc_map(host, one, &attr, &r) == SMC_STATUS_OK);
        p = smc_address(r);
        p[8] = 7;
        CHECK(smc_unexport(e) == SMC_STATUS_OK);
        wait_for(r, SMC_CONDITION_DEGRADED);
        CHECK(smc_release(r, 0, 0, 0) == SMC_STATUS_PEER_DEAD);
        CHECK(smc_ranges(r, SMC_WHICH_UNRELEASED, ranges, 8, &n) == SMC_STATUS_OK && n == 1 && ranges[0].offset == 8);
        e = offer(ctx, one, same ? 42 : 43);
        wait_for(r, same ? SMC_CONDITION_OK : SMC_CONDITION_UNAVAILABLE);
        CHECK(smc_release(r, 0, 0, 0) == (same ? SMC_STATUS_OK : SMC_STATUS_STALE));
        CHECK(((volatile uint8_t *)smc_export_address(e))[8] == (same ? 7 : 0));
        CHECK(smc_unmap(r) == (same ? SMC_STATUS_OK : SMC_STATUS_LOST));
        CHECK(smc_unexport(e) == SMC_STATUS_OK);
    }

    // A second path.
    e = offer(ctx, one, 0);
    smc_export_t *other = offer(ctx, two, 0);
    volatile uint8_t *replica = smc_export_address(other);
    replica[4096 * 64] = 9;
    attr.second = second;
    CHECK(smc_map(host, one, &attr, &r) == SMC_STATUS_OK);
    p = smc_address(r);
    p[8] = 5;
    CHECK(smc_unexport(e) == SMC_STATUS_OK);
    CHECK(p[4096 * 64] == 9 && p[8] == 5);
    CHECK(smc_release(r, 0, 0, 0) == SMC_STATUS_OK && replica[8] == 5);
    CHECK(condition(r) == SMC_CONDITION_OK);
    CHECK(smc_unmap(r) == SMC_STATUS_OK);
    attr.second = "nonsense";
    CHECK(smc_map(host, two, &attr, &r) == SMC_STATUS_INVALID_ARGUMENT);
    attr.second = NULL;
    attr.fail_limit = 1000001;
    CHECK(smc_map(host, two, &attr, &r) == SMC_STATUS_INVALID_ARGUMENT);
    CHECK(smc_unexport(other) == SMC_STATUS_OK);
    CHECK(smc_peer_close(host) == SMC_STATUS_OK);
    CHECK(smc_shutdown(ctx) == SMC_STATUS_OK);
    puts("ok");
    return 0;
}
