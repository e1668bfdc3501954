/* A 1 kHz timer whose handler touches absent pages, while its thread is inside smc_release, acquire and home operations for
 * some seconds. The alarm ends a hang. */
#include "api.h"
#include <sys/time.h>
#include <time.h>

#define PAGES 512

static char name[64];
static volatile unsigned char *m, *other;
static volatile long signals, wrong;

static void tick(int sig) {
    (void)sig;
    unsigned n = (unsigned)signals++;
    /* Pages of the region that is being released, and of another one; loads and stores. */
    unsigned p = (n * 37) % PAGES;
    if (m[p * PAGE + 64] != (unsigned char)p) wrong++;
    m[p * PAGE + 128] = (unsigned char)n;
    if (other[p * PAGE + 64] != (unsigned char)p) wrong++;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void exporter(struct ends e) {
    smc_context *ctx;
    smc_export_t *x;
    OK(smc_init(NULL, &ctx));
    smc_export_attr a = { .struct_size = sizeof a, .name = name, .length = PAGES * PAGE };
    OK(smc_export(ctx, &a, &x));
    unsigned char *home = smc_export_address(x);
    for (int p = 0; p < PAGES; p++) home[p * PAGE + 64] = (unsigned char)p;
    say(e, 'r');
    hear(e, 'd');
    OK(smc_unexport(x));
    OK(smc_shutdown(ctx));
}

static void client(struct ends e) {
    smc_context *ctx;
    smc_peer *host;
    smc_region *r, *o;
    double seconds = getenv("API_SECONDS") ? atof(getenv("API_SECONDS")) : 5;
    hear(e, 'r');
    OK(smc_init(NULL, &ctx));
    OK(smc_connect(ctx, NULL, &host));
    OK(smc_map(host, name, NULL, &r));
    smc_map_attr a = { .struct_size = sizeof a, .policy = SMC_POLICY_PAGE, .access = SMC_ACCESS_READ_ONLY, .resident_limit = 1 << 18 };
    OK(smc_map(host, name, &a, &o));
    m = smc_address(r);
    other = smc_address(o);
    struct sigaction sa = { .sa_handler = tick };
    TRUE(sigaction(SIGALRM, &sa, NULL) == 0);
    struct itimerval every = { { 0, 1000 }, { 0, 1000 } };
    TRUE(setitimer(ITIMER_REAL, &every, NULL) == 0);
    double end = now() + seconds;
    long rounds = 0;
    while (now() < end) {
        for (int p = 0; p < PAGES; p += 3) m[p * PAGE + 8] = (unsigned char)rounds;
        OK(smc_release(r, 0, 0, 0));
        if (rounds % 4 == 0) OK(smc_acquire(r, 0, 0));
        if (rounds % 5 == 0) OK(smc_acquire(o, 0, 0));
        OK(smc_fetch_add(r, 16, 1, NULL));
        rounds++;
    }
    every = (struct itimerval){ { 0, 0 }, { 0, 0 } };
    TRUE(setitimer(ITIMER_REAL, &every, NULL) == 0);
    printf("%ld rounds, %ld signals, %ld wrong bytes\n", rounds, signals, wrong);
    fflush(stdout);
    TRUE(wrong == 0);
    TRUE(rounds > 20 && signals > 200);
    OK(smc_unmap(r));
    OK(smc_unmap(o));
    OK(smc_peer_close(host));
    OK(smc_shutdown(ctx));
    say(e, 'd');
}

int main(void) {
    strcpy(name, unique("signals"));
    return two_processes(exporter, client);
}
