/* Loads and stores through a view of a region, reads it as a file, and tells what it saw. The argument is the file; `view`
 * alone only greets, as a program that has nothing to do with regions. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE 65536

static int failed(const char *what) {
    perror(what);
    return 1;
}

int main(int argc, char **argv) {
    char *heap = malloc(100), text[8] = "";
    if (!heap) return failed("malloc");
    snprintf(heap, 100, "hello from %d words", argc);
    puts(heap);
    free(heap);
    if (argc < 2) return 3;
    int fd = open(argv[1], O_RDWR);
    if (fd < 0) return failed("open");
    char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m == MAP_FAILED) return failed("mmap");
    m[SIZE - 1] = (char)(m[0] + 1);
    memcpy(m, "stored", 6);
    if (msync(m, SIZE, MS_SYNC) != 0) return failed("msync");
    if (pread(fd, text, 6, 0) != 6) return failed("pread");
    printf("read %s\n", text);
    if (munmap(m, SIZE) != 0) return failed("munmap");
    if (close(fd) != 0) return failed("close");
    return 0;
}
