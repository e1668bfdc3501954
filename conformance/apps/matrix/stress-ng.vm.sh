# needs stress-ng
# run
stress-ng --vm 2 --vm-bytes 16M --vm-ops 2000 --vm-method all --mmap 1 --mmap-bytes 8M --mmap-ops 20 --mremap 1 --mremap-ops 20 --brk 1 --brk-ops 2000 --shm-sysv 1 --shm-sysv-ops 2 --madvise 1 --madvise-ops 20 --mprotect 1 --mprotect-ops 200 --temp-path . --no-rand-seed --timeout 15s >out 2>&1
r=$?; grep -E 'fail:|error:' out; echo "status $r"
