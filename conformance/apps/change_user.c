/* change_user PATH HOW [OTHER]: maps the region, then changes user as HOW says. Every thread of the process must follow, the change
   must not be possible to undo, and the region must go on. Started as root. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #c, errno, strerror(errno)); exit(1); } } while (0)

enum { NOBODY = 65534, PAGE = 4096, PAGES = 64 };

int capset(void *header, const void *sets);
int capget(void *header, void *sets);

static volatile char *view;

/* The lines of a thread's status that say what it may do. */
static int rights(const char *tid, char *out, size_t room) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
    FILE *f = fopen(path, "r");
    *out = 0;
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, "Uid:", 4) || !strncmp(line, "Gid:", 4) || !strncmp(line, "Groups:", 7)
            || !strncmp(line, "CapInh:", 7) || !strncmp(line, "CapPrm:", 7) || !strncmp(line, "CapEff:", 7))
            strncat(out, line, room - strlen(out) - 1);
    fclose(f);
    return 1;
}

/* Every thread has the rights of this one, at the latest two seconds from now. */
static void all_alike(int line) {
    char mine[2048], others[2048], me[16];
    snprintf(me, sizeof me, "%d", getpid());
    for (int patience = 200;; patience--) {
        int threads = 0, different = 0;
        CHECK(rights(me, mine, sizeof mine));
        DIR *d = opendir("/proc/self/task");
        CHECK(d);
        for (struct dirent *e; (e = readdir(d));)
            if (e->d_name[0] != '.' && rights(e->d_name, others, sizeof others))
                threads++, different += strcmp(mine, others) != 0;
        closedir(d);
        CHECK(threads > 1);
        if (!different)
            return;
        if (!patience) {
            fprintf(stderr, "line %d: %d of %d threads differ; this one:\n%sthe last one:\n%s", line, different, threads, mine, others);
            exit(1);
        }
        usleep(10000);
    }
}

/* What is permitted becomes effective, as far as it is in `keep`; the rest goes for good. */
static void raise_capabilities(unsigned keep) {
    struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct d[2];
    CHECK(capget(&h, d) == 0);
    d[0].effective = d[0].permitted &= keep;
    d[1].effective = d[1].permitted = 0;
    CHECK(capset(&h, d) == 0);
}

enum { IDS = 1 << CAP_SETUID | 1 << CAP_SETGID };

/* The region serves pages that were never touched, and takes stores. */
static void region_works(void) {
    static int page;
    for (int i = 0; i < 4; i++, page++) {
        CHECK(page < PAGES && view[page * PAGE] == 0);
        view[page * PAGE] = 1;
    }
    CHECK(msync((void *)view, PAGES * PAGE, MS_SYNC) == 0);
}

#define ALIKE() all_alike(__LINE__)

/* As setpriv and capsh do: the user first, the rest by capabilities that were kept. */
static void in_steps(void) {
    CHECK(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0);
    CHECK(setresuid(NOBODY, NOBODY, NOBODY) == 0);
    ALIKE();
    raise_capabilities(IDS);
    ALIKE();
    CHECK(setresgid(NOBODY, NOBODY, NOBODY) == 0 && setgroups(0, NULL) == 0);
    CHECK(initgroups("nobody", NOBODY) == 0 && setreuid(NOBODY - 1, NOBODY - 1) == 0);
    ALIKE();
    region_works();
    raise_capabilities(0);
}

/* Secure bits: a change of user leaves the capabilities alone. */
static void by_secure_bits(void) {
    CHECK(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED, 0, 0, 0) == 0);
    CHECK(setuid(NOBODY) == 0 && setgid(NOBODY) == 0 && setgroups(0, NULL) == 0);
    ALIKE();
    raise_capabilities(IDS);
    CHECK(setregid(NOBODY - 1, NOBODY - 1) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
    raise_capabilities(0);
}

/* A server that takes its user's rights for a while. */
static void for_a_while(void) {
    for (int i = 0; i < 20; i++) {
        CHECK(setegid(NOBODY) == 0 && seteuid(NOBODY) == 0);
        ALIKE();
        CHECK(setgroups(0, NULL) == -1 && errno == EPERM);
        CHECK(seteuid(0) == 0 && setegid(0) == 0);
        ALIKE();
    }
    region_works();
    CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
}

static atomic_int over;

static void *flip(void *arg) {
    for (unsigned n = (unsigned)(uintptr_t)arg; !over; n++)
        CHECK(n % 3 ? seteuid(n % 2 ? 0 : NOBODY) == 0 : setresuid(0, n % 2 ? 0 : NOBODY, 0) == 0);
    return NULL;
}

/* Several threads at once, while the library's threads come and go with regions. Who is nobody at the moment is refused. */
static void at_once(const char *path) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, flip, (void *)(uintptr_t)i) == 0);
    int mapped = 0;
    for (int i = 0; i < 60; i++) {
        int fd = open(path, O_RDWR);
        void *at = fd < 0 ? MAP_FAILED : mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) {
            mapped++;
            *(volatile char *)at = 1;
            CHECK(munmap(at, PAGE) == 0);
        }
        if (fd >= 0)
            CHECK(close(fd) == 0);
    }
    over = 1;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(mapped > 0 && setresuid(0, 0, 0) == 0);
    ALIKE();
    CHECK(setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
}

/* Past the C library: no other thread is told. */
static void alone(void) {
    CHECK(syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3);
    int fd = open(argv[1], O_RDWR);
    CHECK(fd >= 0);
    void *at = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && close(fd) == 0);
    view = at;
    region_works();
    if (!strcmp(argv[2], "steps"))
        in_steps();
    else if (!strcmp(argv[2], "secure-bits"))
        by_secure_bits();
    else if (!strcmp(argv[2], "at-once"))
        at_once(argv[3]);
    else if (!strcmp(argv[2], "alone"))
        alone();
    else
        for_a_while();
    ALIKE();
    CHECK(setuid(0) == -1 && errno == EPERM && setresgid(0, 0, 0) == -1 && setgroups(0, NULL) == -1);
    CHECK(geteuid() != 0 && getegid() != 0);
    region_works();
    CHECK(munmap(at, PAGES * PAGE) == 0);
    return puts("user changed") < 0;
}
