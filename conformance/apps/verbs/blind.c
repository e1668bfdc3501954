#define _GNU_SOURCE
/* A device sees neither page protection nor a userfaultfd of the program's mapping: after registration it reads and
 * writes as if they were not there. */
#include "verbs_app.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
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

/* Nobody serves this userfaultfd: an access that raised a fault would wait for ever. */
static int armed(void)
{
    int fd = memfd_create("blind", MFD_CLOEXEC), u = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (u < 0)
        u = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (u < 0) {
        puts("no userfaultfd here");
        return 0;
    }
    CHECK(fd >= 0 && !ftruncate(fd, LEN));
    char *p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
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
    armed();
    close_end(&a);
    close_end(&b);
    puts("done");
    return 0;
}
