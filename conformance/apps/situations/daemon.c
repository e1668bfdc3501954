/* Programs that close every descriptor, or go into the background, while a region is mapped. */
#include "situations.h"

/* Files of the program at every number below 200: where the library's descriptors were, if it has lost them. */
static void occupy(void) {
    int f = open("/dev/null", O_RDWR);
    CHECK(f >= 0);
    while (f < 200 && (f = dup(f)) >= 0) {}
}

/* All of them are what they were. */
static void occupied(void) {
    struct stat null, st;
    CHECK(stat("/dev/null", &null) == 0);
    for (int f = 3, ours = 0; f < 200; f++)
        if (fstat(f, &st) == 0 && st.st_rdev == null.st_rdev) CHECK(++ours);
        else CHECK(fcntl(f, F_GETFD) >= 0);
}

static void lives(void) {
    unsigned char c;
    for (size_t i = 1; i < 100; i++) CHECK(view[(500 + i * 7) * PAGE + 1] == pattern((500 + i * 7) * PAGE + 1));
    view[7 * PAGE] ^= 0xFF;
    view[1300 * PAGE] ^= 0xFF;
    CHECK(msync(view, size, MS_SYNC) == 0);
    at_home(1300 * PAGE, &c, 1);
    CHECK(c == (pattern(1300 * PAGE) ^ 0xFF));
    view[7 * PAGE] ^= 0xFF;
    view[1300 * PAGE] ^= 0xFF;
    CHECK(msync(view, size, MS_SYNC | MS_INVALIDATE) == 0 && view[1300 * PAGE] == pattern(1300 * PAGE));
}

static void ends(void) {
    CHECK(munmap(view, size) == 0);
    fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(view != MAP_FAILED && view[3 * PAGE] == pattern(3 * PAGE));
    CHECK(munmap(view, size) == 0 && close(fd) == 0);
}

static void closed(const char *how) {
    view[3 * PAGE + 5] = 0x11; /* a store that close_range must not lose: it closes the file too */
    if (!strcmp(how, "close_range")) CHECK(close_range(3, ~0u, 0) == 0);
    else if (!strcmp(how, "closefrom")) closefrom(3);
    else for (int f = 3; f < 1024; f++) close(f);
    CHECK(view[3 * PAGE + 5] == 0x11);
    view[3 * PAGE + 5] = pattern(3 * PAGE + 5);
    lives();
    occupy();
    lives();
    occupied();
    ends();
    occupied();
}

static volatile int past; /* the descriptors were closed past the hooks */

static void loud(int sig) {
    (void)sig;
    if (past && write(1, "ok\n", 3) == 3) _exit(0);
    _exit(1);
}

/* Past the hooks the library loses its descriptors: that may be an error or SIGBUS, but no endless wait, no wrong bytes, and no
 * harm to files that have their numbers now. */
static void bypassed(void) {
    CHECK(syscall(SYS_close_range, 3, ~0u, 0) == 0);
    past = 1;
    for (int f; (f = open("/dev/null", O_RDWR)) >= 0 && f < 1000;) {}
    view[1] = 1;
    int r = msync(view, PAGE, MS_SYNC);
    CHECK(r == 0 || errno == EIO);
    munmap(view, size);
    struct stat null, st;
    CHECK(stat("/dev/null", &null) == 0);
    for (int f = 3; f < 1000; f++) CHECK(fstat(f, &st) == 0 && st.st_rdev == null.st_rdev);
    puts("ok");
    fflush(stdout);
    _exit(0);
}

/* The program's own numbers are those it would have without the library, and nothing takes the library's from it. */
static void numbers(void) {
    CHECK(fd == 3 && dup(fd) == 4 && close(4) == 0);
    int first = open("/proc/self/fd", O_RDONLY | O_DIRECTORY), own = 0;
    for (int f = 5; f < 1024; f++)
        if (fcntl(f, F_GETFD) >= 0) {
            own++;
            FAILS(close(f), EBADF);
            FAILS(dup2(0, f), EBUSY);
            FAILS(dup3(0, f, O_CLOEXEC), EBUSY);
            CHECK(fcntl(f, F_GETFD) == FD_CLOEXEC && close_range(f, f, 0) == 0 && fcntl(f, F_GETFD) == FD_CLOEXEC);
        }
    CHECK(own > 0 && close(first) == 0);
    lives();
}

/* A server that locks itself up: no /proc, no privileges. */
static void confined(void) {
    if (chroot("/sys") != 0) { printf("skipped: chroot is not permitted\n"); exit(0); }
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    for (size_t i = 1; i < 100; i++) CHECK(view[i * 11 * PAGE + 1] == pattern(i * 11 * PAGE + 1));
    view[7 * PAGE] = pattern(7 * PAGE);
    CHECK(msync(view, size, MS_SYNC | MS_INVALIDATE) == 0 && view[7 * PAGE] == pattern(7 * PAGE));
    int p[2];
    char got[N];
    CHECK(pipe(p) == 0 && write(p[1], view + 900 * PAGE, N) == N && read(p[0], got, N) == N && is_pattern(got, N, 900 * PAGE));
    CHECK(munmap(view, size) == 0 && close(fd) == 0);
}

/* The parent of daemon() ends at once by _exit; the child has no views, and can start over by exec only. */
static void daemonised(void) {
    int p[2];
    char b[4];
    CHECK(pipe(p) == 0);
    pid_t c = fork();
    if (c == 0) {
        if (daemon(1, 1) != 0) _exit(1);
        int f = open(path, O_RDONLY);
        /* Loud: the library says why. */
        if (write(p[1], f < 0 ? "ok" : "??", 2) != 2) _exit(1);
        _exit(0);
    }
    CHECK(waitpid(c, NULL, 0) == c && read(p[0], b, 2) == 2 && memcmp(b, "ok", 2) == 0);
    lives();
}

int main(int argc, char **argv) {
    close_range(3, ~0u, 0);
    signal(SIGBUS, loud);
    const char *what = start(argc, argv);
    !strcmp(what, "daemon") ? daemonised() : !strcmp(what, "numbers") ? numbers() : !strcmp(what, "confined") ? confined() : !strcmp(what, "bypassed") ? bypassed() : closed(what);
    puts("ok");
    return 0;
}
