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
    if (how < 3 && sig != SIGTRAP) fault(sig);
    raise(sig);
    touch();
    printf("alive\n");
}

int main(int argc, char **argv) {
    static const struct one_case CASES[] = {
        { "flags", flags }, { "jumps", jumps }, { "full_mask", full_mask }, { "unwinds", unwinds }, { "children", children }, { NULL, NULL },
    };
    if (argc == 5 && strcmp(argv[1], "die") == 0) {
        late = strcmp(argv[2], "late") == 0;
        if (!late) map();
        die_of(atoi(argv[3]), atoi(argv[4]));
        return 0;
    }
    return run_case(CASES, argc, argv);
}
