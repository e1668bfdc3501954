# needs /usr/bin/python3
# run
cat > m.py <<'EOF'
import multiprocessing as mp
def f(x): return x * x
if __name__ == '__main__':
    mp.set_start_method('spawn')
    with mp.Pool(2) as p: print(p.map(f, range(10)))
EOF
/usr/bin/python3 m.py
