/* The first store to an absent page, and a release right behind it: the thread that brings the page may not have finished when
 * the storing thread goes on. Nothing may be lost. */
#include "api.h"

int main(void) {
    smc_context *ctx;
    smc_export_t *x;
    smc_peer *host;
    smc_region *r;
    alarm(50);
    const char *name = unique("first");
    OK(smc_init(NULL, &ctx));
    smc_export_attr a = { .struct_size = sizeof a, .name = name, .length = 4 * PAGE };
    OK(smc_export(ctx, &a, &x));
    OK(smc_connect(ctx, NULL, &host));
    OK(smc_map(host, name, NULL, &r));
    unsigned char *home = smc_export_address(x);
    volatile unsigned char *m = smc_address(r);
    for (int i = 1; i <= 3000; i++) {
        int p = i % 4;
        m[p * PAGE + i % 1000] = (unsigned char)(i % 255 + 1);
        OK(smc_release(r, 0, 0, 0));
        if (home[p * PAGE + i % 1000] != i % 255 + 1) {
            fprintf(stderr, "round %d: the store is not at the home\n", i);
            return 1;
        }
        OK(smc_invalidate(r, 0, 0));
    }
    OK(smc_unmap(r));
    OK(smc_peer_close(host));
    OK(smc_unexport(x));
    OK(smc_shutdown(ctx));
    return 0;
}
