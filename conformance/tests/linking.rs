//! What libsmc.so is to the loader: names, versions, needs.

mod preload_support;

use preload_support::{app, library, limited, output, root, target, text};
use std::process::Command;

fn tool(name: &str, args: &[&str]) -> String {
    let out = Command::new(name).args(args).arg(library()).output().unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(out.status.success(), "{name}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// (name, version) of dynamic symbols, defined or not.
fn symbols(defined: bool) -> Vec<(String, String)> {
    let which = if defined { "--defined-only" } else { "--undefined-only" };
    let all = tool("nm", &["-D", "--with-symbol-versions", which]);
    let names = all.lines().filter_map(|l| l.split_whitespace().last());
    let mut list: Vec<_> = names
        .map(|n| n.split_once('@').map_or((n.to_owned(), String::new()), |(n, v)| (n.to_owned(), format!("@{v}"))))
        .collect();
    list.sort();
    list
}

#[test]
fn the_name_is_a_link_to_the_real_file() {
    let lib = library();
    assert_eq!(std::fs::read_link(&lib).expect("libsmc.so is a symbolic link"), std::path::Path::new("libsmc.so.1"));
    let dynamic = tool("readelf", &["-dW"]);
    assert!(dynamic.contains("Library soname: [libsmc.so.1]"), "{dynamic}");
}

#[test]
fn needs_nothing_but_libc_and_the_loader() {
    let dynamic = tool("readelf", &["-dW"]);
    let needed: Vec<_> =
        dynamic.lines().filter(|l| l.contains("(NEEDED)")).filter_map(|l| l.split(['[', ']']).nth(1)).collect();
    assert!(!needed.is_empty());
    for n in needed {
        assert!(n == "libc.so.6" || n == "ld-linux-x86-64.so.2", "needs {n}");
    }
    assert!(!dynamic.contains("RPATH") && !dynamic.contains("RUNPATH") && !dynamic.contains("TEXTREL"), "{dynamic}");
}

#[test]
fn loads_on_glibc_2_34() {
    for (name, version) in symbols(false) {
        let Some(v) = version.trim_start_matches('@').strip_prefix("GLIBC_") else {
            assert!(version.is_empty(), "{name}{version}");
            continue;
        };
        assert_ne!(v, "PRIVATE", "{name}");
        let numbers: Vec<u32> = v.split('.').map(|n| n.parse().expect("a version number")).collect();
        assert!(numbers <= vec![2, 34], "{name} needs glibc {v}");
    }
}

#[test]
fn asks_for_no_driver() {
    for (name, _) in symbols(false) {
        assert!(
            !["cu", "ibv_", "mlx5dv_", "mlx4dv_", "rdma_", "nvml", "hip", "hsa_"].iter().any(|p| name.starts_with(p)),
            "undefined {name}"
        );
    }
}

#[test]
fn thread_local_memory_is_small() {
    let headers = tool("readelf", &["-lW"]);
    let size = headers.lines().find(|l| l.trim_start().starts_with("TLS")).and_then(|l| l.split_whitespace().nth(5));
    let size = size.map_or(0, |s| u64::from_str_radix(s.trim_start_matches("0x"), 16).expect("a size"));
    // The count of panics takes 16 bytes, our mark of an own thread one. Without link-time optimisation 64 more come in with
    // std's panic message. Dynamic, so a late dlopen does not take it from the small reserve for initial-exec memory; but
    // every thread of every program pays for it.
    let whole = std::env::var("CARGO_PROFILE_RELEASE_LTO").as_deref() != Ok("off");
    assert!(size <= if whole { 24 } else { 88 }, "{size} bytes of thread-local memory");
}

#[test]
fn is_bound_at_load_first_and_read_only_after() {
    let dynamic = tool("readelf", &["-dW"]);
    let flags = dynamic.lines().find(|l| l.contains("FLAGS_1")).expect("DT_FLAGS_1");
    assert!(flags.contains("NOW") && flags.contains("INITFIRST"), "{flags}");
    let headers = tool("readelf", &["-lW"]);
    assert!(headers.contains("GNU_RELRO"), "{headers}");
    let stack = headers.lines().find(|l| l.contains("GNU_STACK")).expect("PT_GNU_STACK");
    assert!(!stack.contains("RWE"), "{stack}");
}

/// The committed list of exported names. `smc-tasks symbols` writes it anew.
#[test]
fn exports_are_the_committed_list() {
    let golden = root().join("conformance/golden/symbols.txt");
    let list: String = symbols(true).into_iter().map(|(n, v)| format!("{n}{v}\n")).collect();
    let want = std::fs::read_to_string(&golden).expect("read the list");
    let lines = |s: &str| s.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    let (got, want) = (lines(&list), lines(&want));
    let more: Vec<_> = got.difference(&want).collect();
    let less: Vec<_> = want.difference(&got).collect();
    assert!(
        more.is_empty() && less.is_empty(),
        "exported but not listed: {more:?}; listed but not exported: {less:?}; `smc-tasks symbols` accepts"
    );
}

/// The API carries a version; a hook with one would not replace anything.
#[test]
fn only_the_api_is_versioned() {
    for (name, version) in symbols(true) {
        let want = if name.starts_with("smc_") { "@@SMC_1.0" } else { "" };
        assert!(version == want || name == "SMC_1.0", "{name}{version}");
    }
}

#[test]
fn a_c_program_links_and_runs() {
    let lib = library();
    let dir = lib.parent().expect("the library lies in a directory").to_str().expect("UTF-8");
    let program = app("version", &[&format!("-L{dir}"), "-lsmc"]);
    for now in ["", "1"] {
        let mut c = limited(program.to_str().expect("UTF-8"), &[]);
        c.env("LD_LIBRARY_PATH", dir).env("LD_BIND_NOW", now);
        let out = output(c);
        assert!(out.status.success(), "{out:?}");
        assert_eq!(text(&out.stdout), concat!(env!("CARGO_PKG_VERSION"), "\n"));
    }
}

/// Fresh and incremental builds, debug and release, in another target directory. Some minutes: run with --ignored.
#[test]
#[ignore = "builds the library four times"]
fn every_kind_of_build_makes_the_same_names() {
    let dir = target().join("linking-test");
    let _ = std::fs::remove_dir_all(&dir);
    for (profile, args) in [("release", &["build", "--release"][..]), ("debug", &["build"][..])] {
        for _round in ["fresh", "incremental"] {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(args).args(["-p", "smc-interpose"]).env("CARGO_TARGET_DIR", &dir).current_dir(root());
            assert!(cargo.status().expect("run cargo").success());
            let lib = dir.join(profile).join("libsmc.so");
            assert_eq!(std::fs::read_link(&lib).expect("a symbolic link"), std::path::Path::new("libsmc.so.1"));
            assert!(std::fs::metadata(&lib).expect("it leads to a file").len() > 10_000);
            let out = limited("ls", &["/"]).env("LD_PRELOAD", &lib).output().expect("run ls");
            assert!(out.status.success() && out.stderr.is_empty(), "{profile}: {out:?}");
            let source = root().join("interpose/src/lib.rs");
            let now = std::time::SystemTime::now();
            std::fs::File::options()
                .append(true)
                .open(source)
                .and_then(|f| f.set_modified(now))
                .expect("touch the source");
        }
    }
    std::fs::remove_dir_all(&dir).expect("clean up");
}
