/* Built against the installed tree by pkg-config: succeeds when it runs with the installed library mapped. */
#include <smc.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps && fgets(line, sizeof line, maps)) {
        if (strstr(line, "libsmc.so")) {
            fputs(strchr(line, '/'), stdout);
            return 0;
        }
    }
    return 1;
}
