//! The management path over a network, as its users see it: `smc keygen`, `smc serve --listen`, `smc ls HOST:PORT`.

mod preload_support;
mod tool_support;

use preload_support::{output, text};
use smc_engine::core::options::{MapOptions, PeerName};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use tool_support::{Dir, Serve, engine, json, run, smc, unique};

fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

/// Ends with this status, says `what` on stderr, and nothing on stdout.
fn fails(out: &Output, status: i32, what: &str) {
    let err = text(&out.stderr);
    assert!(out.status.code() == Some(status) && err.contains(what) && out.stdout.is_empty(), "{what}: {out:?}");
}

/// A key file of its own in `d`, and its fingerprint.
fn key(d: &Dir, name: &str) -> (String, String) {
    let p = d.path(name);
    let made = json(&run(&["keygen", "--json", utf8(&p)]));
    assert_eq!(made["file"], utf8(&p));
    (utf8(&p).to_owned(), made["fingerprint"].as_str().expect("a fingerprint").to_owned())
}

/// A server with a region, and where it listens.
fn server(key: &str, name: &str) -> (Serve, String) {
    let mut s = Serve::start(&["--name", name, "--size", "64K", "--json", "--listen", "127.0.0.1:0", "--key", key]);
    assert_eq!(s.event()["event"], "ready");
    let e = s.event();
    assert_eq!(e["event"], "listening");
    (s, e["address"].as_str().expect("an address").to_owned())
}

#[test]
fn a_key_is_made_once_for_its_owner_alone() {
    let d = Dir::new();
    let (file, print) = key(&d, "key");
    assert_eq!(fs::metadata(&file).expect("the file").permissions().mode() & 0o7777, 0o600);
    let line = fs::read_to_string(&file).expect("a line");
    let digits = line.strip_prefix("libsmc-key-v1:").and_then(|l| l.strip_suffix('\n')).expect("the form");
    assert!(digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
    fails(&run(&["keygen", &file]), 1, "the file exists; --force replaces it");
    assert_eq!(fs::read_to_string(&file).expect("still there"), line);
    assert_eq!(text(&run(&["keygen", "--check", &file]).stdout), format!("{print}  {file}\n"));
    let out = run(&["keygen", "--force", &file]);
    assert!(out.status.success() && !text(&out.stdout).contains(&print));
    assert_ne!(fs::read_to_string(&file).expect("replaced"), line);
    assert_eq!(fs::read_dir(&d.0).expect("the directory").count(), 1);
    for wrong in [&["keygen"][..], &["keygen", "--check", "--force", "x"], &["ls", "--key", "x"]] {
        fails(&run(wrong), 2, "");
    }
    assert!(text(&run(&["keygen", "--help"]).stdout).contains("/etc/libsmc/key"));
}

#[test]
fn a_key_that_others_can_use_is_refused() {
    let d = Dir::new();
    let (file, _) = key(&d, "key");
    let name = unique("loose");
    let link = d.path("link");
    symlink(&file, &link).expect("make a link");
    for mode in [0o640, 0o604, 0o660, 0o610] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("chmod");
        let serve = ["serve", "--name", &name, "--size", "4K", "--listen", "127.0.0.1:0", "--key", &file];
        for args in [&["keygen", "--check", &file][..], &["keygen", "--check", utf8(&link)], &serve] {
            fails(&run(args), 1, &format!("others can use it too (mode {mode:04o})"));
        }
        fails(&run(&["ls", "127.0.0.1:1", "--key", &file]), 1, "chmod 600");
    }
    fs::write(&file, "libsmc-key-v1:00\n").expect("spoil it");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
    fails(&run(&["keygen", "--check", &file]), 1, "it does not hold a key");
    fails(&run(&["ls", "127.0.0.1:1", "--key", utf8(&d.0)]), 1, "not a regular file");
}

#[test]
fn another_users_key_is_refused() {
    let d = Dir::new();
    let (file, _) = key(&d, "key");
    // Root reads every file; it must not believe a stranger's.
    let Ok(true) = Command::new("chown").args(["65534", &file]).status().map(|s| s.success()) else { return };
    fails(&run(&["keygen", "--check", &file]), 1, "it belongs to user 65534");
}

#[test]
fn the_key_is_looked_for_in_order() {
    let d = Dir::new();
    let dirs = [d.path("xdg/libsmc"), d.path("home/.config/libsmc")];
    dirs.iter().for_each(|p| fs::create_dir_all(p).expect("make a directory"));
    let (named, named_print) = key(&d, "named");
    let (variable, variable_print) = key(&d, "variable");
    let [(_, xdg_print), (_, home_print)] = ["xdg/libsmc/key", "home/.config/libsmc/key"].map(|n| key(&d, n));
    let check = |file: Option<&str>, env: &[(&str, &str)]| {
        let mut c = smc(&["keygen", "--check"]);
        c.args(file).env_remove("XDG_CONFIG_HOME").env("HOME", d.path("home"));
        c.envs(env.iter().copied());
        output(c)
    };
    let xdg = d.path("xdg");
    let xdg = ("XDG_CONFIG_HOME", utf8(&xdg));
    let var = ("LIBSMC_KEY", &*variable);
    for (out, want) in [
        (check(Some(&named), &[xdg, var]), &named_print),
        (check(None, &[xdg, var]), &variable_print),
        (check(None, &[xdg, ("LIBSMC_KEY", "")]), &xdg_print),
        (check(None, &[("XDG_CONFIG_HOME", "relative")]), &home_print),
        (check(None, &[]), &home_print),
    ] {
        assert!(text(&out.stdout).starts_with(want), "{out:?}");
    }
    fails(&check(None, &[xdg, ("LIBSMC_KEY", "/nowhere/key")]), 1, "no such file");
    // One that is found and unfit is an error, not a reason to look further.
    fs::set_permissions(d.path("xdg/libsmc/key"), fs::Permissions::from_mode(0o644)).expect("chmod");
    fails(&check(None, &[xdg]), 1, "mode 0644");
    if !Path::new("/etc/libsmc/key").exists() {
        fails(&check(None, &[("HOME", "/nowhere")]), 1, "smc keygen FILE");
    }
}

#[test]
fn members_list_what_another_host_exports() {
    let (d, name) = (Dir::new(), unique("net"));
    let (k, _) = key(&d, "key");
    let (mut s, at) = server(&k, &name);
    let listed = json(&run(&["ls", "--json", &at, "--key", &k]));
    let pid = s.pid;
    let want = serde_json::json!([{"name": name, "bytes": 65536, "access": "read-write", "kind": "system", "clients": 0,
                                   "pid": pid, "answers": true}]);
    assert_eq!(listed, want);
    // Clients of that host are counted.
    let region = engine().open(&PeerName::Local, &name, &MapOptions::default()).expect("open");
    assert_eq!(s.event()["event"], "client-opened");
    let mut c = smc(&["ls", &at]);
    c.env("LIBSMC_KEY", &k);
    let table = text(&output(c).stdout);
    let row = table.lines().find(|l| l.starts_with(&name)).expect("a row");
    assert_eq!(row.split_whitespace().rev().nth(1), Some("1"), "{table}");
    drop(region);
    assert_eq!(s.event()["event"], "client-left");
    let (status, _, err) = s.end(libc::SIGTERM);
    assert_eq!((status, &*err), (Some(0), ""));
    fails(&run(&["ls", &at, "--key", &k]), 1, "ECONNREFUSED");
}

#[test]
fn strangers_learn_nothing() {
    let (d, name) = (Dir::new(), unique("stranger"));
    let ((k, _), (other, _)) = (key(&d, "key"), key(&d, "other"));
    let (s, at) = server(&k, &name);
    let out = run(&["ls", &at, "--key", &other]);
    fails(&out, 1, "compare the fingerprints");
    assert!(!text(&out.stderr).contains(&name));
    for said in [&b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: aaaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n"[..], &[0; 4096]] {
        let mut c = TcpStream::connect(&at).expect("connect");
        c.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let _ = c.write_all(said);
        let mut heard = Vec::new();
        let end = c.read_to_end(&mut heard);
        assert!(heard.is_empty(), "a stranger was told {heard:?}");
        assert!(end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset), "not closed");
    }
    assert_eq!(json(&run(&["ls", "--json", &at, "--key", &k]))[0]["name"], name);
    // The address is taken now; whoever asks for it is told so before anything is exported.
    let second = unique("second");
    let out = run(&["serve", "--name", &second, "--size", "4K", "--listen", &at, "--key", &k]);
    fails(&out, 1, "EADDRINUSE");
    assert_eq!(s.end(libc::SIGTERM).0, Some(0));
}
