/* A program in an odd state; the first argument says which. Exit status 0 when all is as it must be; else the line of the
 * check that failed, or a signal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SIZE 65536
#define TRUE(x) ((x) ? (void)0 : _exit(__LINE__ & 127 ? __LINE__ & 127 : 1))

/* Loads and stores in a region. */
static void use_region(const char *path) {
    int fd = open(path, O_RDWR);
    TRUE(fd >= 0);
    char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), got[4];
    TRUE(m != MAP_FAILED);
    for (int i = 0; i < SIZE; i += 4096) m[i] = (char)(m[i] + 1);
    TRUE(msync(m, SIZE, MS_SYNC) == 0);
    TRUE(pread(fd, got, 4, 4096) == 4 && memcmp(got, m + 4096, 4) == 0);
    TRUE(munmap(m, SIZE) == 0 && close(fd) == 0);
}

static char *region;

/* Everything that is hooked, on as little stack as a thread can have. */
static void *on_a_small_stack(void *unused) {
    (void)unused;
    struct stat st;
    char buf[64];
    for (int i = 0; i < 50; i++) {
        free(realloc(malloc(100 + i), 5000));
        void *p = NULL;
        TRUE(posix_memalign(&p, 64, 100) == 0);
        free(p);
        TRUE(stat("/", &st) == 0 && open("/nowhere/x", O_RDONLY) < 0 && errno == ENOENT);
        int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
        TRUE(fd >= 0 && read(fd, buf, sizeof buf) > 0 && close(fd) == 0);
        void *m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        TRUE(m != MAP_FAILED && munmap(m, 8192) == 0);
        TRUE(dlsym(RTLD_DEFAULT, "malloc") != NULL);
    }
    if (region) use_region(region);
    return NULL;
}

static int stack(int threads) {
    pthread_attr_t a;
    pthread_t t[16];
    TRUE(pthread_attr_init(&a) == 0 && pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN) == 0);
    for (int i = 0; i < threads; i++) TRUE(pthread_create(&t[i], &a, on_a_small_stack, NULL) == 0);
    for (int i = 0; i < threads; i++) TRUE(pthread_join(t[i], NULL) == 0);
    return 0;
}

/* After this the kernel ends the process at any call but read, write, exit and sigreturn. */
static int strict(void) {
    int ends[2];
    char c = 'x';
    TRUE(pipe(ends) == 0);
    void *early = malloc(10);
    TRUE(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    ssize_t n = write(ends[1], &c, 1);
    n += read(ends[0], &c, 1);
    free(early);
    n += write(1, "strict\n", 7);
    syscall(SYS_exit, n == 9 ? 0 : 9);
    return 1;
}

/* What is open under a number, or nothing. */
static const char *what(int fd) {
    static char name[256];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    name[n < 0 ? 0 : n] = 0;
    return name;
}

/* Started without 0, 1 and 2: they are the program's to give away, and what it opens there nobody else writes to. */
static int closed(const char *dir) {
    char path[3][512];
    for (int i = 0; i < 3; i++) {
        TRUE(fcntl(i, F_GETFD) < 0);
        snprintf(path[i], sizeof path[i], "%s/file%d", dir, i);
    }
    use_region(region);
    for (int i = 0; i < 3; i++) TRUE(!*what(i));
    int view = open(region, O_RDWR);
    TRUE(view == 0 && !*what(1) && !*what(2) && close(view) == 0);
    for (int i = 0; i < 3; i++) TRUE(open(path[i], O_RDWR | O_CREAT | O_TRUNC, 0600) == i);
    /* The library has something to say about these. */
    TRUE(open("/smc/local/no-such-region-anywhere", O_RDWR) < 0 && open("/smc/local/x?page=odd", O_RDWR) < 0);
    use_region(region);
    for (int i = 0; i < 3; i++) {
        struct stat st;
        TRUE(strcmp(what(i), path[i]) == 0 && fstat(i, &st) == 0 && st.st_size == 0);
    }
    return 0;
}

/* Started with them, closes stderr and opens a file in its place. */
static int replaced(const char *dir) {
    char path[512];
    struct stat st;
    snprintf(path, sizeof path, "%s/data", dir);
    for (int way = 0; way < 2; way++) {
        TRUE((way ? close_range(2, 2, 0) : close(2)) == 0);
        TRUE(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) == 2);
        TRUE(open("/smc/local/x?page=odd", O_RDWR) < 0);
        TRUE(fstat(2, &st) == 0 && st.st_size == 0);
    }
    /* This is meant to be stderr. */
    int log = open(path, O_WRONLY | O_APPEND);
    TRUE(log > 2 && dup2(log, 2) == 2 && close(log) == 0);
    TRUE(open("/smc/local/x?page=odd", O_RDWR) < 0);
    TRUE(stat(path, &st) == 0 && st.st_size > 0);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    region = argc > 2 ? argv[2] : NULL;
    if (strcmp(argv[1], "stack") == 0) return stack(region ? 1 : 16);
    if (strcmp(argv[1], "strict") == 0) return strict();
    if (strcmp(argv[1], "closed") == 0) return closed(argv[3]);
    if (strcmp(argv[1], "replaced") == 0) return replaced(argv[2]);
    if (strcmp(argv[1], "region") == 0) use_region(region);
    return 0;
}
