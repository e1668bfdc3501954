/* cancel [PATH]: threads cancelled inside system calls unwind through the hooks; cleanup handlers run. With PATH, a
 * region is open meanwhile, so that the hooks do more than jump. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c); exit(1); } } while (0)

static int pipes[2], socks[2], cleaned, what;
static char fifo[64];

static void cleanup(void *arg) { *(int *)arg += 1; }

static void *block(void *arg) {
    char b[64];
    struct iovec v = {b, sizeof b};
    (void)arg;
    pthread_cleanup_push(cleanup, &cleaned);
    switch (what) {
    case 0: CHECK(read(pipes[0], b, 64)); break;
    case 1: CHECK(readv(pipes[0], &v, 1)); break;
    case 2: CHECK(recv(socks[0], b, 64, 0)); break;
    case 3: CHECK(recvfrom(socks[0], b, 64, 0, NULL, NULL)); break;
    case 4: CHECK(open(fifo, O_RDONLY) >= 0); break;
    default: for (;;) CHECK(write(pipes[1], b, 64) == 64);
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(int argc, char **argv) {
    alarm(30);
    if (argc > 1) CHECK(open(argv[1], O_RDWR) >= 0);
    CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, socks) == 0);
    snprintf(fifo, sizeof fifo, "/tmp/smc-fifo-%d", (int)getpid());
    CHECK(mkfifo(fifo, 0600) == 0);
    for (what = 0; what < 6; what++) {
        pthread_t t;
        void *r;
        CHECK(pthread_create(&t, NULL, block, NULL) == 0);
        usleep(20000);
        CHECK(pthread_cancel(t) == 0 && pthread_join(t, &r) == 0 && r == PTHREAD_CANCELED && cleaned == what + 1);
    }
    unlink(fifo);
    puts("cancel ok");
    return 0;
}
