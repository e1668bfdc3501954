/* Prints the version of the library it is linked with. */
#include <stdint.h>
#include <stdio.h>

uint32_t smc_version(void);

int main(void) {
    uint32_t v = smc_version();
    printf("%u.%u.%u\n", v >> 16, v >> 8 & 0xff, v & 0xff);
    return 0;
}
