/* faults lossy | faults control | faults model NUMBER...: with LIBSOFTHCA_FAULTS or LIBSOFTHCA_MODEL set by the caller. `control`
 * writes the file that the variable names. */
#include "verbs_app.h"

static struct end a, b;

static uint64_t remote(size_t at)
{
    return (uintptr_t)b.buf + at;
}

/* Whatever is lost on the way, a request that completes was done once. */
static void lossy(void)
{
    struct manner m = {4, 7, 7, ALL};
    connect_ends(&a, &b, &m);
    for (int i = 0; i < 100; i++) {
        struct ibv_wc (*wait)(struct end *) = i % 2 ? sleep_for_wc : wait_wc;
        size_t len = i % 7 * 20000 + 1;
        memset(a.buf, i, len);
        CHECK(!post_recv(&b, i, b.buf + SIZE / 2, len));
        CHECK(run_by(&a, op(&a, IBV_WR_RDMA_WRITE, len, remote(0), b.mr->rkey), wait) == IBV_WC_SUCCESS);
        CHECK(run_by(&a, op(&a, IBV_WR_SEND, len, 0, 0), wait) == IBV_WC_SUCCESS);
        struct ibv_wc wc = wait(&b);
        CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i && wc.byte_len == len);
        memset(a.buf, -1, len);
        CHECK(run_by(&a, op(&a, IBV_WR_RDMA_READ, len, remote(0), b.mr->rkey), wait) == IBV_WC_SUCCESS);
        CHECK(a.buf[0] == i && a.buf[len - 1] == i && !memcmp(a.buf, b.buf + SIZE / 2, len));
        struct op o = op(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, remote(SIZE - 8), b.mr->rkey);
        o.wr.wr.atomic.compare_add = 1;
        CHECK(run_by(&a, o, wait) == IBV_WC_SUCCESS && *(uint64_t *)a.buf == (uint64_t)i);
    }
}

static void control(const char *text)
{
    FILE *f = fopen(getenv("LIBSOFTHCA_FAULTS"), "w");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
    /* A port query notices the change at once, in each open device. */
    struct ibv_port_attr port;
    CHECK(!ibv_query_port(a.ctx, 1, &port) && !ibv_query_port(b.ctx, 1, &port));
    CHECK(port.state == (strstr(text, "port-down=1") || strstr(text, "remove") ? IBV_PORT_DOWN : IBV_PORT_ACTIVE));
}

static int write_one(void)
{
    return run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey));
}

static void controlled(void)
{
    connect_ends(&a, &b, &USUAL);
    CHECK(write_one() == IBV_WC_SUCCESS);
    control("port-down=1");
    expect_event(a.ctx, IBV_EVENT_PORT_ERR);
    CHECK(write_one() == IBV_WC_RETRY_EXC_ERR);
    control("");
    expect_event(a.ctx, IBV_EVENT_PORT_ACTIVE);
    connect_ends(&a, &b, &USUAL);
    CHECK(write_one() == IBV_WC_SUCCESS);
    control("lose-requests=1");
    CHECK(write_one() == IBV_WC_RETRY_EXC_ERR);
    control("delay=20000000");
    connect_ends(&a, &b, &USUAL);
    double start = now();
    CHECK(write_one() == IBV_WC_SUCCESS && now() - start >= 0.04);
    control("register=12");
    CHECK(!ibv_reg_mr(a.pd, a.buf, 4096, ALL) && errno == ENOMEM);
    control("");
    struct ibv_mr *later;
    CHECK(write_one() == IBV_WC_SUCCESS);
    control("revoke=1");
    CHECK(write_one() == IBV_WC_LOC_PROT_ERR);
    CHECK(later = ibv_reg_mr(a.pd, a.buf, 4096, ALL));
    connect_ends(&a, &b, &USUAL);
    struct op o = op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey);
    o.sge.lkey = later->lkey;
    CHECK(run(&a, o) == IBV_WC_REM_ACCESS_ERR);
    CHECK(!ibv_dereg_mr(later));
    expect_event(b.ctx, IBV_EVENT_PORT_ERR);
    expect_event(b.ctx, IBV_EVENT_PORT_ACTIVE);
    expect_event(b.ctx, IBV_EVENT_QP_ACCESS_ERR);
    connect_ends(&a, &b, &USUAL);
    CHECK(!post_recv(&a, 5, a.buf, 64));
    control("remove");
    expect_event(a.ctx, IBV_EVENT_DEVICE_FATAL);
    struct ibv_wc wc = wait_wc(&a);
    CHECK(wc.wr_id == 5 && wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(post(&a, op(&a, IBV_WR_SEND, 1, 0, 0)) == EIO);
    CHECK(!ibv_alloc_pd(a.ctx) && errno == EIO);
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n == 0);
    ibv_free_device_list(list);
}

/* What LIBSOFTHCA_MODEL declares, as lower bounds: ns one way, MB/s, ns of a registration, ns of its pages. */
static void model(char **number)
{
    double latency = atof(number[0]) * 1e-9, bandwidth = atof(number[1]) * 1e6;
    double registration = (atof(number[2]) + SIZE / 4096 * atof(number[3])) * 1e-9;
    struct manner m = {20, 3, 1, ALL};
    connect_ends(&a, &b, &m);
    double best = 10, start;
    for (int i = 0; i < 20; i++) {
        start = now();
        CHECK(run_by(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey), i % 2 ? sleep_for_wc : wait_wc) ==
              IBV_WC_SUCCESS);
        best = now() - start < best ? now() - start : best;
    }
    CHECK(best >= 2 * latency);
    start = now();
    for (int i = 0; i < DEPTH; i++)
        CHECK(!post(&a, op(&a, IBV_WR_RDMA_WRITE, SIZE, remote(0), b.mr->rkey)));
    for (int i = 0; i < DEPTH; i++)
        CHECK(wait_wc(&a).status == IBV_WC_SUCCESS);
    CHECK(now() - start >= (double)DEPTH * SIZE / bandwidth);
    start = now();
    struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, SIZE, ALL);
    CHECK(mr && now() - start >= registration);
    CHECK(!ibv_dereg_mr(mr));
}

int main(int argc, char **argv)
{
    alarm(50);
    CHECK(argc > 1);
    open_end(&a);
    open_end(&b);
    if (!strcmp(argv[1], "lossy"))
        lossy();
    else if (!strcmp(argv[1], "control"))
        controlled();
    else
        model(argv + 2);
    close_end(&a);
    close_end(&b);
    puts("done");
    return 0;
}
