/* System calls that wait while the pages of their buffers are given back, driven out and protected again, and then get something
   that would be lost if they failed: a datagram, a connection's address, a count, an exit status, an event. */
#include "situations.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>

static unsigned char *base;
static int d[2], eventd, listener, nowhere[2];
static struct sockaddr_un here = {.sun_family = AF_UNIX};

/* A buffer of its own page, with a byte on either side that must stay. */
static void *place(int page, size_t n) {
    unsigned char *p = base + page * PAGE + 8;
    p[-1] = 0xa1, p[n] = 0xa2;
    return p;
}
static void untouched(void *at, size_t n) {
    unsigned char *p = at;
    CHECK(p[-1] == 0xa1 && p[n] == 0xa2);
}

/* Waits until `thread` sleeps in a system call, and takes its pages away. */
static volatile pid_t waiter;
static void take_away(void) {
    char path[64], text[256] = "";
    for (int i = 0; i < 5000; i++) {
        struct timespec ms = {0, 1000000};
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", waiter);
        FILE *f = waiter ? fopen(path, "r") : NULL;
        if (f) {
            CHECK(fgets(text, sizeof text, f));
            fclose(f);
            char *after = strrchr(text, ')');
            if (after && after[2] == 'S' && i > 20) break;
        }
        nanosleep(&ms, NULL);
    }
    CHECK(msync(base, 64 * PAGE, MS_SYNC) == 0);
    CHECK(madvise(base, 64 * PAGE, MADV_DONTNEED) == 0);
}

static void one(void *(*body)(void *), void (*give)(void)) {
    pthread_t t;
    waiter = 0;
    CHECK(pthread_create(&t, NULL, body, NULL) == 0);
    take_away();
    give();
    CHECK(pthread_join(t, NULL) == 0);
}
static void *begins(void) {
    waiter = (pid_t)syscall(SYS_gettid);
    return NULL;
}

static void datagram(void) { CHECK(send(d[0], TEXT, N, 0) == N); }
static void two(void) { datagram(), datagram(); }
static void count(void) {
    uint64_t five = 5;
    CHECK(write(eventd, &five, 8) == 8);
}
static void calls(void) {
    struct sockaddr_un from = {.sun_family = AF_UNIX};
    from.sun_path[1] = 'f';
    int c = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(c, (void *)&from, sizeof(sa_family_t) + 6) == 0 && connect(c, (void *)&here, sizeof(sa_family_t) + 6) == 0);
}
static void nothing(void) {}

static void *receives(void *x) {
    char *b = place(1, N);
    begins();
    CHECK(recv(d[1], b, N, 0) == N && memcmp(b, TEXT, N) == 0);
    untouched(b, N);
    return x;
}
static void *reads(void *x) {
    struct iovec *v = place(2, 2 * sizeof *v);
    char *b = place(3, N);
    v[0] = (struct iovec){b, 10}, v[1] = (struct iovec){b + 10, N - 10};
    begins();
    CHECK(readv(d[1], v, 2) == N && memcmp(b, TEXT, N) == 0 && v[1].iov_base == b + 10);
    untouched(b, N);
    return x;
}
static void *message(void *x) {
    struct msghdr *m = place(4, sizeof *m), outside = {0};
    struct iovec *v = place(5, sizeof *v), w;
    char *b = place(6, N), *name = place(7, sizeof here), *control = place(8, 64);
    v->iov_base = b, v->iov_len = N;
    *m = (struct msghdr){.msg_name = name, .msg_namelen = sizeof here, .msg_iov = v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = 64};
    begins();
    CHECK(recvmsg(d[1], m, 0) == N && memcmp(b, TEXT, N) == 0);
    CHECK(m->msg_iov == v && m->msg_name == name && m->msg_control == control && m->msg_controllen == 0 && v->iov_base == b);
    untouched(b, N), untouched(m, sizeof *m);
    /* The structure elsewhere, a short buffer in the view. */
    w = (struct iovec){b, 10}, outside.msg_iov = &w, outside.msg_iovlen = 1, outside.msg_controllen = 0;
    b[10] = 0x33;
    CHECK(recvmsg(d[1], &outside, 0) == 10 && outside.msg_flags & MSG_TRUNC && b[10] == 0x33 && outside.msg_iov == &w);
    return x;
}
static void *messages(void *x) {
    struct mmsghdr *m = place(9, 2 * sizeof *m);
    struct iovec *v = place(10, 2 * sizeof *v);
    memset(m, 0, 2 * sizeof *m);
    for (int i = 0; i < 2; i++) v[i] = (struct iovec){place(11 + i, N), N}, m[i].msg_hdr.msg_iov = v + i, m[i].msg_hdr.msg_iovlen = 1;
    begins();
    CHECK(recvmmsg(d[1], m, 2, 0, NULL) == 2 && m[0].msg_len == N && m[1].msg_len == N);
    for (int i = 0; i < 2; i++) CHECK(m[i].msg_hdr.msg_iov == v + i && memcmp(v[i].iov_base, TEXT, N) == 0);
    return x;
}
static void *counts(void *x) {
    uint64_t *n = place(13, 8);
    begins();
    CHECK(read(eventd, n, 8) == 8 && *n == 5);
    untouched(n, 8);
    return x;
}
static void *accepts(void *x) {
    struct sockaddr_un *from = place(14, sizeof *from);
    socklen_t *len = place(15, sizeof *len);
    *len = sizeof *from;
    begins();
    CHECK(accept(listener, (void *)from, len) >= 0 && *len == sizeof(sa_family_t) + 6 && from->sun_path[1] == 'f');
    untouched(from, sizeof *from), untouched(len, sizeof *len);
    return x;
}
static void *reaps(void *x) {
    int *status = place(16, sizeof *status);
    siginfo_t *si = place(17, sizeof *si);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            usleep(i ? 1000 : 300000);
            _exit(7);
        }
        if (i == 0) {
            begins();
            CHECK(waitpid(child, status, 0) == child && WIFEXITED(*status) && WEXITSTATUS(*status) == 7);
        } else {
            CHECK(waitid(P_PID, (id_t)child, si, WEXITED) == 0 && si->si_status == 7 && si->si_pid == child);
        }
    }
    untouched(status, sizeof *status), untouched(si, sizeof *si);
    return x;
}
static void *polls(void *x) {
    struct pollfd *q = place(18, 2 * sizeof *q);
    q[0] = (struct pollfd){nowhere[0], POLLIN, 0}, q[1] = (struct pollfd){eventd, POLLIN, 0};
    begins();
    CHECK(poll(q, 2, 20000) == 1 && q[0].revents == 0 && q[1].revents == POLLIN && q[1].fd == eventd);
    uint64_t n;
    CHECK(read(eventd, &n, 8) == 8 && n == 5);
    return x;
}
static void *selects(void *x) {
    fd_set *in = place(19, sizeof *in);
    struct timeval *tv = place(20, sizeof *tv);
    FD_ZERO(in);
    FD_SET(nowhere[0], in), FD_SET(eventd, in);
    *tv = (struct timeval){20, 0};
    begins();
    CHECK(select(eventd + 1 > nowhere[0] ? eventd + 1 : nowhere[0] + 1, in, NULL, NULL, tv) == 1 && FD_ISSET(eventd, in) && !FD_ISSET(nowhere[0], in) && tv->tv_sec < 20);
    uint64_t n;
    CHECK(read(eventd, &n, 8) == 8 && n == 5);
    return x;
}
static void *edges(void *x) {
    struct epoll_event *ev = place(21, 4 * sizeof *ev), want = {EPOLLIN | EPOLLET | EPOLLONESHOT, {.u64 = 91}};
    int e = epoll_create1(0);
    CHECK(epoll_ctl(e, EPOLL_CTL_ADD, eventd, &want) == 0);
    begins();
    CHECK(epoll_wait(e, ev, 4, 20000) == 1 && ev->data.u64 == 91 && ev->events == EPOLLIN);
    uint64_t n;
    CHECK(read(eventd, &n, 8) == 8 && n == 5 && close(e) == 0);
    return x;
}

int main(int argc, char **argv) {
    CHECK(argc == 3 && strcmp(argv[2], "all") == 0);
    int f = open(argv[1], O_RDWR);
    base = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    CHECK(f >= 0 && base != MAP_FAILED);
    here.sun_path[1] = 'l', here.sun_path[2] = (char)getpid(), here.sun_path[3] = (char)(getpid() >> 8);
    eventd = eventfd(0, 0), listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(eventd >= 0 && pipe(nowhere) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0);
    CHECK(bind(listener, (void *)&here, sizeof(sa_family_t) + 6) == 0 && listen(listener, 4) == 0);
    one(receives, datagram), one(reads, datagram), one(message, two), one(messages, two);
    one(counts, count), one(accepts, calls), one(reaps, nothing), one(polls, count), one(selects, count), one(edges, count);
    puts("ok");
    return 0;
}
