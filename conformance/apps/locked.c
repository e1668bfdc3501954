/* Memory locked by mlockall() before and by mlock() after the mapping: pages are fetched, acquired and released all the same.
 * And a system call that would write into a read-only view gets EFAULT. argv[1]: path of a region of zeros. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(c)                                                   \
    do {                                                           \
        if (!(c)) {                                                \
            printf("line %d: %s: %m\n", __LINE__, #c);             \
            return 1;                                              \
        }                                                          \
    } while (0)

static int used(const char *path, int fd, volatile char *p, char was, char is)
{
    char b = 0;
    CHECK(p[5] == was);
    p[5] = is;
    p[4096 * 3] = is;
    CHECK(msync((void *)p, 65536, MS_SYNC) == 0);
    /* A second opening with other options has pages of its own: it sees what is at the home. */
    char other[512];
    snprintf(other, sizeof other, "%s?window=1", path);
    int fd2 = open(other, O_RDONLY);
    CHECK(fd2 >= 0 && pread(fd2, &b, 1, 5) == 1 && b == is);
    CHECK(pread(fd2, &b, 1, 4096 * 3) == 1 && b == is);
    CHECK(close(fd2) == 0 && fd >= 0);
    return 0;
}

int main(int argc, char **argv)
{
    int ends[2];
    char b = 'x', other[512];
    CHECK(argc == 2 && pipe(ends) == 0);
    int fd = open(argv[1], O_RDWR);
    CHECK(fd >= 0);

    CHECK(mlockall(MCL_FUTURE) == 0);
    char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(p != MAP_FAILED && munlockall() == 0);
    if (used(argv[1], fd, p, 0, 1))
        return 1;

    CHECK(mlock(p, 65536) == 0 || errno == ENOMEM || errno == EAGAIN);
    /* Somebody else stores; after an acquire it shows, although the page is locked into memory. */
    snprintf(other, sizeof other, "%s?window=2", argv[1]);
    int fd2 = open(other, O_RDWR);
    b = 7;
    CHECK(fd2 >= 0 && pwrite(fd2, &b, 1, 5) == 1 && fsync(fd2) == 0);
    CHECK(msync(p, 65536, MS_INVALIDATE) == 0);
    if (used(argv[1], fd, p, 7, 2))
        return 1;

    char *ro = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd2, 8192);
    CHECK(ro != MAP_FAILED && write(ends[1], "y", 1) == 1);
    CHECK(read(ends[0], ro, 1) == -1 && errno == EFAULT);
    CHECK(ro[0] == 0);

    /* The value of an eventfd goes with the call that reads it: a first read into an absent page must not lose it. */
    unsigned long long *at = (void *)(p + 4096 * 9), value = 5;
    int ev = eventfd(0, EFD_NONBLOCK);
    CHECK(ev >= 0 && write(ev, &value, 8) == 8);
    CHECK(read(ev, at, 8) == 8 && *at == 5);
    puts("ok");
    return 0;
}
