# needs python3
cat > fault.py <<'E'
import faulthandler, os, signal, sys, threading
print(signal.getsignal(signal.SIGSEGV), signal.getsignal(signal.SIGBUS))
signal.signal(signal.SIGBUS, lambda n, f: print("bus", n)); os.kill(os.getpid(), signal.SIGBUS)
print(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGBUS, signal.SIGSEGV, signal.SIGUSR1]))
t = threading.Thread(target=lambda: print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))); t.start(); t.join()
os.kill(os.getpid(), signal.SIGBUS); print(signal.sigpending(), signal.sigwait([signal.SIGBUS]))
signal.pthread_kill(threading.main_thread().ident, signal.SIGSEGV); print(signal.sigtimedwait([signal.SIGSEGV], 5).si_signo)
signal.pthread_sigmask(signal.SIG_SETMASK, []); signal.signal(signal.SIGBUS, signal.SIG_DFL)
faulthandler.enable(); sys.stdout.flush()
what = sys.argv[1]
if what == "fault": faulthandler._sigsegv()
if what == "kill": os.kill(os.getpid(), signal.SIGBUS)
faulthandler.disable(); os.kill(os.getpid(), signal.SIGBUS)
E
# run
for w in fault kill none; do python3 fault.py $w 2>&1 | sed 's/0x[0-9a-f]*/ADDR/g'; echo "${PIPESTATUS[0]}"; done
