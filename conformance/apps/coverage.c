/* coverage: tests the hooks without a region. coverage PATH: opens and maps a region's file, says how that went, and waits for
   the end of its input. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../include/smc.h"

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #c, errno); exit(1); } } while (0)

static char lines[256][128];
static int count;

static int32_t each(const smc_hook_info *h, void *user) {
    CHECK(user == lines && h->struct_size >= sizeof *h && count < 256 && (h->lost == NULL) == (h->state < SMC_HOOK_STATE_SHADOWED));
    snprintf(lines[count++], sizeof *lines, "%s %s %u %u %s", h->family, h->name, h->state, h->off, h->by ? h->by : "-");
    return 0;
}

static int32_t once(const smc_hook_info *h, void *user) {
    (void)h;
    return ++*(int *)user;
}

static int32_t reason(const char *name, const char *meaning, uint64_t n, void *user) {
    CHECK(name[0] && meaning[0]);
    *(uint64_t *)user += n;
    return 0;
}

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void test(void) {
    smc_status (*hooks)(smc_hook_fn, void *) = dlsym(RTLD_DEFAULT, "smc_hooks_each");
    smc_status (*reasons)(smc_stat_fn, void *) = dlsym(RTLD_DEFAULT, "smc_pass_through_each");
    unsigned long (*blocks)(void) = dlsym(RTLD_DEFAULT, "shadow_blocks");
    CHECK(hooks && reasons && hooks(NULL, NULL) == SMC_STATUS_INVALID_ARGUMENT && reasons(NULL, NULL) == SMC_STATUS_INVALID_ARGUMENT);
    unsigned long before = blocks ? blocks() : 0;
    errno = 4711;
    long long start = now();
    smc_status s = hooks(each, lines);
    long long took = now() - start;
    CHECK(s == SMC_STATUS_OK && errno == 4711 && (!blocks || blocks() == before));
    int n = 0;
    CHECK(hooks(once, &n) == SMC_STATUS_OK && n == 1);
    uint64_t passed = 0;
    CHECK(reasons(reason, &passed) == SMC_STATUS_OK && passed == 0);
    for (int i = 0; i < count; i++)
        puts(lines[i]);
    fprintf(stderr, "took %lld ns\n", took);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        test();
        return 0;
    }
    int fd = openat(AT_FDCWD, argv[1], O_RDWR);
    printf("open %s\n", fd < 0 ? strerrorname_np(errno) : "ok");
    if (fd >= 0) {
        char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        printf("mmap %s\n", p == MAP_FAILED ? strerrorname_np(errno) : "ok");
        char c = 0;
        CHECK(pread(fd, &c, 1, 0) == 1);
    }
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
