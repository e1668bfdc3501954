/* files_stress PATH SIZE SECONDS SEED: eight threads open, duplicate, read, write and close regions and ordinary files at
 * once, past the hooks too. No number may ever show another file's bytes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (errno %d, seed %u)\n", __FILE__, __LINE__, #c, errno, base_seed); exit(1); } } while (0)

static const char *path;
static size_t size;
static time_t end;
static unsigned base_seed;

static void *worker(void *arg) {
    unsigned me = (unsigned)(size_t)arg, seed = base_seed * 8 + me;
    size_t off = me * 8192;
    char b[16], mark[16];
    long rounds = 0;
    snprintf(mark, sizeof mark, "thread %u", me);
    while (time(NULL) < end) {
        int fd = open(path, O_RDWR), d = -1;
        CHECK(fd >= 0);
        CHECK(pwrite(fd, mark, sizeof mark, (off_t)off) == sizeof mark);
        switch (rand_r(&seed) % 5) {
        case 0: d = dup(fd); break;
        case 1: d = fcntl(fd, F_DUPFD, 0); break;
        case 2: {
            char *m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)off);
            CHECK(m != MAP_FAILED && memcmp(m, mark, sizeof mark) == 0);
            if (rand_r(&seed) & 1) CHECK(munmap(m + 4096, 4096) == 0 && munmap(m, 4096) == 0);
            else CHECK(munmap(m, 8192) == 0);
            break;
        }
        case 3: {
            int o = open("/dev/zero", O_RDONLY);
            CHECK(o >= 0 && read(o, b, 16) == 16 && b[0] == 0 && b[15] == 0);
            CHECK(dup2(fd, o) == o);
            d = o;
            break;
        }
        default: break;
        }
        if (d >= 0) {
            CHECK(pread(d, b, sizeof b, (off_t)off) == sizeof b && memcmp(b, mark, sizeof mark) == 0);
            if (rand_r(&seed) & 1) CHECK(close(d) == 0);
            else CHECK(syscall(SYS_close, d) == 0);
        }
        CHECK(pread(fd, b, sizeof b, (off_t)off) == sizeof b && memcmp(b, mark, sizeof mark) == 0);
        CHECK(close(fd) == 0);
        int z = open("/dev/zero", O_RDONLY);
        CHECK(z >= 0 && read(z, b, 16) == 16 && b[0] == 0);
        CHECK(close(z) == 0);
        rounds++;
    }
    return (void *)rounds;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    alarm(55);
    path = argv[1];
    size = strtoul(argv[2], NULL, 0);
    end = time(NULL) + atoi(argv[3]);
    base_seed = (unsigned)strtoul(argv[4], NULL, 0);
    CHECK(size >= 8 * 8192);
    pthread_t t[8];
    long sum = 0;
    for (size_t i = 0; i < 8; i++) CHECK(pthread_create(&t[i], NULL, worker, (void *)i) == 0);
    for (int i = 0; i < 8; i++) {
        void *r;
        CHECK(pthread_join(t[i], &r) == 0);
        sum += (long)r;
    }
    CHECK(sum > 100);
    fprintf(stderr, "%ld rounds\n", sum);
    puts("files stress ok");
    return 0;
}
