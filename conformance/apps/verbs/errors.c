/* Every error a request can end in, and what hardware refuses at once. */
#include "verbs_app.h"

static struct end a, b;

/* Both queue pairs anew. */
static void fresh(void)
{
    connect_ends(&a, &b, &USUAL);
}

static uint64_t remote(size_t at)
{
    return (uintptr_t)b.buf + at;
}

static void remote_access(void)
{
    uint32_t key = b.mr->rkey;
    struct ibv_mr *readable = ibv_reg_mr(b.pd, b.buf, 4096, IBV_ACCESS_REMOTE_READ);
    struct ibv_pd *other = ibv_alloc_pd(b.ctx);
    struct ibv_mr *foreign = ibv_reg_mr(other, b.buf, 4096, ALL);
    CHECK(readable && foreign);
    struct {
        int opcode;
        uint32_t len, key;
        size_t at;
    } rows[] = {
        {IBV_WR_RDMA_WRITE, 64, key ^ 0x100, 0},      {IBV_WR_RDMA_WRITE, 64, key + 1, 0},
        {IBV_WR_RDMA_WRITE, 64, key, SIZE - 63},      {IBV_WR_RDMA_READ, 64, key, (size_t)-1},
        {IBV_WR_RDMA_WRITE, 64, readable->rkey, 0},   {IBV_WR_RDMA_READ, 64, foreign->rkey, 0},
        {IBV_WR_RDMA_READ, 4096, readable->rkey, 1},  {IBV_WR_ATOMIC_FETCH_AND_ADD, 8, readable->rkey, 0},
        {IBV_WR_RDMA_WRITE, 300000, key, SIZE - 2999},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fresh();
        memset(b.buf, 1, SIZE);
        int status = run(&a, op(&a, rows[i].opcode, rows[i].len, remote(rows[i].at), rows[i].key));
        if (status != IBV_WC_REM_ACCESS_ERR)
            fprintf(stderr, "row %zu: %s\n", i, ibv_wc_status_str(status));
        CHECK(status == IBV_WC_REM_ACCESS_ERR);
        CHECK(state_of(a.qp) == IBV_QPS_ERR && state_of(b.qp) == IBV_QPS_ERR);
        expect_event(b.ctx, IBV_EVENT_QP_ACCESS_ERR);
        for (size_t n = 0; n < SIZE; n += 61)
            CHECK(b.buf[n] == 1);
    }
    fresh();
    CHECK(run(&a, op(&a, IBV_WR_RDMA_READ, 4096, remote(0), readable->rkey)) == IBV_WC_SUCCESS);
    uint32_t gone = readable->rkey;
    CHECK(!ibv_dereg_mr(readable));
    CHECK(run(&a, op(&a, IBV_WR_RDMA_READ, 64, remote(0), gone)) == IBV_WC_REM_ACCESS_ERR);
    expect_event(b.ctx, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(ibv_dealloc_pd(other) == EBUSY);
    CHECK(!ibv_dereg_mr(foreign) && !ibv_dealloc_pd(other));
}

static void remote_invalid(void)
{
    struct manner none = USUAL;
    none.access = 0;
    int opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP};
    for (int i = 0; i < 3; i++) {
        connect_ends(&a, &b, &none);
        CHECK(run(&a, op(&a, opcodes[i], 8, remote(0), b.mr->rkey)) == IBV_WC_REM_INV_REQ_ERR);
        expect_event(b.ctx, IBV_EVENT_QP_REQ_ERR);
    }
    fresh();
    CHECK(run(&a, op(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, remote(4), b.mr->rkey)) == IBV_WC_REM_INV_REQ_ERR);
    expect_event(b.ctx, IBV_EVENT_QP_REQ_ERR);
    /* A message longer than its receive request: both sides learn. */
    fresh();
    CHECK(!post_recv(&b, 3, b.buf, 100));
    CHECK(run(&a, op(&a, IBV_WR_SEND, 101, 0, 0)) == IBV_WC_REM_INV_REQ_ERR);
    struct ibv_wc wc = wait_wc(&b);
    CHECK(wc.wr_id == 3 && wc.status == IBV_WC_LOC_LEN_ERR);
    /* A receive request into memory that is not the receiver's. */
    fresh();
    struct ibv_sge sge = {(uintptr_t)b.buf, 100, b.mr->lkey + 1};
    struct ibv_recv_wr wr = {.wr_id = 4, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(!ibv_post_recv(b.qp, &wr, &bad));
    CHECK(run(&a, op(&a, IBV_WR_SEND, 100, 0, 0)) == IBV_WC_REM_OP_ERR);
    wc = wait_wc(&b);
    CHECK(wc.wr_id == 4 && wc.status == IBV_WC_LOC_PROT_ERR);
}

static void local_errors(void)
{
    struct ibv_mr *readonly = ibv_reg_mr(a.pd, a.buf, 4096, 0);
    CHECK(readonly);
    fresh();
    struct op o = op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey);
    o.sge.lkey ^= 0x100;
    CHECK(run(&a, o) == IBV_WC_LOC_PROT_ERR);
    fresh();
    o = op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey);
    o.sge.addr += SIZE - 63;
    CHECK(run(&a, o) == IBV_WC_LOC_PROT_ERR);
    fresh();
    o = op(&a, IBV_WR_RDMA_READ, 64, remote(0), b.mr->rkey);
    o.sge.lkey = readonly->lkey;
    CHECK(run(&a, o) == IBV_WC_LOC_PROT_ERR);
    fresh();
    CHECK(run(&a, op(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 4, remote(0), b.mr->rkey)) == IBV_WC_LOC_LEN_ERR);
    CHECK(!ibv_dereg_mr(readonly));
    /* A local error is told after what was posted before it has completed. */
    fresh();
    CHECK(!post(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey)));
    o = op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey);
    o.sge.lkey++;
    CHECK(!post(&a, o));
    CHECK(wait_wc(&a).status == IBV_WC_SUCCESS && wait_wc(&a).status == IBV_WC_LOC_PROT_ERR);
}

static void retries(void)
{
    fresh();
    CHECK(run(&a, op(&a, IBV_WR_SEND, 64, 0, 0)) == IBV_WC_RNR_RETRY_EXC_ERR);
    fresh();
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE_WITH_IMM, 64, remote(0), b.mr->rkey)) == IBV_WC_RNR_RETRY_EXC_ERR);
    /* Retried without end, it waits for the receive request. */
    struct manner patient = USUAL;
    patient.rnr_retry = 7;
    connect_ends(&a, &b, &patient);
    memset(a.buf, 9, 300000);
    CHECK(!post(&a, op(&a, IBV_WR_SEND, 300000, 0, 0)));
    usleep(20000);
    CHECK(!post_recv(&b, 5, b.buf, 400000));
    CHECK(wait_wc(&b).byte_len == 300000 && wait_wc(&a).status == IBV_WC_SUCCESS);
    CHECK(!memcmp(a.buf, b.buf, 300000));
    /* The peer's queue pair is gone: 4 times 4.2 ms. */
    fresh();
    CHECK(!ibv_destroy_qp(b.qp));
    b.qp = NULL;
    double start = now();
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey)) == IBV_WC_RETRY_EXC_ERR);
    CHECK(now() - start > 0.016);
    /* Numbers that do not agree. */
    fresh();
    struct address to_b = address_of(&b);
    make_qp(&a, ALL);
    CHECK(!to_rts(a.qp, &to_b, &USUAL));
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey)) == IBV_WC_RETRY_EXC_ERR);
    /* Nobody's address. */
    make_qp(&a, ALL);
    memset(&to_b.gid, 0x20, sizeof to_b.gid);
    CHECK(!to_rts(a.qp, &to_b, &USUAL));
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey)) == IBV_WC_RETRY_EXC_ERR);
}

/* After an error everything is flushed, in order, signalled or not; then the queue pair can be used anew. */
static void flushing(void)
{
    fresh();
    for (int i = 0; i < 3; i++)
        CHECK(!post_recv(&a, 100 + i, a.buf, 64));
    for (int i = 0; i < 4; i++) {
        struct op o = op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), i == 1 ? 1 : b.mr->rkey);
        o.wr.wr_id = i;
        o.wr.send_flags = 0;
        CHECK(!post(&a, o));
    }
    int sends = 0, recvs = 0;
    for (int i = 0; i < 6; i++) {
        struct ibv_wc wc = wait_wc(&a);
        if (wc.wr_id >= 100) {
            CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 100u + recvs++);
        } else {
            CHECK(wc.status == (sends ? IBV_WC_WR_FLUSH_ERR : IBV_WC_REM_ACCESS_ERR));
            CHECK(wc.wr_id == 1u + sends++);
        }
    }
    expect_event(b.ctx, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(run(&a, op(&a, IBV_WR_SEND, 1, 0, 0)) == IBV_WC_WR_FLUSH_ERR);
    CHECK(!post_recv(&a, 9, a.buf, 64));
    CHECK(wait_wc(&a).status == IBV_WC_WR_FLUSH_ERR);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    struct address to_a = address_of(&a), to_b = address_of(&b);
    CHECK(!ibv_modify_qp(a.qp, &reset, IBV_QP_STATE) && !ibv_modify_qp(b.qp, &reset, IBV_QP_STATE));
    CHECK(!to_init(a.qp, ALL) && !to_init(b.qp, ALL));
    CHECK(!to_rts(a.qp, &to_b, &USUAL) && !to_rts(b.qp, &to_a, &USUAL));
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey)) == IBV_WC_SUCCESS);
}

static void refused(void)
{
    make_qp(&a, ALL);
    CHECK(post(&a, op(&a, IBV_WR_SEND, 1, 0, 0)) == EINVAL);
    struct ibv_qp_attr x = {.qp_state = IBV_QPS_RTS};
    CHECK(ibv_modify_qp(a.qp, &x, IBV_QP_STATE) == EINVAL);
    fresh();
    x.qp_access_flags = ALL;
    x.port_num = 9;
    CHECK(ibv_modify_qp(a.qp, &x, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
    CHECK(!ibv_modify_qp(a.qp, &x, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    struct op o = op(&a, IBV_WR_RDMA_WRITE, 65, remote(0), b.mr->rkey);
    o.wr.send_flags |= IBV_SEND_INLINE;
    CHECK(post(&a, o) == EINVAL);
    o = op(&a, IBV_WR_SEND, 1, 0, 0);
    o.wr.num_sge = 5;
    CHECK(post(&a, o) == EINVAL);
    o = op(&a, IBV_WR_SEND, 1, 0, 0);
    o.wr.opcode = 77;
    CHECK(post(&a, o) == EINVAL);
    CHECK(!ibv_reg_mr(a.pd, a.buf, SIZE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    CHECK(!ibv_reg_mr(a.pd, a.buf, 0, ALL) && errno == EINVAL);
    CHECK(!ibv_reg_mr(a.pd, (void *)4096, 4096, ALL) && errno == EFAULT);
    CHECK(!ibv_reg_mr(a.pd, a.buf, 4096, ALL | IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
    CHECK(!ibv_create_cq(a.ctx, 0, NULL, NULL, 0) && errno == EINVAL);
    CHECK(ibv_destroy_cq(a.cq) == EBUSY && ibv_dealloc_pd(a.pd) == EBUSY);
    CHECK(ibv_destroy_comp_channel(a.channel) == EBUSY);
    struct ibv_port_attr port;
    CHECK(ibv_query_port(a.ctx, 2, &port) == EINVAL);
}

/* A queue holds what it was made for; places come back when completions are polled. */
static void depths(void)
{
    fresh();
    struct op o = op(&a, IBV_WR_RDMA_WRITE, 8, remote(0), b.mr->rkey);
    o.wr.send_flags = 0;
    for (int i = 0; i < DEPTH - 1; i++)
        CHECK(!post(&a, o));
    CHECK(!post(&a, op(&a, IBV_WR_RDMA_WRITE, 8, remote(0), b.mr->rkey)));
    CHECK(post(&a, o) == ENOMEM);
    usleep(20000);
    CHECK(post(&a, o) == ENOMEM);
    CHECK(wait_wc(&a).status == IBV_WC_SUCCESS);
    for (int i = 0; i < DEPTH; i++)
        CHECK(!post(&a, o));
    CHECK(post(&a, o) == ENOMEM);
    for (int i = 0; i < DEPTH; i++)
        CHECK(!post_recv(&b, i, b.buf, 8));
    CHECK(post_recv(&b, 99, b.buf, 8) == ENOMEM);
}

static void overrun(void)
{
    struct ibv_cq *small = ibv_create_cq(a.ctx, 2, NULL, NULL, 0), *usual = a.cq;
    CHECK(small);
    CHECK(!ibv_destroy_qp(a.qp));
    a.qp = NULL;
    a.cq = small;
    fresh();
    for (int i = 0; i < 3; i++)
        CHECK(!post(&a, op(&a, IBV_WR_RDMA_WRITE, 8, remote(0), b.mr->rkey)));
    expect_event(a.ctx, IBV_EVENT_CQ_ERR);
    expect_event(a.ctx, IBV_EVENT_QP_FATAL);
    CHECK(state_of(a.qp) == IBV_QPS_ERR);
    CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_cq(small));
    a.qp = NULL;
    a.cq = usual;
}

int main(void)
{
    alarm(50);
    open_end(&a);
    open_end(&b);
    remote_access();
    remote_invalid();
    local_errors();
    retries();
    flushing();
    refused();
    depths();
    overrun();
    close_end(&a);
    close_end(&b);
    puts("done");
    return 0;
}
