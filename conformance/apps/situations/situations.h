/* What the programs of the situations have in common: a region full of a pattern, mapped; parts of it in a given state; and
 * a look at the home past the own pages. argv[1]: path of the region, argv[2]: the case. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Wrong arguments are the point of some checks. */
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"

#define CHECK(c) do { if (!(c)) { printf("%s:%d: %s (errno %d, %s; state %d)\n", __FILE__, __LINE__, #c, errno, strerror(errno), state); fflush(stdout); _exit(1); } } while (0)
#define FAILS(call, e) do { errno = 0; CHECK((intptr_t)(call) == -1 && errno == (e)); } while (0)
#define PAGE 4096ul

enum { ABSENT, CLEAN, DIRTY, STATES };

static int state;
static const char *path;
static int fd;
static unsigned char *view;
static size_t size, used;

static unsigned char pattern(size_t off) { return (unsigned char)(off * 7 + (off >> 12) * 13 + 1); }

static int opened(const char *options) {
    char name[600];
    snprintf(name, sizeof name, "%s%s%s", path, strchr(path, '?') ? "&" : "?", options);
    int f = open(name, O_RDWR);
    CHECK(f >= 0);
    return f;
}

static int is_pattern(const void *p, size_t n, size_t off) {
    for (size_t i = 0; i < n; i++)
        if (((const unsigned char *)p)[i] != pattern(off + i)) return 0;
    return 1;
}

static void fill_home(void) {
    unsigned char *all = malloc(size);
    int f = opened("window=2");
    for (size_t i = 0; i < size; i++) all[i] = pattern(i);
    for (size_t at = 0; at < size;) {
        ssize_t n = pwrite(f, all + at, size - at, at);
        CHECK(n > 0);
        at += n;
    }
    CHECK(fsync(f) == 0 && close(f) == 0);
    free(all);
}

static const char *start(int argc, char **argv) {
    struct stat st;
    if (argc != 3) exit(2);
    path = argv[1];
    fd = open(path, O_RDWR);
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    size = st.st_size;
    fill_home();
    view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(view != MAP_FAILED);
    return argv[2];
}

static size_t off_of(const void *p) { return (const unsigned char *)p - view; }

/* n bytes of pages that nobody has used, over the border of two, in the present state. */
static void *fresh(size_t n) {
    size_t pages = 16 + (n + PAGE - 1) / PAGE / 16 * 16 + 16; /* 64 KiB apart: mprotect works on so much at a time */
    unsigned char *p = view + used + PAGE - (n / 2 % PAGE) / 8 * 8;
    used += pages * PAGE;
    CHECK(used <= size);
    for (size_t i = 0; state != ABSENT && i < n + PAGE; i += PAGE) {
        unsigned char *at = p + (i < n ? i : n - 1);
        unsigned char c = *(volatile unsigned char *)at;
        if (state == DIRTY) *(volatile unsigned char *)at = c;
    }
    return p;
}

/* The home's bytes, past the own pages. */
static void at_home(size_t off, void *to, size_t n) {
    int f = opened("window=1");
    CHECK(pread(f, to, n, off) == (ssize_t)n && close(f) == 0);
}

/* What is here reaches the home. */
static void arrives(const void *p, size_t n) {
    unsigned char *there = malloc(n);
    CHECK(msync((void *)((uintptr_t)p & ~(PAGE - 1)), n + ((uintptr_t)p & (PAGE - 1)), MS_SYNC) == 0);
    at_home(off_of(p), there, n);
    CHECK(memcmp(there, p, n) == 0);
    free(there);
}

static void home_is_whole(void) {
    unsigned char *all = malloc(size);
    int f = opened("window=3");
    for (size_t at = 0; at < size;) {
        ssize_t n = pread(f, all + at, size - at, at);
        CHECK(n > 0);
        at += n;
    }
    for (size_t i = 0; i < size; i++)
        if (all[i] != pattern(i)) { printf("the home has changed at %zu\n", i); _exit(1); }
    free(all);
}

static char tmp[] = "/tmp/smc-situations-XXXXXX";

/* What buffers are filled with: N bytes of it. */
static const char TEXT[] = "thirty-two bytes and a few more for the wire";
#define N 40
