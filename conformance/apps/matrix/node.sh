# needs node
# run
cat > w.js <<'EOF'
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const fs = require('fs'), crypto = require('crypto'), cp = require('child_process'), zlib = require('zlib');
if (!isMainThread) { let s = 0; for (let i = 0; i < 1e6; i++) s += i % workerData; parentPort.postMessage(s); }
else (async () => {
    const run = n => new Promise((ok, no) => { const w = new Worker(__filename, { workerData: n }); w.on('message', ok); w.on('error', no); });
    console.log(await Promise.all([3, 5, 7].map(run)));
    fs.writeFileSync('f', 'x'.repeat(1 << 20)); console.log(crypto.createHash('sha256').update(fs.readFileSync('f')).digest('hex'));
    console.log(cp.execFileSync('tr', ['a', 'b'], { input: 'banana' }).toString(), zlib.gunzipSync(zlib.gzipSync('zip')).toString());
    const h = require('http').createServer((q, r) => r.end('served')).listen('./sock', () => {
        require('http').get({ socketPath: './sock', agent: false }, r => r.on('data', d => { console.log(d.toString()); h.close(); })); });
    const m = new WebAssembly.Memory({ initial: 1, maximum: 100 }); m.grow(10); console.log(m.buffer.byteLength);
    let keep = []; for (let i = 0; i < 200; i++) keep[i % 20] = Buffer.alloc(1 << 18, i); console.log(keep[3][5]);
})();
EOF
node w.js
