# needs /usr/bin/python3 openssl
openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost 2>/dev/null
# run
/usr/bin/python3 - <<'EOF'
import ssl, socket, threading
s = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); s.load_cert_chain('cert.pem', 'key.pem')
c = ssl.create_default_context(cafile='cert.pem')
a, b = socket.socketpair()
def serve():
    with s.wrap_socket(a, server_side=True) as t:
        d = b''
        while len(d) < 1 << 20: d += t.recv(65536)
        t.sendall(d[::-1])
th = threading.Thread(target=serve); th.start()
with c.wrap_socket(b, server_hostname='localhost') as t:
    t.sendall(bytes(range(256)) * 4096); d = b''
    while len(d) < 1 << 20: d += t.recv(65536)
    print(d == (bytes(range(256)) * 4096)[::-1], t.version())
th.join()
EOF
