//! Unmodified programs on a region of another process, over RDMA: `smc serve --listen` there, `LD_PRELOAD` and `/smc/HOST:PORT/NAME` here.

use super::preload_support::{installed, library, limited, output, text};
use super::softhca_support::hca;
use super::tool_support::{Dir, Serve, run, unique};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

/// A server of a file's content, its directory, and the path under which programs find it.
struct There {
    dir: Dir,
    serve: Option<Serve>,
    name: String,
    address: String,
    content: Vec<u8>,
}

impl There {
    fn start(bytes: usize) -> There {
        let dir = Dir::new();
        let key = dir.path("key");
        assert!(run(&["keygen", utf8(&key)]).status.success());
        let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 4096) as u8).collect();
        fs::write(dir.path("content"), &content).expect("write the content");
        let mut there = There { dir, serve: None, name: unique("net"), address: "127.0.0.1:0".into(), content };
        there.serve();
        there
    }

    /// Serves the file, on the same port as before.
    fn serve(&mut self) {
        let (key, file) = (self.dir.path("key"), self.dir.path("content"));
        let args =
            ["--name", &self.name, "--file", utf8(&file), "--json", "--listen", &self.address, "--key", utf8(&key)];
        let mut s = Serve::start_with(&args, &[("LD_LIBRARY_PATH", utf8(hca()))]);
        assert_eq!(s.event()["event"], "ready");
        self.address = s.event()["address"].as_str().expect("listening").to_owned();
        self.serve = Some(s);
    }

    fn path(&self) -> String {
        format!("/smc/{}/{}", self.address, self.name)
    }

    /// Ends the server in order; the file has what it has at the end.
    fn end(&mut self) -> Vec<u8> {
        let (status, out, err) = self.serve.take().expect("it runs").end(libc::SIGTERM);
        assert_eq!(status, Some(0), "{out}{err}");
        fs::read(self.dir.path("content")).expect("the content")
    }

    /// A program under the library.
    fn program(&self, program: &str, args: &[&str], env: &[(&str, &str)]) -> Command {
        let mut c = limited(program, args);
        c.env("LD_PRELOAD", library()).env("LD_LIBRARY_PATH", hca()).env("LIBSMC_KEY", self.dir.path("key"));
        c.envs(env.iter().copied());
        c
    }
}

fn good(out: &Output) -> String {
    let said = text(&out.stdout) + &text(&out.stderr);
    assert!(out.status.success(), "{said}");
    said
}

#[test]
fn dd_copies_a_region_out_and_in() {
    let mut there = There::start(3_000_000);
    let copy = there.dir.path("copy");
    let from = format!("if={}", there.path());
    good(&output(there.program("dd", &[&from, &format!("of={}", utf8(&copy)), "bs=64k"], &[])));
    let copied = fs::read(&copy).expect("the copy");
    assert!(copied[..there.content.len()] == there.content && copied.len() == 3_002_368, "{} bytes", copied.len());
    let other: Vec<u8> = there.content.iter().map(|b| !b).collect();
    fs::write(&copy, &other).expect("write");
    let args = [&format!("if={}", utf8(&copy)), &format!("of={}", there.path()), "bs=300k", "conv=notrunc"];
    good(&output(there.program("dd", &args.map(|a| a as &str), &[])));
    assert!(there.end() == other, "the stores are not at the home");
}

const MAPS: &str = "
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, os.fstat(f).st_size)
n = int(sys.argv[2])
assert all(m[i] == (i * 7 + i // 4096) % 256 for i in range(0, n, 991)), 'other bytes'
for i in range(0, n - 8, 50000): m[i:i+8] = b'stored ' + sys.argv[3].encode()
m.flush()
again = mmap.mmap(os.open(sys.argv[1] + '?policy=page', os.O_RDONLY), 4096, prot=mmap.PROT_READ)
assert again[0:7] == b'stored ', 'not at the home'
";

#[test]
fn python_maps_a_region_with_every_back_end() {
    if !installed("python3") {
        return;
    }
    for back_end in ["thread", "sigbus", "sync", "mprotect"] {
        let mut there = There::start(1_000_000);
        let letter = &back_end[..1];
        let args = ["-c", MAPS, &there.path(), "1000000", letter];
        let out = output(there.program("python3", &args, &[("LIBSMC_FAULT", back_end), ("LIBSMC_LOG", "info")]));
        let said = good(&out);
        assert!(said.contains("over verbs") && said.contains("RDMA device softhca0:1, GID 1 (127.0.0.1)"), "{said}");
        assert!(said.contains(&format!("back end {back_end}")), "{said}");
        let (mut wanted, end) = (there.content.clone(), there.end());
        let stored = format!("stored {letter}");
        (0..1_000_000 - 8).step_by(50_000).for_each(|i| wanted[i..i + 8].copy_from_slice(stored.as_bytes()));
        assert!(end == wanted, "{back_end}: something else is at the home");
    }
}

#[test]
fn a_region_larger_than_its_local_memory_works() {
    if !installed("python3") {
        return;
    }
    let there = There::start(4_000_000);
    let path = format!("{}?resident=256k", there.path());
    let script = "
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, os.fstat(f).st_size)
for i in range(0, 4000000 - 8, 5000): m[i:i+8] = b'%8d' % i
assert all(m[i:i+8] == b'%8d' % i for i in range(0, 4000000 - 8, 5000))
m.flush()
assert all(m[i:i+8] == b'%8d' % i for i in range(0, 4000000 - 8, 5000))
";
    good(&output(there.program("python3", &["-c", script, &path], &[])));
}

#[test]
fn a_mapping_survives_the_restart_of_its_exporter() {
    if !installed("python3") {
        return;
    }
    let mut there = There::start(100_000);
    let script = "
import mmap, os, sys, time
m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 100000)
m[0:4] = b'here'
m.flush()
open(sys.argv[2], 'w').close()
while not os.path.exists(sys.argv[3]): time.sleep(0.01)
end = time.time() + 30
while True:
    try:
        m[4:9] = b'there'
        m.flush()
        break
    except OSError:
        assert time.time() < end
        time.sleep(0.05)
assert m[0:9] == b'herethere'
";
    let (ready, again) = (there.dir.path("ready"), there.dir.path("again"));
    let path = format!("{}?onerror=value", there.path());
    let mut c = there.program("python3", &["-c", script, &path, utf8(&ready), utf8(&again)], &[]);
    c.stderr(std::process::Stdio::piped());
    let child = c.spawn().expect("start python3");
    for _ in 0..3000 {
        if ready.exists() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(&there.end()[..4], b"here");
    there.serve();
    fs::write(&again, "").expect("go on");
    good(&child.wait_with_output().expect("python3"));
    assert_eq!(&there.end()[..9], b"herethere");
}

#[test]
fn what_is_wrong_is_said() {
    let there = There::start(4096);
    let fails = |path: &str, key: &Path, env: &[(&str, &str)], what: &[&str]| {
        let mut c = there.program("dd", &[&format!("if={path}"), "of=/dev/null"], env);
        c.env("LIBSMC_KEY", key);
        let out = output(c);
        let said = text(&out.stderr);
        assert!(!out.status.success() && what.iter().all(|w| said.contains(w)), "{what:?}: {said}");
    };
    let (key, other) = (there.dir.path("key"), there.dir.path("other"));
    assert!(run(&["keygen", utf8(&other)]).status.success());
    let absent = format!("/smc/{}/absent", there.address);
    fails(&absent, &key, &[], &["No such file"]);
    fails(&there.path(), &other, &[], &["Connection refused"]);
    fails(&there.path(), &there.dir.path("none"), &[], &["No such file"]);
    fails(&there.path(), &key, &[("LIBSMC_DEVICE", "mlx5_0")], &["No such file"]);
}
