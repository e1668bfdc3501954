/* What the library makes of its environment, by ways in which only it could know: printed as one line. Works without it. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

extern uint32_t smc_is_active(void) __attribute__((weak));
extern uint32_t smc_init(const void *config, void **context) __attribute__((weak));

int main(void) {
    void *context = NULL;
    /* EINVAL: the hooks act. ENOENT: there are none, or LIBSMC_DISABLE is obeyed. */
    errno = 0;
    int fd = open("/smc/local/x?page=odd", O_RDONLY);
    printf("secure %lu, open %s, ", getauxval(AT_SECURE), fd >= 0 ? "works" : strerror(errno));
    if (!smc_is_active) return puts("no library"), 0;
    uint32_t status = smc_init ? smc_init(NULL, &context) : 999;
    printf("active %u, init %u\n", smc_is_active(), status);
    return 0;
}
