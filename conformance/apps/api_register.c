/* Memory bound to a port and registered in a domain of the program's: `api_register KEY`. Two devices of the soft HCA. */
#include "api.h"
#include <dlfcn.h>

/* Of libibverbs, whose headers need not be installed. */
typedef struct ibv_device ibv_device;
typedef struct ibv_context ibv_context;
typedef struct ibv_pd ibv_pd;
static void *verbs(const char *name) {
    static void *lib;
    if (!lib) lib = dlopen("libibverbs.so.1", RTLD_NOW);
    TRUE(lib != NULL);
    void *f = dlsym(lib, name);
    TRUE(f != NULL);
    return f;
}

static char device[2][32];
static int count;
static int note(const smc_client *c, void *user) {
    (void)user;
    snprintf(device[count++ % 2], 32, "%s", c->device ? c->device : "-");
    return 0;
}

int main(int argc, char **argv) {
    TRUE(argc == 2);
    ibv_device **(*list)(int *) = verbs("ibv_get_device_list");
    ibv_context *(*open_device)(ibv_device *) = verbs("ibv_open_device");
    int (*close_device)(ibv_context *) = verbs("ibv_close_device");
    ibv_pd *(*alloc_pd)(ibv_context *) = verbs("ibv_alloc_pd");
    int (*dealloc_pd)(ibv_pd *) = verbs("ibv_dealloc_pd");
    int n;
    ibv_device **all = list(&n);
    TRUE(all && n == 2);
    ibv_context *dev = open_device(all[1]);
    TRUE(dev != NULL);
    ibv_pd *pd = alloc_pd(dev);
    TRUE(pd != NULL);

    smc_context *ctx;
    smc_export_t *e = NULL, *other;
    uint32_t lkey = 0, rkey = 0, lkey2, rkey2;
    char name[64], absent[64];
    snprintf(name, 64, "%s", unique("own"));
    snprintf(absent, 64, "%s", unique("absent"));
    OK(smc_init(NULL, &ctx));
    unsigned char *m = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(m, 5, 4 * PAGE);
    IS(smc_register_region(ctx, m, 4 * PAGE, 0, "softhca7:1", NULL, absent, 0, &other), SMC_STATUS_NOT_FOUND);
    TRUE(strstr(last(), "softhca7"));
    IS(smc_register_region(ctx, m, 4 * PAGE, 0, "softhca1:2", NULL, absent, 0, &other), SMC_STATUS_NOT_FOUND);
    /* What is no domain. */
    BAD(smc_register_region(ctx, m, 4 * PAGE, 0, NULL, dev, absent, 0, &other));
    BAD(smc_register_region(ctx, m, 4 * PAGE, 0, NULL, (void *)8, absent, 0, &other));
    OK(smc_register_region(ctx, m, 4 * PAGE, 0, "softhca1:1:1", pd, name, 0, &e));
    TRUE(smc_export_address(e) == m && m[PAGE] == 5);
    OK(smc_region_keys(e, &lkey, &rkey));
    TRUE(dealloc_pd(pd) != 0); /* in use */

    /* A client of the network, by the other device; the memory is reached by the one that was named. */
    smc_listen_attr attr = { .struct_size = sizeof attr, .address = "127.0.0.1:0", .keys = argv[1], .device = "softhca0" };
    smc_listener *l;
    smc_peer *peer;
    smc_region *r;
    char address[64];
    OK(smc_listen(ctx, &attr, &l));
    OK(smc_listener_address(l, address, sizeof address));
    OK(smc_connect(ctx, address, &peer));
    OK(smc_map(peer, name, NULL, &r));
    unsigned char *far = smc_address(r);
    TRUE(far[0] == 5 && far[4 * PAGE - 1] == 5);
    far[1] = 9;
    OK(smc_release(r, 0, 0, 0));
    TRUE(m[1] == 9);
    OK(smc_export_clients(e, note, NULL));
    TRUE(count == 1);
    TRUE(strcmp(device[0], "softhca1") == 0);

    /* Taken away from the client, and kept by the program's own domain under other keys. */
    OK(smc_export_revoke(e, 0, "enough", 0));
    OK(smc_region_keys(e, &lkey2, &rkey2));
    TRUE(lkey2 != lkey && rkey2 != rkey);
    TRUE(dealloc_pd(pd) != 0);
    TRUE(m[1] == 9);
    (void)smc_unmap(r);
    OK(smc_peer_close(peer));
    OK(smc_unlisten(l));
    OK(smc_unexport(e));
    TRUE(dealloc_pd(pd) == 0); /* the registration has gone with the export */
    TRUE(close_device(dev) == 0);
    OK(smc_shutdown(ctx));
    return 0;
}
