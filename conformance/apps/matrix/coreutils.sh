# run
seq 3000 > a; sort -R --random-source=/dev/zero a | sort -n | cmp - a && echo sorted
cp a b; mv b c; ln c d; ln -s c e; readlink e; wc -l < e; head -3 c; tail -2 c; rm d e
dd if=/dev/zero of=z bs=4096 count=64 conv=fsync 2>/dev/null; wc -c < z; cksum z; sum z; md5sum z a; sha256sum a; b2sum a
split -l 1000 a part.; ls part.*; cat part.* | cmp - a && echo joined; csplit -s a 100 200; wc -l xx0*
cut -c1-2 a | sort | uniq -c | sort -rn | head -3; paste -d, a a | head -2; tr 0-9 a-j < a | head -2; comm -12 a a 2>/dev/null | wc -l
sort a > sa; join sa sa | tail -1; fold -w 5 <<< "a long line of text"; fmt -w 10 <<< "a long line of text"; nl <<< "x"; tac a | head -1
od -An -tx1 -N8 a; base64 <<< hello; base32 <<< hello; printf '%05.1f\n' 3.14159; expr 6 \* 7; factor 1234567890; numfmt --to=iec 123456
mkdir -p p/q/r; rmdir -p p/q/r; mkdir m; chmod 750 m; stat -c %A m; touch -d @0 m/t; stat -c %Y m/t; install -m 600 a m/i; stat -c %a m/i
truncate -s 10 z; wc -c < z; du -b z | cut -f1; tee t1 t2 < a > /dev/null; cmp t1 t2 && echo teed; timeout 5 echo in time
timeout 0.2 sleep 5; echo $?; nice echo nice; date -u -d @0; id -un; basename /x/y.c .c; dirname /x/y
shuf -i 1-10 | wc -l; test -e a && echo there; ls -l /nowhere; cat /nowhere; echo "$?"
expand <<< "a	b"; unexpand -a <<< "a       b"; tsort <<< "a b"; realpath --relative-to=/usr /usr/bin; pr -t -2 -l 10 a | head -2; ptx <<< "one two" | head -2
env -i A=b env; seq 1e5 | head -c 100000 | tail -c 10; yes | head -1000 | md5sum; mkfifo f; (echo through > f &) ; cat f
