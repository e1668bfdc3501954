/* Every function of the malloc family, with results that do not depend on addresses. Exit 0 and a summary line. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #c, errno); exit(1); } } while (0)

static void fill_check(void *p, size_t n, int v) {
    CHECK(p != NULL && ((uintptr_t)p & 15) == 0);
    memset(p, v, n);
    CHECK(malloc_usable_size(p) >= n);
}

static void *worker(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    void *live[64] = {0};
    for (int i = 0; i < 20000; i++) {
        int k = rand_r(&seed) % 64;
        size_t n = (size_t)(rand_r(&seed) % 5000) + 1;
        live[k] = (i & 1) ? realloc(live[k], n) : (free(live[k]), malloc(n));
        fill_check(live[k], n, i);
    }
    for (int k = 0; k < 64; k++) free(live[k]);
    return NULL;
}

int main(void) {
    for (size_t n = 1; n < 4u << 20; n = n * 3 + 1) {
        void *p = malloc(n);
        fill_check(p, n, 1);
        p = realloc(p, n * 2);
        CHECK(p && ((char *)p)[n - 1] == 1);
        free(p);
        char *z = calloc(n, 3);
        for (size_t i = 0; i < 3 * n; i++) CHECK(z[i] == 0);
        z = reallocarray(z, n, 2);
        fill_check(z, n, 2);
        errno = 77;
        free(z);
        CHECK(errno == 77);
    }
    for (size_t a = 16; a <= 1u << 21; a *= 2) {
        void *p = NULL;
        CHECK(posix_memalign(&p, a, 100) == 0 && (uintptr_t)p % a == 0);
        free(p);
        CHECK((p = aligned_alloc(a, a)) && (uintptr_t)p % a == 0);
        free(p);
        CHECK((p = memalign(a, 10)) && (uintptr_t)p % a == 0);
        free(p);
    }
    void *p = valloc(10);
    CHECK((uintptr_t)p % 4096 == 0);
    free(p);
    p = pvalloc(5000);
    CHECK((uintptr_t)p % 4096 == 0 && malloc_usable_size(p) >= 8192);
    free(p);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK(posix_memalign(&p, 3, 8) == EINVAL);
    errno = 0;
    volatile size_t huge = SIZE_MAX / 2;
    CHECK(malloc(huge) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(reallocarray(NULL, huge, 4) == NULL && errno == ENOMEM);
    CHECK(calloc(huge, 4) == NULL);
    /* Names that this libc may not have, but the preloaded library gives to programs that ask for them. */
    void (*sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
    if (sized) sized(malloc(10), 10);
    void (*aligned)(void *, size_t, size_t) = (void (*)(void *, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
    if (aligned) aligned(aligned_alloc(64, 64), 64, 64);
    void (*old)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "cfree");
    if (old) old(malloc(10));
    char *s = strdup("through libc's own calls");
    char *t = NULL;
    CHECK(asprintf(&t, "%s!", s) == 25);
    free(s);
    free(t);

    pthread_t th[8];
    for (uintptr_t i = 0; i < 8; i++) pthread_create(&th[i], NULL, worker, (void *)(i + 1));
    for (int i = 0; i < 20; i++) {
        pid_t c = fork();
        if (c == 0) {
            alarm(20);
            worker((void *)5);
            _exit(0);
        }
        int st;
        CHECK(waitpid(c, &st, 0) == c && WIFEXITED(st) && WEXITSTATUS(st) == 0);
    }
    for (int i = 0; i < 8; i++) pthread_join(th[i], NULL);
    puts("heap ok");
    return 0;
}
