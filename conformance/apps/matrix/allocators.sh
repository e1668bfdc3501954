# needs /usr/bin/python3 perl
# run
before() { LD_PRELOAD=$1${LD_PRELOAD:+:$LD_PRELOAD} "${@:2}"; }
after() { LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$1 "${@:2}"; }
for lib in libjemalloc.so.2 libmimalloc.so.2 libtcmalloc_minimal.so.4; do
    at=$(/sbin/ldconfig -p | awk -v lib=$lib '$1 == lib && /x86-64/ { print $NF; exit }')
    [ -n "$at" ] || continue
    for beside in before after; do
        echo "$lib"
        $beside "$at" /usr/bin/python3 -c 'import json, threading
t = [threading.Thread(target=lambda: [bytearray(n * 97) for n in range(3000)]) for _ in range(4)]
[x.start() for x in t]; [x.join() for x in t]; print(len(json.dumps(list(range(50000)))))'
        $beside "$at" bash -c 'x=$(echo sub | tr a-z A-Z); echo "$x"; (exit 3); echo $?'
        $beside "$at" perl -e 'my %h = map { $_ => "x" x ($_ % 500) } 1 .. 20000; my $n = 0; $n += length for values %h; print "$n\n"; print `echo child`'
    done
done
