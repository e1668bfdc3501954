/* What a queue pair can do when nothing goes wrong. */
#include "verbs_app.h"
#include <dirent.h>
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

static int bind_two(struct ibv_mw *mw, struct ibv_mr *mr, uint32_t key)
{
    struct ibv_send_wr wr = {.wr_id = 31, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, remote(64), 64, IBV_ACCESS_REMOTE_WRITE};
    CHECK(!ibv_post_send(b.qp, &wr, &bad));
    return wait_wc(&b).status;
}

/* A key of its own for a part of a region, with rights of its own. */
static void windows(void)
{
    struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buf, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    struct ibv_mw *one = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
    CHECK(mr && one && two);
    uint32_t unbound = one->rkey;
    struct ibv_mw_bind bind = {.wr_id = 30, .send_flags = IBV_SEND_SIGNALED,
                               .bind_info = {mr, remote(64), 64, IBV_ACCESS_REMOTE_WRITE}};
    CHECK(!ibv_bind_mw(b.qp, one, &bind) && one->rkey != unbound);
    struct ibv_wc wc = wait_wc(&b);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 30);
    CHECK(ibv_dereg_mr(mr) == EINVAL);
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(64), one->rkey)) == IBV_WC_SUCCESS);
    struct op wrong[] = {op(&a, IBV_WR_RDMA_WRITE, 64, remote(64), unbound), op(&a, IBV_WR_RDMA_WRITE, 65, remote(64), one->rkey),
                         op(&a, IBV_WR_RDMA_WRITE, 8, remote(60), one->rkey), op(&a, IBV_WR_RDMA_READ, 8, remote(64), one->rkey),
                         op(&a, IBV_WR_RDMA_WRITE, 8, remote(64), mr->rkey)};
    for (int i = 0; i < 5; i++) {
        CHECK(run(&a, wrong[i]) == IBV_WC_REM_ACCESS_ERR);
        expect_event(b.ctx, IBV_EVENT_QP_ACCESS_ERR);
        connect_ends(&a, &b, &USUAL);
    }
    /* Type 2: a key of the program's choice, closed from afar. */
    uint32_t key = ibv_inc_rkey(two->rkey);
    CHECK(bind_two(two, mr, key) == IBV_WC_SUCCESS);
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(64), key)) == IBV_WC_SUCCESS);
    struct op o = op(&a, IBV_WR_SEND_WITH_INV, 8, 0, 0);
    o.wr.invalidate_rkey = key;
    CHECK(!post_recv(&b, 1, b.buf, 8) && run(&a, o) == IBV_WC_SUCCESS);
    wc = wait_wc(&b);
    CHECK(wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == key);
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 64, remote(64), key)) == IBV_WC_REM_ACCESS_ERR);
    expect_event(b.ctx, IBV_EVENT_QP_ACCESS_ERR);
    connect_ends(&a, &b, &USUAL);
    /* Closed from here; then closed windows cannot be closed, and regions without the right not be bound. */
    key = ibv_inc_rkey(key);
    CHECK(bind_two(two, mr, key) == IBV_WC_SUCCESS);
    struct ibv_send_wr inv = {.wr_id = 32, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key, .send_flags = IBV_SEND_SIGNALED}, *bad;
    CHECK(!ibv_post_send(b.qp, &inv, &bad) && wait_wc(&b).status == IBV_WC_SUCCESS);
    CHECK(!ibv_post_send(b.qp, &inv, &bad) && wait_wc(&b).status == IBV_WC_LOC_PROT_ERR);
    connect_ends(&a, &b, &USUAL);
    CHECK(bind_two(two, b.mr, ibv_inc_rkey(key)) == IBV_WC_MW_BIND_ERR);
    CHECK(!ibv_dealloc_mw(two) && !ibv_dealloc_mw(one) && !ibv_dereg_mr(mr));
    connect_ends(&a, &b, &USUAL);
}

/* A region changes its memory and its rights under the same key. */
static void changed_regions(void)
{
    struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buf, 64, ALL);
    CHECK(mr && !ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b.buf + 4096, 128, 0));
    CHECK(mr->addr == b.buf + 4096 && mr->length == 128);
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 128, remote(4096), mr->rkey)) == IBV_WC_SUCCESS);
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ));
    CHECK(run(&a, op(&a, IBV_WR_RDMA_READ, 128, remote(4096), mr->rkey)) == IBV_WC_SUCCESS);
    CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 8, remote(4096), mr->rkey)) == IBV_WC_REM_ACCESS_ERR);
    expect_event(b.ctx, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(!ibv_dereg_mr(mr));
    connect_ends(&a, &b, &USUAL);
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

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;
    CHECK(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static int link_mappings(void)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[500];
    int n = 0;
    CHECK(f);
    while (fgets(line, sizeof line, f))
        n += strstr(line, "softhca link") != NULL;
    fclose(f);
    return n;
}

/* An open device leaves nothing behind: descriptors, mappings, threads. */
static void nothing_left(void)
{
    int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    for (int i = 0; i < 3; i++) {
        open_end(&a);
        open_end(&b);
        connect_ends(&a, &b, &USUAL);
        CHECK(run(&a, op(&a, IBV_WR_RDMA_WRITE, 8, remote(0), b.mr->rkey)) == IBV_WC_SUCCESS);
        CHECK(link_mappings() == 2 && entries("/proc/self/fd") > fds);
        close_end(&a);
        close_end(&b);
    }
    CHECK(entries("/proc/self/fd") == fds && link_mappings() == 0);
    /* The kernel lets go of a thread a moment after it has ended. */
    for (int i = 0; entries("/proc/self/task") != threads; i++)
        CHECK(i < 100 && !usleep(10000));
}

int main(void)
{
    alarm(50);
    nothing_left();
    open_end(&a);
    open_end(&b);
    connect_ends(&a, &b, &USUAL);
    data();
    atomics();
    inlined();
    own_addresses();
    windows();
    changed_regions();
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
