/* peers traffic SEED | peers death | peers orphan: two processes that know each other's addresses and nothing else. */
#define _GNU_SOURCE
#include "verbs_app.h"
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

static struct end me;
static struct address peer;
static int sock;

/* Both sides wait for each other here. */
static void meet(void)
{
    char c = 0;
    CHECK(write(sock, &c, 1) == 1 && read(sock, &c, 1) == 1);
}

static void join(void)
{
    open_end(&me);
    make_qp(&me, ALL);
    struct address own = address_of(&me);
    CHECK(write(sock, &own, sizeof own) == sizeof own && read(sock, &peer, sizeof peer) == sizeof peer);
    CHECK(!to_rts(me.qp, &peer, &USUAL));
    meet();
}

static unsigned long state;

static unsigned long next(unsigned long below)
{
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (state >> 33) % below;
}

enum { ROUNDS = 200, HALF = SIZE / 2, COUNTER = SIZE - 64 };

/* The lower half of each buffer is its owner's, the upper half is written by the other side. */
static void traffic(unsigned long seed)
{
    state = seed;
    join();
    for (int i = 0; i < ROUNDS; i++) {
        size_t len = next(3) ? next(3000) : next(100000), at = next(HALF - len - 64);
        for (size_t n = 0; n < len; n++)
            me.buf[at + n] = next(256);
        struct op o = op(&me, IBV_WR_RDMA_WRITE, len, peer.addr + HALF + at, peer.rkey);
        o.sge.addr += at;
        CHECK(run(&me, o) == IBV_WC_SUCCESS);
        /* Read back what is there now. */
        char *copy = malloc(len + 1);
        memcpy(copy, me.buf + at, len);
        memset(me.buf + at, 0, len);
        o.wr.opcode = IBV_WR_RDMA_READ;
        CHECK(run(&me, o) == IBV_WC_SUCCESS);
        if (memcmp(copy, me.buf + at, len))
            fprintf(stderr, "seed %lu round %d: %zu bytes at %zu differ\n", seed, i, len, at);
        CHECK(!memcmp(copy, me.buf + at, len));
        free(copy);
        o = op(&me, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, peer.addr + COUNTER, peer.rkey);
        o.wr.wr.atomic.compare_add = 3;
        o.sge.addr += HALF - 64;
        CHECK(run(&me, o) == IBV_WC_SUCCESS);
        CHECK(*(uint64_t *)(me.buf + HALF - 64) == 3ul * i);
    }
    meet();
    CHECK(*(uint64_t *)(me.buf + COUNTER) == 3ul * ROUNDS);
    meet();
    close_end(&me);
}

/* The peer is killed; with `orphan` a child of it, which has all its descriptors, lives on. */
static void death(pid_t child, int orphan)
{
    join();
    if (!child) {
        if (orphan && !fork()) {
            sleep(8);
            _exit(0);
        }
        for (;;)
            pause();
    }
    int done = 0;
    struct ibv_wc wc;
    struct op o = op(&me, IBV_WR_RDMA_WRITE, 4096, peer.addr, peer.rkey);
    double start = now();
    do {
        CHECK(!post(&me, o));
        wc = wait_wc(&me);
        if (++done == 100)
            CHECK(!kill(child, SIGKILL));
    } while (wc.status == IBV_WC_SUCCESS);
    CHECK(done > 100 && wc.status == IBV_WC_RETRY_EXC_ERR);
    CHECK(now() - start < 6);
    CHECK(run(&me, o) == IBV_WC_WR_FLUSH_ERR);
    CHECK(waitpid(child, NULL, 0) == child);
    /* A new connection to where nobody is any more. */
    make_qp(&me, ALL);
    CHECK(!to_rts(me.qp, &peer, &USUAL));
    CHECK(run(&me, o) == IBV_WC_RETRY_EXC_ERR);
    close_end(&me);
}

int main(int argc, char **argv)
{
    alarm(50);
    int fds[2];
    CHECK(argc > 1 && !socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    pid_t child = fork();
    CHECK(child >= 0);
    sock = fds[child ? 0 : 1];
    close(fds[child ? 1 : 0]);
    if (strcmp(argv[1], "traffic")) {
        death(child, !strcmp(argv[1], "orphan"));
    } else {
        CHECK(argc > 2);
        traffic(strtoul(argv[2], NULL, 0) + (child != 0));
        if (!child)
            return 0;
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    puts("done");
    return 0;
}
