/* A library that takes names away from those loaded after it: each -D chooses one. FORWARD passes its calls on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef MALLOC
void *__libc_malloc(size_t n);
static unsigned long blocks;
unsigned long shadow_blocks(void) {
    return blocks;
}
void *malloc(size_t n) {
    blocks++;
    return __libc_malloc(n);
}
#endif

#ifdef OPEN
int open(const char *path, int flags, ...) {
    va_list l;
    va_start(l, flags);
    int mode = va_arg(l, int);
    va_end(l);
    return syscall(SYS_open, path, flags, mode);
}
#endif

#ifdef MUNMAP
int munmap(void *p, size_t n) {
    return syscall(SYS_munmap, p, n);
}
#endif

#ifdef CLOSE
int close(int fd) {
    return syscall(SYS_close, fd);
}
#endif

#ifdef FORWARD
ssize_t read(int fd, void *p, size_t n) {
    ssize_t (*next)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    return next(fd, p, n);
}
#endif
