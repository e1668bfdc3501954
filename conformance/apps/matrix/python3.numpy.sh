# needs /usr/bin/python3 /usr/lib/python3/dist-packages/numpy
# run
/usr/bin/python3 - <<'EOF'
import numpy as np
a = np.arange(250000, dtype=np.float64).reshape(500, 500) / 1e5 + np.eye(500)
print(np.allclose(a @ np.linalg.solve(a, np.ones(500)), 1))
m = np.memmap('f', dtype='u4', mode='w+', shape=(1 << 18,)); m[:] = np.arange(1 << 18); m.flush(); del m
np.save('x.npy', a); print(np.memmap('f', dtype='u4', mode='r')[12345:12348].tolist(), np.load('x.npy', mmap_mode='r').shape)
EOF
