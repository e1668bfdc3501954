//! `smc serve` and `smc ls`, run as their users run them.

mod preload_support;
mod tool_support;

use preload_support::{limited, output, text};
use smc_engine::base::{PAGE, Status};
use smc_engine::core::options::{MapOptions, PeerName};
use smc_engine::link::Access;
use std::fs;
use tool_support::{Dir, Serve, change, engine, json, noise, run, tool, unique};

#[test]
fn serve_says_when_it_is_ready_and_ls_lists_it() {
    let (a, b) = (unique("a"), unique("b"));
    let mut s = Serve::start(&["--name", &a, "--size", "1MiB", "--name", &b, "--size", "5000", "--read-only"]);
    assert_eq!(s.line(), format!("serving {a} 1048576 bytes pid {}", s.pid));
    assert_eq!(s.line(), format!("serving {b} 8192 bytes pid {}", s.pid));
    let listed = json(&run(&["ls", "--json"]));
    let find =
        |name: &str| listed.as_array().expect("an array").iter().find(|r| r["name"] == name).expect("listed").clone();
    assert_eq!(
        (&find(&a)["bytes"], &find(&a)["access"], &find(&a)["clients"]),
        (&1048576.into(), &"read-only".into(), &0.into())
    );
    assert_eq!(find(&b)["pid"], s.pid);
    let table = text(&run(&["ls"]).stdout);
    let row = table.lines().find(|l| l.starts_with(&format!("{a} "))).expect("a row");
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>(),
        [&a, "1", "MiB", "read-only", "system", "0", &s.pid.to_string()]
    );
    let (status, rest, err) = s.end(libc::SIGTERM);
    assert_eq!((status, &*rest, &*err), (Some(0), "", ""));
    assert!(!text(&run(&["ls"]).stdout).contains(&a));
}

#[test]
fn a_taken_name_is_an_error_of_one_line() {
    let name = unique("taken");
    let mut s = Serve::start(&["--name", &name, "--size", "4K"]);
    s.line();
    let out = run(&["serve", "--name", &name, "--size", "4K"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        text(&out.stderr),
        format!("smc: cannot export \"{name}\": the name is taken; see `smc ls` for who has it\n")
    );
    assert!(out.stdout.is_empty());
}

#[test]
fn serve_tells_who_comes_and_goes() {
    let name = unique("clients");
    let dir = Dir::new();
    let pid_file = dir.path("pid");
    let mut s =
        Serve::start(&["--name", &name, "--size", "64K", "--json", "--pid-file", pid_file.to_str().expect("UTF-8")]);
    let ready = s.event();
    assert_eq!(
        (&ready["event"], &ready["name"], &ready["bytes"], &ready["pid"]),
        (&"ready".into(), &name.clone().into(), &65536.into(), &s.pid.into())
    );
    assert_eq!(fs::read_to_string(&pid_file).expect("the pid file").trim(), s.pid.to_string());
    let opts = MapOptions { access: Access::ReadOnly, ..MapOptions::default() };
    let region = engine().open(&PeerName::Local, &name, &opts).expect("open");
    let came = s.event();
    assert_eq!(
        (&came["event"], &came["pid"], &came["access"]),
        (&"client-opened".into(), &std::process::id().into(), &"read-only".into())
    );
    s.signal(libc::SIGUSR1);
    let list = s.event();
    assert_eq!((&list["event"], &list["clients"][0]["client"]), (&"clients".into(), &came["client"]));
    drop(region);
    let left = s.event();
    assert_eq!((&left["event"], &left["client"]), (&"client-left".into(), &came["client"]));
    let (status, rest, _) = s.end(libc::SIGINT);
    assert_eq!((status, rest.trim()), (Some(0), r#"{"event":"end"}"#));
    assert!(!pid_file.exists());
}

#[test]
fn a_file_is_served_and_what_clients_change_comes_back() {
    let dir = Dir::new();
    let (file, name) = (dir.path("weights"), unique("file"));
    // No whole number of pages.
    let mut want = noise(1, 300_001);
    fs::write(&file, &want).expect("write");
    for (round, end) in [libc::SIGTERM, libc::SIGINT].into_iter().enumerate() {
        let mut s = Serve::start(&["--name", &name, "--file", file.to_str().expect("UTF-8")]);
        assert_eq!(s.line(), format!("serving {name} 303104 bytes pid {}", s.pid));
        let other = run(&["serve", "--name", &unique("other"), "--file", file.to_str().expect("UTF-8")]);
        assert!(text(&other.stderr).contains("another process has locked it"), "{other:?}");
        let stores = noise(2 + round as u64, 9000);
        assert!(
            change(&name, want.len(), 100_000, &stores) == want,
            "round {round}: the client saw other bytes than the file's"
        );
        want[100_000..109_000].copy_from_slice(&stores);
        let (status, rest, err) = s.end(end);
        // Bytes 100000..109000 lie in the blocks 24 to 26.
        let said = format!("wrote 12288 changed bytes of 300001 back to {}\n", file.display());
        assert_eq!((status, rest, &*err), (Some(0), said, ""));
        assert!(fs::read(&file).expect("read") == want, "round {round}: the file differs");
        assert!(!dir.path("weights.smc-journal").exists());
    }
}

#[test]
fn an_unchanged_or_read_only_file_is_not_touched() {
    let dir = Dir::new();
    let file = dir.path("f");
    fs::write(&file, noise(5, 10_000)).expect("write");
    let before = fs::metadata(&file).expect("stat").modified().expect("mtime");
    for extra in [&[][..], &["--read-only"]] {
        let name = unique("same");
        let mut s = Serve::start(&[&["--name", &name, "--file", file.to_str().expect("UTF-8")], extra].concat());
        s.line();
        assert_eq!(s.end(libc::SIGTERM).0, Some(0));
        assert_eq!(fs::metadata(&file).expect("stat").modified().expect("mtime"), before);
    }
}

#[test]
fn a_new_file_is_made_with_a_size() {
    let dir = Dir::new();
    let (file, name) = (dir.path("new"), unique("new"));
    let path = file.to_str().expect("UTF-8");
    let out = run(&["serve", "--name", &name, "--file", path]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).ends_with("; give --size to make it\n"), "{out:?}");
    let mut s = Serve::start(&["--name", &name, "--file", path, "--size", "64K"]);
    s.line();
    change(&name, 65536, 5000, b"stored");
    assert_eq!(s.end(libc::SIGTERM).0, Some(0));
    let got = fs::read(&file).expect("read");
    assert_eq!((got.len(), &got[5000..5006]), (8192, &b"stored"[..]));
}

/// The journal that a crash while writing back leaves: complete, cut short, or of another file.
#[test]
fn an_interrupted_write_back_is_completed() {
    use std::os::unix::fs::MetadataExt;
    let dir = Dir::new();
    let (file, journal) = (dir.path("f"), dir.path("f.smc-journal"));
    let old = noise(6, 20_000);
    fs::write(&file, &old).expect("write");
    let inode = fs::metadata(&file).expect("stat").ino();
    let new = noise(7, 4096);
    let mut bytes = b"SMCJRNL1".to_vec();
    for word in [inode, 1, 8192, 4096] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(&new);
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for word in bytes.chunks(8) {
        sum = (sum ^ u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(23);
    }
    bytes.extend(sum.to_le_bytes());
    let serve = |extra: &[&str]| {
        let name = unique("journal");
        let mut s = Serve::start(&[&["--name", &name, "--file", file.to_str().expect("UTF-8")], extra].concat());
        s.line();
        s.end(libc::SIGTERM).2
    };
    for cut in [3, 40, bytes.len() - 1] {
        fs::write(&journal, &bytes[..cut]).expect("write");
        assert_eq!(serve(&[]), "", "cut at {cut}");
        assert!(fs::read(&file).expect("read") == old && !journal.exists(), "cut at {cut}");
    }
    fs::write(&journal, &bytes).expect("write");
    let refused = run(&["serve", "--name", &unique("ro"), "--read-only", "--file", file.to_str().expect("UTF-8")]);
    assert!(text(&refused.stderr).contains("an interrupted write-back waits"), "{refused:?}");
    assert!(serve(&[]).contains("completed an interrupted write-back"));
    let got = fs::read(&file).expect("read");
    assert!(
        got[8192..12_288] == new && got[..8192] == old[..8192] && got[12_288..] == old[12_288..] && !journal.exists()
    );
    bytes[8] ^= 1;
    fs::write(&journal, &bytes).expect("write");
    let other = run(&["serve", "--name", &unique("other"), "--file", file.to_str().expect("UTF-8")]);
    assert!(text(&other.stderr).contains("belongs to another file"), "{other:?}");
}

/// A client that has the region open when the exporter ends loses the region, and nothing that it released.
#[test]
fn what_a_connected_client_has_released_comes_back() {
    let dir = Dir::new();
    let (file, name) = (dir.path("f"), unique("open"));
    fs::write(&file, noise(8, 64 << 10)).expect("write");
    let mut s = Serve::start(&["--name", &name, "--file", file.to_str().expect("UTF-8")]);
    s.line();
    let region = engine().open(&PeerName::Local, &name, &MapOptions::default()).expect("open");
    let v = region.map_view(0, false, 0, 64 << 10, true).expect("map") as *mut u8;
    for page in 0..16 {
        // SAFETY: inside the view that the test has mapped.
        unsafe { v.wrapping_add(page * PAGE).cast::<u64>().write_volatile(4711 + page as u64) };
    }
    assert_eq!(region.release(0, 0), Status::OK);
    assert_eq!(s.end(libc::SIGTERM).0, Some(0));
    let got = fs::read(&file).expect("read");
    for page in 0..16 {
        assert_eq!(got[page * PAGE..page * PAGE + 8], (4711 + page as u64).to_le_bytes(), "page {page}");
    }
    // SAFETY: inside the view that the test has mapped.
    unsafe { v.write_volatile(1) };
    assert_ne!(region.release(0, 0), Status::OK);
    let _ = region.unmap_view(v as usize, 64 << 10);
}

/// Where no journal can be written the changes go into the file all the same.
#[test]
fn no_place_for_a_journal_loses_nothing() {
    let dir = Dir::new();
    let (file, name) = (dir.path("f"), unique("nojournal"));
    fs::write(&file, noise(9, 8192)).expect("write");
    let mut s = Serve::start(&["--name", &name, "--file", file.to_str().expect("UTF-8")]);
    s.line();
    change(&name, 8192, 4096, b"kept");
    fs::create_dir(dir.path("f.smc-journal")).expect("mkdir");
    let (status, _, err) = s.end(libc::SIGTERM);
    assert!(status == Some(0) && err.contains("smc: warning: cannot write the journal"), "{err}");
    assert_eq!(fs::read(&file).expect("read")[4096..4100], *b"kept");
}

#[test]
fn readiness_is_told_on_a_descriptor() {
    let (dir, name) = (Dir::new(), unique("fd"));
    let ready = dir.path("ready");
    let script = format!("exec {} serve --name {name} --size 4K --ready-fd 3 3>{}", tool().display(), ready.display());
    let mut c = limited("sh", &["-c", &script]).stdout(std::process::Stdio::null()).spawn().expect("start");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let said = loop {
        let said = fs::read_to_string(&ready).unwrap_or_default();
        if said.ends_with('\n') || std::time::Instant::now() > end {
            break said;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    // SAFETY: sends a signal to a child of this test.
    unsafe { libc::kill(c.id() as i32, libc::SIGTERM) };
    let _ = c.wait();
    assert!(said.starts_with(&format!("serving {name} 4096 bytes pid ")), "{said}");
    let bad =
        output(limited("sh", &["-c", &format!("{} serve --name {name} --size 4K --ready-fd 77", tool().display())]));
    assert!(bad.status.code() == Some(1) && text(&bad.stderr).starts_with("smc: cannot use descriptor 77"), "{bad:?}");
}
