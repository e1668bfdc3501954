/* posix_path PATH SIZE: what POSIX calls do with the file of a region, which starts as zeros. Exit 0 when all holds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Wrong arguments are the point of some checks. */
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wstringop-overread"

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #c, errno, strerror(errno)); exit(1); } } while (0)
#define FAILS(call, e) do { errno = 0; CHECK((intptr_t)(call) == -1); CHECK(errno == (e)); } while (0)

static const char *path;
static size_t size;

static void names(void) {
    char other[512];
    snprintf(other, sizeof other, "%s.absent", path);
    FAILS(open(other, O_RDWR), ENOENT);
    FAILS(open(other, O_RDWR | O_CREAT, 0600), ENOENT);
    snprintf(other, sizeof other, "%s?page=3k", path);
    FAILS(open(other, O_RDWR), EINVAL);
    snprintf(other, sizeof other, "%s?nonsense=1", path);
    FAILS(open(other, O_RDWR), EINVAL);
    FAILS(open(path, O_RDWR | O_CREAT | O_EXCL, 0600), EEXIST);
    FAILS(open(path, O_RDONLY | O_DIRECTORY), ENOTDIR);
    FAILS(open((char *)1, O_RDWR), EFAULT);
    FAILS(open(NULL, O_RDWR), EFAULT);
    struct stat a, b;
    CHECK(stat(path, &a) == 0 && S_ISREG(a.st_mode) && (size_t)a.st_size == size);
    CHECK(access(path, R_OK | W_OK) == 0);
    FAILS(access(path, X_OK), EACCES);
    FAILS(access("/smc/local/", F_OK), ENOENT);
    errno = 99;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && errno == 99);
    int low = open("/dev/null", O_RDONLY);
    CHECK(low > fd && close(low) == 0);
    CHECK(fstat(fd, &b) == 0 && b.st_ino == a.st_ino && b.st_dev == a.st_dev && b.st_size == a.st_size && b.st_mode == a.st_mode);
    CHECK(fstatat(fd, "", &b, AT_EMPTY_PATH) == 0 && b.st_ino == a.st_ino);
    struct statx x;
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) == 0 && x.stx_ino == a.st_ino && x.stx_size == size);
    /* Past the hooks: a regular file of the right size that cannot be read, never one that reads as zeros. */
    struct stat raw;
    CHECK(syscall(SYS_fstat, fd, &raw) == 0 && S_ISREG(raw.st_mode) && (size_t)raw.st_size == size);
    char c;
    FAILS(syscall(SYS_read, fd, &c, 1), EBADF);
    CHECK(close(fd) == 0);
    FAILS(close(fd), EBADF);
    FAILS(read(fd, &c, 1), EBADF);
}

static void transfers(void) {
    int fd = open(path, O_RDWR), ro = open(path, O_RDONLY), wo = open(path, O_WRONLY);
    CHECK(fd >= 0 && ro >= 0 && wo >= 0);
    char b[64];
    CHECK(write(fd, "hello world", 11) == 11);
    CHECK(lseek(fd, 0, SEEK_CUR) == 11 && lseek(fd, 0, SEEK_SET) == 0);
    CHECK(read(fd, b, 5) == 5 && memcmp(b, "hello", 5) == 0);
    CHECK(pread(fd, b, 5, 6) == 5 && memcmp(b, "world", 5) == 0 && lseek(fd, 0, SEEK_CUR) == 5);
    CHECK(pwrite(fd, "W", 1, 6) == 1);
    struct iovec v[3] = {{b, 2}, {b + 10, 0}, {b + 20, 9}};
    CHECK(preadv(fd, v, 3, 0) == 11 && memcmp(b, "he", 2) == 0 && memcmp(b + 20, "llo World", 9) == 0);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && writev(fd, v, 3) == 11 && lseek(fd, 0, SEEK_CUR) == 11);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, v, 3) == 11);
    CHECK(preadv2(fd, v, 3, 0, 0) == 11 && lseek(fd, 0, SEEK_SET) == 0 && preadv2(fd, v, 3, -1, RWF_HIPRI) == 11);
    CHECK(lseek(fd, 0, SEEK_CUR) == 11 && pwritev2(fd, v, 3, 0, 0) == 11 && lseek(fd, 0, SEEK_CUR) == 11);
    CHECK(lseek(fd, 0, SEEK_SET) == 0 && pwritev2(fd, v, 3, -1, 0) == 11 && lseek(fd, 0, SEEK_CUR) == 11);
    FAILS(pwritev2(fd, v, 3, 0, RWF_APPEND), EOPNOTSUPP);
    FAILS(preadv2(fd, v, 3, -2, 0), EINVAL);
    FAILS(readv(fd, v, -1), EINVAL);
    FAILS(pread(fd, b, 1, -1), EINVAL);
    CHECK(lseek(fd, -3, SEEK_END) == (off_t)size - 3);
    CHECK(write(fd, "abcdef", 6) == 3 && read(fd, b, 1) == 0);
    FAILS(write(fd, "x", 1), ENOSPC);
    CHECK(write(fd, "x", 0) == 0);
    CHECK(lseek(fd, 10, SEEK_END) == (off_t)size + 10 && read(fd, b, 1) == 0);
    CHECK(pread(fd, b, 64, (off_t)size - 3) == 3 && memcmp(b, "abc", 3) == 0);
    FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
    FAILS(lseek(fd, 0, 77), EINVAL);
    CHECK(lseek(fd, 5, SEEK_DATA) == 5 && lseek(fd, 5, SEEK_HOLE) == (off_t)size);
    FAILS(lseek(fd, (off_t)size, SEEK_DATA), ENXIO);
    FAILS(write(ro, "x", 1), EBADF);
    FAILS(read(wo, b, 1), EBADF);
    CHECK(ftruncate(fd, (off_t)size) == 0);
    FAILS(ftruncate(fd, 0), EINVAL);
    FAILS(ftruncate(ro, (off_t)size), EINVAL);
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0 && posix_fadvise(fd, 0, 0, 99) == EINVAL);
    int ap = open(path, O_WRONLY | O_APPEND);
    FAILS(write(ap, "x", 1), ENOSPC);
    CHECK(close(fd) == 0 && close(ro) == 0 && close(wo) == 0 && close(ap) == 0);
}

static void numbers(void) {
    int fd = open(path, O_RDWR);
    int d = dup(fd), e = fcntl(fd, F_DUPFD_CLOEXEC, 100), f = dup2(fd, 200), g = dup3(fd, 201, O_CLOEXEC);
    CHECK(d >= 0 && e >= 100 && f == 200 && g == 201 && dup2(fd, fd) == fd);
    CHECK(fcntl(e, F_GETFD) == FD_CLOEXEC && (fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND | O_PATH)) == O_RDWR);
    CHECK(lseek(d, 42, SEEK_SET) == 42 && lseek(e, 0, SEEK_CUR) == 42 && lseek(f, 0, SEEK_CUR) == 42 && lseek(g, 0, SEEK_CUR) == 42);
    CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0 && (fcntl(g, F_GETFL) & O_APPEND));
    struct flock l = {.l_type = F_WRLCK};
    FAILS(fcntl(fd, F_SETLK, &l), EINVAL);
    CHECK(close(fd) == 0);
    char c;
    CHECK(pread(d, &c, 1, 0) == 1);
    /* A number closed past the hooks and used again belongs to its new owner. */
    CHECK(syscall(SYS_close, d) == 0);
    int null = open("/dev/null", O_RDONLY);
    CHECK(null >= 0 && (null == d || dup2(null, d) == d));
    CHECK(read(d, &c, 1) == 0);
    close(d);
    /* An ordinary file over one of ours, and the other way round. */
    CHECK(dup2(open("/dev/null", O_RDONLY), 200) == 200 && read(200, &c, 1) == 0 && dup2(201, 200) == 200 && pread(200, &c, 1, 0) == 1);
    CHECK(close_range(100, 300, 0) == 0);
    FAILS(read(200, &c, 1), EBADF);
    struct rlimit r = {70000, 70000};
    if (setrlimit(RLIMIT_NOFILE, &r) == 0) {
        fd = open(path, O_RDWR);
        FAILS(fcntl(fd, F_DUPFD, 65536), EMFILE);
        FAILS(dup2(fd, 65536), EMFILE);
        CHECK(close(fd) == 0);
    }
}

static void mappings(void) {
    int fd = open(path, O_RDWR), ro = open(path, O_RDONLY), wo = open(path, O_WRONLY);
    FAILS(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0), EACCES);
    FAILS(mmap(NULL, size, PROT_READ, MAP_SHARED, wo, 0), EACCES);
    FAILS(mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0), EACCES);
    FAILS(mmap(NULL, 0, PROT_READ, MAP_SHARED, fd, 0), EINVAL);
    FAILS(mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 1), EINVAL);
    FAILS(mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 4096), EINVAL);
    char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED);
    char *r = mmap(NULL, 4096, PROT_READ, MAP_SHARED, ro, 4096), *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, ro, 4096);
    CHECK(r != MAP_FAILED && p != MAP_FAILED);
    close(fd);
    close(ro);
    close(wo);
    memcpy(m + 4096, "mapped", 6);
    CHECK(msync(m, size, MS_SYNC) == 0 && msync(m, size, MS_ASYNC) == 0 && msync(m, 4096, MS_SYNC | MS_INVALIDATE) == 0);
    FAILS(msync(m, size, MS_SYNC | MS_ASYNC), EINVAL);
    CHECK(memcmp(m + 4096, "mapped", 6) == 0);
    p[0] = 'P';
    CHECK(m[4096] == 'm');
    CHECK(madvise(m, size, MADV_WILLNEED) == 0 && madvise(m, size, MADV_SEQUENTIAL) == 0 && posix_madvise(m, size, POSIX_MADV_WILLNEED) == 0);
    CHECK(madvise(m, size, MADV_DONTNEED) == 0 && memcmp(m + 4096, "mapped", 6) == 0);
    FAILS(madvise(m, size, MADV_FREE), EINVAL);
    FAILS(madvise(m, size, MADV_REMOVE), EINVAL);
    CHECK(posix_madvise(m, size, 99) == EINVAL);
    FAILS(mprotect(m, 4096, PROT_READ), EACCES);
    FAILS(mremap(m, size, size + 4096, MREMAP_MAYMOVE), ENOMEM);
    CHECK(mremap(m, size, size - 4096, 0) == m);
    FAILS(msync(m + size - 4096, 4096, MS_SYNC), ENOMEM);
    /* A hole in the middle, then an ordinary page over another one. */
    CHECK(munmap(m + 8192, 4096) == 0);
    FAILS(msync(m + 8192, 4096, MS_SYNC), ENOMEM);
    m[4096 * 3] = 'q';
    char *o = mmap(m, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(o == m && o[0] == 0);
    o[0] = 'o';
    CHECK(msync(m, 8192, MS_SYNC) == 0);
    fd = open(path, O_RDWR);
    char c = 0;
    CHECK(pread(fd, &c, 1, 4096 * 3) == 1 && c == 'q' && pread(fd, &c, 1, 0) == 1 && c != 'o');
    /* The region over an ordinary page. */
    CHECK(mmap(m, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 4096 * 3) == m && m[0] == 'q');
    FAILS(mmap(m, 4096, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0), EEXIST);
    CHECK(munmap(m, size) == 0 && munmap(r, 4096) == 0 && munmap(p, 8192) == 0);
    FAILS(msync(m, 4096, MS_SYNC), ENOMEM);
    CHECK(close(fd) == 0);
}

/* System calls of the program whose buffers are views: the kernel may meet absent pages. */
static void buffers(void) {
    int fd = open(path, O_RDWR), pipes[2], socks[2];
    char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), b[8192] = {0};
    CHECK(m != MAP_FAILED && pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, socks) == 0);
    CHECK(pwrite(fd, "view", 4, 16384) == 4);
    CHECK(write(pipes[1], m + 16384, 4) == 4 && read(pipes[0], b, 4) == 4 && memcmp(b, "view", 4) == 0);
    CHECK(write(pipes[1], "into", 4) == 4 && read(pipes[0], m + 20480 - 2, 4) == 4 && memcmp(m + 20480 - 2, "into", 4) == 0);
    struct iovec v[2] = {{m + 32768, 4}, {m + 40960, 4}};
    CHECK(write(pipes[1], "12345678", 8) == 8 && readv(pipes[0], v, 2) == 8 && memcmp(m + 40960, "5678", 4) == 0);
    CHECK(writev(pipes[1], v, 2) == 8 && read(pipes[0], b, 8) == 8 && memcmp(b, "12345678", 8) == 0);
    struct iovec w[2] = {{m + 81920 - 1, 4}, {m + 90112, 4}};
    CHECK(write(pipes[1], "abcdefgh", 8) == 8 && preadv2(pipes[0], w, 2, -1, 0) == 8 && memcmp(m + 90112, "efgh", 4) == 0);
    w[1].iov_base = m + 98304;
    CHECK(pwritev2(pipes[1], w, 2, -1, 0) == 8 && read(pipes[0], b, 8) == 8 && memcmp(b, "abcd\0\0\0\0", 8) == 0);
    CHECK(send(socks[0], m + 49152, 4096, 0) == 4096 && recv(socks[1], m + 57344 - 4, 4096, 0) == 4096);
    CHECK(sendto(socks[0], "dgram", 5, 0, NULL, 0) == 5 && recvfrom(socks[1], m + 65536 - 2, 5, 0, NULL, NULL) == 5 && memcmp(m + 65536 - 2, "dgram", 5) == 0);
    char tmp[] = "/tmp/smc-buffers-XXXXXX";
    int file = mkstemp(tmp);
    CHECK(file >= 0 && unlink(tmp) == 0 && pwrite(file, m + 16384, 4, 3) == 4 && pread(file, m + 73728, 4, 3) == 4 && memcmp(m + 73728, "view", 4) == 0);
    FAILS(write(pipes[1], (void *)8, 4), EFAULT);
    CHECK(munmap(m, size) == 0 && close(fd) == 0);
}

static int child_status(pid_t c) {
    int st;
    CHECK(waitpid(c, &st, 0) == c && WIFEXITED(st));
    return WEXITSTATUS(st);
}

static void children(void) {
    int fd = open(path, O_RDWR);
    char c;
    pid_t p = fork();
    if (p == 0) {
        alarm(10);
        if (pread(fd, &c, 1, 0) != -1 || errno != EIO) _exit(1);
        if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED || errno != EIO) _exit(2);
        if (fsync(fd) != -1 || errno != EIO) _exit(3);
        if (close(fd) != 0) _exit(4);
        int n = open("/dev/null", O_RDONLY);
        if (n != fd || read(n, &c, 1) != 0) _exit(5);
        _exit(0);
    }
    int st = child_status(p);
    if (st) fprintf(stderr, "fork child: step %d\n", st);
    CHECK(st == 0);
    p = vfork();
    if (p == 0) {
        close(fd);
        dup2(1, fd);
        _exit(0);
    }
    CHECK(child_status(p) == 0);
    CHECK(pread(fd, &c, 1, 0) == 1 && close(fd) == 0);
}

static void *offsets(void *arg) {
    int fd = *(int *)arg;
    uint32_t v;
    intptr_t sum = 0;
    for (int i = 0; i < 1000; i++) {
        CHECK(read(fd, &v, 4) == 4);
        sum += v;
    }
    return (void *)sum;
}

static void threads(void) {
    int fd = open(path, O_RDWR);
    for (uint32_t i = 0; i < 4000; i++) CHECK(pwrite(fd, &i, 4, 4 * (off_t)i) == 4);
    pthread_t t[4];
    intptr_t sum = 0;
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, offsets, &fd);
    for (int i = 0; i < 4; i++) {
        void *part;
        pthread_join(t[i], &part);
        sum += (intptr_t)part;
    }
    CHECK(sum == 3999L * 4000 / 2);
    CHECK(close(fd) == 0);
}

static void streams(void) {
    FILE *f = fopen(path, "r+");
    CHECK(f && fileno(f) >= 0);
    CHECK(fseek(f, 100, SEEK_SET) == 0 && fputs("line one\nline two\n", f) >= 0 && fflush(f) == 0);
    char b[64];
    rewind(f);
    CHECK(fseek(f, 100, SEEK_SET) == 0 && fgets(b, sizeof b, f) && strcmp(b, "line one\n") == 0);
    CHECK(fclose(f) == 0);
    int fd = open(path, O_RDONLY);
    f = fdopen(fd, "r");
    CHECK(f && fileno(f) == fd && fseek(f, 109, SEEK_SET) == 0 && fgets(b, sizeof b, f) && strcmp(b, "line two\n") == 0);
    CHECK(fclose(f) == 0);
    FAILS(fcntl(fd, F_GETFD), EBADF);
    errno = 0;
    CHECK(fopen("/smc/local/.bad", "r") == NULL && errno == ENOENT);
}

/* What succeeds leaves errno alone. */
static void quiet(void) {
    char b[8];
    struct stat st;
    struct iovec v = {b, 8};
#define QUIET(c) do { errno = 99; CHECK(c); CHECK(errno == 99); } while (0)
    int fd, d;
    char *m;
    QUIET((fd = open(path, O_RDWR)) >= 0);
    QUIET(read(fd, b, 8) == 8);
    QUIET(write(fd, b, 8) == 8);
    QUIET(pread(fd, b, 8, 0) == 8);
    QUIET(pwritev(fd, &v, 1, 0) == 8);
    QUIET(lseek(fd, 0, SEEK_END) == (off_t)size);
    QUIET(fstat(fd, &st) == 0);
    QUIET(stat(path, &st) == 0);
    QUIET(access(path, R_OK) == 0);
    QUIET((d = dup(fd)) >= 0);
    QUIET(fcntl(fd, F_GETFL) >= 0);
    QUIET((m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) != MAP_FAILED);
    QUIET(m[4096 * 9] == m[4096 * 9]);
    QUIET(madvise(m, size, MADV_WILLNEED) == 0);
    QUIET(msync(m, size, MS_SYNC | MS_INVALIDATE) == 0);
    QUIET(munmap(m, size) == 0);
    QUIET(ftruncate(fd, (off_t)size) == 0);
    QUIET(fsync(fd) == 0);
    QUIET(close(d) == 0);
    QUIET(close(fd) == 0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    alarm(60);
    path = argv[1];
    size = strtoul(argv[2], NULL, 0);
    names();
    transfers();
    numbers();
    mappings();
    buffers();
    children();
    threads();
    streams();
    quiet();
    puts("posix path ok");
    return 0;
}
