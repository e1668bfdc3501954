# needs gdb gcc
cat > prog.c <<'EOF'
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
int leaf(int n) { return n * 2; }
int main(void) { char *s = malloc(100); strcpy(s, "text"); printf("%s %d\n", s, leaf(21)); free(s); return 3; }
EOF
gcc -g -O0 -o prog prog.c
# run
# gdb loses a race when a program with threads ends, with or without us ("Couldn't get registers"): then once more.
for _ in 1 2 3 4 5 6 7 8; do
    gdb -batch -nx -ex 'set debuginfod enabled off' -ex 'set print thread-events off' -ex 'break leaf' -ex run -ex bt -ex 'print n' -ex finish -ex 'print s' -ex continue ./prog >out 2>err
    grep -q "Couldn't get registers" out err || break
done
grep -E '^#0|^#1|^\$|Value returned|^text|exited' out | sed -E 's/0x[0-9a-f]+//g; s/\(process [0-9]+\)//'
