/* What others see of a view: a process that reads this one's memory, a tracer, a core dump. */
#include "situations.h"
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

/* Another process reads absent, clean and dirty pages: the bytes, or an error; and what it writes arrives, or is refused. */
static void peeked(void) {
    int waits = !strcmp(getenv("LIBSMC_FAULT"), "thread");
    for (state = ABSENT; state < STATES; state++) {
        unsigned char *b = fresh(2 * PAGE), *w = fresh(64);
        pid_t parent = getpid(), c = fork();
        if (c == 0) {
            unsigned char got[2 * PAGE];
            struct iovec mine = {got, sizeof got}, theirs = {b, sizeof got};
            memset(got, 0xEE, sizeof got);
            ssize_t n = process_vm_readv(parent, &mine, 1, &theirs, 1, 0);
            if (n < 0 && (waits || errno != EFAULT)) _exit(1);
            if (n >= 0 && !is_pattern(got, n, off_of(b))) _exit(2);
            if (waits && n != (ssize_t)sizeof got) _exit(3);
            struct iovec out = {(void *)TEXT, N}, to = {w, N};
            n = process_vm_writev(parent, &out, 1, &to, 1, 0);
            if (n < 0 && (waits || errno != EFAULT)) _exit(4);
            _exit(n == N ? 100 : 101);
        }
        int status;
        CHECK(waitpid(c, &status, 0) == c && WIFEXITED(status) && WEXITSTATUS(status) >= 100);
        if (WEXITSTATUS(status) == 100) {
            CHECK(memcmp(w, TEXT, N) == 0);
            arrives(w, N);
        } else CHECK(is_pattern(w, 2 * PAGE - N, off_of(w)) || is_pattern(w, N, off_of(w)));
    }
}

/* For a tracer: system calls with absent pages. */
static void traced(void) {
    char got[N];
    int p[2];
    CHECK(pipe(p) == 0);
    for (int i = 0; i < 20; i++) {
        unsigned char *b = fresh(N);
        CHECK(write(p[1], b, N) == N && read(p[0], got, N) == N && is_pattern(got, N, off_of(b)));
        b = fresh(N);
        CHECK(write(p[1], TEXT, N) == N && read(p[0], b, N) == N && memcmp(b, TEXT, N) == 0);
    }
}

/* For a debugger that attaches, and for gcore: one page is here, one is not. */
static void waits(void) {
    CHECK(view[5] == pattern(5));
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    printf("ready %d %p %p\n", getpid(), (void *)view, (void *)(view + size / 2));
    fflush(stdout);
    CHECK(getchar() == '\n');
    CHECK(view[size / 2] == pattern(size / 2));
    view[size / 2] ^= 1;
    arrives(view + size / 2, 1);
}

/* The home is dead: a system call fails as it does on any memory that is not there, and the program lives on. */
static void gone(void) {
    int p[2];
    char got[N];
    CHECK(view[5] == pattern(5) && pipe(p) == 0 && write(p[1], TEXT, N) == N);
    puts("ready");
    fflush(stdout);
    CHECK(getchar() == '\n');
    usleep(500000); /* until the link has seen it */
    FAILS(write(p[1], view + size / 2, N), EFAULT);
    FAILS(read(p[0], view + size / 2, N), EFAULT);
    FAILS(fstat(p[0], (void *)(view + size / 4)), EFAULT);
    FAILS(mlock(view + size / 2, PAGE), EAGAIN);
    CHECK(read(p[0], got, N) == N && write(p[1], view, 100) == 100); /* what is here stays */
    puts("ok");
    fflush(stdout);
    _exit(0);
}

static void dies(void) {
    struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_CORE, &r) == 0);
    CHECK(view[5] == pattern(5));
    printf("%p\n", (void *)view);
    fflush(stdout);
    abort();
}

int main(int argc, char **argv) {
    const char *what = start(argc, argv);
    !strcmp(what, "peeked") ? peeked() : !strcmp(what, "traced") ? traced() : !strcmp(what, "waits") ? waits() : !strcmp(what, "gone") ? gone() : dies();
    puts("ok");
    return 0;
}
