/* What a program is born with: prints its arguments, environment, descriptors and signals.
 * `birth --as PROGRAM ARGUMENT...` becomes the program with signals ignored and blocked, stdin closed, and 7 open. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int start(char **argv) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    int fd = open("/dev/null", O_RDONLY);
    dup2(fd, 7);
    if (fd != 7) close(fd);
    umask(027);
    close(0);
    execvp(argv[0], argv);
    perror(argv[0]);
    return 99;
}

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "--as") == 0) return start(argv + 2);
    /* First of all, before stdio opens anything. */
    for (int fd = 0; fd < 64; fd++)
        if (fcntl(fd, F_GETFD) >= 0) dprintf(1, "descriptor %d\n", fd);
    for (int i = 0; i < argc; i++) printf("argument %d %s\n", i, argv[i]);
    char **e = environ;
    for (; *e; e++) printf("environment %s\n", *e);
    /* The auxiliary vector lies behind the environment; some programs find it there. */
    unsigned long *a = (unsigned long *)(e + 1);
    while (a[0] != AT_NULL && a[0] != AT_PAGESZ) a += 2;
    printf("page size %lu\n", a[0] == AT_PAGESZ ? a[1] : 0);
    if (getauxval(AT_PAGESZ) != 4096) puts("getauxval does not know it");
    for (int s = 1; s < 65; s++) {
        struct sigaction a;
        sigset_t blocked;
        if (sigaction(s, NULL, &a) == 0 && a.sa_handler != SIG_DFL) printf("signal %d ignored\n", s);
        sigprocmask(SIG_BLOCK, NULL, &blocked);
        if (sigismember(&blocked, s) == 1) printf("signal %d blocked\n", s);
    }
    printf("umask %03o\npid %d\n", (unsigned)umask(0), (int)getpid());
    return 0;
}
