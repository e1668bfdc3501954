/* What a queue pair can do when nothing goes wrong. */
#include "verbs_app.h"
#include <fcntl.h>
#include <poll.h>

static struct end a, b;

static uint64_t remote(size_t at)
{
    return (uintptr_t)b.buf + at;
}

static void fill(char *at, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        at[i] = (char)((seed + i) * 2654435761u >> 24);
}

/* Lengths round the pieces that messages are cut into, and several pieces of memory. */
static void data(void)
{
    size_t lengths[] = {0, 1, 7, 8, 63, 64, 65, 4096, 32767, 32768, 32769, 65536, 400001};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t len = lengths[i];
        fill(a.buf, len, i);
        memset(b.buf, 0x55, len + 8);
        CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, len, remote(3), b.mr->rkey)) == IBV_WC_SUCCESS);
        CHECK(!memcmp(b.buf + 3, a.buf, len) && b.buf[2] == 0x55 && b.buf[len + 3] == 0x55);
        struct op o = op(&a, IBV_WR_RDMA_READ, len, remote(3), b.mr->rkey);
        o.sge.addr += SIZE / 2;
        CHECK(!post(&a, o));
        CHECK(wait_wc(&a).byte_len == len);
        CHECK(!memcmp(a.buf, a.buf + SIZE / 2, len));
        CHECK(!post_recv(&b, 11, b.buf + SIZE / 2, len + 5));
        o = op(&a, IBV_WR_SEND_WITH_IMM, len, 0, 0);
        o.wr.imm_data = htobe32(0xabcd);
        CHECK(run(&a, o) == IBV_WC_SUCCESS);
        struct ibv_wc wc = wait_wc(&b);
        CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == len && wc.wc_flags == IBV_WC_WITH_IMM && wc.wr_id == 11);
        CHECK(wc.imm_data == htobe32(0xabcd) && !memcmp(b.buf + SIZE / 2, a.buf, len));
    }
    struct ibv_sge from[3], to[3];
    for (int i = 0; i < 3; i++) {
        from[i] = (struct ibv_sge){(uintptr_t)a.buf + i * 50000, 20000, a.mr->lkey};
        to[i] = (struct ibv_sge){(uintptr_t)b.buf + i * 70000, 10000 + 15000 * i, b.mr->lkey};
    }
    fill(a.buf, 200000, 5);
    struct ibv_recv_wr rwr = {.sg_list = to, .num_sge = 3}, *rbad;
    struct ibv_send_wr swr = {.sg_list = from, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    CHECK(!ibv_post_recv(b.qp, &rwr, &rbad) && !ibv_post_send(a.qp, &swr, &bad));
    CHECK(wait_wc(&a).status == IBV_WC_SUCCESS && wait_wc(&b).byte_len == 60000);
    for (int i = 0, piece = 0, at = 0; i < 60000; i++, at++) {
        if (at == (int)to[piece].length)
            piece++, at = 0;
        CHECK(b.buf[piece * 70000 + at] == a.buf[i / 20000 * 50000 + i % 20000]);
    }
}

static void atomics(void)
{
    uint64_t *value = (uint64_t *)b.buf, *old = (uint64_t *)a.buf;
    *value = 40;
    struct op o = op(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, remote(0), b.mr->rkey);
    o.wr.wr.atomic.compare_add = 2;
    CHECK(run(&a, o) == IBV_WC_SUCCESS && *old == 40 && *value == 42);
    o = op(&a, IBV_WR_ATOMIC_CMP_AND_SWP, 8, remote(0), b.mr->rkey);
    o.wr.wr.atomic.compare_add = 41;
    o.wr.wr.atomic.swap = 99;
    CHECK(run(&a, o) == IBV_WC_SUCCESS && *old == 42 && *value == 42);
    o.wr.wr.atomic.compare_add = 42;
    CHECK(run(&a, o) == IBV_WC_SUCCESS && *old == 42 && *value == 99);
}

/* Inline bytes are taken at once; others are not read before the post returns, if a program is quick. */
static void inlined(void)
{
    strcpy(a.buf, "inline");
    struct op o = op(&a, IBV_WR_RDMA_WRITE, 7, remote(0), b.mr->rkey);
    o.wr.send_flags |= IBV_SEND_INLINE;
    o.sge.lkey = 0;
    CHECK(!post(&a, o));
    strcpy(a.buf, "change");
    CHECK(wait_wc(&a).status == IBV_WC_SUCCESS && !strcmp(b.buf, "inline"));
}

/* A region under addresses of its own, and rights as they are asked. */
static void own_addresses(void)
{
    struct ibv_mr *mr = ibv_reg_mr_iova(b.pd, b.buf + 4096, 8192, 0x7000000, ALL);
    CHECK(mr && mr->addr == b.buf + 4096);
    fill(a.buf, 100, 3);
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 100, 0x7000010, mr->rkey)) == IBV_WC_SUCCESS);
    CHECK(!memcmp(b.buf + 4096 + 16, a.buf, 100));
    CHECK(!ibv_dereg_mr(mr));
    CHECK(!ibv_reg_mr_iova(b.pd, b.buf, 4096, 0x7000001, ALL) && errno == EINVAL);
}

static int readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 300) == 1;
}

static void channels(void)
{
    struct ibv_cq *cq;
    void *context;
    CHECK(!ibv_req_notify_cq(b.cq, 0) && !readable(b.channel->fd));
    CHECK(!post_recv(&b, 1, b.buf, 8) && !post_recv(&b, 2, b.buf, 8) && !post_recv(&b, 3, b.buf, 8));
    CHECK(run(&a, op(&a, IBV_WR_SEND, 8, 0, 0)) == IBV_WC_SUCCESS);
    CHECK(readable(b.channel->fd));
    CHECK(!ibv_get_cq_event(b.channel, &cq, &context) && cq == b.cq && context == &b);
    CHECK(fcntl(b.channel->fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK(ibv_get_cq_event(b.channel, &cq, &context) == -1 && errno == EAGAIN);
    CHECK(!ibv_req_notify_cq(b.cq, 1));
    CHECK(run(&a, op(&a, IBV_WR_SEND, 8, 0, 0)) == IBV_WC_SUCCESS && !readable(b.channel->fd));
    struct op o = op(&a, IBV_WR_SEND, 8, 0, 0);
    o.wr.send_flags |= IBV_SEND_SOLICITED;
    CHECK(run(&a, o) == IBV_WC_SUCCESS && readable(b.channel->fd));
    CHECK(!ibv_get_cq_event(b.channel, &cq, &context));
    ibv_ack_cq_events(b.cq, 2);
    for (int i = 1; i <= 3; i++)
        CHECK(wait_wc(&b).wr_id == (uint64_t)i);
}

/* Nobody polls the sender's queue: the device works all the same. */
static void nobody_polls(void)
{
    memset(b.buf, 0, 64);
    memset(a.buf, 7, 64);
    struct op o = op(&a, IBV_WR_RDMA_WRITE, 64, remote(0), b.mr->rkey);
    CHECK(!post(&a, o));
    double start = now();
    while (*(volatile char *)(b.buf + 63) != 7)
        CHECK(now() - start < 10);
    CHECK(wait_wc(&a).status == IBV_WC_SUCCESS);
}

static void srq(void)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 2}};
    CHECK(b.srq = ibv_create_srq(b.pd, &init));
    connect_ends(&a, &b, &USUAL);
    for (int i = 0; i < 4; i++)
        CHECK(!post_recv(&b, i, b.buf + 64 * i, 64));
    CHECK(post_recv(&b, 9, b.buf, 64) == ENOMEM);
    struct ibv_srq_attr attr = {.srq_limit = 3};
    CHECK(!ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT));
    CHECK(!ibv_query_srq(b.srq, &attr) && attr.srq_limit == 3 && attr.max_wr == 4 && attr.max_sge == 2);
    for (int i = 0; i < 2; i++) {
        CHECK(run(&a, op(&a, IBV_WR_SEND, 64, 0, 0)) == IBV_WC_SUCCESS);
        CHECK(wait_wc(&b).wr_id == (uint64_t)i);
    }
    expect_event(b.ctx, IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(ibv_destroy_srq(b.srq) == EBUSY);
    /* A queue pair in error leaves a shared queue alone and says when it is done with it. */
    struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
    CHECK(!ibv_modify_qp(b.qp, &err, IBV_QP_STATE));
    expect_event(b.ctx, IBV_EVENT_QP_LAST_WQE_REACHED);
    connect_ends(&a, &b, &USUAL);
    CHECK(run(&a, op(&a, IBV_WR_SEND, 64, 0, 0)) == IBV_WC_SUCCESS && wait_wc(&b).wr_id == 2);
    CHECK(!ibv_destroy_qp(b.qp) && !ibv_destroy_srq(b.srq));
    b.qp = NULL;
    b.srq = NULL;
    connect_ends(&a, &b, &USUAL);
}

/* Drained, stopped, and on again. */
static void drain(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
    CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    expect_event(a.ctx, IBV_EVENT_SQ_DRAINED);
    struct ibv_wc wc;
    CHECK(!post(&a, op(&a, IBV_WR_RDMA_WRITE, 8, remote(0), b.mr->rkey)));
    usleep(20000);
    CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
    CHECK(wait_wc(&a).status == IBV_WC_SUCCESS);
}

/* The extended interfaces: requests by calls, completions by fields. */
static void extended(void)
{
    struct ibv_cq_init_attr_ex cqa = {.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(a.ctx, &cqa);
    CHECK(cq);
    struct ibv_qp_init_attr_ex qpa = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq),
        .cap = {DEPTH, DEPTH, 4, 4, 64}, .qp_type = IBV_QPT_RC, .pd = a.pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD};
    CHECK(!ibv_qp_to_qp_ex(a.qp) && !ibv_destroy_qp(a.qp));
    CHECK(a.qp = ibv_create_qp_ex(a.ctx, &qpa));
    make_qp(&b, ALL);
    struct address to_a = address_of(&a), to_b = address_of(&b);
    CHECK(!to_init(a.qp, ALL) && !to_rts(a.qp, &to_b, &USUAL) && !to_rts(b.qp, &to_a, &USUAL));
    struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(a.qp);
    CHECK(qpx && !post_recv(&b, 5, b.buf + 4096, 64));
    *(uint64_t *)(b.buf + 8192) = 5;
    ibv_wr_start(qpx);
    qpx->wr_id = 1;
    qpx->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(qpx, b.mr->rkey, remote(0));
    ibv_wr_set_inline_data(qpx, "by calls", 9);
    qpx->wr_id = 2;
    ibv_wr_send_imm(qpx, htobe32(77));
    ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 64);
    qpx->wr_id = 3;
    ibv_wr_atomic_fetch_add(qpx, b.mr->rkey, remote(8192), 3);
    ibv_wr_set_sge(qpx, a.mr->lkey, (uintptr_t)a.buf, 8);
    CHECK(!ibv_wr_complete(qpx));
    struct ibv_wc wc = wait_wc(&b);
    CHECK(wc.imm_data == htobe32(77) && !strcmp(b.buf, "by calls"));
    enum ibv_wc_opcode opcodes[] = {IBV_WC_RDMA_WRITE, IBV_WC_SEND, IBV_WC_FETCH_ADD};
    double start = now();
    for (int i = 0; i < 3;) {
        struct ibv_poll_cq_attr none = {};
        CHECK(now() - start < 20);
        if (ibv_start_poll(cq, &none))
            continue;
        do {
            CHECK(cq->wr_id == i + 1u && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == opcodes[i]);
            CHECK(ibv_wc_read_qp_num(cq) == a.qp->qp_num);
            i++;
        } while (i < 3 && !ibv_next_poll(cq));
        ibv_end_poll(cq);
    }
    CHECK(*(uint64_t *)(b.buf + 8192) == 8 && *(uint64_t *)a.buf == 5);
    ibv_wr_start(qpx);
    ibv_wr_rdma_write(qpx, b.mr->rkey, remote(0));
    ibv_wr_abort(qpx);
    CHECK(!ibv_destroy_qp(a.qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    a.qp = NULL;
}

int main(void)
{
    alarm(50);
    open_end(&a);
    open_end(&b);
    connect_ends(&a, &b, &USUAL);
    data();
    atomics();
    inlined();
    own_addresses();
    channels();
    nobody_polls();
    srq();
    drain();
    extended();
    close_end(&a);
    close_end(&b);
    puts("done");
    return 0;
}
