/* fork, vfork, posix_spawn, clone and exec with a region: the parent notices nothing, the child has no view and gets errors
 * or a signal, never bytes that are not there, and the home stays as it was. */
#include "situations.h"
#include <dirent.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/uio.h>

extern char **environ;

enum { LOAD, STORE, CALLS, DEEDS };

/* What a child does with the region; answers its exit status, or dies. */
static int deed(int what) {
    char got[64];
    int p[2];
    prctl(PR_SET_DUMPABLE, 0);
    if (what == LOAD) return *(volatile unsigned char *)(view + 5 * PAGE) == pattern(5 * PAGE) ? 40 : 41;
    if (what == STORE) return *(volatile unsigned char *)(view + 6 * PAGE) = 0xEE, 42;
    if (pipe(p)) return 1;
    /* Every way to the bytes by a call. */
    if (write(p[1], view + 7 * PAGE, 16) != -1 || errno != EFAULT) return 2;
    if (write(p[1], "0123", 4) != 4 || read(p[0], view + 8 * PAGE, 4) != -1 || errno != EFAULT) return 3;
    struct iovec v = {view + 9 * PAGE, 8};
    if (readv(p[0], &v, 1) != -1 || errno != EFAULT) return 4;
    if (read(fd, got, 8) != -1 || errno != EIO) return 5;
    if (pwrite(fd, got, 8, 0) != -1 || errno != EIO) return 6;
    if (msync(view, PAGE, MS_SYNC) != -1) return 7;
    if (mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED) return 8;
    if (open(path, O_RDONLY) >= 0) return 9;
    if (mlock(view, PAGE) != -1) return 10;
    if (fsync(fd) != -1 || errno != EIO) return 11;
    munmap(view, size); /* its own business, whatever the answer */
    if (mlockall(MCL_CURRENT) != 0 && errno != ENOMEM && errno != EPERM) return 12;
    return 0;
}

static void judge(pid_t c, int what, const char *how) {
    int status;
    CHECK(c > 0 && waitpid(c, &status, 0) == c);
    int lost = WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
    if (what == CALLS ? status != 0 : !lost) {
        printf("%s, deed %d: status %x\n", how, what, status);
        _exit(1);
    }
}

static void unaffected(void) {
    for (int i = 0; i < 20; i++) CHECK(view[(100 + i) * PAGE + 3] == pattern((100 + i) * PAGE + 3));
    unsigned char was = view[30 * PAGE];
    view[30 * PAGE] = was ^ 0xFF;
    arrives(view + 30 * PAGE, 1);
    view[30 * PAGE] = was;
    arrives(view + 30 * PAGE, 1);
    home_is_whole();
}

/* With pages of every kind, among them a store that is nowhere else yet. */
static void forked(void) {
    unsigned char c = view[0];
    for (int what = 0; what < DEEDS; what++)
        for (int raw = 0; raw < 2; raw++) {
            view[6 * PAGE + 9] = 0x77;
            c ^= view[5 * PAGE];
            pid_t p = raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
            if (p == 0) _exit(deed(what));
            judge(p, what, raw ? "clone" : "fork");
            CHECK(view[6 * PAGE + 9] == 0x77);
            view[6 * PAGE + 9] = pattern(6 * PAGE + 9);
            unaffected();
        }
    /* A child of a process with many threads that touch the region meanwhile. */
    for (int i = 0; i < 20; i++) {
        pid_t p = fork();
        if (p == 0) exit(view == NULL); /* with exit handlers: they must not release the parent's stores */
        int status;
        CHECK(waitpid(p, &status, 0) == p && status == 0);
        CHECK(view[(200 + i) * PAGE] == pattern((200 + i) * PAGE));
    }
    unaffected();
}

static void *toucher(void *stop) {
    for (size_t i = 0; !*(volatile int *)stop; i = (i + 61) % (size / PAGE)) {
        CHECK(view[i * PAGE + 1] == pattern(i * PAGE + 1));
        if (i % 7 == 0) CHECK(madvise(view, size, MADV_DONTNEED) == 0);
    }
    return NULL;
}

static void busy(void) {
    pthread_t t[4];
    int stop = 0;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(t + i, NULL, toucher, &stop) == 0);
    for (int i = 0; i < 60; i++) {
        pid_t p = fork();
        if (p == 0) {
            void *m = malloc(100000); /* the child works on with the C library */
            memset(m, 1, 100000);
            _exit(read(fd, m, 1) == -1 && errno == EIO ? 0 : 3);
        }
        int status;
        CHECK(p > 0 && waitpid(p, &status, 0) == p && status == 0);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
    unaffected();
}

/* A child that shares the memory sees the region as any thread does. */
static int shared(void *what) {
    unsigned char got[16];
    int p[2];
    if (view[300 * PAGE] != pattern(300 * PAGE)) return 1;
    view[301 * PAGE] ^= 0xFF;
    if (pipe(p) || write(p[1], view + 302 * PAGE, 16) != 16 || read(p[0], got, 16) != 16) return 2;
    close(p[0]);
    close(p[1]);
    if (!is_pattern(got, 16, 302 * PAGE)) return 3;
    return *(int *)what;
}

static void sharing(void) {
    static char stack[256 << 10];
    int status, seven = 7;
    pid_t p = vfork();
    if (p == 0) _exit(view[310 * PAGE] == pattern(310 * PAGE) ? 5 : 6);
    CHECK(waitpid(p, &status, 0) == p && WEXITSTATUS(status) == 5);
    p = clone(shared, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &seven);
    CHECK(p > 0 && waitpid(p, &status, 0) == p);
    if (WEXITSTATUS(status) != 7) { printf("clone(CLONE_VM): status %x\n", status); _exit(1); }
    CHECK(view[301 * PAGE] == (pattern(301 * PAGE) ^ 0xFF));
    arrives(view + 301 * PAGE, 1);
    view[301 * PAGE] = pattern(301 * PAGE);
    arrives(view + 301 * PAGE, 1);
    /* Arguments that lie in the view. */
    char *arg = (char *)view + 320 * PAGE;
    unsigned char old[64];
    memcpy(old, arg, 64);
    strcpy(arg, "exit 4");
    char *argv[] = {"sh", "-c", arg, NULL};
    CHECK(posix_spawn(&p, "/bin/sh", NULL, NULL, argv, environ) == 0 && waitpid(p, &status, 0) == p && WEXITSTATUS(status) == 4);
    CHECK(WEXITSTATUS(system(arg)) == 4);
    FILE *f = popen("exit 6", "r");
    CHECK(f && WEXITSTATUS(pclose(f)) == 6);
    memcpy(arg, old, 64);
    arrives(arg, 64);
    unaffected();
}

/* The next program has no descriptor of ours but the one that was opened without O_CLOEXEC, and can use libsmc itself. */
static void replaced(char *self) {
    view[400 * PAGE] = 1; /* never released */
    char number[20];
    snprintf(number, sizeof number, "after%d", fd);
    execl(self, self, path, number, NULL);
    CHECK(!"exec");
}

static int after(int inherited) {
    struct dirent *e;
    DIR *d = opendir("/proc/self/fd");
    CHECK(d);
    while ((e = readdir(d))) {
        int n = atoi(e->d_name);
        if (n > 2 && n != dirfd(d) && n != inherited) { printf("descriptor %d is left\n", n); return 1; }
    }
    char b;
    FAILS(read(inherited, &b, 1), EBADF);
    close(inherited);
    int f = open(path, O_RDONLY);
    CHECK(f >= 0 && pread(f, &b, 1, 400 * PAGE) == 1 && (unsigned char)b == pattern(400 * PAGE));
    puts("ok");
    return 0;
}

int main(int argc, char **argv) {
    path = argv[1];
    if (argc == 3 && !strncmp(argv[2], "after", 5)) return after(atoi(argv[2] + 5));
    close_range(3, ~0u, 0);
    const char *what = start(argc, argv);
    if (!strcmp(what, "exec")) replaced(argv[0]);
    !strcmp(what, "forked") ? forked() : !strcmp(what, "busy") ? busy() : sharing();
    puts("ok");
    return 0;
}
