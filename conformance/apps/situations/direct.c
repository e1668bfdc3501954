/* Input and output that goes past the page tables: O_DIRECT and io_uring. */
#include "situations.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

static int direct_file(size_t n, int seed) {
    char name[] = "situation-XXXXXX"; /* in the working directory: /tmp may be memory, which has no O_DIRECT */
    int f = mkstemp(name);
    CHECK(f >= 0);
    unsigned char *all = malloc(n);
    for (size_t i = 0; i < n; i++) all[i] = pattern(i + seed);
    CHECK(write(f, all, n) == (ssize_t)n && fsync(f) == 0);
    free(all);
    close(f);
    f = open(name, O_RDWR | O_DIRECT);
    unlink(name);
    return f;
}

static void *syncer(void *stop) {
    while (!*(volatile int *)stop) CHECK(msync(view, size, MS_SYNC | MS_INVALIDATE) == 0);
    return NULL;
}

enum { LEN = 3 << 20, ODD = 5 };

/* What a device has written arrives at the home, though others release and drop pages meanwhile. */
static void files(void) {
    int stop = 0;
    pthread_t t;
    int f = direct_file(LEN, ODD);
    if (f < 0) { printf("skipped: no O_DIRECT here\n"); exit(0); }
    CHECK(pthread_create(&t, NULL, syncer, &stop) == 0);
    for (int round = 0; round < 6; round++) {
        unsigned char *to = view + (1 + round % 3) * PAGE;
        memset(to, 0, LEN);
        ssize_t n = 0;
        struct iovec v[2] = {{to, PAGE}, {to + PAGE, LEN - PAGE}};
        switch (round) {
        case 0: n = pread(f, to, LEN, 0); break;
        case 1: n = read(f, to, LEN); break;
        case 2: n = preadv(f, v, 2, 0); break;
        case 3: n = preadv2(f, v, 2, 0, 0); break;
        case 4: CHECK(lseek(f, 0, SEEK_SET) == 0); n = readv(f, v, 2); break;
        default: n = pread(f, to, LEN, 0);
        }
        CHECK(n == LEN && is_pattern(to, LEN, ODD));
        arrives(to, LEN);
        CHECK(madvise(view, size, MADV_DONTNEED) == 0 && is_pattern(to, LEN, ODD));
        /* And out again, from absent pages. */
        n = pwrite(f, to, LEN, LEN);
        CHECK(n == LEN);
        unsigned char *back = aligned_alloc(PAGE, LEN);
        CHECK(pread(f, back, LEN, LEN) == LEN && is_pattern(back, LEN, ODD));
        free(back);
    }
    stop = 1;
    CHECK(pthread_join(t, NULL) == 0);
    FAILS(pread(f, view, LEN, -3), EINVAL);
    FAILS(pread(f, view, LEN, -1), EINVAL);
    CHECK(lseek(f, 0, SEEK_SET) == 0 && read(f, view, 2 * PAGE) == (ssize_t)(2 * PAGE) && lseek(f, 0, SEEK_CUR) == (off_t)(2 * PAGE));
    CHECK(pread(f, view, LEN, 2 * LEN - PAGE) == (ssize_t)PAGE && pread(f, view, LEN, 2 * LEN) == 0);
    close(f);
}

/* A ring of one request, without liburing. */
static struct { int fd; unsigned *sq_tail, *sq_array, *cq_head, *cq_tail, mask; struct io_uring_sqe *sqe; struct io_uring_cqe *cqe; } ring;

static int ring_made(void) {
    struct io_uring_params p = {0};
    ring.fd = syscall(SYS_io_uring_setup, 4, &p);
    if (ring.fd < 0) return 0;
    size_t n = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe) + p.sq_off.array + p.sq_entries * 4;
    char *r = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    char *c = p.features & IORING_FEAT_SINGLE_MMAP ? r : mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_CQ_RING);
    ring.sqe = mmap(NULL, p.sq_entries * sizeof *ring.sqe, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQES);
    CHECK(r != MAP_FAILED && c != MAP_FAILED && (void *)ring.sqe != MAP_FAILED);
    ring.sq_tail = (unsigned *)(r + p.sq_off.tail), ring.sq_array = (unsigned *)(r + p.sq_off.array);
    ring.cq_head = (unsigned *)(c + p.cq_off.head), ring.cq_tail = (unsigned *)(c + p.cq_off.tail), ring.mask = p.cq_entries - 1;
    ring.cqe = (struct io_uring_cqe *)(c + p.cq_off.cqes);
    return 1;
}

static int ring_does(int op, int f, void *p, size_t n, off_t off, int flags) {
    memset(ring.sqe, 0, sizeof *ring.sqe);
    ring.sqe->opcode = op, ring.sqe->fd = f, ring.sqe->addr = (uintptr_t)p, ring.sqe->len = n, ring.sqe->off = off, ring.sqe->flags = flags;
    ring.sq_array[*ring.sq_tail & 3] = 0;
    __atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    while (__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == *ring.cq_head) {}
    int r = ring.cqe[*ring.cq_head & ring.mask].res;
    __atomic_store_n(ring.cq_head, *ring.cq_head + 1, __ATOMIC_RELEASE);
    return r;
}

/* Buffers given by number of bytes: right with `thread`; EFAULT, or right, elsewhere. Never other bytes. */
static void uring(void) {
    int f = mkstemp(tmp), waits = !strcmp(getenv("LIBSMC_FAULT"), "thread");
    unlink(tmp);
    if (!ring_made()) { printf("skipped: no io_uring here\n"); exit(0); }
    for (int flags = 0; flags <= (int)IOSQE_ASYNC; flags += IOSQE_ASYNC)
        for (state = ABSENT; state < STATES; state++) {
            unsigned char *b = fresh(2 * PAGE), got[2 * PAGE];
            int r = ring_does(IORING_OP_WRITE, f, b, 2 * PAGE, 0, flags);
            CHECK(r == (int)(2 * PAGE) || (!waits && (r == -EFAULT || r > 0)));
            if (r > 0) CHECK(pread(f, got, r, 0) == r && is_pattern(got, r, off_of(b)));
            for (size_t i = 0; i < sizeof got; i++) got[i] = pattern(i + ODD);
            CHECK(pwrite(f, got, sizeof got, 0) == sizeof got);
            b = fresh(2 * PAGE);
            r = ring_does(IORING_OP_READ, f, b, 2 * PAGE, 0, flags);
            CHECK(r == (int)(2 * PAGE) || (!waits && (r == -EFAULT || r > 0)));
            if (r > 0) CHECK(is_pattern(b, r, ODD));
            arrives(b, 2 * PAGE);
        }
    close(f);
}

/* Registered buffers are pinned: what is written through one is not seen until the program says that it has stored. */
static void registered(void) {
    int f = mkstemp(tmp);
    unsigned char text[PAGE];
    unlink(tmp);
    if (!ring_made()) { printf("skipped: no io_uring here\n"); exit(0); }
    struct iovec v = {view + 64 * PAGE, PAGE};
    int r = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &v, 1);
    if (r != 0) {
        CHECK(strcmp(getenv("LIBSMC_FAULT"), "thread") && (errno == EFAULT || errno == EOPNOTSUPP));
        for (size_t i = 0; i < 17; i++) view[64 * PAGE + i * PAGE] = pattern(64 * PAGE + i * PAGE);
        r = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &v, 1);
    }
    CHECK(r == 0);
    for (size_t i = 0; i < PAGE; i++) text[i] = pattern(i + ODD);
    CHECK(pwrite(f, text, PAGE, 0) == PAGE && msync(view + 64 * PAGE, PAGE, MS_SYNC) == 0);
    r = ring_does(IORING_OP_READ_FIXED, f, v.iov_base, PAGE, 0, 0);
    CHECK(r == (int)PAGE && is_pattern(v.iov_base, PAGE, ODD));
    /* The documented remedy for a program that knows nothing of libsmc: one store to each page. */
    unsigned char *b = v.iov_base;
    __atomic_fetch_or(b, 0, __ATOMIC_SEQ_CST);
    arrives(b, PAGE);
    /* The pinned page is the view's page, also after it was dropped and fetched again. */
    CHECK(madvise(b, PAGE, MADV_DONTNEED) == 0 && b[0] == text[0]);
    CHECK(pwrite(f, TEXT, N, 0) == N && ring_does(IORING_OP_READ_FIXED, f, b, N, 0, 0) == N && memcmp(b, TEXT, N) == 0);
}

int main(int argc, char **argv) {
    const char *what = start(argc, argv);
    !strcmp(what, "files") ? files() : !strcmp(what, "uring") ? uring() : registered();
    puts("ok");
    return 0;
}
