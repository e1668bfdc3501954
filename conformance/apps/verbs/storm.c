/* storm SEED SECONDS: threads with a connection each, between two open devices, do what comes to mind, while others make
 * and destroy queue pairs and regions under their feet. */
#include "verbs_app.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

enum { THREADS = 6 };

static unsigned long seed;
static double until;
static int events_of[THREADS];

struct worker {
    struct end a, b;
    unsigned long state;
    int number;
};

static unsigned long next(struct worker *w, unsigned long below)
{
    w->state = w->state * 6364136223846793005ul + 1442695040888963407ul;
    return (w->state >> 33) % below;
}

static struct ibv_wc wait_either(struct worker *w, struct end *e)
{
    return w->number % 2 ? sleep_for_wc(e) : wait_wc(e);
}

static void one(struct worker *w)
{
    size_t len = next(w, 4) ? next(w, 200) : next(w, 200000), at = next(w, 1000);
    unsigned char what = next(w, 256);
    struct op o = op(&w->a, IBV_WR_RDMA_WRITE, len, (uintptr_t)w->b.buf + at, w->b.mr->rkey);
    memset(w->a.buf, what, len);
    switch (next(w, 6)) {
    case 0: /* a wrong key, and everything anew */
        o.wr.wr.rdma.rkey ^= 0x80;
        o.sge.length++;
        CHECK(!post(&w->a, o));
        CHECK(wait_either(w, &w->a).status == IBV_WC_REM_ACCESS_ERR);
        connect_ends(&w->a, &w->b, &USUAL);
        return;
    case 1: /* destroyed in the middle */
        CHECK(!post(&w->a, o));
        connect_ends(&w->a, &w->b, &USUAL);
        return;
    case 2:
        CHECK(!post_recv(&w->b, 1, w->b.buf + at, len));
        o.wr.opcode = IBV_WR_SEND;
        CHECK(!post(&w->a, o));
        CHECK(wait_either(w, &w->b).byte_len == len);
        break;
    case 3: /* a region of its own */
        CHECK(!ibv_dereg_mr(w->b.mr));
        CHECK(w->b.mr = ibv_reg_mr(w->b.pd, w->b.buf, SIZE, ALL));
        o.wr.wr.rdma.rkey = w->b.mr->rkey;
        CHECK(!post(&w->a, o));
        break;
    default:
        CHECK(!post(&w->a, o));
    }
    CHECK(wait_either(w, &w->a).status == IBV_WC_SUCCESS);
    for (size_t i = 0; i < len; i += 1 + i / 8)
        CHECK((unsigned char)w->b.buf[at + i] == what);
}

/* Asynchronous events are taken as they come. */
static void *listener(void *arg)
{
    struct worker *w = arg;
    struct pollfd p = {.fd = w->b.ctx->async_fd, .events = POLLIN};
    while (now() < until) {
        struct ibv_async_event e;
        if (poll(&p, 1, 50) != 1)
            continue;
        /* Another listener may have been quicker. */
        if (ibv_get_async_event(w->b.ctx, &e)) {
            CHECK(errno == EAGAIN);
            continue;
        }
        events_of[w->number]++;
        ibv_ack_async_event(&e);
    }
    return NULL;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, listener, w));
    for (int i = 0; now() < until; i++)
        one(w);
    CHECK(!pthread_join(t, NULL));
    return NULL;
}

int main(int argc, char **argv)
{
    static struct worker workers[THREADS];
    pthread_t threads[THREADS];
    alarm(50);
    CHECK(argc == 3);
    seed = strtoul(argv[1], NULL, 0);
    until = now() + atof(argv[2]);
    for (int i = 0; i < THREADS; i++) {
        struct worker *w = workers + i;
        w->number = i;
        w->state = seed + i;
        make_end(&w->a, i ? workers[0].a.ctx : open_first());
        make_end(&w->b, i ? workers[0].b.ctx : open_first());
        CHECK(!fcntl(w->b.ctx->async_fd, F_SETFL, O_NONBLOCK));
        connect_ends(&w->a, &w->b, &USUAL);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(threads + i, NULL, work, workers + i));
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    puts("done");
    return 0;
}
