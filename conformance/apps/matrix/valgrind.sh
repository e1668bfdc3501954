# needs valgrind gcc
cat > prog.c <<'EOF'
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *p) { char *s = malloc(1000); memset(s, 1, 1000); free(s); return p; }
int main(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    char *m = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m[5] = 3; munmap(m, 1 << 16);
    if (fork() == 0) _exit(4);
    int s; wait(&s); printf("%d\n", WEXITSTATUS(s));
    return 0;
}
EOF
gcc -g -O0 -pthread -o prog prog.c
# run
# Regions are refused under valgrind, and the refusal is said.
export LIBSMC_LOG=off
valgrind -q --error-exitcode=9 ./prog
