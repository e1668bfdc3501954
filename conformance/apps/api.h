/* What the programs that try the C API share: checks, and an exporter and a client as two processes. */
#ifndef API_H
#define API_H
#define _GNU_SOURCE
#include "../../include/smc.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static inline const char *last(void) {
    static char text[600];
    text[0] = 0;
    smc_last_error(text, sizeof text);
    return text;
}

#define TRUE(e) do { if (!(e)) { fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", __FILE__, __LINE__, #e, last()); _exit(1); } } while (0)
#define IS(call, want) do { smc_status s_ = (smc_status)(call); if (s_ != (want)) { \
    fprintf(stderr, "%s:%d: %s is %s, not %s (last error: %s)\n", __FILE__, __LINE__, #call, smc_status_name(s_), #want, last()); _exit(1); } } while (0)
#define OK(call) IS(call, SMC_STATUS_OK)
#define BAD(call) IS(call, SMC_STATUS_INVALID_ARGUMENT)

/* Two processes that wait for each other: byte by byte over a pair of pipes. */
struct ends { int in, out; };

static inline void say(struct ends e, char c) { TRUE(write(e.out, &c, 1) == 1); }
static inline void hear(struct ends e, char c) { char got = 0; TRUE(read(e.in, &got, 1) == 1 && got == c); }

/* Runs `exporter` in a child and `client` here, both without any use of the library before. */
static inline int two_processes(void (*exporter)(struct ends), void (*client)(struct ends)) {
    int down[2], up[2], status;
    TRUE(pipe(down) == 0 && pipe(up) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(down[1]);
        close(up[0]);
        exporter((struct ends){ .in = down[0], .out = up[1] });
        _exit(0);
    }
    close(down[0]);
    close(up[1]);
    client((struct ends){ .in = up[0], .out = down[1] });
    TRUE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

/* A name that no other test has. */
static inline const char *unique(const char *base) {
    static char names[8][64];
    static int next;
    char *n = names[next++ % 8];
    snprintf(n, 64, "api-%s-%d", base, getpid());
    return n;
}
#endif
