/* System calls with long buffers, with bad addresses, and under the names of _FORTIFY_SOURCE. */
#include "situations.h"
#include <poll.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* The names that _FORTIFY_SOURCE puts in place of others. */
ssize_t __recv_chk(int, void *, size_t, size_t, int);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);
size_t __fread_unlocked_chk(void *, size_t, size_t, size_t, FILE *);

static void checked(void) {
    enum { MUCH = 20000 };
    int d[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0 && send(d[0], TEXT, N, 0) == N);
    struct pollfd *q = fresh(sizeof *q);
    *q = (struct pollfd){d[1], POLLIN, 0};
    CHECK(__poll_chk(q, 1, 1000, sizeof *q) == 1 && q->revents == POLLIN);
    struct timespec *ts = fresh(sizeof *ts);
    q = fresh(sizeof *q);
    *q = (struct pollfd){d[1], POLLIN, 0}, *ts = (struct timespec){1, 0};
    CHECK(__ppoll_chk(q, 1, ts, NULL, sizeof *q) == 1 && q->revents == POLLIN);
    unsigned char *b = fresh(N);
    CHECK(__recv_chk(d[1], b, N, N, MSG_DONTWAIT) == N && memcmp(b, TEXT, N) == 0);
    FILE *f = tmpfile();
    b = fresh(MUCH);
    CHECK(f && fwrite_unlocked(b, 1, MUCH, f) == MUCH && fflush(f) == 0);
    for (int i = 0; i < 3; i++) {
        unsigned char *c = fresh(MUCH);
        rewind(f);
        size_t n = i == 0 ? fread_unlocked(c, 1, MUCH, f) : i == 1 ? __fread_chk(c, MUCH, 1, MUCH, f) : __fread_unlocked_chk(c, MUCH, 1, MUCH, f);
        CHECK(n == MUCH && is_pattern(c, MUCH, off_of(b)));
    }
    fclose(f);
    close(d[0]);
    close(d[1]);
}

/* Longer than what is touched before a call, and longer than usual datagrams. */
enum { BIG = 3 << 20 };

static void *drain(void *arg) {
    static char got[BIG];
    for (size_t n = 0; n < BIG;) {
        ssize_t r = read(*(int *)arg, got + n, BIG - n);
        CHECK(r > 0);
        n += r;
    }
    return got;
}

static void *pour(void *arg) {
    static char out[BIG];
    for (size_t i = 0; i < BIG; i++) out[i] = pattern(i + 3);
    for (size_t n = 0; n < BIG;) {
        ssize_t w = write(*(int *)arg, out + n, BIG - n);
        CHECK(w > 0);
        n += w;
    }
    return NULL;
}

static void big(void) {
    int s[2], d[2], f = mkstemp(tmp), room = 1 << 20;
    unlink(tmp);
    strcpy(tmp + sizeof tmp - 7, "XXXXXX");
    pthread_t t;
    void *got;
    CHECK(f >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0);
    used = 0;
    unsigned char *b = fresh(BIG);
    CHECK(pthread_create(&t, NULL, drain, s + 1) == 0);
    for (size_t n = 0; n < BIG;) {
        ssize_t w = send(s[0], b + n, BIG - n, 0);
        CHECK(w > 0);
        n += w;
    }
    CHECK(pthread_join(t, &got) == 0 && is_pattern(got, BIG, off_of(b)));
    b = fresh(BIG);
    CHECK(pthread_create(&t, NULL, pour, s + 0) == 0);
    for (size_t n = 0; n < BIG;) {
        ssize_t r = recv(s[1], b + n, BIG - n, 0);
        CHECK(r > 0);
        n += r;
    }
    CHECK(pthread_join(t, NULL) == 0 && is_pattern(b, BIG, 3));
    arrives(b, BIG);
    /* Nothing is short in a file. */
    b = fresh(BIG);
    ssize_t whole = pwrite(f, b, BIG, 0);
    CHECK(whole == BIG || (strchr(path, '?') && whole > 0));
    unsigned char *c = fresh(BIG);
    ssize_t back = pread(f, c, BIG, 0);
    CHECK((back == BIG || (strchr(path, '?') && back > 0)) && is_pattern(c, whole < back ? whole : back, off_of(b)));
    /* A datagram of more than 64 KiB arrives whole or not at all, and into a buffer that is much longer. */
    setsockopt(d[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    b = fresh(150000), c = fresh(BIG);
    CHECK(send(d[0], b, 150000, 0) == 150000);
    CHECK(recv(d[1], c, BIG, MSG_DONTWAIT) == 150000 && is_pattern(c, 150000, off_of(b)));
    arrives(c, 150000);
    CHECK(madvise(view, size, MADV_DONTNEED) == 0);
    int all[] = {s[0], s[1], d[0], d[1], f};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CHECK(close(all[i]) == 0);
    fill_home();
    CHECK(madvise(view, size, MADV_DONTNEED) == 0);
}

/* Bad addresses beside good ones: the error, and not a crash; a buffer in a view changes nothing about that. */
static void bad(void) {
    int d[2], p[2];
    char got[N];
    struct iovec *nowhere = (void *)8;
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0 && pipe(p) == 0);
    unsigned char *b = fresh(N);
    struct iovec v[2] = {{b, N}, {(void *)16, N}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    FAILS(sendmsg(d[0], (void *)8, 0), EFAULT);
    FAILS(sendmsg(d[0], &m, 0), EFAULT);
    m.msg_iov = nowhere;
    FAILS(sendmsg(d[0], &m, 0), EFAULT);
    FAILS(sendmmsg(d[0], (void *)8, 1, 0), EFAULT);
    CHECK(send(d[0], TEXT, N, 0) == N && send(d[0], TEXT, 5, 0) == 5);
    FAILS(recvmsg(d[1], (void *)8, MSG_DONTWAIT), EFAULT);
    FAILS(recvmsg(d[1], &m, MSG_DONTWAIT), EFAULT);
    m.msg_iov = v;
    v[0].iov_base = fresh(N), v[0].iov_len = 4; /* one datagram is lost with the call, not two */
    FAILS(recvmsg(d[1], &m, MSG_DONTWAIT), EFAULT);
    CHECK(recv(d[1], got, N, MSG_DONTWAIT) == 5);
    FAILS(recvfrom(d[1], fresh(4), 4, MSG_DONTWAIT, (void *)got, (void *)8), EAGAIN);
    FAILS(write(p[1], (void *)16, N), EFAULT);
    FAILS(writev(p[1], nowhere, 2), EFAULT);
    FAILS(readv(p[0], nowhere, 2), EFAULT);
    FAILS(poll((void *)8, 2, 0), EFAULT);
    FAILS(select(p[0] + 1, (void *)8, NULL, NULL, &(struct timeval){0, 0}), EFAULT);
    FAILS(getsockname(d[0], fresh(16), (void *)8), EFAULT);
    FAILS(getrandom((void *)8, 10, 0), EFAULT);
    FAILS(process_vm_readv(getpid(), nowhere, 1, v, 1, 0), EFAULT);
    FAILS(stat((void *)8, fresh(200)), EFAULT);
    FAILS(fstat(p[0], (void *)8), EFAULT);
    FAILS(vmsplice(p[1], nowhere, 1, 0), EFAULT);
    CHECK(close(d[0]) == 0 && close(d[1]) == 0 && close(p[0]) == 0 && close(p[1]) == 0);
}

int main(int argc, char **argv) {
    const char *what = start(argc, argv);
    void (*f)(void) = !strcmp(what, "checked") ? checked : !strcmp(what, "big") ? big : bad;
    for (state = ABSENT; state < STATES; state++) f();
    puts("ok");
    return 0;
}
