//! Clients that an exporter knows by name: `smc keygen --client`, keyrings, and what each of them may see and open.

mod preload_support;
mod tool_support;

use preload_support::text;
use serde_json::Value;
use smc_engine::core::options::{MapOptions, PeerName};
use smc_engine::link::Access;
use smc_engine::link::mgmt::Message;
use smc_engine::link::mgmt::key::Key;
use smc_engine::link::mgmt::tcp::Client;
use smc_engine::sys::clock::Deadline;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use tool_support::{Dir, Serve, engine, json, run, unique};

fn utf8(p: &Path) -> &str {
    p.to_str().expect("UTF-8")
}

fn fails(out: &Output, what: &str) {
    let err = text(&out.stderr);
    assert!(out.status.code() == Some(1) && err.contains(what) && out.stdout.is_empty(), "{what}: {out:?}");
}

/// A folder with the keys of these clients, each in a file of his name; "shared" has none.
struct Ring(Dir);

impl Ring {
    fn new(clients: &[&str]) -> Ring {
        let d = Dir::new();
        fs::create_dir(d.path("ring")).expect("make a folder");
        fs::set_permissions(d.path("ring"), fs::Permissions::from_mode(0o700)).expect("chmod");
        let ring = Ring(d);
        clients.iter().for_each(|c| ring.add(c));
        ring
    }

    fn add(&self, client: &str) {
        let file = self.key(client);
        let name: &[&str] = if client == "shared" { &[] } else { &["--client", client] };
        let made = json(&run(&[&["keygen", "--json", &file], name].concat()));
        assert_eq!(made["client"].as_str(), name.get(1).copied());
    }

    fn folder(&self) -> String {
        utf8(&self.0.path("ring")).to_owned()
    }

    fn key(&self, client: &str) -> String {
        utf8(&self.0.path("ring").join(client)).to_owned()
    }

    /// A server with these arguments that takes the ring, and where it listens.
    fn serve(&self, args: &[&str]) -> (Serve, String) {
        let folder = self.folder();
        let mut s = Serve::start(&[args, &["--json", "--listen", "127.0.0.1:0", "--key", &folder]].concat());
        loop {
            let e = s.event();
            if e["event"] == "listening" {
                return (s, e["address"].as_str().expect("an address").to_owned());
            }
            assert_eq!(e["event"], "ready");
        }
    }
}

/// Names and access, as this client is told.
fn listed(at: &str, key: &str) -> Vec<(String, String)> {
    let list = json(&run(&["ls", "--json", at, "--key", key]));
    let word = |r: &serde_json::Value, k: &str| r[k].as_str().expect("a word").to_owned();
    list.as_array().expect("a list").iter().map(|r| (word(r, "name"), word(r, "access"))).collect()
}

#[test]
fn a_clients_key_holds_his_name() {
    let ring = Ring::new(&["node7"]);
    let file = ring.key("node7");
    assert_eq!(fs::metadata(&file).expect("the file").permissions().mode() & 0o7777, 0o600);
    assert!(fs::read_to_string(&file).expect("a line").ends_with(" node7\n"));
    let line = text(&run(&["keygen", "--check", &file]).stdout);
    assert!(line.ends_with("  node7\n"), "{line}");
    fails(&run(&["keygen", "--client", "a b", &ring.key("x")]), "is not a client's name");
    ring.add("shared");
    let both = text(&run(&["keygen", "--check", &ring.folder()]).stdout);
    assert_eq!((both.lines().count(), both.matches("  node7").count()), (2, 1), "{both}");
    // A client has one key; who gives it a ring has given too much away.
    fails(&run(&["ls", "127.0.0.1:1", "--key", &ring.folder()]), "not a regular file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
    let s = ["serve", "--name", &unique("ring"), "--size", "4K", "--listen", "127.0.0.1:0", "--key", &ring.folder()];
    fails(&run(&s), "node7: others can use it too (mode 0644)");
}

#[test]
fn every_key_of_the_ring_is_a_way_in_and_no_other() {
    let (ring, others, name) = (Ring::new(&["a", "b", "shared"]), Ring::new(&["a"]), unique("ring"));
    let (s, at) = ring.serve(&["--name", &name, "--size", "64K"]);
    for client in ["a", "b", "shared"] {
        assert_eq!(listed(&at, &ring.key(client)), [(name.clone(), "read-write".into())]);
    }
    let out = run(&["ls", &at, "--key", &others.key("a")]);
    fails(&out, "compare the fingerprints");
    assert!(!text(&out.stderr).contains(&name));
    assert_eq!(s.end(libc::SIGTERM).0, Some(0));
}

#[test]
fn a_client_sees_what_it_is_allowed() {
    let ring = Ring::new(&["a", "b", "c", "shared"]);
    let (open, own) = (unique("open"), unique("own"));
    let both = ["--name", &open, "--size", "64K", "--name", &own, "--size", "4K", "--host-only", &own];
    let (s, at) = ring.serve(&[&both[..], &["--allow", "a", "--allow", "b:ro"]].concat());
    for (client, wanted) in [("a", Some("read-write")), ("b", Some("read-only")), ("c", None), ("shared", None)] {
        let want: Vec<_> = wanted.iter().map(|w| (open.clone(), (*w).to_owned())).collect();
        assert_eq!(listed(&at, &ring.key(client)), want, "{client}");
    }
    // On this host both are there.
    let here = text(&run(&["ls"]).stdout);
    assert!(here.contains(&open) && here.contains(&own), "{here}");
    assert_eq!(s.end(libc::SIGTERM).0, Some(0));
    for (args, what) in [
        (&["--allow", "a:x"][..], "NAME:ro"),
        (&["--allow", "a b"], "a client's name"),
        (&["--host-only", "other"], "goes with a --name"),
    ] {
        let base = ["serve", "--name", &open, "--size", "4K", "--listen", "127.0.0.1:0"];
        let out = run(&[&base[..], args].concat());
        assert!(out.status.code() == Some(2) && text(&out.stderr).contains(what), "{out:?}");
    }
    let out = run(&["serve", "--name", &open, "--size", "4K", "--allow", "a"]);
    assert!(out.status.code() == Some(2) && text(&out.stderr).contains("--listen"), "{out:?}");
}

/// A client with the key of this file.
fn client(at: &str, file: &str) -> smc_engine::base::Result<Client> {
    let key = Key::load(Path::new(file)).expect("a key");
    Client::connect(&[at.parse().expect("an address")], &key, "there", Deadline::in_ms(20_000))
}

fn open(c: &mut Client, name: &str, want: Access) -> smc_engine::base::Result<Message> {
    c.ask(&Message::Open { name: name.to_owned(), want })
}

fn heard(c: &mut Client) -> Message {
    c.hear(Deadline::in_ms(20_000)).expect("a message").expect("in time")
}

#[test]
fn keys_come_and_go_while_it_serves() {
    let (ring, name) = (Ring::new(&["a"]), unique("ring"));
    let (mut s, at) = ring.serve(&["--name", &name, "--size", "64K"]);
    let mut a = client(&at, &ring.key("a")).expect("connect");
    open(&mut a, &name, Access::ReadWrite).expect("open");
    let e = s.event();
    assert_eq!((&e["event"], &e["remote"]["client"], &e["pid"]), (&"client-opened".into(), &"a".into(), &Value::Null));
    ring.add("b");
    assert_eq!((&s.event()["event"], listed(&at, &ring.key("b")).len()), (&"keys-changed".into(), 1));
    let away = ring.0.path("a");
    fs::rename(ring.key("a"), &away).expect("take it away");
    let said = [s.event(), s.event()].map(|e| e["event"].as_str().map(str::to_owned).expect("a word"));
    assert!(said.contains(&"keys-changed".to_owned()) && said.contains(&"client-left".to_owned()), "{said:?}");
    assert_eq!(heard(&mut a), Message::Revoked { reason: "the key is no longer good".into() });
    fails(&run(&["ls", &at, "--key", utf8(&away)]), "compare the fingerprints");
    // What is no key changes nothing.
    fs::write(ring.key("c"), "x").expect("spoil it");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(listed(&at, &ring.key("b")).len(), 1);
    let (status, _, err) = s.end(libc::SIGTERM);
    assert!(status == Some(0) && err.contains("the old ones stay"), "{err}");
}

/// Everything that is recorded, once the server has ended.
fn record(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a record");
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

#[test]
fn what_is_given_and_taken_is_recorded() {
    let (ring, others, name) = (Ring::new(&["a", "b"]), Ring::new(&["a"]), unique("audit"));
    let file = ring.0.path("record");
    let args = ["--name", &name, "--size", "64K", "--audit", utf8(&file), "--allow", "a", "--allow", "b:ro"];
    let (mut s, at) = ring.serve(&args);
    assert_eq!(fs::metadata(&file).expect("the record").permissions().mode() & 0o7777, 0o600);
    let [mut a, mut b] = ["a", "b"].map(|n| client(&at, &ring.key(n)).expect("connect"));
    open(&mut a, &name, Access::ReadWrite).expect("open");
    assert!(open(&mut b, &name, Access::ReadWrite).is_err());
    assert!(open(&mut b, "hidden", Access::ReadOnly).is_err());
    open(&mut b, &name, Access::ReadOnly).expect("open");
    // Another's key, and somebody without any.
    fails(&run(&["ls", &at, "--key", &others.key("a")]), "compare the fingerprints");
    let mut stranger = TcpStream::connect(&at).expect("connect");
    stranger.write_all(&[0x55; 4096]).expect("say something");
    let mut end = Vec::new();
    let _ = stranger.read_to_end(&mut end);
    assert!(end.is_empty());
    // A client of this host, who is revoked: the others follow the move.
    let region = engine().open(&PeerName::Local, &name, &MapOptions::default()).expect("open");
    let mut id = 0;
    while id == 0 {
        let e = s.event();
        if e["event"] == "client-opened" && e["remote"].is_null() {
            id = e["client"].as_i64().expect("a number");
        }
    }
    s.queue(libc::SIGUSR2, id);
    assert_eq!(heard(&mut a), Message::Moved { generation: 2 });
    assert_eq!(heard(&mut b), Message::Moved { generation: 2 });
    drop(region);
    // One of another host: nothing moves.
    s.signal(libc::SIGUSR1);
    let list = loop {
        let e = s.event();
        if e["event"] == "clients" {
            break e;
        }
    };
    let of = |n: &str| list["clients"].as_array().expect("a list").iter().find(|c| c["remote"]["client"] == n).cloned();
    s.queue(libc::SIGUSR2, of("a").expect("listed")["client"].as_i64().expect("a number"));
    assert_eq!(heard(&mut a), Message::Revoked { reason: "the exporter was told to".into() });
    assert_eq!(b.ask(&Message::Ping { token: 1 }).expect("an answer"), Message::Pong { token: 1 });
    drop(b);
    while s.event()["remote"]["client"] != "b" {}
    let (status, _, err) = s.end(libc::SIGTERM);
    assert_eq!(status, Some(0));
    let all = record(&file);
    let count = |event: &str, client: Option<&str>, why: &str| {
        let fits = |r: &&Value| r["event"] == event && r["client"].as_str() == client && r["why"] == why;
        all.iter().filter(fits).count()
    };
    for (event, client, why) in [
        ("grant", Some("a"), "opened"),
        ("grant", Some("b"), "opened"),
        ("grant", None, "opened"),
        ("refusal", Some("b"), &*format!("\"{name}\" is exported to you read-only")),
        ("refusal", Some("b"), "no such region here"),
        ("revocation", Some("a"), "the exporter was told to"),
        ("revocation", None, "the exporter was told to"),
        ("end", Some("b"), "closed"),
    ] {
        assert_eq!(count(event, client, why), 1, "{event} {client:?} {why}: {all:#?}");
    }
    // `smc ls` with the other's key, and the stranger.
    assert_eq!(count("refusal", None, "another key or version, or no client at all"), 2, "{all:#?}");
    assert_eq!(all.len(), 10, "{all:#?}");
    let grant = all.iter().find(|r| r["client"] == "b" && r["event"] == "grant").expect("a line");
    assert_eq!((&grant["region"], &grant["access"]), (&name.clone().into(), &"read-only".into()));
    assert!(grant["address"].as_str().is_some_and(|a| a.starts_with("127.0.0.1:")), "{grant}");
    let time = grant["time"].as_str().expect("a time");
    assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    assert_eq!(err.lines().count(), 10, "in words too: {err}");
    assert!(err.contains(&format!("smc: granted region {name} access read-only client b from 127.0.0.1:")), "{err}");
    // Nothing secret is anywhere.
    let (record, said) = (fs::read_to_string(&file).expect("a record"), err);
    for n in ["a", "b"] {
        let line = fs::read_to_string(ring.key(n)).expect("a key");
        let digits = &line["libsmc-key-v1:".len()..][..64];
        assert!(!record.contains(digits) && !said.contains(digits));
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
    let loose = ["serve", "--name", &name, "--size", "4K", "--audit", utf8(&file)];
    fails(&run(&loose), "others can use it too (mode 0644)");
}

#[test]
fn refusals_are_not_told_without_end() {
    let (ring, name) = (Ring::new(&["a"]), unique("flood"));
    let file = ring.0.path("record");
    let (s, at) = ring.serve(&["--name", &name, "--size", "4K", "--audit", utf8(&file)]);
    for _ in 0..100 {
        let mut c = TcpStream::connect(&at).expect("connect");
        let _ = c.write_all(&[0x55; 128]);
        let _ = c.read_to_end(&mut Vec::new());
    }
    std::thread::sleep(std::time::Duration::from_millis(1100));
    drop(TcpStream::connect(&at).and_then(|mut c| {
        c.write_all(&[0x55; 128])?;
        c.read_to_end(&mut Vec::new())
    }));
    // A member is as welcome as ever.
    assert_eq!(listed(&at, &ring.key("a")).len(), 1);
    assert_eq!(s.end(libc::SIGTERM).0, Some(0));
    let all = record(&file);
    let untold: u64 = all.iter().map(|r| r["untold"].as_u64().expect("a number")).sum();
    assert!(all.len() < 40 && all.len() as u64 + untold == 101, "{} told, {untold} untold", all.len());
}
