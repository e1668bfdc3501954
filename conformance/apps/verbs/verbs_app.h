/* What the verbs test programs share: ends of connections, single operations, checks. */
#ifndef VERBS_APP_H
#define VERBS_APP_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                        \
    do {                                                                                   \
        if (!(what)) {                                                                     \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
enum { SIZE = 1 << 20, DEPTH = 16 };

/* One end of a connection, with a buffer. */
struct end {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_comp_channel *channel;
    struct ibv_qp *qp;
    struct ibv_srq *srq;
    struct ibv_mr *mr;
    char *buf;
    union ibv_gid gid;
};

/* What the other side must know of an end. */
struct address {
    uint32_t qpn, rkey;
    uint64_t addr;
    union ibv_gid gid;
};

/* How the queue pairs of a test behave. */
struct manner {
    int timeout, retry, rnr_retry, access;
};

static const struct manner USUAL = {10, 3, 1, ALL};

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline struct ibv_context *open_first(void)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n > 0);
    struct ibv_context *ctx = ibv_open_device(list[0]);
    CHECK(ctx);
    ibv_free_device_list(list);
    return ctx;
}

/* An end on an open device. */
static inline void make_end(struct end *e, struct ibv_context *ctx)
{
    memset(e, 0, sizeof *e);
    e->ctx = ctx;
    CHECK(e->pd = ibv_alloc_pd(e->ctx));
    CHECK(e->channel = ibv_create_comp_channel(e->ctx));
    CHECK(e->cq = ibv_create_cq(e->ctx, 4 * DEPTH, e, e->channel, 0));
    e->buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(e->buf != MAP_FAILED);
    CHECK(e->mr = ibv_reg_mr(e->pd, e->buf, SIZE, ALL));
    CHECK(!ibv_query_gid(e->ctx, 1, 1, &e->gid));
}

static inline void open_end(struct end *e)
{
    make_end(e, open_first());
}

static inline void close_end(struct end *e)
{
    if (e->qp)
        CHECK(!ibv_destroy_qp(e->qp));
    if (e->srq)
        CHECK(!ibv_destroy_srq(e->srq));
    CHECK(!ibv_dereg_mr(e->mr));
    CHECK(!ibv_destroy_cq(e->cq));
    CHECK(!ibv_destroy_comp_channel(e->channel));
    CHECK(!ibv_dealloc_pd(e->pd));
    CHECK(!ibv_close_device(e->ctx));
    munmap(e->buf, SIZE);
}

static inline int to_init(struct ibv_qp *qp, int access)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static inline int to_rts(struct ibv_qp *qp, const struct address *peer, const struct manner *m)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn,
                            .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = 1}}};
    int err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (err)
        return err;
    a.qp_state = IBV_QPS_RTS;
    a.timeout = m->timeout;
    a.retry_cnt = m->retry;
    a.rnr_retry = m->rnr_retry;
    a.max_rd_atomic = 4;
    return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                     IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline void make_qp(struct end *e, int access)
{
    struct ibv_qp_init_attr a = {.send_cq = e->cq, .recv_cq = e->cq, .srq = e->srq, .cap = {DEPTH, DEPTH, 4, 4, 64},
                                 .qp_type = IBV_QPT_RC};
    if (e->qp)
        CHECK(!ibv_destroy_qp(e->qp));
    CHECK(e->qp = ibv_create_qp(e->pd, &a));
    CHECK(!to_init(e->qp, access));
}

static inline struct address address_of(const struct end *e)
{
    return (struct address){e->qp->qp_num, e->mr->rkey, (uintptr_t)e->buf, e->gid};
}

/* New queue pairs at both ends, connected. */
static inline void connect_ends(struct end *a, struct end *b, const struct manner *m)
{
    make_qp(a, m->access);
    make_qp(b, m->access);
    struct address to_a = address_of(a), to_b = address_of(b);
    CHECK(!to_rts(a->qp, &to_b, m));
    CHECK(!to_rts(b->qp, &to_a, m));
}

/* The next completion; a test that waits longer than 20 s has failed. */
static inline struct ibv_wc wait_wc(struct end *e)
{
    struct ibv_wc wc;
    double start = now();
    int n;
    while (!(n = ibv_poll_cq(e->cq, 1, &wc)))
        CHECK(now() - start < 20);
    CHECK(n == 1);
    return wc;
}

/* Waits with the channel, as a program does that does not want to poll. */
static inline struct ibv_wc sleep_for_wc(struct end *e)
{
    struct ibv_wc wc;
    struct pollfd p = {.fd = e->channel->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;
    for (;;) {
        if (ibv_poll_cq(e->cq, 1, &wc))
            return wc;
        CHECK(!ibv_req_notify_cq(e->cq, 0));
        if (ibv_poll_cq(e->cq, 1, &wc))
            return wc;
        CHECK(poll(&p, 1, 20000) == 1);
        CHECK(!ibv_get_cq_event(e->channel, &cq, &context));
        ibv_ack_cq_events(cq, 1);
    }
}

static inline int post_recv(struct end *e, uint64_t id, void *at, uint32_t len)
{
    struct ibv_sge sge = {(uintptr_t)at, len, e->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
}

/* A signalled request with one piece; fields that a test changes are in `wr`. */
struct op {
    struct ibv_sge sge;
    struct ibv_send_wr wr;
};

static inline struct op op(struct end *e, int opcode, uint32_t len, uint64_t remote, uint32_t rkey)
{
    struct op o = {.sge = {(uintptr_t)e->buf, len, e->mr->lkey},
                   .wr = {.wr_id = 7, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}};
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        o.wr.wr.atomic.remote_addr = remote;
        o.wr.wr.atomic.rkey = rkey;
    } else {
        o.wr.wr.rdma.remote_addr = remote;
        o.wr.wr.rdma.rkey = rkey;
    }
    return o;
}

static inline int post(struct end *e, struct op o)
{
    struct ibv_send_wr *bad;
    o.wr.sg_list = &o.sge;
    return ibv_post_send(e->qp, &o.wr, &bad);
}

/* Posts and returns the status of the completion, waiting one way or the other. */
static inline int run_by(struct end *e, struct op o, struct ibv_wc (*wait)(struct end *))
{
    CHECK(!post(e, o));
    struct ibv_wc wc = wait(e);
    CHECK(wc.wr_id == o.wr.wr_id && wc.qp_num == e->qp->qp_num);
    return wc.status;
}

static inline int run(struct end *e, struct op o)
{
    return run_by(e, o, wait_wc);
}

static inline int state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr i;
    CHECK(!ibv_query_qp(qp, &a, IBV_QP_STATE, &i));
    return a.qp_state;
}

/* The next asynchronous event must be this one. */
static inline void expect_event(struct ibv_context *ctx, enum ibv_event_type type)
{
    struct ibv_async_event e;
    CHECK(!ibv_get_async_event(ctx, &e));
    if (e.event_type != type)
        fprintf(stderr, "got event %s\n", ibv_event_type_str(e.event_type));
    CHECK(e.event_type == type);
    ibv_ack_async_event(&e);
}

#endif
