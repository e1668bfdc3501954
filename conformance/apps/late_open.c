/* late_open LIBRARY OTHER...: opens the others until the loader has no room left for their thread-local memory, which must lie
   at a fixed distance from the thread's own (-DOTHER makes one), and then the library; uses both in a new thread. */
#define _GNU_SOURCE
#ifdef OTHER
static __thread char here[64] __attribute__((tls_model("initial-exec")));

char *other(void) {
    here[0]++;
    return here;
}
#else
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static void *library;
static char *(*others[1024])(void);
static int opened;

static void *use(void *arg) {
    for (int i = 0; i < opened; i++)
        if (*others[i]() < 1)
            return NULL;
    unsigned (*version)(void) = (unsigned (*)(void))dlsym(library, "smc_version");
    return version && version() ? arg : NULL;
}

int main(int argc, char **argv) {
    for (int i = 2; i < argc && opened < 1024; i++) {
        void *l = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (!l)
            break;
        others[opened++] = (char *(*)(void))dlsym(l, "other");
    }
    if (!(library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    pthread_t t;
    void *good = NULL;
    if (pthread_create(&t, NULL, use, argv) || pthread_join(t, &good) || !good || !use(argv))
        return 2;
    printf("%d of %d\n", opened, argc - 2);
    return 0;
}
#endif
