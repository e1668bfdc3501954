//! The soft HCA: where the built library is, and running verbs programs on it.
#![allow(dead_code)]

#[path = "../preload_support/mod.rs"]
pub mod programs;

pub use programs::{installed, limited, output, root, target, text};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

/// Directory in which the soft HCA is libibverbs.so.1. `SMC_SOFTHCA` names the library; else it is built.
pub fn hca() -> &'static PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let lib = std::env::var_os("SMC_SOFTHCA").map(PathBuf::from).unwrap_or_else(|| {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--release", "-p", "smc-softhca", "--target-dir"]).arg(target()).current_dir(root());
            assert!(cargo.status().expect("run cargo").success(), "cannot build the soft HCA");
            target().join("release/libsofthca.so")
        });
        let dir = target().join("softhca");
        std::fs::create_dir_all(&dir).expect("make target/softhca");
        let own = dir.join(format!("link.{}", std::process::id()));
        std::os::unix::fs::symlink(lib.canonicalize().expect("the library"), &own).expect("link it");
        std::fs::rename(own, dir.join("libibverbs.so.1")).expect("put the link in its place");
        dir
    })
}

/// A command with a time limit of a minute whose libibverbs is the soft HCA.
pub fn on_hca(program: &str, args: &[&str]) -> Command {
    let mut c = limited(program, args);
    c.env("LD_LIBRARY_PATH", hca());
    c
}

/// Starts a command and keeps what it says.
pub fn start(mut c: Command) -> Child {
    c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    c.spawn().unwrap_or_else(|e| panic!("{c:?}: {e}"))
}

/// Both streams of a finished command, and a panic when it failed.
pub fn success(what: &str, out: &Output) -> String {
    let both = text(&out.stdout) + &text(&out.stderr);
    assert!(out.status.success(), "{what}: {}\n{both}", out.status);
    both
}

/// True when the programs of these tests are installed; with CI=true they must be.
pub fn programs_installed() -> bool {
    let all = ["ibv_devinfo", "ibv_rc_pingpong", "ib_write_lat"].iter().all(|p| installed(p));
    assert!(all || std::env::var_os("CI").is_none(), "verbs programs are not installed");
    all
}

/// A port that nothing listens on, different for every call on this host in a while.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Waits until something listens on a port, without connecting to it.
fn wait_for_listener(port: u16) {
    let wanted = format!(":{port:04X} ");
    for _ in 0..2000 {
        let listens = ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
            let all = std::fs::read_to_string(file).unwrap_or_default();
            all.lines().any(|l| {
                let mut fields = l.split_whitespace().skip(1);
                let local = fields.next().unwrap_or_default();
                format!("{local} ").ends_with(&wanted) && fields.nth(1) == Some("0A")
            })
        });
        if listens {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("nothing listens on port {port}");
}

/// Runs a program twice, as server and as its client; returns what they said.
pub fn pair(program: &str, args: &[&str], env: &[(&str, &str)]) -> (String, String) {
    pair_of(program, [args, args], env)
}

/// The same with arguments for the server and for the client.
pub fn pair_of(program: &str, args: [&[&str]; 2], env: &[(&str, &str)]) -> (String, String) {
    let port = free_port();
    let text_port = port.to_string();
    let mut server = on_hca(program, args[0]);
    server.args(["-p", &text_port]).envs(env.iter().copied());
    let server = start(server);
    wait_for_listener(port);
    let mut client = on_hca(program, args[1]);
    client.args(["-p", &text_port]).envs(env.iter().copied()).arg("127.0.0.1");
    let client = output(client);
    let server = server.wait_with_output().expect("the server");
    let what = format!("{program} {args:?}");
    let said = success(&format!("client of {what}"), &client);
    (success(&format!("server of {what}"), &server), said)
}

/// A C program of conformance/apps/verbs, compiled; `None` without the headers, which CI must have.
pub fn verbs_app(name: &str) -> Option<PathBuf> {
    if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
        assert!(std::env::var_os("CI").is_none(), "libibverbs-dev is not installed");
        eprintln!("skipped: libibverbs-dev is not installed");
        return None;
    }
    std::fs::create_dir_all(target().join("apps/verbs")).expect("make target/apps/verbs");
    Some(programs::app(&format!("verbs/{name}"), &["-libverbs"]))
}

/// Runs a program of conformance/apps/verbs on the soft HCA; it must say that it is done.
pub fn run_app(name: &str, args: &[&str], env: &[(&str, &str)]) {
    let Some(program) = verbs_app(name) else { return };
    let mut c = on_hca(program.to_str().expect("UTF-8"), args);
    c.envs(env.iter().copied());
    let said = success(&format!("{name} {args:?} {env:?}"), &output(c));
    assert!(said.contains("done\n"), "{name} {args:?}: {said}");
}
