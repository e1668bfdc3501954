#define _GNU_SOURCE
/* A device sees neither page protection nor a userfaultfd of the program's mapping, nor that it is unmapped, replaced or
 * discarded: after registration it reads and writes the pages that were there then. */
#include "verbs_app.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum { LEN = 64 * 4096 };

static struct end a, b;

static void write_and_read(struct ibv_mr *mr, unsigned char what)
{
    memset(a.buf, what, LEN);
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, LEN, (uintptr_t)mr->addr, mr->rkey)) == IBV_WC_SUCCESS);
    struct op o = op(&a, IBV_WR_RDMA_READ, LEN, (uintptr_t)mr->addr, mr->rkey);
    o.sge.addr += LEN;
    CHECK(run(&a, o) == IBV_WC_SUCCESS && !memcmp(a.buf, a.buf + LEN, LEN));
    o = op(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, (uintptr_t)mr->addr, mr->rkey);
    o.wr.wr.atomic.compare_add = 1;
    CHECK(run(&a, o) == IBV_WC_SUCCESS);
}

static void protection(int flags)
{
    char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, p, LEN, ALL);
    CHECK(p != MAP_FAILED && mr);
    CHECK(!mprotect(p, LEN, PROT_NONE));
    write_and_read(mr, 3);
    CHECK(!mprotect(p, LEN, PROT_READ));
    CHECK(p[0] == 4 && p[LEN - 1] == 3);
    CHECK(!ibv_dereg_mr(mr));
    munmap(p, LEN);
}

/* Private pages are pinned with io_uring; where it may not lock enough they are found by their address. Other processes
 * of the user count, too. */
static int can_pin(void)
{
    char params[120] = {0};
    struct rlimit lock;
    CHECK(!getrlimit(RLIMIT_MEMLOCK, &lock));
    int fd = geteuid() && lock.rlim_cur < 256 << 20 ? -1 : syscall(SYS_io_uring_setup, 1, params);
    if (fd < 0)
        puts("private pages cannot be pinned here");
    else
        close(fd);
    return fd >= 0;
}

/* Another mapping takes the place of the registered one: it is not touched. */
static void replaced(int flags)
{
    char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, p, LEN, ALL);
    CHECK(p != MAP_FAILED && mr);
    CHECK(mmap(p, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
    memset(p, 9, LEN);
    write_and_read(mr, 3);
    for (int i = 0; i < LEN; i++)
        CHECK(p[i] == 9);
    CHECK(!munmap(p, LEN));
    write_and_read(mr, 4);
    CHECK(!ibv_dereg_mr(mr));
}

/* Discarded private pages are the device's alone. */
static void discarded(void)
{
    char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, p, LEN, ALL);
    CHECK(p != MAP_FAILED && mr);
    CHECK(!madvise(p, LEN, MADV_DONTNEED));
    write_and_read(mr, 3);
    for (int i = 0; i < LEN; i++)
        CHECK(p[i] == 0);
    CHECK(!ibv_dereg_mr(mr));
    munmap(p, LEN);
}

/* Nobody serves this userfaultfd: an access that raised a fault would wait for ever. */
static int armed(int flags)
{
    int fd = flags & MAP_SHARED ? memfd_create("blind", MFD_CLOEXEC) : -1, u = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (u < 0)
        u = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (u < 0) {
        puts("no userfaultfd here");
        return 0;
    }
    CHECK(fd < 0 || !ftruncate(fd, LEN));
    char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags, fd, 0);
    CHECK(p != MAP_FAILED);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, p, LEN, ALL);
    CHECK(mr);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_WP_HUGETLBFS_SHMEM};
    CHECK(!ioctl(u, UFFDIO_API, &api));
    struct uffdio_register reg = {.range = {(uintptr_t)p, LEN},
                                  .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP};
    CHECK(!ioctl(u, UFFDIO_REGISTER, &reg));
    struct uffdio_writeprotect wp = {.range = {(uintptr_t)p, LEN}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
    CHECK(!ioctl(u, UFFDIO_WRITEPROTECT, &wp));
    write_and_read(mr, 5);
    CHECK(p[0] == 6 && p[LEN - 1] == 5);
    struct uffd_msg msg;
    CHECK(read(u, &msg, sizeof msg) == -1 && errno == EAGAIN);
    CHECK(!ibv_dereg_mr(mr));
    close(u);
    close(fd);
    munmap(p, LEN);
    return 1;
}

int main(void)
{
    alarm(50);
    open_end(&a);
    open_end(&b);
    connect_ends(&a, &b, &USUAL);
    protection(MAP_PRIVATE);
    protection(MAP_SHARED);
    armed(MAP_SHARED);
    replaced(MAP_SHARED);
    if (can_pin()) {
        armed(MAP_PRIVATE | MAP_ANONYMOUS);
        replaced(MAP_PRIVATE);
        discarded();
    }
    close_end(&a);
    close_end(&b);
    puts("done");
    return 0;
}
