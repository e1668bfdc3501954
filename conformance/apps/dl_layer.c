// A layer of a wrapper chain, built twice: LAYER 1 asks for the next definition, LAYER 2 is it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#if LAYER == 1
int cuFoo(void) {
    int (*next)(void) = (int (*)(void))dlsym(RTLD_NEXT, "cuFoo");
    return next ? 100 + next() : -1;
}
// Finds the file by this object's RUNPATH only.
void *open_beside(const char *file) { return dlopen(file, RTLD_NOW); }
#else
int cuFoo(void) { return 42; }
int cuInit(void) { return 7; }
// An own function of a name that libc has.
int creat64(void) { return 64; }
// The program has one of this name too.
int who(void) { return 2; }
int ask(void) { return who(); }
#endif
