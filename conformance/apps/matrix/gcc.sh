# needs gcc
# run
cat > a.c <<'EOF'
#include <stdio.h>
int f(int);
int main(void) { int s = 0; for (int i = 0; i < 1000; i++) s += f(i); printf("%d\n", s); return s & 0x7f; }
EOF
echo 'int f(int x) { return x ^ 3; }' > b.c
gcc -O2 -Wall -c a.c b.c && ar rcs lib.a b.o && gcc a.o lib.a -o p && ./p; echo $?
gcc -O2 -flto a.c b.c -o q && ./q; echo $?; gcc -pipe -O1 -shared -fPIC b.c -o libb.so && gcc a.c -L. -lb -Wl,-rpath,"$PWD" -o r && ./r; echo $?
echo 'int main( { return 0; }' > bad.c; gcc bad.c; echo $?; objdump -d p | grep -c '<f>:'; nm b.o; gcc -E - <<< '__x86_64__' | tail -1
printf '#include <map>\n#include <iostream>\n#include <stdexcept>\nint main(){std::map<int,int>m;for(int i=0;i<1000;i++)m[i*7%%1000]=i;try{throw std::runtime_error("thrown");}catch(std::exception&e){std::cout<<e.what()<<m.size()<<"\\n";}}\n' > c.cpp; g++ -O1 c.cpp -o c && ./c
