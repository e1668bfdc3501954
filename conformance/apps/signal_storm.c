/* signal_storm CASE early: threads load and store in their pages of a region that holds few of them, block and open signals, and
   fault for themselves, while others send them signals and set handlers. For two seconds; every value and every fault is
   accounted for. The alarm ends a hang. */
#include "signals.h"

enum { TOUCHERS = 3 };

static pthread_t touchers[TOUCHERS];
static volatile int stop;
static volatile long arrived, faulted;
static __thread sigjmp_buf here;
static __thread volatile int expecting;

static void first(int sig, siginfo_t *i, void *c) {
    (void)c;
    if (i->si_code > 0) {
        CHECK(expecting == sig && i->si_addr == (sig == SIGSEGV ? (void *)(hole + 5) : (void *)(beyond + 9)));
        siglongjmp(here, 1);
    }
    CHECK(i->si_pid == getpid());
    __atomic_add_fetch(&arrived, 1, __ATOMIC_RELAXED);
}

static void second(int sig, siginfo_t *i, void *c) {
    first(sig, i, c);
}

static void *sender(void *arg) {
    for (unsigned n = 0; !stop; n++)
        CHECK(pthread_kill(touchers[n % TOUCHERS], n & 1 ? SIGBUS : SIGSEGV) == 0 && (n % 64 || sched_yield() == 0));
    return arg;
}

static void *setter(void *arg) {
    static const int F[] = { 0, SA_ONSTACK, SA_RESTART, SA_RESTART | SA_ONSTACK };
    for (unsigned n = 0; !stop; n++) {
        struct sigaction a = { .sa_sigaction = n & 1 ? first : second, .sa_flags = SA_SIGINFO | F[n / 2 % 4] }, old;
        if (n & 8) sigfillset(&a.sa_mask);
        CHECK(sigaction(n & 4 ? SIGBUS : SIGSEGV, &a, &old) == 0 && (old.sa_sigaction == first || old.sa_sigaction == second));
        CHECK(old.sa_flags & SA_SIGINFO);
    }
    return arg;
}

static void *toucher(void *arg) {
    int id = (int)(intptr_t)arg;
    static unsigned char stacks[TOUCHERS][1 << 16];
    stack_t s = { .ss_sp = stacks[id], .ss_size = sizeof stacks[id] };
    sigset_t both = set_of(SIGBUS, SIGSEGV);
    CHECK(sigaltstack(&s, NULL) == 0);
    for (volatile unsigned n = 0; !stop; n++) {
        for (volatile int p = id; p < PAGES; p += TOUCHERS) {
            volatile unsigned *word = (volatile unsigned *)(view + p * PAGE + 64);
            CHECK(*word == n);
            *word = n + 1;
            if (p % 7 == 0) CHECK(sigprocmask(p % 2 ? SIG_BLOCK : SIG_UNBLOCK, &both, NULL) == 0);
        }
        CHECK(sigprocmask(SIG_UNBLOCK, &both, NULL) == 0);
        expecting = n & 1 ? SIGSEGV : SIGBUS;
        if (sigsetjmp(here, 1) == 0) {
            fault(expecting);
            CHECK(!"a fault is lost");
        }
        expecting = 0;
        __atomic_add_fetch(&faulted, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void storm(void) {
    pthread_t s, h;
    faults_prepare();
    for (int i = 0; i < 2; i++) {
        struct sigaction a = { .sa_sigaction = first, .sa_flags = SA_SIGINFO };
        CHECK(sigaction(SIGNALS[i], &a, NULL) == 0);
    }
    alarm(50);
    for (intptr_t i = 0; i < TOUCHERS; i++) CHECK(pthread_create(&touchers[i], NULL, toucher, (void *)i) == 0);
    CHECK(pthread_create(&s, NULL, sender, NULL) == 0 && pthread_create(&h, NULL, setter, NULL) == 0);
    for (int i = 0; i < 20 || (faulted < 20 && i < 400); i++) usleep(100000);
    stop = 1;
    CHECK(pthread_join(s, NULL) == 0 && pthread_join(h, NULL) == 0);
    for (int i = 0; i < TOUCHERS; i++) CHECK(pthread_join(touchers[i], NULL) == 0);
    printf("%ld arrived, %ld faults\n", arrived, faulted);
    CHECK(arrived > 100 && faulted >= 20);
    fflush(stdout);
    /* The next program finds zeros. */
    for (int p = 0; p < PAGES; p++) *(volatile unsigned *)(view + p * PAGE + 64) = 0;
}

/* Children are made while other threads change dispositions: a child finds whole ones, and can change them. */
static void forks(void) {
    pthread_t h[3];
    int status;
    faults_prepare();
    for (int i = 0; i < 2; i++) {
        struct sigaction a = { .sa_sigaction = first, .sa_flags = SA_SIGINFO };
        CHECK(sigaction(SIGNALS[i], &a, NULL) == 0);
    }
    alarm(50);
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&h[i], NULL, setter, NULL) == 0);
    for (int n = 0; n < 300; n++) {
        pid_t p = n % 3 ? fork() : vfork();
        if (p == 0 && n % 3 == 0) {
            signal(SIGBUS, SIG_DFL);
            execl("/bin/true", "true", NULL);
            _exit(1);
        }
        if (p == 0) {
            struct sigaction a = { .sa_sigaction = second, .sa_flags = SA_SIGINFO }, old;
            alarm(20);
            for (int i = 0; i < 40; i++) {
                CHECK(sigaction(SIGNALS[i & 1], &a, &old) == 0 && (old.sa_sigaction == first || old.sa_sigaction == second));
                CHECK(raise(SIGNALS[i & 1]) == 0 && arrived > i);
            }
            _exit(0);
        }
        CHECK(p > 0 && waitpid(p, &status, 0) == p);
        if (status) printf("child %d ends with %x\n", n, status);
        CHECK(status == 0);
        touch();
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(h[i], NULL) == 0);
}

int main(int argc, char **argv) {
    static const struct one_case CASES[] = { { "storm", storm }, { "forks", forks }, { NULL, NULL } };
    return run_case(CASES, argc, argv);
}
