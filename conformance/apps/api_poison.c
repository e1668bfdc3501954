/* Pages that could not be fetched: the error value, and what becomes of stores to it. */
#include "api.h"

static char name[64];

static void exporter(struct ends e) {
    smc_context *ctx;
    smc_export_t *x;
    OK(smc_init(NULL, &ctx));
    smc_export_attr a = { .struct_size = sizeof a, .name = name, .length = 64 * PAGE };
    OK(smc_export(ctx, &a, &x));
    say(e, 'r');
    hear(e, 'm');
    OK(smc_export_revoke(x, 0, "", 0));
    say(e, 'v');
    hear(e, 'd');
    unsigned char *home = smc_export_address(x);
    for (int i = 0; i < 64 * PAGE; i++) TRUE(home[i] == 0);
    OK(smc_unexport(x));
    OK(smc_shutdown(ctx));
}

static void client(struct ends e) {
    smc_context *ctx;
    smc_peer *host;
    smc_region *r;
    hear(e, 'r');
    OK(smc_init(NULL, &ctx));
    OK(smc_connect(ctx, NULL, &host));
    smc_map_attr a = { .struct_size = sizeof a, .window = 1, .on_error = SMC_ON_ERROR_VALUE, .error_byte = 0x1ee };
    OK(smc_map(host, name, &a, &r));
    volatile unsigned char *m = smc_address(r);
    TRUE(m[0] == 0);
    say(e, 'm');
    hear(e, 'v');
    TRUE(m[0] == 0);                /* here before */
    TRUE(m[30 * PAGE + 5] == 0xee); /* a load shows the error value */
    m[50 * PAGE] = 1;               /* a store goes to a page that shows it */
    TRUE(m[50 * PAGE + 1] == 0xee && m[50 * PAGE] == 1);
    m[30 * PAGE + 5] = 2;
    TRUE(m[30 * PAGE + 5] == 2);
    IS(smc_release(r, 0, 0, 0), SMC_STATUS_POISONED); /* these stores will never be at the home */
    TRUE(strstr(last(), name));
    OK(smc_release(r, 0, 0, 0)); /* said once */
    IS(smc_region_status(r), SMC_STATUS_REVOKED);
    m[50 * PAGE + 9] = 3;
    IS(smc_acquire(r, 48 * PAGE, 4 * PAGE), SMC_STATUS_OK); /* the page is dropped: nothing to merge */
    TRUE(m[50 * PAGE] == 0xee && m[50 * PAGE + 9] == 0xee);
    IS(smc_unmap(r), SMC_STATUS_LOST);
    OK(smc_peer_close(host));
    OK(smc_shutdown(ctx));
    say(e, 'd');
}

int main(void) {
    alarm(20);
    strcpy(name, unique("poison"));
    return two_processes(exporter, client);
}
