/* Children and signals in the middle of everything: `storm fork|vfork|spawn|signal SECONDS-OR-COUNT [REGION]`. */
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
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TRUE(x) do { if (!(x)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #x, errno); _exit(1); } } while (0)
#define THREADS 8
#define SIZE 65536

extern char **environ;
static const char *region;
static atomic_int stop;
static atomic_long signals;
static int ends[2];

/* One region from birth to death. */
static void use_region(void) {
    if (!region) return;
    int fd = open(region, O_RDWR);
    TRUE(fd >= 0);
    volatile char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    TRUE(m != MAP_FAILED);
    m[4096] = (char)(m[0] + 1);
    char c;
    TRUE(pread(fd, &c, 1, 8192) == 1);
    TRUE(msync((void *)m, SIZE, MS_SYNC) == 0 && munmap((void *)m, SIZE) == 0 && close(fd) == 0);
}

static void *work(void *seed_of) {
    unsigned seed = (unsigned)(uintptr_t)seed_of;
    /* Threads differ: few regions, many blocks. */
    for (int i = 0; !stop; i++) {
        void *p = malloc((size_t)(rand_r(&seed) % 100000) + 1);
        TRUE(p);
        *(char *)p = 1;
        free(realloc(p, (size_t)(rand_r(&seed) % 5000) + 1));
        if (i % 64 == 0 && seed_of == (void *)1) use_region();
        /* The children need a processor too. */
        if (i % 32 == 0) usleep(2000);
    }
    return NULL;
}

static void child(int i, char **argv) {
    alarm(20);
    void *p = malloc(70000 + (size_t)i);
    if (!p) _exit(2);
    memset(p, i, 70000);
    free(p);
    if (!getenv("PATH")) _exit(3);
    if (i % 2) _exit(0);
    execv("/bin/true", argv);
    _exit(4);
}

static pid_t by_vfork(char **argv) {
    pid_t pid = vfork();
    if (pid != 0) return pid;
    execv("/bin/true", argv);
    _exit(4);
}

static void children(const char *how, int count) {
    char *argv[] = {"true", NULL};
    for (int i = 0; i < count; i++) {
        pid_t pid = -1;
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        if (strcmp(how, "spawn") == 0) {
            TRUE(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ) == 0);
        } else if (strcmp(how, "vfork") == 0) {
            pid = by_vfork(argv);
        } else {
            pid = fork();
            if (pid == 0) child(i, argv);
        }
        int status;
        TRUE(pid > 0 && waitpid(pid, &status, 0) == pid);
        clock_gettime(CLOCK_MONOTONIC, &to);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "child %d of %s: status %#x\n", i, how, (unsigned)status);
            _exit(1);
        }
        TRUE(to.tv_sec - from.tv_sec < 10);
    }
}

static void handler(int s) {
    (void)s;
    int before = errno;
    /* Small enough for the thread's own cache: as programs do it, and get away with it. */
    void *p = malloc(500);
    if (p) memset(p, 1, 500);
    free(p);
    char c = 'x';
    TRUE(send(ends[0], &c, 1, MSG_DONTWAIT) == 1 || errno == EAGAIN);
    TRUE(recv(ends[1], &c, 1, MSG_DONTWAIT) == 1 || errno == EAGAIN);
    signals++;
    errno = before;
}

static void interrupted(int seconds) {
    struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    TRUE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    TRUE(sigaction(SIGALRM, &sa, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
    time_t end = time(NULL) + seconds;
    char buf[100];
    long done = 0;
    for (; time(NULL) < end; done++) {
        use_region();
        int fd = open("/proc/self/stat", O_RDONLY);
        TRUE(fd >= 0 && read(fd, buf, sizeof buf) > 0 && close(fd) == 0);
        int other = dup(ends[0]);
        TRUE(other >= 0 && close(other) == 0);
    }
    TRUE(setitimer(ITIMER_REAL, &never, NULL) == 0);
    TRUE(signals > 100 && done > 10);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    region = argc > 3 ? argv[3] : NULL;
    if (strcmp(argv[1], "signal") == 0) {
        interrupted(atoi(argv[2]));
    } else {
        pthread_t t[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++) TRUE(pthread_create(&t[i], NULL, work, (void *)(i + 1)) == 0);
        children(argv[1], atoi(argv[2]));
        stop = 1;
        for (int i = 0; i < THREADS; i++) TRUE(pthread_join(t[i], NULL) == 0);
    }
    puts("storm over");
    return 0;
}
