/* every_hook PATH SIZE: calls, on the file of a region, the hooked functions that posix_path leaves out: the 64-bit names,
   the checking names of -D_FORTIFY_SOURCE and the names of old programs. Exit 0 when all answer as for a file. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

int capset(void *header, const void *sets);

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #c, errno, strerror(errno)); exit(1); } } while (0)

static const char *path;
static off64_t size;

/* A name that headers no longer declare; absent in a libc that has given it up. */
static void *old(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}

static void opens(void) {
    int (*plain[])(const char *, int) = { old("__open_2"), old("__open64_2") };
    int (*at[])(int, const char *, int) = { old("__openat_2"), old("__openat64_2") };
    int fds[] = {
        open64(path, O_RDWR), openat(AT_FDCWD, path, O_RDWR), openat64(AT_FDCWD, path, O_RDWR), creat(path, 0600),
        creat64(path, 0600), plain[0](path, O_RDONLY), plain[1](path, O_RDONLY), at[0](AT_FDCWD, path, O_RDONLY),
        at[1](AT_FDCWD, path, O_RDONLY),
    };
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        CHECK(fds[i] >= 0 && fcntl64(fds[i], F_GETFL) >= 0 && close(fds[i]) == 0);
    FILE *f = fopen64(path, "r");
    CHECK(f && fileno_unlocked(f) >= 0 && fclose(f) == 0);
}

static void looks(int fd) {
    struct stat a;
    struct stat64 b;
    char out[64];
    CHECK(lstat(path, &a) == 0 && a.st_size == size && stat64(path, &b) == 0 && b.st_size == size);
    CHECK(lstat64(path, &b) == 0 && fstat64(fd, &b) == 0 && fstatat64(AT_FDCWD, path, &b, 0) == 0 && b.st_size == size);
    int (*by_path)(int, const char *, void *), (*by_fd)(int, int, void *), (*by_dir)(int, int, const char *, void *, int);
    const char *paths[] = { "__xstat", "__xstat64", "__lxstat", "__lxstat64" };
    for (int i = 0; i < 4; i++)
        CHECK(!(by_path = old(paths[i])) || (by_path(1, path, &a) == 0 && a.st_size == size));
    const char *numbers[] = { "__fxstat", "__fxstat64" }, *dirs[] = { "__fxstatat", "__fxstatat64" };
    for (int i = 0; i < 2; i++) {
        CHECK(!(by_fd = old(numbers[i])) || (by_fd(1, fd, &a) == 0 && a.st_size == size));
        CHECK(!(by_dir = old(dirs[i])) || (by_dir(1, AT_FDCWD, path, &a, 0) == 0 && a.st_size == size));
    }
    CHECK(eaccess(path, R_OK) == 0 && euidaccess(path, W_OK) == 0 && faccessat(AT_FDCWD, path, F_OK, 0) == 0);
    CHECK(getxattr(path, "user.x", out, sizeof out) == -1 && lgetxattr(path, "user.x", out, sizeof out) == -1);
    CHECK(fgetxattr(fd, "user.x", out, sizeof out) == -1 && errno == EOPNOTSUPP);
    CHECK(listxattr(path, out, sizeof out) <= 0 && llistxattr(path, out, sizeof out) <= 0 && flistxattr(fd, out, sizeof out) <= 0);
    CHECK(truncate(path, size) == 0 && truncate64(path, size) == 0 && ftruncate64(fd, size) == 0);
    CHECK(posix_fadvise64(fd, 0, 0, POSIX_FADV_NORMAL) == 0);
}

static void moves(int fd) {
    char text[] = "bytes", got[8] = "";
    struct iovec from = { text, 5 }, to = { got, 5 };
    ssize_t (*read_chk)(int, void *, size_t, size_t) = old("__read_chk");
    ssize_t (*pread_chk[])(int, void *, size_t, off64_t, size_t) = { old("__pread_chk"), old("__pread64_chk") };
    CHECK(pwrite64(fd, text, 5, 100) == 5 && pread64(fd, got, 5, 100) == 5 && memcmp(got, text, 5) == 0);
    CHECK(pwritev64(fd, &from, 1, 200) == 5 && preadv64(fd, &to, 1, 200) == 5 && memcmp(got, text, 5) == 0);
    CHECK(pwritev64v2(fd, &from, 1, 300, 0) == 5 && preadv64v2(fd, &to, 1, 300, 0) == 5 && memcmp(got, text, 5) == 0);
    CHECK(pread_chk[0](fd, got, 5, 100, 8) == 5 && pread_chk[1](fd, got, 5, 200, 8) == 5 && read_chk(fd, got, 5, 8) == 5);
    char *view = mmap64(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(view != MAP_FAILED && memcmp(view + 300, text, 5) == 0);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && sendto(pair[0], view + 300, 5, 0, NULL, 0) == 5);
    CHECK(read(pair[1], got, 8) == 5 && memcmp(got, text, 5) == 0 && munmap(view, 4096) == 0);
}

/* Changes to what is there already. Who is not root may not name groups. */
static void users(void) {
    gid_t groups[64];
    int n = getgroups(64, groups), root = geteuid() == 0;
    CHECK(n >= 0 && setuid(getuid()) == 0 && seteuid(geteuid()) == 0 && setreuid(-1, geteuid()) == 0);
    CHECK(setresuid(-1, geteuid(), -1) == 0 && setgid(getgid()) == 0 && setegid(getegid()) == 0);
    CHECK(setregid(-1, getegid()) == 0 && setresgid(-1, getegid(), -1) == 0);
    int named = initgroups("root", getgid());
    CHECK(root ? named == 0 : named == -1 && errno == EPERM);
    CHECK(setgroups(n, groups) == (root ? 0 : -1));
    unsigned header[2] = { 0x20080522, 0 }, sets[6];
    CHECK(syscall(SYS_capget, header, sets) == 0 && capset((void *)header, (void *)sets) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    path = argv[1];
    size = atoll(argv[2]);
    opens();
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    looks(fd);
    moves(fd);
    users();
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    CHECK(libc && dlsym(libc, "open") == dlsym(RTLD_DEFAULT, "open") && dlclose(libc) == 0);
    CHECK((libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD)) && dlvsym(libc, "open", "GLIBC_2.2.5") != NULL);
    CHECK(dlopen("libm.so.6", RTLD_NOW | RTLD_DEEPBIND) && dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW));
    return close(fd);
}
