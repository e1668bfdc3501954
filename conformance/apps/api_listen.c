/* An exporter that lets clients of other hosts in: `api_listen KEYS NAME`. Takes orders, a letter each, on stdin. */
#include "api.h"

static int tell(const smc_client *c, void *user) {
    (void)user;
    printf("client %s from %s by %s pid %u uid %d access %u\n", c->name ? c->name : "-", c->address ? c->address : "-",
           c->device ? c->device : "-", c->pid, (int)c->uid, c->access);
    return 0;
}

int main(int argc, char **argv) {
    TRUE(argc == 3);
    char address[64], small[4], name[2][80];
    smc_context *ctx;
    smc_export_t *shown, *hidden;
    smc_listener *l, *again;
    OK(smc_init(NULL, &ctx));
    const char *who[] = { "a:ro", "b" };
    snprintf(name[0], 80, "%s-shown", argv[2]);
    snprintf(name[1], 80, "%s-hidden", argv[2]);
    smc_export_attr e = { .struct_size = sizeof e, .name = name[0], .length = PAGE, .allow_clients = who, .allow_client_count = 2 };
    OK(smc_export(ctx, &e, &shown));
    e = (smc_export_attr){ .struct_size = sizeof e, .name = name[1], .length = PAGE, .flags = SMC_EXPORT_HOST_ONLY };
    OK(smc_export(ctx, &e, &hidden));
    smc_listen_attr attr = { .struct_size = sizeof attr, .address = "127.0.0.1:0", .keys = argv[1] };
    OK(smc_listen(ctx, &attr, &l));
    OK(smc_listener_address(l, address, sizeof address));
    OK(smc_listener_address(l, small, sizeof small));
    BAD(smc_listener_address(l, NULL, 0));
    TRUE(strcmp(small, "127") == 0);
    attr.address = address;
    IS(smc_listen(ctx, &attr, &again), SMC_STATUS_EXISTS);
    IS(smc_shutdown(ctx), SMC_STATUS_BUSY);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s\n", address);
    for (int order; (order = getchar()) != EOF;) {
        switch (order) {
        case 'k':
            printf("%s\n", smc_status_name(smc_listener_reload(l)));
            break;
        case 'c':
            OK(smc_export_clients(shown, tell, NULL));
            printf("end\n");
            break;
        case 'r':
            OK(smc_export_revoke(shown, 0, "enough", 0));
            printf("revoked\n");
            break;
        default:
            TRUE(order == '\n');
        }
    }
    OK(smc_unlisten(l));
    BAD(smc_unlisten(l));
    OK(smc_unexport(shown));
    OK(smc_unexport(hidden));
    OK(smc_shutdown(ctx));
    return 0;
}
