// What the loader's calls answer. argv[1], argv[2]: the two layers; one argument alone is layer 2.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *must(void *p, const char *what) {
    if (!p) printf("%s: %s\n", what, dlerror());
    return p;
}

// The object of an address, without the directory.
static const char *object(void *p) {
    Dl_info i;
    if (!p || !dladdr(p, &i)) return "none";
    const char *s = strrchr(i.dli_fname, '/');
    return s ? s + 1 : i.dli_fname;
}

int who(void) { return 1; }

int main(int argc, char **argv) {
    void *libc = must(dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD), "libc");
    if (argc == 2) { // Who answers for names that the library hooks.
        printf("open %s\n", object(dlsym(libc, "open")));
        printf("dlsym %s\n", object(dlsym(libc, "dlsym")));
        printf("malloc %s\n", object(dlvsym(libc, "malloc", "GLIBC_2.2.5")));
        printf("getpid %s\n", object(dlsym(libc, "getpid")));
        void *beside = must(dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND), "layer");
        printf("creat64 %d\n", ((int (*)(void))dlsym(beside, "creat64"))());
        printf("who %d\n", ((int (*)(void))dlsym(beside, "ask"))());
        return 0;
    }
    // First, and visible to all: were the library taken for the caller of RTLD_NEXT, layer 1 would find itself.
    void *b = must(dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL), "layer 1");
    void *c = must(dlopen(argv[2], RTLD_NOW), "layer 2");
    if (!b || !c) return 1;
    // B finds C by RTLD_NEXT only when B is taken for the caller.
    printf("chain %d\n", ((int (*)(void))dlsym(b, "cuFoo"))());
    void *(*open_beside)(const char *) = (void *(*)(const char *))dlsym(b, "open_beside");
    printf("runpath %s\n", open_beside(strrchr(argv[2], '/') + 1) == c ? "ok" : "not used");
    printf("cuInit %s\n", object(dlsym(c, "cuInit")));
    printf("own creat64 %s\n", object(dlsym(c, "creat64")));
    const char *missing[] = {"no_such_name", "cuNothing", "", "free_sized"};
    for (int i = 0; i < 4; i++) {
        void *p = dlsym(c, missing[i]);
        printf("missing %s: %s; ", missing[i], p ? "found" : "NULL");
        const char *e = dlerror();
        printf("%s; ", e ? e : "no error");
        printf("then %s\n", dlerror() ? "again" : "none");
    }
    void *old = dlvsym(libc, "memcpy", "GLIBC_2.2.5");
    printf("old memcpy differs %d\n", old && old != dlvsym(libc, "memcpy", "GLIBC_2.14"));
    printf("wrong version %s; ", dlvsym(libc, "open", "NONE_1.0") ? "found" : "NULL");
    printf("%s\n", dlerror());
    printf("no file %s; ", dlopen("/nowhere/x.so", RTLD_NOW) ? "found" : "NULL");
    printf("%s\n", dlerror());
    printf("default %s %s\n", object(dlsym(RTLD_DEFAULT, "cuFoo")), dlsym(RTLD_DEFAULT, "cuNothing") ? "found" : "NULL");
    dlerror();
    void *space = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
    printf("namespace %d\n", space ? ((int (*)(void))dlsym(space, "cuInit"))() : -1);
    return 0;
}
