# needs /usr/bin/python3
# run
/usr/bin/python3 - <<'EOF'
import sqlite3
d = sqlite3.connect('db'); d.execute('pragma journal_mode=wal'); d.execute('pragma mmap_size=1048576')
d.execute('create table t(a integer primary key, b text)')
with d: d.executemany('insert into t(b) values (?)', [(str(i) * 20,) for i in range(5000)])
print(d.execute('select count(*), sum(length(b)) from t').fetchone(), d.execute('pragma integrity_check').fetchone()); d.close()
EOF
