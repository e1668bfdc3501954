"""Changes a region; knows nothing of libsmc. The argument is a file: /smc/local/NAME."""
import sys

import numpy

a = numpy.memmap(sys.argv[1], dtype="f8", mode="r+", offset=8192, shape=1000)
a[:] = numpy.sqrt(numpy.arange(1000))
a.flush()
print(f"wrote {a.sum():.6f}", flush=True)
sys.stdin.readline()  # Still running: what the reader sees comes from flush(), not from the end of this process.
