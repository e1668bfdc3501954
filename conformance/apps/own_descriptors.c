/* The library closes descriptors of its own on threads that have a descriptor table of their own. The numbers it closes
 * there may be numbers of open /smc/ files here: those must not notice. argv[1]: path of a region, argv[2..]: of others. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 40, FILES = 32 };

int main(int argc, char **argv)
{
    int keep[FILES];
    char b[8];
    if (argc < 3)
        return 2;
    for (int i = 0; i < FILES; i++)
        if ((keep[i] = open(argv[1], O_RDWR)) < 0 || pwrite(keep[i], "12345678", 8, 8 * i) != 8) {
            perror(argv[1]);
            return 1;
        }
    for (int r = 0; r < ROUNDS; r++) {
        /* Opening and closing another region makes the library open and close sockets, memory files and events. */
        int other = open(argv[2 + r % (argc - 2)], O_RDONLY);
        if (other < 0 || pread(other, b, 8, 0) != 8) {
            perror(argv[2 + r % (argc - 2)]);
            return 1;
        }
        close(other);
        struct timespec t = {0, 2000000};
        nanosleep(&t, NULL);
        for (int i = 0; i < FILES; i++)
            if (pread(keep[i], b, 8, 8 * i) != 8 || memcmp(b, "12345678", 8) != 0) {
                printf("round %d: descriptor %d: %m\n", r, keep[i]);
                return 1;
            }
    }
    puts("ok");
    return 0;
}
