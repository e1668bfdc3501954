/* Calls the allocator before anything else. Built twice: with LIBRARY as a shared library whose constructor is first
 * of all (-z initfirst, last one loaded), and as the program, which does it once more before its own constructors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(c) do { if (!(c)) abort(); } while (0)

static void *block;

static void first(void) {
    char *zeros = calloc(100, 7);
    CHECK(zeros);
    for (int i = 0; i < 700; i++) CHECK(zeros[i] == 0);
    memset(zeros, 1, 700);
    block = realloc(zeros, 70000);
    CHECK(block && ((char *)block)[699] == 1);
    void *aligned = NULL;
    CHECK(posix_memalign(&aligned, 4096, 10) == 0 && (size_t)aligned % 4096 == 0);
    free(aligned);
}

#ifdef LIBRARY
void *early_block(void);
__attribute__((constructor)) static void start(void) { first(); }
void *early_block(void) { return block; }
#else
void *early_block(void);
__attribute__((section(".preinit_array"), used)) static void (*const before)(void) = first;

int main(void) {
    char *there = early_block();
    CHECK(there && there[699] == 1 && there != block);
    free(there);
    free(block);
    puts("early heap ok");
    return 0;
}
#endif
