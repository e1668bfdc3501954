/* Little stacks, alternate stacks, scheduling classes, and signals sent to the library's own threads. */
#include "situations.h"
#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <sys/resource.h>
#include <ucontext.h>

static size_t next_page(void) {
    static size_t page;
    return (__atomic_add_fetch(&page, 37, __ATOMIC_RELAXED) % (size / PAGE)) * PAGE;
}

/* A load, a store and a system call in an absent page. */
static void used_a_page(void) {
    char got[8];
    int p[2];
    size_t at = next_page();
    CHECK(view[at + 5] == pattern(at + 5));
    at = next_page();
    view[at + 9] = pattern(at + 9);
    CHECK(pipe(p) == 0);
    at = next_page();
    CHECK(write(p[1], view + at, 8) == 8 && read(p[0], got, 8) == 8 && is_pattern(got, 8, at));
    at = next_page();
    CHECK(write(p[1], got, 8) == 8 && read(p[0], view + at, 8) == 8);
    for (int i = 0; i < 8; i++) view[at + i] = pattern(at + i);
    close(p[0]);
    close(p[1]);
}

static void *uses(void *unused) {
    for (int i = 0; i < 50; i++) used_a_page();
    return unused;
}

static void stacks(void) {
    size_t sizes[] = {PTHREAD_STACK_MIN, 16 << 10, 20 << 10, 64 << 10};
    for (size_t i = 0; i < 4; i++) {
        pthread_attr_t a;
        pthread_t t[8];
        CHECK(pthread_attr_init(&a) == 0);
        if (pthread_attr_setstacksize(&a, sizes[i]) != 0) continue; /* less than this machine's signal frames need */
        for (int j = 0; j < 8; j++) CHECK(pthread_create(t + j, &a, uses, NULL) == 0);
        for (int j = 0; j < 8; j++) CHECK(pthread_join(t[j], NULL) == 0);
        CHECK(madvise(view, size, MADV_DONTNEED) == 0);
    }
    home_is_whole();
}

static volatile int handled;

static void on_usr1(int sig, siginfo_t *info, void *context) {
    (void)sig, (void)info, (void)context;
    used_a_page();
    handled++;
}

/* A handler on an alternate stack touches a view; the fault's own handler runs while that stack is in use. */
static void *alternate(void *bytes) {
    size_t n = (size_t)bytes;
    char *at = mmap(NULL, n + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && mprotect(at + PAGE, n, PROT_READ | PROT_WRITE) == 0);
    stack_t s = {at + PAGE, 0, n};
    CHECK(sigaltstack(&s, NULL) == 0);
    struct sigaction a = {.sa_sigaction = on_usr1, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &a, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        used_a_page();
        CHECK(raise(SIGUSR1) == 0);
    }
    stack_t now;
    CHECK(sigaltstack(NULL, &now) == 0 && now.ss_sp == at + PAGE && now.ss_size == n && now.ss_flags == 0);
    return NULL;
}

static void altstacks(void) {
    /* What sysconf says is enough for a handler that does a little; the library asks for no more. */
    size_t least = (size_t)sysconf(_SC_MINSIGSTKSZ), usual = (size_t)sysconf(_SC_SIGSTKSZ);
    size_t sizes[] = {(least + PAGE - 1) / PAGE * PAGE + PAGE, (usual + PAGE - 1) / PAGE * PAGE, 64 << 10};
    for (int i = 0; i < 3; i++) {
        pthread_t t;
        CHECK(pthread_create(&t, NULL, alternate, (void *)sizes[i]) == 0 && pthread_join(t, NULL) == 0);
        CHECK(madvise(view, size, MADV_DONTNEED) == 0);
    }
    CHECK(handled == 60);
    home_is_whole();
}

/* The program runs again with a small limit of its stack. */
static void small(char **argv) {
    struct rlimit r = {256 << 10, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_STACK, &r) == 0);
    r.rlim_cur = 256 << 10;
    CHECK(setrlimit(RLIMIT_STACK, &r) == 0);
    char *next[] = {argv[0], argv[1], "stacks", NULL};
    execv(argv[0], next);
    CHECK(!"exec");
}

static int own_threads(pid_t *out, int most) {
    int n = 0;
    struct dirent *e;
    DIR *d = opendir("/proc/self/task");
    CHECK(d);
    while ((e = readdir(d)) && n < most) {
        char name[300], comm[32] = "";
        snprintf(name, sizeof name, "/proc/self/task/%s/comm", e->d_name);
        FILE *f = fopen(name, "r");
        if (f && fgets(comm, sizeof comm, f) && !strncmp(comm, "smc-", 4)) out[n++] = atoi(e->d_name);
        if (f) fclose(f);
    }
    closedir(d);
    return n;
}

static volatile int strayed;

static void stray(int sig) {
    (void)sig;
    strayed = 1;
}

/* Signals sent to the library's threads do nothing there: no handler of the program runs on them, and they serve on. */
static void signals(void) {
    pid_t t[16];
    usleep(100000); /* those of the region that filled the home have ended */
    int n = own_threads(t, 16);
    CHECK(n > 0);
    for (int sig = 1; sig <= SIGRTMAX; sig++) {
        struct sigaction a = {.sa_handler = stray};
        if (sig == SIGKILL || sig == SIGSTOP || sig == 32 || sig == 33) continue;
        /* The library's own handler of faults stays. */
        if (sig != SIGBUS && sig != SIGSEGV && sig != SIGTRAP) CHECK(sigaction(sig, &a, NULL) == 0);
        for (int i = 0; i < n; i++) CHECK(syscall(SYS_tgkill, getpid(), t[i], sig) == 0);
    }
    for (int i = 0; i < 100; i++) used_a_page();
    CHECK(!strayed);
    /* What has no handler, too: the default action of each would end or stop the program. */
    for (int sig = 1; sig <= SIGRTMAX; sig++) {
        if (sig == SIGKILL || sig == SIGSTOP || sig == 32 || sig == 33) continue;
        if (sig != SIGBUS && sig != SIGSEGV && sig != SIGTRAP) signal(sig, SIG_DFL);
        for (int i = 0; i < n; i++) CHECK(syscall(SYS_tgkill, getpid(), t[i], sig) == 0);
    }
    for (int i = 0; i < 100; i++) used_a_page();
    /* A process-wide signal finds the program's thread. */
    signal(SIGUSR2, stray);
    CHECK(kill(getpid(), SIGUSR2) == 0);
    for (int i = 0; i < 1000 && !strayed; i++) usleep(1000);
    CHECK(strayed);
    home_is_whole();
}

/* Stopped as a whole and continued, in the middle of faults. */
static void stopped(void) {
    pid_t c = fork();
    if (c == 0) {
        for (int i = 0; i < 20; i++) {
            kill(getppid(), SIGSTOP);
            usleep(2000);
            kill(getppid(), SIGCONT);
            usleep(1000);
        }
        _exit(0);
    }
    int status;
    while (waitpid(c, &status, WNOHANG) == 0) {
        used_a_page();
        CHECK(madvise(view, size, MADV_DONTNEED) == 0);
    }
    CHECK(status == 0);
    home_is_whole();
}

static void *hog(void *stop) {
    while (!*(volatile int *)stop) {}
    return NULL;
}

/* The library's threads have no time of their own to wait for: the toucher in a real-time class, others that only burn time,
 * and everybody on one processor. */
static void starved(void) {
    cpu_set_t one;
    int stop = 0;
    pthread_t t[3];
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    pid_t own[16];
    int n = own_threads(own, 16);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    for (int i = 0; i < n; i++) {
        CHECK(sched_setaffinity(own[i], sizeof one, &one) == 0 || errno == ESRCH); /* one may have ended by itself */
        setpriority(PRIO_PROCESS, own[i], 19);
    }
    for (int i = 0; i < 3; i++) CHECK(pthread_create(t + i, NULL, hog, &stop) == 0);
    for (int i = 0; i < 20; i++) used_a_page();
    struct sched_param p = {.sched_priority = 10};
    if (sched_setscheduler(0, SCHED_FIFO, &p) == 0) {
        for (int i = 0; i < 20; i++) used_a_page();
        p.sched_priority = 0;
        CHECK(sched_setscheduler(0, SCHED_OTHER, &p) == 0);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(t[i], NULL) == 0);
    home_is_whole();
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[2], "small")) small((path = argv[1], argv));
    const char *what = start(argc, argv);
    !strcmp(what, "stacks") ? stacks() : !strcmp(what, "altstacks") ? altstacks() : !strcmp(what, "signals") ? signals() : !strcmp(what, "stopped") ? stopped() : starved();
    puts("ok");
    return 0;
}
