# needs redis-server redis-cli
# run
redis-server --port 0 --unixsocket "$PWD/s" --dir "$PWD" --save '' --appendonly no --daemonize no > log 2>&1 &
server=$!
cli() { redis-cli -s "$PWD/s" "$@"; }
up() { for _ in $(seq 100); do cli ping >/dev/null 2>&1 && break; sleep 0.1; done; }
up; seq 1 20000 | sed 's/.*/set k& value-of-&/' | cli --pipe | tail -1; cli set n 5; cli incr n; cli get k777; cli dbsize
cli bgsave; for _ in $(seq 100); do cli info persistence | tr -d '\r' | grep -q 'rdb_bgsave_in_progress:0' && break; sleep 0.1; done
cli info persistence | tr -d '\r' | grep rdb_last_bgsave_status; cli eval 'return redis.call("get", KEYS[1]) .. "!"' 1 n; cli shutdown nosave; wait $server; echo "status $?"
redis-server --port 0 --unixsocket "$PWD/s" --dir "$PWD" --save '' > log2 2>&1 &
up; cli get k20000; cli shutdown nosave; wait
