# needs /usr/bin/python3
# run
/usr/bin/python3 - <<'EOF'
import ctypes, faulthandler, json, mmap, os, select, signal, socket, subprocess, sys, tempfile, threading
faulthandler.enable()
m = mmap.mmap(-1, 1 << 20); m[5:8] = b'abc'; print(m[:10]); m.resize(4096); m.madvise(mmap.MADV_DONTNEED); m.close()
t = [threading.Thread(target=lambda: sum(range(100000))) for _ in range(8)]; [x.start() for x in t]; [x.join() for x in t]
print(subprocess.run(['tr', 'a', 'b'], input=b'banana', capture_output=True).stdout, json.dumps({'a': [1, 2]}))
pid = os.fork()
if pid == 0: os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 9'], os.environ), 0)[1]))
got = []; signal.signal(signal.SIGUSR1, lambda s, f: got.append(s)); os.kill(os.getpid(), signal.SIGUSR1); print(got)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]); os.kill(os.getpid(), signal.SIGUSR2); print(signal.sigpending(), signal.sigwait([signal.SIGUSR2]))
a, b = socket.socketpair(); a.sendmsg([b'one', b'two']); print(b.recvmsg(10)[0], select.select([b], [], [], 0)[0])
l = ctypes.CDLL(None); l.strlen.restype = ctypes.c_size_t; print(l.strlen(b'four'))
with tempfile.TemporaryFile() as f: f.write(b'x' * 100000); f.flush(); print(os.pread(f.fileno(), 5, 99997), os.sendfile(f.fileno(), f.fileno(), 0, 0), os.fstat(f.fileno()).st_size)
try: os.read(999, 1)
except OSError as e: print(e)
EOF
/usr/bin/python3 -X faulthandler -c 'import ctypes; ctypes.string_at(8)' 2>&1 | head -1; echo "${PIPESTATUS[0]}"
