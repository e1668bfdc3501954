/* What the programs about signals share: pages, what is shown, and the handlers. */
#ifndef SIGNALS_H
#define SIGNALS_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define CHECK(c) do { if (!(c)) { printf("%d: %s: %s\n", __LINE__, #c, strerror(errno)); fflush(stdout); _exit(99); } } while (0)
extern __sighandler_t bsd_signal(int, __sighandler_t);
enum { PAGE = 4096, PAGES = 256 };

static const int SIGNALS[] = { SIGBUS, SIGSEGV, SIGTRAP, SIGALRM };
static volatile unsigned char *view, *hole, *beyond;
static volatile unsigned next;
static int late, region_fd = -1;

static inline void map(void) {
    const char *path = getenv("SIGNALS_REGION");
    int fd = path ? open(path, O_RDWR) : -1;
    CHECK(!path || fd >= 0);
    region_fd = fd;
    view = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, path ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    CHECK(view != MAP_FAILED);
}

/* The moment when a late region is mapped; after it, absent pages are loaded from and stored to. */
static inline void touch(void) {
    if (!view) map();
    for (int i = 0; i < 3; i++, next = (next + 1) % PAGES) {
        volatile unsigned char *p = view + next * PAGE;
        CHECK(p[7] == 0);
        p[8] = 5;
        CHECK(p[8] == 5);
        p[8] = 0;
    }
}

static inline void show_mask(const char *what, const sigset_t *s) {
    printf("%s:", what);
    for (int i = 1; i <= 64; i++)
        if (sigismember(s, i) == 1) printf(" %d", i);
    printf("\n");
}

static inline void show_own_mask(const char *what) {
    sigset_t s;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &s) == 0);
    show_mask(what, &s);
}

static inline void plain(int sig);
static inline void full(int sig, siginfo_t *i, void *c);

static inline const char *name_of(void (*h)(int)) {
    return h == SIG_DFL ? "default" : h == SIG_IGN ? "ignore" : h == SIG_ERR ? "error" : h == (void (*)(int))2 ? "hold" :
        h == plain ? "plain" : (void *)h == (void *)full ? "full" : "another";
}

static inline void show(int sig, const char *what) {
    struct sigaction a;
    memset(&a, 0x5a, sizeof a);
    CHECK(sigaction(sig, NULL, &a) == 0);
    printf("%s %d: %s %x", what, sig, name_of(a.sa_handler), a.sa_flags);
    show_mask("", &a.sa_mask);
}

static inline void set(int sig, void *handler, int flags, const sigset_t *mask) {
    struct sigaction a = { .sa_handler = handler, .sa_flags = flags }, old;
    if (mask) a.sa_mask = *mask;
    CHECK(sigaction(sig, &a, &old) == 0);
    printf("set %d: was %s %x\n", sig, name_of(old.sa_handler), old.sa_flags);
}

/* Handlers. */
static sigjmp_buf back;
static volatile int calls, jump, nest, stay;
static unsigned char *alt;

static inline void common(int sig) {
    stack_t s;
    char here;
    calls++;
    CHECK(sigaltstack(NULL, &s) == 0);
    int on = alt && (unsigned char *)&here >= alt && (unsigned char *)&here < alt + 65536;
    printf("handler %d, alternative stack %d %d\n", sig, on, !!(s.ss_flags & SS_ONSTACK));
    show_own_mask("  blocked");
    show(sig, "  inside");
    touch();
    if (nest > 0) {
        nest--;
        CHECK(raise(sig) == 0);
        printf("  after nested %d\n", calls);
    }
    if (jump) siglongjmp(back, 1);
}

static inline void plain(int sig) {
    common(sig);
}

static inline void full(int sig, siginfo_t *i, void *c) {
    ucontext_t *u = c;
    if (i->si_code > 0) printf("code %d, address %s\n", i->si_code, i->si_addr == hole + 5 ? "hole" : i->si_addr == beyond + 9 ? "beyond" : "?");
    else printf("code %d, sender %d, value %d\n", i->si_code, i->si_pid == getpid(), i->si_code == SI_QUEUE ? i->si_value.sival_int : 0);
    CHECK(i->si_signo == sig);
    if (i->si_code > 0 && !stay) CHECK(u->uc_mcontext.gregs[REG_RIP] != 0);
    common(sig);
}

/* Faults of the program's own. */
static inline void fault(int sig) {
    if (sig == SIGSEGV) hole[5] = 1;
    else beyond[9] = 1;
}

static inline void faults_prepare(void) {
    hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = memfd_create("beyond", 0);
    beyond = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fd >= 0 && hole != MAP_FAILED && beyond != MAP_FAILED);
    close(fd);
}

static inline void use_alt_stack(void) {
    alt = malloc(65536);
    stack_t s = { .ss_sp = alt, .ss_size = 65536 };
    CHECK(alt && sigaltstack(&s, NULL) == 0);
}

static inline sigset_t set_of(int a, int b) {
    sigset_t s;
    sigemptyset(&s);
    if (a) sigaddset(&s, a);
    if (b) sigaddset(&s, b);
    return s;
}

static inline sigset_t full_set(void) {
    sigset_t s;
    sigfillset(&s);
    return s;
}

/* Waits until the first thread waits. */
static inline void until_asleep(void) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    for (int seen = 0; seen < 3; usleep(5000)) {
        FILE *f = fopen(path, "r");
        CHECK(f && fgets(line, sizeof line, f));
        fclose(f);
        seen = strstr(line, ") S ") ? seen + 1 : 0;
    }
}

struct one_case { const char *name; void (*run)(void); };

/* Runs the case that the arguments name. */
static inline int run_case(const struct one_case *cases, int argc, char **argv) {
    CHECK(argc >= 3);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    late = strcmp(argv[2], "late") == 0;
    if (!late) map();
    for (; cases->name; cases++)
        if (strcmp(argv[1], cases->name) == 0) {
            cases->run();
            printf("end\n");
            return 0;
        }
    return 98;
}

#endif
