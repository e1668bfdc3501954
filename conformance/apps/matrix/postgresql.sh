# needs /usr/lib/postgresql setpriv
# run
# setpriv runs with the library too: it changes user, group and capabilities one after the other.
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1); d=$PWD/pg; mkdir "$d"; as() { "$@"; }
if [ "$(id -u)" = 0 ]; then chown postgres: "$d"; as() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }; fi
cd "$d" && export HOME=$d LC_ALL=C
as "$bin/initdb" -D "$d/data" -A trust --no-sync >initlog 2>&1; echo "initdb $?"
as "$bin/pg_ctl" -D "$d/data" -w -t 60 -l "$d/log" -o "-c listen_addresses='' -c unix_socket_directories='$d' -c fsync=off" start >/dev/null 2>&1; echo "start $?"
q() { as "$bin/psql" -h "$d" -d postgres -Atc "$1"; }
q 'create table t as select i, md5(i::text) m from generate_series(1, 20000) i'; q 'create index on t(m)'; q 'select count(*), max(m) from t'; q "select i from t where m = md5('777')"; q 'set max_parallel_workers_per_gather = 2; set parallel_setup_cost = 0; select sum(i) from t'
q 'select 1/0'; as "$bin/pg_dump" -h "$d" postgres | grep -c '^[0-9]'; as "$bin/pg_ctl" -D "$d/data" -m fast -w stop >/dev/null; echo "stop $?"; grep -cE 'PANIC|terminated by signal' "$d/log"
