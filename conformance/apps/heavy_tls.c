/* heavy_tls PATH: a program with so much thread-local memory that a small stack has no room for it. The region works. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static __thread volatile char heavy[4 << 20];

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
    volatile char *at = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || at == MAP_FAILED)
        return 1;
    heavy[12345] = 7;
    at[5000] = heavy[12345];
    if (msync((void *)at, 1 << 16, MS_SYNC) != 0 || at[5000] != 7)
        return 2;
    return puts("heavy") < 0;
}
