# needs stress-ng
# run
stress-ng --fork 1 --fork-ops 200 --vfork 1 --vfork-ops 200 --clone 1 --clone-ops 50 --malloc 1 --malloc-ops 2000 --sigsegv 1 --sigsegv-ops 200 --sigfpe 1 --sigfpe-ops 100 --pipe 1 --pipe-ops 2000 --dup 1 --dup-ops 20 --temp-path . --no-rand-seed --timeout 15s >out 2>&1
r=$?; grep -E 'fail:|error:' out; echo "status $r"
