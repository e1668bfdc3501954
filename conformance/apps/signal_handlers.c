/* signal_handlers CASE WHEN: what a program can see of its own signals, as text. With SIGNALS_REGION the pages it touches are those
   of a region, mapped before the program sets anything (WHEN is "early") or after it (WHEN is "late"); without it they are
   plain memory. What is printed, and how the program ends, must be the same. */
#include "signals.h"

/* Each flag, with a fault and with a signal that is sent. */
static void flags(void) {
    static const int F[] = { 0, SA_NODEFER, SA_RESETHAND, SA_ONSTACK, SA_ONSTACK | SA_NODEFER, SA_RESTART };
    sigset_t some = set_of(SIGUSR1, SIGSEGV);
    faults_prepare();
    use_alt_stack();
    for (int i = 0; i < 6; i++)
        for (int info = 0; info < 2; info++)
            for (int m = 0; m < 2; m++)
                for (int s = 0; s < 2; s++) {
                    int sig = SIGNALS[s];
                    if (late == 0) touch();
                    set(sig, info ? (void *)full : (void *)plain, F[i] | (info ? SA_SIGINFO : 0), m ? &some : NULL);
                    nest = F[i] & SA_NODEFER && !(m && s) ? 2 : 0;
                    calls = 0;
                    jump = 0;
                    CHECK(kill(getpid(), sig) == 0);
                    show(sig, "after");
                    set(sig, info ? (void *)full : (void *)plain, F[i] | (info ? SA_SIGINFO : 0), m ? &some : NULL);
                    jump = 1;
                    if (sigsetjmp(back, 1) == 0) fault(sig);
                    jump = 0;
                    printf("%d calls\n", calls);
                    show_own_mask("after");
                    show(sig, "after");
                    touch();
                }
}

/* The handler is left by siglongjmp many times, and pages are brought in between. */
static void jumps(void) {
    faults_prepare();
    use_alt_stack();
    for (int s = 0; s < 2; s++) {
        for (volatile int i = 0; i < 50; i++) {
            set(SIGNALS[s], full, SA_SIGINFO | (i & 1 ? SA_ONSTACK : 0), NULL);
            jump = 1;
            if (sigsetjmp(back, 1) == 0) fault(SIGNALS[s]);
            touch();
        }
        /* Without the mask the signal stays blocked. */
        if (sigsetjmp(back, 0) == 0) fault(SIGNALS[s]);
        show_own_mask("left");
        touch();
        sigset_t own = set_of(SIGNALS[s], 0);
        CHECK(sigprocmask(SIG_UNBLOCK, &own, NULL) == 0);
        show_own_mask("open");
    }
}

static volatile unsigned long sum;
static void toucher(int sig) {
    (void)sig;
    for (int i = 0; i < PAGES; i++) {
        volatile unsigned char *p = view + i * PAGE;
        sum += p[3] + 1u;
        p[4] = (unsigned char)i;
    }
    show_own_mask("toucher");
}

/* A handler that blocks everything touches pages that are absent. */
static void full_mask(void) {
    sigset_t all = full_set();
    set(SIGUSR1, toucher, 0, &all);
    set(SIGUSR2, toucher, SA_ONSTACK, &all);
    if (!view) map();
    CHECK(raise(SIGUSR1) == 0);
    CHECK(raise(SIGUSR2) == 0);
    show(SIGUSR1, "then");
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    toucher(0);
    printf("sum %lu\n", sum);
}

/* The stack overflows, and the handler runs on the other one. */
static int __attribute__((noinline)) deeper(int n) {
    volatile char room[4096];
    room[0] = (char)n;
    return n == -1 ? 0 : deeper(n + 1) + room[0];
}

static void overflow(void) {
    use_alt_stack();
    for (volatile int i = 0; i < 3; i++) {
        set(SIGSEGV, plain, SA_ONSTACK, NULL);
        touch();
        jump = 1;
        if (sigsetjmp(back, 1) == 0) deeper(0);
        touch();
    }
}

/* Frames of the program are found below the handler. */
static volatile int found;
static void __attribute__((noinline)) faulting(void) {
    hole[5] = 1;
    found += 100;
}
static _Unwind_Reason_Code frame(struct _Unwind_Context *c, void *unused) {
    (void)unused;
    found += _Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(c)) == (void *)faulting;
    return _URC_NO_REASON;
}
static void unwinder(int sig) {
    (void)sig;
    _Unwind_Backtrace(frame, NULL);
    siglongjmp(back, 1);
}
static void unwinds(void) {
    faults_prepare();
    set(SIGSEGV, unwinder, 0, NULL);
    touch();
    if (sigsetjmp(back, 1) == 0) faulting();
    printf("found %d\n", found);
}

static void ends(const char *what, int status) {
    printf("%s: signal %d, exit %d\n", what, WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* Children: of fork, with and without exec, and of vfork. */
static void children(void) {
    int status;
    faults_prepare();
    set(SIGBUS, full, SA_SIGINFO, NULL);
    set(SIGSEGV, SIG_DFL, 0, NULL);
    touch();
    fflush(stdout);
    pid_t p = fork();
    if (p == 0) {
        show(SIGBUS, "child");
        view = calloc(PAGES, PAGE);
        jump = 1;
        if (sigsetjmp(back, 1) == 0) fault(SIGBUS);
        printf("%d calls\n", calls);
        fflush(stdout);
        fault(SIGSEGV);
    }
    CHECK(waitpid(p, &status, 0) == p);
    ends("fork", status);
    fflush(stdout);
    p = vfork();
    if (p == 0) {
        signal(SIGBUS, SIG_DFL);
        signal(SIGSEGV, SIG_IGN);
        execl("/bin/sh", "sh", "-c", "kill -BUS $$; exit 3", NULL);
        _exit(9);
    }
    CHECK(waitpid(p, &status, 0) == p);
    ends("vfork", status);
    show(SIGBUS, "parent");
    show(SIGSEGV, "parent");
    touch();
}

/* A new image of this program says what it was handed down. */
static void handed(void) {
    sigset_t pending;
    show_own_mask("handed");
    CHECK(sigpending(&pending) == 0);
    show_mask("waiting", &pending);
    for (int i = 0; i < 3; i++) show(SIGNALS[i], "handed");
}

static void exec_by(int way, char **args) {
    const char *self = args[0];
    int fd = way == 5 ? open(self, O_RDONLY) : -1;
    switch (way) {
    case 0: execve(self, args, environ); break;
    case 1: execv(self, args); break;
    case 2: execvp(self, args); break;
    case 3: execvpe(self, args, environ); break;
    case 4: execl(self, self, "handed", "late", "1", "2", "3", "4", "5", NULL); break;
    case 5: fexecve(fd, args, environ); break;
    case 6: execlp(self, self, "handed", "late", "1", "2", "3", "4", "5", NULL); break;
    case 7: execle(self, self, "handed", "late", "1", "2", "3", "4", "5", NULL, environ); break;
    case 8: execveat(AT_FDCWD, self, args, environ, 0); break;
    }
}

static void execs(void) {
    char self[] = "/proc/self/exe", nowhere[] = "/nowhere/at/all", case_[] = "handed", when[] = "late";
    char *args[] = { self, case_, when, NULL };
    sigset_t some = set_of(SIGBUS, SIGSEGV), all = full_set(), none = set_of(0, 0);
    const sigset_t *masks[] = { &none, &some, &all };
    int status;
    pid_t p;
    touch();
    set(SIGBUS, full, SA_SIGINFO, NULL);
    for (int way = 0; way < 9; way++) {
        const sigset_t *m = masks[way % 3];
        CHECK(signal(SIGSEGV, way & 1 ? SIG_IGN : SIG_DFL) != SIG_ERR);
        CHECK(signal(SIGTRAP, SIG_IGN) != SIG_ERR);
        fflush(stdout);
        p = way & 2 ? fork() : vfork();
        if (p == 0) {
            sigprocmask(SIG_SETMASK, m, NULL);
            if (m != &none) kill(getpid(), SIGBUS);
            exec_by(way, args);
            _exit(9);
        }
        CHECK(waitpid(p, &status, 0) == p);
        ends("child", status);
        touch();
        /* It fails, and nothing has changed. */
        int list = way == 4 || way == 6 || way == 7;
        /* Those with a list of arguments take nothing back. */
        CHECK(!list || (signal(SIGSEGV, SIG_DFL) != SIG_ERR && signal(SIGTRAP, SIG_DFL) != SIG_ERR));
        CHECK(sigprocmask(SIG_SETMASK, list ? &none : m, NULL) == 0);
        args[0] = nowhere;
        exec_by(way, args);
        CHECK(errno == (way == 5 ? EINVAL : ENOENT));
        args[0] = self;
        show_own_mask("failed");
        show(SIGSEGV, "failed");
        touch();
        /* What is ignored is not handed down by these. */
        CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR && signal(SIGTRAP, SIG_DFL) != SIG_ERR);
        CHECK(posix_spawn(&p, self, NULL, NULL, args, environ) == 0 && waitpid(p, &status, 0) == p);
        ends("posix_spawn", status);
        CHECK(posix_spawnp(&p, nowhere, NULL, NULL, args, environ) == ENOENT);
        touch();
        CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    }
}

/* The process that has the region is replaced. */
static void replaced(void) {
    char self[] = "/proc/self/exe", case_[] = "handed", when[] = "late";
    char *args[] = { self, case_, when, NULL };
    sigset_t some = set_of(SIGBUS, SIGSEGV);
    set(SIGTRAP, SIG_IGN, 0, NULL);
    set(SIGBUS, full, SA_SIGINFO, NULL);
    touch();
    CHECK(sigprocmask(SIG_SETMASK, &some, NULL) == 0 && raise(SIGBUS) == 0);
    fflush(stdout);
    exec_by(0, args);
}

/* A mask from before the region, here and in another thread; a store that is stepped while SIGTRAP is blocked. */
static pthread_barrier_t meet;
static void *earlier(void *arg) {
    sigset_t all = full_set();
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    show_own_mask("other");
    touch();
    return arg;
}

static void before(void) {
    static _Alignas(64) unsigned char here[512];
    sigset_t all = full_set(), pending;
    pthread_t t;
    CHECK(pthread_barrier_init(&meet, NULL, 2) == 0 && pthread_create(&t, NULL, earlier, NULL) == 0);
    pthread_barrier_wait(&meet);
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0 && raise(SIGBUS) == 0);
    touch();
    show_own_mask("own");
    CHECK(sigpending(&pending) == 0);
    show_mask("pending", &pending);
    pthread_barrier_wait(&meet);
    CHECK(pthread_join(t, NULL) == 0);
    for (int i = 100; i < 104; i++) {
        __asm__ volatile("fxsave64 %0" : "=m"(*(volatile unsigned char (*)[512])(view + i * PAGE)));
        __asm__ volatile("fxsave64 %0" : "=m"(here));
        CHECK(memcmp((unsigned char *)view + i * PAGE + 32, here + 32, 384) == 0);
        memset((unsigned char *)view + i * PAGE, 0, 512);
    }
    show_own_mask("stepped");
}

/* The exporter goes away: a page of the region is the program's own SIGBUS, at its address. */
static volatile unsigned char *volatile gone_at;
static void gone_handler(int sig, siginfo_t *i, void *c) {
    (void)c;
    printf("handler %d, address %d\n", sig, i->si_addr == (void *)gone_at);
    show_own_mask("  blocked");
    siglongjmp(back, 1);
}

/* That the exporter has ended is noticed a moment later: until then its memory can still be read. */
static void until_it_is_noticed(void) {
    unsigned char c;
    for (off_t page = 300; pread(region_fd, &c, 1, page * PAGE) == 1; page++) {
        CHECK(page < 4000);
        usleep(2000);
    }
}

static void gone(void) {
    char line[8];
    set(SIGBUS, gone_handler, SA_SIGINFO, NULL);
    touch();
    printf("ready\n");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
    until_it_is_noticed();
    for (int i = 0; i < 2; i++) {
        gone_at = view + (200 + i) * PAGE + 5;
        if (sigsetjmp(back, 1) == 0) {
            if (i) *gone_at = 1;
            printf("loaded %d\n", *gone_at);
        }
    }
    show_own_mask("after");
    set(SIGBUS, SIG_IGN, 0, NULL);
    fflush(stdout);
    gone_at = view + 202 * PAGE;
    printf("loaded %d\n", *gone_at);
    fflush(stdout);
    _exit(3);
}

static void die_of(int sig, int how) {
    sigset_t own = set_of(sig, 0);
    faults_prepare();
    touch();
    switch (how) {
    case 0: break;
    case 1: set(sig, SIG_IGN, 0, NULL); break;
    case 2: set(sig, full, SA_SIGINFO, NULL); CHECK(sigprocmask(SIG_BLOCK, &own, NULL) == 0); break;
    case 3: set(sig, plain, SA_RESETHAND | SA_NODEFER, NULL); CHECK(raise(sig) == 0); break;
    }
    touch();
    fflush(stdout);
    if (how < 3 && (sig == SIGSEGV || sig == SIGBUS)) fault(sig);
    raise(sig);
    touch();
    printf("alive\n");
}

int main(int argc, char **argv) {
    static const struct one_case CASES[] = {
        { "flags", flags }, { "jumps", jumps }, { "full_mask", full_mask }, { "unwinds", unwinds }, { "children", children }, { "execs", execs }, { "replaced", replaced }, { "gone", gone }, { "overflow", overflow },
        { "handed", handed }, { "before", before }, { NULL, NULL },
    };
    if (argc == 5 && strcmp(argv[1], "die") == 0) {
        late = strcmp(argv[2], "late") == 0;
        if (!late) map();
        die_of(atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    return run_case(CASES, argc, argv);
}
