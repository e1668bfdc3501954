/* exit_flush PATH: leaves text in a stdio buffer and stores in a mapping, and returns from main without closing anything. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    FILE *f = fopen(argv[1], "r+");
    if (!f || fseek(f, 1000, SEEK_SET) != 0 || fputs("buffered", f) < 0) return 1;
    int fd = open(argv[1], O_RDWR);
    char *m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED) return 1;
    memcpy(m + 2000, "mapped", 6);
    return 0;
}
