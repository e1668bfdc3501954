/* signals CASE WHEN: what a program can see of its own signals, as text. With SIGNALS_REGION the pages it touches are those
   of a region, mapped before the program sets anything (WHEN is "early") or after it (WHEN is "late"); without it they are
   plain memory. What is printed, and how the program ends, must be the same. */
#include "signals.h"

static void answers(void) {
    sigset_t some = set_of(SIGBUS, SIGUSR1), all = full_set();
    for (unsigned i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++) {
        int sig = SIGNALS[i];
        show(sig, "first");
        set(sig, full, SA_SIGINFO | SA_ONSTACK | SA_RESTART, &some);
        touch();
        show(sig, "then");
        set(sig, plain, SA_NODEFER | SA_RESETHAND, &all);
        show(sig, "then");
        set(sig, plain, SA_NOCLDSTOP | 0x00012340, NULL);
        show(sig, "then");
        printf("signal %s\n", name_of(signal(sig, SIG_IGN)));
        show(sig, "then");
        printf("bsd_signal %s\n", name_of(bsd_signal(sig, plain)));
        show(sig, "then");
        printf("sysv_signal %s\n", name_of(sysv_signal(sig, plain)));
        show(sig, "then");
        printf("ssignal %s\n", name_of(ssignal(sig, plain)));
        struct sigaction a = { .sa_handler = plain }, old;
        int (*by_name)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_DEFAULT, "__sigaction");
        __sighandler_t (*once)(int, __sighandler_t) = dlsym(RTLD_DEFAULT, "__sysv_signal");
        printf("__sysv_signal %s\n", name_of(once(sig, SIG_IGN)));
        CHECK(by_name(sig, &a, &old) == 0);
        printf("__sigaction %s %x\n", name_of(old.sa_handler), old.sa_flags);
        printf("siginterrupt %d\n", siginterrupt(sig, 1));
        show(sig, "then");
        printf("signal %s\n", name_of(signal(sig, plain)));
        show(sig, "interrupting");
        printf("siginterrupt %d\n", siginterrupt(sig, 0));
        show(sig, "then");
        printf("sigset %s\n", name_of(sigset(sig, SIG_HOLD)));
        show_own_mask("held");
        printf("sigset %s\n", name_of(sigset(sig, SIG_DFL)));
        show_own_mask("open");
        printf("sigignore %d\n", sigignore(sig));
        show(sig, "then");
        printf("sighold %d\n", sighold(sig));
        show_own_mask("held");
        printf("sigrelse %d\n", sigrelse(sig));
        show_own_mask("open");
        printf("signal %s\n", name_of(signal(sig, SIG_DFL)));
        CHECK(signal(sig, SIG_ERR) == SIG_ERR && errno == EINVAL);
    }
    errno = 77;
    CHECK(signal(SIGBUS, plain) == SIG_DFL && errno == 77);
    CHECK(sigaction(SIGKILL, &(struct sigaction){ .sa_handler = plain }, NULL) == -1 && errno == EINVAL);
    CHECK(sigaction(65, NULL, NULL) == -1 && errno == EINVAL);
    touch();
}

static void masks(void) {
    sigset_t all = full_set(), bus = set_of(SIGBUS, 0), both = set_of(SIGSEGV, SIGBUS), none = set_of(0, 0), old;
    const sigset_t *each[] = { &bus, &both, &all, &none };
    touch();
    for (int i = 0; i < 4; i++)
        for (int how = SIG_BLOCK; how <= SIG_SETMASK; how++) {
            CHECK(sigprocmask(how, each[i], &old) == 0);
            show_mask("before", &old);
            touch();
            show_own_mask("after");
            CHECK(pthread_sigmask(how, each[(i + 1) % 4], &old) == 0);
            show_mask("before", &old);
            show_own_mask("after");
        }
    errno = 0;
    CHECK(sigprocmask(7, &bus, NULL) == -1 && errno == EINVAL && pthread_sigmask(7, &bus, NULL) == EINVAL);
    CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    printf("sigblock %x\n", sigblock(1 << (SIGBUS - 1) | 1 << (SIGUSR1 - 1)));
    printf("siggetmask %x\n", ((int (*)(void))dlsym(RTLD_DEFAULT, "siggetmask"))());
    printf("sigsetmask %x\n", sigsetmask(1 << (SIGUSR2 - 1)));
    show_own_mask("after");
    CHECK(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    sigjmp_buf j;
    CHECK(sigsetjmp(j, 1) == 0 || 1);
    touch();
    show_own_mask("full");
}

static void *in_thread(void *what) {
    show_own_mask("thread");
    touch();
    return what;
}

static void threads(void) {
    sigset_t all = full_set(), bus = set_of(SIGBUS, SIGUSR1), got;
    pthread_t t;
    pthread_attr_t a;
    touch();
    CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    CHECK(pthread_create(&t, NULL, in_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
    CHECK(pthread_attr_init(&a) == 0 && pthread_attr_setsigmask_np(&a, &bus) == 0);
    CHECK(pthread_attr_getsigmask_np(&a, &got) == 0);
    show_mask("attribute", &got);
    CHECK(pthread_create(&t, &a, in_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
    CHECK(pthread_attr_setsigmask_np(&a, &all) == 0);
    CHECK(pthread_create(&t, &a, in_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
}

static volatile int woken;
static void wake(int sig) {
    (void)sig;
    woken++;
}

struct sleeper { pthread_t self; int fd; };

static void *later(void *target) {
    struct sleeper *to = target;
    until_asleep();
    CHECK(pthread_kill(to->self, SIGBUS) == 0);
    while (!woken) usleep(1000);
    until_asleep();
    CHECK(write(to->fd, "x", 1) == 1);
    return NULL;
}

/* SA_RESTART decides whether a read is ended by the signal. */
static void restart(void) {
    for (int f = 0; f < 2; f++) {
        struct sleeper to;
        int p[2];
        char c;
        pthread_t t;
        CHECK(pipe(p) == 0);
        to.self = pthread_self();
        to.fd = p[1];
        woken = 0;
        set(SIGBUS, wake, f ? SA_RESTART : 0, NULL);
        touch();
        CHECK(pthread_create(&t, NULL, later, &to) == 0);
        errno = 0;
        ssize_t n = read(p[0], &c, 1);
        printf("read %zd %s, woken %d\n", n, n < 0 ? strerror(errno) : "", woken);
        CHECK(pthread_join(t, NULL) == 0);
    }
}

static void send_all(int sig) {
    CHECK(kill(getpid(), sig) == 0);
    show_own_mask("sent by kill");
    CHECK(pthread_kill(pthread_self(), sig) == 0);
    show_own_mask("sent by pthread_kill");
    CHECK(sigqueue(getpid(), sig, (union sigval){ .sival_int = 42 }) == 0);
    show_own_mask("sent by sigqueue");
}

static volatile int sending;
static void *send_later(void *target) {
    until_asleep();
    CHECK(pthread_kill(*(pthread_t *)target, sending) == 0);
    return NULL;
}

static void sent(void) {
    for (unsigned i = 0; i < 3; i++) {
        int sig = SIGNALS[i];
        sigset_t own = set_of(sig, 0), none = set_of(0, 0), pending;
        set(sig, full, SA_SIGINFO, NULL);
        touch();
        send_all(sig);
        /* Blocked, they wait, and one of them is kept. */
        int (*suspend)(const sigset_t *) = dlsym(RTLD_DEFAULT, "__sigsuspend");
        for (int way = 0; way < 4; way++) {
            siginfo_t info;
            int got = 0;
            CHECK(sigprocmask(SIG_BLOCK, &own, NULL) == 0);
            calls = 0;
            touch();
            CHECK(sigqueue(getpid(), sig, (union sigval){ .sival_int = 7 + way }) == 0);
            CHECK(sigpending(&pending) == 0);
            show_mask("pending", &pending);
            printf("%d calls while blocked\n", calls);
            switch (way) {
            case 0:
                CHECK(sigprocmask(SIG_UNBLOCK, &own, NULL) == 0);
                break;
            case 1:
                CHECK(sigsuspend(&none) == -1 && errno == EINTR);
                show_own_mask("after sigsuspend");
                break;
            case 3:
                CHECK(suspend(&none) == -1 && errno == EINTR);
                break;
            case 2:
                got = sigtimedwait(&own, &info, &(struct timespec){ 5, 0 });
                printf("waited for %d: %d %d %d\n", got, info.si_signo, info.si_code, info.si_value.sival_int);
                CHECK(kill(getpid(), sig) == 0 && sigwaitinfo(&own, &info) == sig && info.si_signo == sig);
                printf("code %d, sender %d\n", info.si_code, info.si_pid == getpid());
                CHECK(pthread_kill(pthread_self(), sig) == 0 && sigwait(&own, &got) == 0 && got == sig);
                CHECK(sigtimedwait(&own, NULL, &(struct timespec){ 0, 1000 }) == -1 && errno == EAGAIN);
            }
            printf("%d calls in the end\n", calls);
            CHECK(sigpending(&pending) == 0);
            show_mask("pending", &pending);
            CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
        }
        /* It arrives while the thread is suspended: its handler has run when the call returns. */
        pthread_t t, self = pthread_self();
        CHECK(sigprocmask(SIG_BLOCK, &own, NULL) == 0);
        calls = 0;
        sending = sig;
        CHECK(pthread_create(&t, NULL, send_later, &self) == 0);
        CHECK(sigsuspend(&none) == -1 && errno == EINTR);
        printf("%d calls\n", calls);
        show_own_mask("after sigsuspend");
        CHECK(pthread_join(t, NULL) == 0 && sigprocmask(SIG_SETMASK, &none, NULL) == 0);
        CHECK(signal(sig, SIG_IGN) != SIG_ERR);
        calls = 0;
        send_all(sig);
        printf("%d calls\n", calls);
        touch();
    }
}

int main(int argc, char **argv) {
    static const struct one_case CASES[] = {
        { "answers", answers }, { "masks", masks }, { "threads", threads }, { "restart", restart }, { "sent", sent }, { NULL, NULL },
    };
    return run_case(CASES, argc, argv);
}
