/* System calls whose buffers lie in absent, clean and dirty pages of a view. */
#include "situations.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

static void files(void) {
    char got[N];
    int f = mkstemp(tmp), p[2];
    unlink(tmp);
    strcpy(tmp + sizeof tmp - 7, "XXXXXX");
    CHECK(f >= 0 && pipe(p) == 0);
    unsigned char *b = fresh(N);
    CHECK(write(p[1], b, N) == N && read(p[0], got, N) == N && is_pattern(got, N, off_of(b)));
    b = fresh(N);
    CHECK(pwrite(f, b, N, 100) == N && pread(f, got, N, 100) == N && is_pattern(got, N, off_of(b)));
    b = fresh(N);
    CHECK(write(p[1], TEXT, N) == N && read(p[0], b, N) == N && memcmp(b, TEXT, N) == 0);
    arrives(b, N);
    b = fresh(N);
    CHECK(pwrite(f, TEXT, N, 0) == N && pread(f, b, N, 0) == N && memcmp(b, TEXT, N) == 0);
    arrives(b, N);
    /* The list itself lies there too. */
    struct iovec *v = fresh(3 * sizeof *v);
    unsigned char *x = fresh(N), *y = fresh(N), *z = fresh(N);
    v[0] = (struct iovec){x, N}, v[1] = (struct iovec){y, N}, v[2] = (struct iovec){z, N};
    CHECK(writev(p[1], v, 3) == 3 * N);
    CHECK(read(p[0], got, N) == N && is_pattern(got, N, off_of(x)) && read(p[0], got, N) == N && read(p[0], got, N) == N && is_pattern(got, N, off_of(z)));
    v[0].iov_base = fresh(N), v[1].iov_base = fresh(N);
    CHECK(write(p[1], TEXT, N) == N && write(p[1], TEXT, N) == N && readv(p[0], v, 2) == 2 * N);
    CHECK(memcmp(v[0].iov_base, TEXT, N) == 0 && memcmp(v[1].iov_base, TEXT, N) == 0);
    arrives(v[1].iov_base, N);
    v[0].iov_base = fresh(N);
    CHECK(preadv2(f, v, 1, 0, 0) == N && memcmp(v[0].iov_base, TEXT, N) == 0);
    v[0].iov_base = b = fresh(N);
    CHECK(pwritev2(f, v, 1, 200, 0) == N && pread(f, got, N, 200) == N && is_pattern(got, N, off_of(b)));
    v[0].iov_base = b = fresh(N);
    CHECK(vmsplice(p[1], v, 1, 0) == N && read(p[0], got, N) == N && is_pattern(got, N, off_of(b)));
    struct stat *st = fresh(sizeof *st);
    CHECK(fstat(f, st) == 0 && S_ISREG(st->st_mode));
    st = fresh(sizeof *st);
    CHECK(stat("/etc/passwd", st) == 0 && S_ISREG(st->st_mode));
    struct statx *sx = fresh(sizeof *sx);
    CHECK(statx(AT_FDCWD, "/etc/passwd", 0, STATX_BASIC_STATS, sx) == 0 && S_ISREG(sx->stx_mode));
    char *name = fresh(16);
    memcpy(name, "/etc/passwd", 12);
    CHECK(msync((void *)((uintptr_t)name & ~(PAGE - 1)), 2 * PAGE, MS_SYNC) == 0);
    for (int i = 0; i < 3; i++) {
        if (state == ABSENT) CHECK(madvise((void *)((uintptr_t)name & ~(PAGE - 1)), 2 * PAGE, MADV_DONTNEED) == 0);
        int o = i == 0 ? open(name, O_RDONLY) : i == 1 ? access(name, R_OK) : stat(name, st);
        CHECK(o >= 0 && (i || close(o) == 0));
    }
    uint64_t *n = fresh(8), seven = 7;
    int e = eventfd(0, EFD_NONBLOCK);
    CHECK(write(e, &seven, 8) == 8 && read(e, n, 8) == 8 && *n == 7);
    arrives(n, 8);
    CHECK(close(f) == 0 && close(p[0]) == 0 && close(p[1]) == 0 && close(e) == 0);
}

static void stdio(void) {
    static char got[300000];
    FILE *f = tmpfile();
    CHECK(f);
    unsigned char *b = fresh(sizeof got);
    CHECK(fwrite(b, 1, sizeof got, f) == sizeof got && fflush(f) == 0);
    rewind(f);
    CHECK(fread(got, 1, sizeof got, f) == sizeof got && is_pattern(got, sizeof got, off_of(b)));
    rewind(f);
    memset(got, 0x5A, sizeof got);
    CHECK(fwrite(got, 1, sizeof got, f) == sizeof got && fflush(f) == 0);
    rewind(f);
    b = fresh(sizeof got);
    CHECK(fread(b, 3, sizeof got / 3, f) == sizeof got / 3 && memcmp(b, got, sizeof got) == 0);
    arrives(b, sizeof got);
    fclose(f);
}

static void sockets(void) {
    char got[N], control[CMSG_SPACE(sizeof(int))];
    int *s = fresh(8), *d = fresh(8);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, d) == 0);
    unsigned char *b = fresh(N);
    CHECK(send(s[0], b, N, 0) == N && recv(s[1], got, N, MSG_WAITALL) == N && is_pattern(got, N, off_of(b)));
    b = fresh(N);
    CHECK(send(s[0], TEXT, N, 0) == N && recv(s[1], b, N, MSG_WAITALL) == N && memcmp(b, TEXT, N) == 0);
    arrives(b, N);
    b = fresh(N);
    CHECK(send(d[0], b, N, 0) == N && recv(d[1], got, N, 0) == N && is_pattern(got, N, off_of(b)));
    b = fresh(N);
    CHECK(send(d[0], TEXT, N, 0) == N && recv(d[1], b, N, MSG_DONTWAIT) == N && memcmp(b, TEXT, N) == 0);
    arrives(b, N);

    /* Names: an address of the abstract space, and everything about it, in the view. */
    struct sockaddr_un *a = fresh(sizeof *a), *from = fresh(sizeof *from);
    socklen_t *len = fresh(sizeof *len);
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    snprintf(a->sun_path + 1, 60, "smc-situations-%d-%d", getpid(), state);
    socklen_t alen = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a->sun_path + 1);
    int l = socket(AF_UNIX, SOCK_STREAM, 0), c = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(l, (void *)a, alen) == 0 && listen(l, 5) == 0 && connect(c, (void *)a, alen) == 0);
    *len = sizeof *from;
    int t = accept4(l, (void *)from, len, SOCK_CLOEXEC);
    CHECK(t >= 0 && *len == 2 && from->sun_family == AF_UNIX);
    int c2 = socket(AF_UNIX, SOCK_STREAM, 0);
    from = fresh(sizeof *from), len = fresh(sizeof *len);
    *len = sizeof *from;
    CHECK(connect(c2, (void *)a, alen) == 0);
    int t2 = accept(l, (void *)from, len);
    CHECK(t2 >= 0 && *len == 2 && close(t2) == 0 && close(c2) == 0);
    from = fresh(sizeof *from), len = fresh(sizeof *len);
    *len = sizeof *from;
    CHECK(getsockname(t, (void *)from, len) == 0 && *len == alen && memcmp(from, a, alen) == 0);
    from = fresh(sizeof *from), len = fresh(sizeof *len);
    *len = sizeof *from;
    CHECK(getpeername(c, (void *)from, len) == 0 && *len == alen);
    int *value = fresh(4);
    len = fresh(sizeof *len);
    *len = 4;
    CHECK(getsockopt(t, SOL_SOCKET, SO_TYPE, value, len) == 0 && *value == SOCK_STREAM && *len == 4);
    *value = 1;
    CHECK(setsockopt(t, SOL_SOCKET, SO_PASSCRED, value, 4) == 0);
    int u = socket(AF_UNIX, SOCK_DGRAM, 0), w = socket(AF_UNIX, SOCK_DGRAM, 0);
    a->sun_path[1] ^= 1;
    CHECK(bind(u, (void *)a, alen) == 0);
    b = fresh(N);
    CHECK(sendto(w, b, N, 0, (void *)a, alen) == N);
    from = fresh(sizeof *from), len = fresh(sizeof *len);
    *len = sizeof *from;
    unsigned char *r = fresh(N);
    CHECK(recvfrom(u, r, N, MSG_DONTWAIT, (void *)from, len) == N && memcmp(r, b, N) == 0);

    /* A message of which every part lies in the view, with a descriptor. */
    struct msghdr *m = fresh(sizeof *m);
    struct iovec *v = fresh(sizeof *v);
    char *ctl = fresh(sizeof control);
    b = fresh(N);
    *v = (struct iovec){b, N};
    memset(m, 0, sizeof *m);
    m->msg_iov = v, m->msg_iovlen = 1, m->msg_control = ctl, m->msg_controllen = CMSG_LEN(sizeof(int));
    *(struct cmsghdr *)ctl = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA((struct cmsghdr *)ctl), &l, sizeof l);
    CHECK(sendmsg(d[0], m, 0) == N);
    m = fresh(sizeof *m), v = fresh(sizeof *v), ctl = fresh(sizeof control), r = fresh(N);
    *v = (struct iovec){r, N};
    memset(m, 0, sizeof *m);
    m->msg_iov = v, m->msg_iovlen = 1, m->msg_control = ctl, m->msg_controllen = sizeof control;
    CHECK(recvmsg(d[1], m, MSG_DONTWAIT) == N && memcmp(r, b, N) == 0 && m->msg_controllen >= CMSG_LEN(sizeof(int)) && !(m->msg_flags & MSG_CTRUNC));
    int passed = *(int *)CMSG_DATA((struct cmsghdr *)ctl);
    CHECK(passed > 2 && fcntl(passed, F_GETFD) >= 0 && close(passed) == 0);
    arrives(r, N);

    struct mmsghdr *mm = fresh(2 * sizeof *mm);
    memset(mm, 0, 2 * sizeof *mm);
    v = fresh(2 * sizeof *v);
    for (int i = 0; i < 2; i++) {
        v[i] = (struct iovec){fresh(N), N};
        mm[i].msg_hdr.msg_iov = v + i, mm[i].msg_hdr.msg_iovlen = 1;
    }
    CHECK(sendmmsg(d[0], mm, 2, 0) == 2 && mm[1].msg_len == N);
    size_t off[2] = {off_of(v[0].iov_base), off_of(v[1].iov_base)};
    for (int i = 0; i < 2; i++) v[i].iov_base = fresh(N);
    CHECK(recvmmsg(d[1], mm, 2, MSG_DONTWAIT, NULL) == 2 && mm[1].msg_len == N);
    CHECK(is_pattern(v[0].iov_base, N, off[0]) && is_pattern(v[1].iov_base, N, off[1]));
    int all[] = {s[0], s[1], d[0], d[1], l, c, t, u, w};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) CHECK(close(all[i]) == 0);
}

static void waiting(void) {
    int p[2];
    CHECK(pipe(p) == 0 && write(p[1], "x", 1) == 1);
    struct pollfd *q = fresh(2 * sizeof *q);
    q[0] = (struct pollfd){p[0], POLLIN, 0}, q[1] = (struct pollfd){p[1], POLLOUT, 0};
    CHECK(poll(q, 2, 1000) == 2 && q[0].revents == POLLIN && q[1].revents == POLLOUT);
    q = fresh(sizeof *q);
    struct timespec *ts = fresh(sizeof *ts);
    *q = (struct pollfd){p[0], POLLIN, 0}, *ts = (struct timespec){1, 0};
    CHECK(ppoll(q, 1, ts, NULL) == 1 && q->revents == POLLIN);
    fd_set *in = fresh(sizeof *in);
    struct timeval *tv = fresh(sizeof *tv);
    FD_ZERO(in);
    FD_SET(p[0], in);
    *tv = (struct timeval){1, 0};
    CHECK(select(p[0] + 1, in, NULL, NULL, tv) == 1 && FD_ISSET(p[0], in));
    in = fresh(sizeof *in);
    FD_ZERO(in);
    FD_SET(p[0], in);
    CHECK(pselect(p[0] + 1, in, NULL, NULL, ts, NULL) == 1 && FD_ISSET(p[0], in));
    int e = epoll_create1(0);
    struct epoll_event *ev = fresh(sizeof *ev);
    *ev = (struct epoll_event){EPOLLIN | EPOLLET, {.u64 = 77}};
    CHECK(epoll_ctl(e, EPOLL_CTL_ADD, p[0], ev) == 0);
    ev = fresh(4 * sizeof *ev);
    CHECK(epoll_wait(e, ev, 4, 1000) == 1 && ev->data.u64 == 77);
    CHECK(write(p[1], "x", 1) == 1);
    ev = fresh(4 * sizeof *ev);
    CHECK(epoll_pwait(e, ev, 4, 1000, NULL) == 1 && ev->data.u64 == 77);
    CHECK(write(p[1], "x", 1) == 1);
    ev = fresh(4 * sizeof *ev);
    CHECK((epoll_pwait2(e, ev, 4, ts, NULL) == 1 && ev->data.u64 == 77) || errno == ENOSYS);
    CHECK(close(e) == 0 && close(p[0]) == 0 && close(p[1]) == 0);
}

static pid_t child(void) {
    pid_t c = fork();
    if (c == 0) _exit(9);
    CHECK(c > 0);
    return c;
}

static void processes(void) {
    int *status = fresh(4);
    pid_t c = child();
    CHECK(waitpid(c, status, 0) == c && WEXITSTATUS(*status) == 9);
    c = child(), status = fresh(4);
    CHECK(wait(status) == c && WEXITSTATUS(*status) == 9);
    struct rusage *u = fresh(sizeof *u);
    c = child(), status = fresh(4);
    CHECK(wait4(c, status, 0, u) == c && WEXITSTATUS(*status) == 9);
    c = child(), status = fresh(4), u = fresh(sizeof *u);
    CHECK(wait3(status, 0, u) == c && WEXITSTATUS(*status) == 9);
    siginfo_t *i = fresh(sizeof *i);
    c = child();
    CHECK(waitid(P_PID, c, i, WEXITED) == 0 && i->si_status == 9);
    char got[N];
    unsigned char *b = fresh(N);
    struct iovec *mine = fresh(sizeof *mine), theirs = {got, N};
    *mine = (struct iovec){b, N};
    CHECK(process_vm_writev(getpid(), mine, 1, &theirs, 1, 0) == N && is_pattern(got, N, off_of(b)));
    mine = fresh(sizeof *mine);
    *mine = (struct iovec){b = fresh(N), N};
    theirs.iov_base = (char *)TEXT;
    CHECK(process_vm_readv(getpid(), mine, 1, &theirs, 1, 0) == N && memcmp(b, TEXT, N) == 0);
    arrives(b, N);
    int q = msgget(IPC_PRIVATE, 0600);
    if (q >= 0) {
        struct message { long type; char text[N]; } *m = fresh(sizeof *m);
        m->type = 3;
        CHECK(msgsnd(q, m, N, 0) == 0);
        struct message *r = fresh(sizeof *r);
        CHECK(msgrcv(q, r, N, 0, IPC_NOWAIT) == N && r->type == 3 && memcmp(r->text, m->text, N) == 0);
        msgctl(q, IPC_RMID, NULL);
    }
    CHECK(getrandom(fresh(200), 200, 0) == 200 && getentropy(fresh(200), 200) == 0);
    char *link = fresh(64);
    CHECK(readlink("/proc/self/exe", link, 64) > 0 && link[0] == '/');
    link = fresh(64);
    CHECK(readlinkat(AT_FDCWD, "/proc/self/exe", link, 64) > 0 && link[0] == '/');
    int *p = fresh(8);
    CHECK(pipe(p) == 0 && close(p[0]) == 0 && close(p[1]) == 0);
    p = fresh(8);
    CHECK(pipe2(p, O_CLOEXEC) == 0 && close(p[0]) == 0 && close(p[1]) == 0);
}

int main(int argc, char **argv) {
    const char *what = start(argc, argv);
    void (*f)(void) = !strcmp(what, "files") ? files : !strcmp(what, "stdio") ? stdio : !strcmp(what, "sockets") ? sockets : !strcmp(what, "waiting") ? waiting : processes;
    for (state = ABSENT; state < STATES; state++) f();
    puts("ok");
    return 0;
}
