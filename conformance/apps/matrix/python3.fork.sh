# needs /usr/bin/python3
# run
/usr/bin/python3 - <<'EOF'
import multiprocessing as mp
from multiprocessing import shared_memory
def f(x): return sum(range(x))
mp.set_start_method('fork')
with mp.Pool(3) as p: print(sum(p.map(f, range(200))))
q = mp.Queue(); ps = [mp.Process(target=lambda i=i: q.put(i * i)) for i in range(4)]
[p.start() for p in ps]; print(sorted(q.get() for _ in ps)); [p.join() for p in ps]; print([p.exitcode for p in ps])
s = shared_memory.SharedMemory(create=True, size=4096); s.buf[0] = 7
def g(n): t = shared_memory.SharedMemory(name=n); t.buf[1] = t.buf[0] + 1; t.close()
p = mp.Process(target=g, args=(s.name,)); p.start(); p.join(); print(bytes(s.buf[:2]), p.exitcode); s.close(); s.unlink()
EOF
