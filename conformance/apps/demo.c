/* Uses a region exported on this host: an operation at the home, plain stores, release, acquire, counters.
 * The word at offset 0 counts the runs; a text lies at offset 4096. */
#include <inttypes.h>
#include <smc.h>
#include <stdio.h>
#include <string.h>

#define AT 4096
#define SIZE 64

static int failed(const char *what) {
    char why[512] = "";
    smc_last_error(why, sizeof why);
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static int print_counter(const char *name, const char *meaning, uint64_t value, void *user) {
    (void)user;
    if (value != 0) printf("  %-18s %8" PRIu64 "  %s\n", name, value, meaning);
    return 0;
}

/* Stores through one mapping and looks through another one, which has pages of its own. */
static int use(smc_region *writer, smc_region *reader) {
    char *out = smc_address(writer);
    const char *in = smc_address(reader);
    char text[SIZE] = "";
    uint64_t runs;

    if (smc_fetch_add(writer, 0, 1, &runs)) return failed("smc_fetch_add"); /* at the home, once for all processes */
    snprintf(text, sizeof text, "stored by C, run %" PRIu64, runs + 1);

    printf("before:  \"%.*s\"\n", SIZE, in + AT);                    /* a load: the page is fetched */
    memcpy(out + AT, text, SIZE);                                    /* plain stores */
    if (smc_release(writer, AT, SIZE, 0)) return failed("smc_release"); /* now they are at the home */
    if (smc_acquire(reader, AT, SIZE)) return failed("smc_acquire");    /* later loads see them */
    printf("after:   \"%.*s\"\n", SIZE, in + AT);
    if (memcmp(in + AT, text, SIZE) != 0) {
        fputs("the stores did not arrive\n", stderr);
        return 1;
    }
    puts("counters of the writing side:");
    if (smc_stats_each(writer, print_counter, NULL)) return failed("smc_stats_each");
    return 0;
}

int main(int argc, char **argv) {
    smc_context *ctx;
    smc_peer *host;
    smc_region *writer, *reader;
    smc_map_attr read_only = {0};
    read_only.struct_size = sizeof read_only;
    read_only.access = SMC_ACCESS_READ_ONLY;

    if (argc != 2) {
        fprintf(stderr, "usage: %s NAME\n", argv[0]);
        return 2;
    }
    if (smc_init(NULL, &ctx)) return failed("smc_init");
    if (smc_connect(ctx, NULL, &host)) return failed("smc_connect");
    if (smc_map(host, argv[1], NULL, &writer)) return failed("smc_map");
    if (smc_map(host, argv[1], &read_only, &reader)) return failed("smc_map, read only");
    int status = use(writer, reader);
    if (smc_unmap(reader)) status = failed("smc_unmap");
    if (smc_unmap(writer)) status = failed("smc_unmap"); /* releases what is left */
    if (smc_peer_close(host)) status = failed("smc_peer_close");
    if (smc_shutdown(ctx)) status = failed("smc_shutdown");
    return status;
}
