/* Prints what smc_is_active says; works with the library preloaded, opened late, or absent: its argument is the library to open. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

extern uint32_t smc_is_active(void) __attribute__((weak));

int main(int argc, char **argv) {
    uint32_t (*ask)(void) = smc_is_active;
    if (argc > 1) {
        void *lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        ask = lib ? (uint32_t (*)(void))dlsym(lib, "smc_is_active") : NULL;
        if (!ask) fprintf(stderr, "%s\n", dlerror());
    }
    if (ask) printf("%u\n", ask());
    else puts("absent");
    return 0;
}
