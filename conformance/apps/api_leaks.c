/* A thousand times map, use, unmap: descriptors, mappings and resident memory stay where they were. So do exports. */
#include "api.h"
#include <dirent.h>

static smc_context *ctx;
static smc_peer *host;
static char name[64];

static int count_fds(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    TRUE(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static int count_maps(void) {
    int c, n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    TRUE(f);
    while ((c = getc(f)) != EOF) n += c == '\n';
    fclose(f);
    return n;
}

static long status_kb(const char *key) {
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    TRUE(f);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) kb = strtol(line + strlen(key), NULL, 10);
    fclose(f);
    return kb;
}

static void cycle(int i) {
    smc_region *r, *second;
    smc_map_attr a = { .struct_size = sizeof a, .policy = 1 + (uint32_t)i % 3 };
    OK(smc_map(host, name, &a, &r));
    unsigned char *m = smc_address(r);
    a.offset = PAGE;
    OK(smc_map(host, name, &a, &second));
    m[i % 64 * PAGE] = (unsigned char)i;
    OK(smc_fetch_add(r, 32, 1, NULL));
    OK(smc_release(r, 0, 0, 0));
    OK(smc_acquire(r, 0, 0));
    OK(smc_unmap(i % 2 ? r : second));
    OK(smc_unmap(i % 2 ? second : r));
}

static void export_cycle(void) {
    smc_export_t *e;
    /* The same place every time: an export leaves its pages a mapping of their own, and malloc may give others. */
    static void *m;
    TRUE(m || posix_memalign(&m, PAGE, 4 * PAGE) == 0);
    memset(m, 1, 4 * PAGE);
    smc_export_attr a = { .struct_size = sizeof a, .name = "api-leaks-cycle", .length = 4 * PAGE, .address = m };
    OK(smc_export(ctx, &a, &e));
    OK(smc_unexport(e));
    a.address = NULL;
    OK(smc_export(ctx, &a, &e));
    OK(smc_unexport(e));
}

static void exporter(struct ends e) {
    smc_export_t *x;
    OK(smc_init(NULL, &ctx));
    smc_export_attr a = { .struct_size = sizeof a, .name = name, .length = 64 * PAGE };
    OK(smc_export(ctx, &a, &x));
    say(e, 'r');
    hear(e, 'd');
    TRUE(((uint64_t *)smc_export_address(x))[4] > 1000);
    OK(smc_unexport(x));
    /* Every place of the heap that was ever exported stays a mapping of its own. What the counting allocates moves the
       blocks about: it is done before too, until they have been everywhere they get to. */
    for (int i = 0; i < 220; i++) {
        if (i % 20 == 0) count_fds(), count_maps(), status_kb("VmRSS:");
        export_cycle();
    }
    int fds = count_fds(), maps = count_maps();
    long rss = status_kb("VmRSS:");
    for (int i = 0; i < 200; i++) export_cycle();
    TRUE(count_fds() == fds);
    TRUE(count_maps() <= maps + 2);
    TRUE(status_kb("VmRSS:") <= rss + 1024);
    OK(smc_shutdown(ctx));
}

static void client(struct ends e) {
    hear(e, 'r');
    OK(smc_init(NULL, &ctx));
    OK(smc_connect(ctx, NULL, &host));
    for (int i = 0; i < 30; i++) cycle(i);
    usleep(200000);
    int fds = count_fds(), maps = count_maps();
    long rss = status_kb("VmRSS:"), threads = status_kb("Threads:");
    for (int i = 0; i < 1000; i++) cycle(i);
    for (int i = 0; i < 100 && (count_fds() > fds || count_maps() > maps || status_kb("Threads:") > threads); i++) usleep(20000);
    printf("descriptors %d -> %d, mappings %d -> %d, VmRSS %ld -> %ld kB, threads %ld -> %ld\n", fds, count_fds(), maps, count_maps(), rss,
           status_kb("VmRSS:"), threads, status_kb("Threads:"));
    fflush(stdout);
    TRUE(count_fds() == fds);
    TRUE(count_maps() <= maps);
    TRUE(status_kb("VmRSS:") <= rss + 1024);
    TRUE(status_kb("Threads:") == threads);
    OK(smc_peer_close(host));
    OK(smc_shutdown(ctx));
    say(e, 'd');
}

int main(void) {
    alarm(50);
    strcpy(name, unique("leaks"));
    return two_processes(exporter, client);
}
