/* full_views PATH: what needs one view more than a process may have is refused, and nothing has changed then.
   Exit 0 when all holds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, MANY = 1100 };

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (%m)\n", __FILE__, __LINE__, #c); exit(1); } } while (0)

int main(int argc, char **argv) {
    CHECK(argc > 1);
    int fd = open(argv[1], O_RDWR), n = 0;
    CHECK(fd >= 0);
    char *whole = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *more[MANY];
    CHECK(whole != MAP_FAILED);
    whole[PAGE] = 'k';
    while (n < MANY && (more[n] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED)
        n++;
    CHECK(n < MANY);
    for (int round = 0; round < 300; round++) { /* Refusals use nothing up. */
        errno = 0;
        CHECK(munmap(whole + PAGE, PAGE) == -1 && errno == ENOMEM);
        errno = 0;
        void *over = mmap(whole + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(over == MAP_FAILED && errno == ENOMEM);
        void *elsewhere = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        errno = 0;
        CHECK(mremap(elsewhere, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, whole + PAGE) == MAP_FAILED && errno == ENOMEM);
        CHECK(munmap(elsewhere, PAGE) == 0);
    }
    CHECK(whole[PAGE] == 'k' && msync(whole, 4 * PAGE, MS_SYNC) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(munmap(more[--n], PAGE) == 0);
    CHECK(munmap(whole + PAGE, PAGE) == 0 && whole[0] == more[0][0] && whole[2 * PAGE] == 0);
    CHECK(mremap(whole + 2 * PAGE, 2 * PAGE, PAGE, 0) == whole + 2 * PAGE);
    return 0;
}
