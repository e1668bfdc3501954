// Stores a byte into a mapped file, waits for a line, and ends.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int fd = open(argv[1], O_RDWR);
    if (fd < 0) return perror("open"), 1;
    char *p = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return perror("mmap"), 1;
    p[4100] = 1;
    puts("stored");
    fflush(stdout);
    return getchar() == EOF;
}
