/* Calls on the memory of a view: locking, asking, and everything that would change what it shows. */
#include "situations.h"
#include <sys/ipc.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/uio.h>

int mseal(void *, size_t, unsigned long) __attribute__((weak));
ssize_t process_madvise(int, const struct iovec *, size_t, int, unsigned) __attribute__((weak));

/* Without the exporter's memory, which is not ours. */
static size_t resident_kib(void) {
    char line[600];
    size_t all = 0, kib;
    int home = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    CHECK(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Rss: %zu", &kib) == 1) all += home ? 0 : kib;
        else if (strchr(line, '-') && strchr(line, '-') < strchr(line, ' ')) home = strstr(line, "libsmc-home") != NULL;
    fclose(f);
    return all;
}

static size_t locked_kib(void) {
    char line[200];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    CHECK(f);
    while (fgets(line, sizeof line, f)) sscanf(line, "VmLck: %zu", &kib);
    fclose(f);
    return kib;
}

/* A store arrives, and another one's store is seen after an acquire. */
static void lives(size_t at) {
    unsigned char c = view[at] ^ 0x55, seen;
    view[at] = c;
    arrives(view + at, 1);
    int f = opened("window=4");
    c ^= 0x0F;
    CHECK(pwrite(f, &c, 1, at) == 1 && fsync(f) == 0 && close(f) == 0);
    CHECK(msync(view + at / PAGE * PAGE, PAGE, MS_INVALIDATE) == 0 && view[at] == c);
    at_home(at, &seen, 1);
    CHECK(seen == c);
    c = pattern(at);
    view[at] = c;
    arrives(view + at, 1);
}

static void locks(void) {
    unsigned char in[64];
    size_t part = 32 * PAGE;
    CHECK(mincore(view, part, in) == 0 && in[3] == 0);
    CHECK(mlock(view + 100, 10 * PAGE) == 0 && mincore(view, part, in) == 0 && in[0] == 1 && in[10] == 1);
    CHECK(locked_kib() == 0);
    CHECK(is_pattern(view, 10 * PAGE, 0));
    lives(5000);
    CHECK(munlock(view, 10 * PAGE) == 0);
    CHECK(mlock2(view + 64 * PAGE, 4 * PAGE, 0) == 0 && mincore(view + 64 * PAGE, PAGE, in) == 0 && in[0] == 1);
    CHECK(mlock2(view + 128 * PAGE, 4 * PAGE, MLOCK_ONFAULT) == 0 && mincore(view + 128 * PAGE, PAGE, in) == 0 && in[0] == 0);
    FAILS(mlock2(view, PAGE, 77), EINVAL);
    /* A vector that lies in the view itself. */
    CHECK(mincore(view, part, view + 256 * PAGE) == 0 && view[256 * PAGE] == 1);
    memset(view + 256 * PAGE, 0, 1);
    view[256 * PAGE] = pattern(256 * PAGE);
    FAILS(mincore(view, part, (void *)8), EFAULT);
    FAILS(mlock(view, SIZE_MAX), EINVAL);
    if (strchr(path, '?')) FAILS(mlock(view, size), ENOMEM);
    else CHECK(mlock(view, size) == 0 && mincore(view + size - PAGE, PAGE, in) == 0 && in[0] == 1);
    /* Beside the view as well as in it. */
    char *own = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED && mlock(own, 4 * PAGE) == 0 && locked_kib() == 16 && munlock(own, 4 * PAGE) == 0);
}

/* All memory of the program is locked; the regions are not brought in, and stay within their limits. */
static void all(void) {
    unsigned char in[4];
    char *own = mmap(NULL, 1024 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    CHECK(mincore(own + 1023 * PAGE, PAGE, in) == 0 && in[0] == 1 && locked_kib() >= 4096);
    CHECK(mincore(view + size / 2, PAGE, in) == 0 && in[0] == 0);
    CHECK(is_pattern(view, size, 0));
    lives(5000);
    lives(size - 1);
    if (strchr(path, '?')) return;
    /* A region opened now: neither its views nor the library's copy are filled. */
    size_t before = resident_kib();
    int f = opened("resident=1m&window=5");
    unsigned char *v = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    CHECK(v != MAP_FAILED && resident_kib() < before + 4096);
    for (size_t i = 0; i < size; i += PAGE) CHECK(v[i] == pattern(i));
    CHECK(resident_kib() < before + 8192);
    v[77] ^= 1;
    CHECK(msync(v, PAGE, MS_SYNC) == 0);
    unsigned char c;
    at_home(77, &c, 1);
    CHECK(c == (pattern(77) ^ 1));
    v[77] ^= 1;
    CHECK(msync(v, PAGE, MS_SYNC) == 0 && munmap(v, size) == 0 && close(f) == 0);
    char *later = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(later != MAP_FAILED && mincore(later + 15 * PAGE, PAGE, in) == 0 && in[0] == 1);
    CHECK(mlockall(MCL_CURRENT | MCL_ONFAULT) == 0 && munlockall() == 0);
    FAILS(mlockall(0), EINVAL);
    lives(6000);
}

/* What would change a view behind the library is refused, and then changes nothing. */
static void refusals(void) {
    unsigned char was = view[10];
    FAILS(mprotect(view, PAGE, PROT_READ), EACCES);
    FAILS(pkey_mprotect(view, PAGE, PROT_READ, -1), EACCES);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    FAILS(remap_file_pages(view, PAGE, 0, 3, 0), EINVAL);
#pragma GCC diagnostic pop
    FAILS(mremap(view, size, size * 2, MREMAP_MAYMOVE), ENOMEM);
    FAILS(mremap(view, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, view + size * 4), ENOMEM);
    struct iovec v = {view, PAGE};
    if (process_madvise) {
        int self = syscall(SYS_pidfd_open, getpid(), 0);
        FAILS(process_madvise(self, &v, 1, MADV_DONTNEED, 0), EINVAL);
        FAILS(process_madvise(self, (void *)8, 1, MADV_DONTNEED, 0), EFAULT);
        CHECK(process_madvise(self, &v, 1, MADV_COLD, 0) == (ssize_t)PAGE);
        close(self);
    }
    if (mseal) FAILS(mseal(view, PAGE, 0), EPERM);
    FAILS(madvise(view, PAGE, MADV_FREE), EINVAL);
    FAILS(madvise(view, PAGE, MADV_REMOVE), EINVAL);
    CHECK(view[10] == was && is_pattern(view, size, 0));
    lives(300);
    /* The heap does not end below a view that was put into it. */
    char *end = sbrk(64 * PAGE);
    CHECK(end != (void *)-1);
    char *at = (char *)(((uintptr_t)end + 16 * PAGE) & ~(PAGE - 1));
    CHECK(mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at);
    FAILS(brk(end), ENOMEM);
    FAILS(sbrk(-64 * (intptr_t)PAGE), ENOMEM);
    CHECK((unsigned char)at[10] == was && sbrk(0) == end + 64 * PAGE);
    CHECK(munmap(at, PAGE) == 0 && brk(end) == 0);
    /* A shared segment over the second part of a view: stores are released first, and the rest stays a view. */
    int id = shmget(IPC_PRIVATE, 2 * PAGE, 0600);
    if (id >= 0) {
        unsigned char c;
        unsigned char *p = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 512 * PAGE);
        CHECK(p != MAP_FAILED);
        p[4 * PAGE] ^= 0xFF;
        CHECK(shmat(id, p + 4 * PAGE, SHM_REMAP) == p + 4 * PAGE && p[4 * PAGE] == 0);
        at_home(516 * PAGE, &c, 1);
        CHECK(c == (pattern(516 * PAGE) ^ 0xFF) && is_pattern(p, 4 * PAGE, 512 * PAGE) && is_pattern(p + 6 * PAGE, PAGE, 518 * PAGE));
        CHECK(shmdt(p + 4 * PAGE) == 0 && shmctl(id, IPC_RMID, NULL) == 0 && munmap(p, 8 * PAGE) == 0);
        view[516 * PAGE] = pattern(516 * PAGE);
        CHECK(msync(view, size, MS_SYNC) == 0);
    }
    /* A child without the handlers of fork. */
    pid_t child = _Fork();
    if (child == 0) _exit(7);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    /* A fixed mapping over a part: the parts beside it stay. */
    unsigned char *q = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 768 * PAGE);
    CHECK(q != MAP_FAILED && q[0] == pattern(768 * PAGE));
    CHECK(mmap(q + 2 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == q + 2 * PAGE && q[2 * PAGE] == 0);
    CHECK(is_pattern(q, 2 * PAGE, 768 * PAGE) && is_pattern(q + 3 * PAGE, 5 * PAGE, 771 * PAGE));
    CHECK(munmap(q, 8 * PAGE) == 0);
    home_is_whole();
}

int main(int argc, char **argv) {
    const char *what = start(argc, argv);
    !strcmp(what, "locks") ? locks() : !strcmp(what, "all") ? all() : refusals();
    puts("ok");
    return 0;
}
