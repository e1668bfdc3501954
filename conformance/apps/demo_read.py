"""Reads what demo_write.py wrote, in another process."""
import sys

import numpy

a = numpy.memmap(sys.argv[1], dtype="f8", mode="r", offset=8192, shape=1000)
print(f"read {a.sum():.6f}")
