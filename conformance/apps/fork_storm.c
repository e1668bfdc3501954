/* fork_storm PATH HOW [FORKS]: eight threads keep the hooks busy while the first one makes children (HOW: fork, vfork,
   spawn), or while a signal handler that allocates and sends comes a thousand times a second (HOW: signals). Nobody may
   hang: a lock of the library that a thread holds at the fork, or that the interrupted thread holds, would do it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #c, errno, strerror(errno)); _exit(1); } } while (0)

enum { THREADS = 8, PAGE = 4096, LENGTH = 1 << 16, PATIENCE_MS = 10000 };

static const char *path;
static atomic_int over;
static atomic_ulong rounds;
static int pair[2];

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Opens, maps, stores, unmaps, closes. */
static void use_region(unsigned n) {
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    struct stat st;
    CHECK(fstat(fd, &st) == 0 && st.st_size >= LENGTH);
    char *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    at[n % 16 * PAGE + n % 8] = (char)n;
    char got[64];
    int other = dup(fd);
    CHECK(pread(fd, got, sizeof got, n % 16 * PAGE) == sizeof got && other >= 0 && close(other) == 0);
    CHECK(munmap(at, LENGTH) == 0 && close(fd) == 0);
}

static void use_heap(unsigned n) {
    void *many[16];
    for (unsigned i = 0; i < 16; i++)
        CHECK((many[i] = malloc(1 + (n * 797 + i * 4099) % 70000)));
    for (unsigned i = 0; i < 16; i++)
        free(many[i]);
}

static void *work(void *arg) {
    for (unsigned n = (unsigned)(uintptr_t)arg; !over; n += THREADS, rounds++) {
        if (n % 2)
            use_region(n / 2);
        use_heap(n);
    }
    return NULL;
}

/* What children do first. The region is the parent's: a name of it is refused, at once. */
static void child(void) {
    void *p = malloc(100000), *q = malloc(100);
    CHECK(p && q);
    free(p);
    free(q);
    (void)getenv("PATH");
    int fd = open("/dev/null", O_RDWR), twice = dup(fd);
    struct stat st;
    CHECK(fd >= 0 && twice >= 0 && fstat(fd, &st) == 0 && write(fd, "x", 1) == 1 && close(twice) == 0 && close(fd) == 0);
    void *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && mprotect(at, PAGE, PROT_READ) == 0 && munmap(at, LENGTH) == 0);
    CHECK(open(path, O_RDWR) == -1 && stat(path, &st) == -1);
}

extern char **environ;
static char *const command[] = { "/bin/true", NULL };

static pid_t make(const char *how, int n) {
    pid_t p = -1;
    if (!strcmp(how, "spawn"))
        CHECK(posix_spawn(&p, command[0], NULL, NULL, command, environ) == 0);
    else if (!strcmp(how, "vfork")) {
        p = vfork();
        if (p == 0) {
            execve(command[0], command, environ);
            _exit(9);
        }
    } else if ((p = fork()) == 0) {
        child();
        if (n % 2)
            execve(command[0], command, environ);
        _exit(n % 2 ? 9 : 0);
    }
    CHECK(p > 0);
    return p;
}

static void make_children(const char *how, int forks) {
    for (int n = 0; n < forks; n++) {
        pid_t p = make(how, n);
        long begin = now_ms();
        int status = -1;
        pid_t ended;
        while ((ended = waitpid(p, &status, WNOHANG)) == 0) {
            if (now_ms() - begin > PATIENCE_MS) {
                fprintf(stderr, "%s %d hangs\n", how, n);
                kill(p, SIGKILL);
                _exit(1);
            }
            usleep(200);
        }
        CHECK(ended == p && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static atomic_ulong came;

static void on_alarm(int sig) {
    int before = errno;
    (void)sig;
    for (unsigned n = 1; n < 40000; n = n * 5 + 1)
        free(malloc(n));
    char byte = 'x';
    (void)!send(pair[0], &byte, 1, MSG_DONTWAIT);
    (void)!recv(pair[1], &byte, 1, MSG_DONTWAIT);
    came++;
    errno = before;
}

/* Only functions that a handler may interrupt; the handler allocates. */
static void under_signals(void) {
    struct sigaction sa = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    struct itimerval every = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
    CHECK(sigaction(SIGALRM, &sa, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
    long end = now_ms() + 2000, last = now_ms();
    for (unsigned n = 0; now_ms() < end; n++) {
        use_region(n);
        CHECK(now_ms() - last < PATIENCE_MS);
        last = now_ms();
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && came > 100);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    path = argv[1];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    pthread_t threads[THREADS];
    int n = strcmp(argv[2], "signals") ? THREADS : 0;
    for (int i = 0; i < n; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    if (n)
        make_children(argv[2], argc > 3 ? atoi(argv[3]) : 500);
    else
        under_signals();
    over = 1;
    for (int i = 0; i < n; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(!n || rounds > THREADS);
    CHECK(close(fd) == 0);
    return puts("storm over") < 0;
}
