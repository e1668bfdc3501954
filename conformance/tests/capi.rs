//! The C API as C programs see it: compiled against include/smc.h, linked with the built libsmc.so.

#[path = "preload_support/mod.rs"]
mod preload_support;

use preload_support::{app, library, limited, output, root, target, text};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn lib_dir() -> String {
    library().parent().expect("the library lies in a directory").to_str().expect("UTF-8").to_owned()
}

fn linked(name: &str) -> PathBuf {
    app(name, &["-Wno-missing-field-initializers", &format!("-L{}", lib_dir()), "-lsmc"])
}

/// A program under a time limit, with the library found and settings in the environment.
fn run(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut c = limited(program.to_str().expect("UTF-8"), args);
    c.env("LD_LIBRARY_PATH", lib_dir()).envs(env.iter().copied());
    output(c)
}

fn passes(program: &Path, args: &[&str], env: &[(&str, &str)]) -> String {
    let out = run(program, args, env);
    assert!(out.status.success(), "{program:?} {env:?}: {:?}\n{}{}", out.status, text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

const BACKENDS: [&str; 4] = ["thread", "sigbus", "sync", "mprotect"];

#[test]
fn every_call_does_what_it_says() {
    let program = linked("api_calls");
    for b in BACKENDS {
        passes(&program, &[], &[("LIBSMC_FAULT", b)]);
    }
}

#[test]
fn failure_is_a_state_and_losses_are_named() {
    let program = linked("failure_api");
    for b in BACKENDS {
        passes(&program, &[], &[("LIBSMC_FAULT", b)]);
    }
}

/// A C program lets clients of other hosts in, and puts them out.
#[test]
fn an_exporter_listens() {
    use smc_engine::link::Access;
    use smc_engine::link::mgmt::Message;
    use smc_engine::link::mgmt::key::Key;
    use smc_engine::link::mgmt::tcp::Client;
    use smc_engine::sys::clock::Deadline;
    let program = linked("api_listen");
    let stem = format!("listen-{}", std::process::id());
    let dir = std::env::temp_dir().join(&stem);
    std::fs::create_dir(&dir).expect("a folder");
    let keys = ["a", "b", "c"].map(|n| Key::generate(Some(n)).expect("a key"));
    let save = |k: &Key| k.save(&dir.join(&**k.client().expect("a name")), false).expect("save");
    keys.iter().take(2).for_each(save);
    let mut c = limited(program.to_str().expect("UTF-8"), &[dir.to_str().expect("UTF-8"), &stem]);
    c.env("LD_LIBRARY_PATH", lib_dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = c.spawn().expect("start");
    let (mut to, from) = (child.stdin.take().expect("stdin"), child.stdout.take().expect("stdout"));
    let mut lines = BufReader::new(from).lines().map(|l| l.expect("a line"));
    let mut next = || lines.next().expect("a line");
    let mut order = |o: &str| writeln!(to, "{o}").expect("give an order");
    let at = next().parse().expect("an address");
    let connect = |k: &Key| Client::connect(&[at], k, "there", Deadline::in_ms(20_000));
    let shown = format!("{stem}-shown");
    let open = |k: &Key, want| {
        let mut c = connect(k).expect("connect");
        let names: Vec<String> = c.list().expect("a list").into_iter().map(|r| r.name).collect();
        assert_eq!(names, [&*shown]);
        c.ask(&Message::Open { name: shown.clone(), want }).map(|_| c)
    };
    assert!(open(&keys[0], Access::ReadWrite).is_err());
    let _a = open(&keys[0], Access::ReadOnly).expect("open");
    let mut b = open(&keys[1], Access::ReadWrite).expect("open");
    order("c");
    let told = [next(), next(), next()];
    for (line, who, access) in [(&told[0], "a", 1), (&told[1], "b", 2)] {
        let start = format!("client {who} from 127.0.0.1:");
        assert!(line.starts_with(&start) && line.ends_with(&format!(" by - pid 0 uid -1 access {access}")), "{line}");
    }
    assert_eq!(told[2], "end");
    // One key comes, one goes.
    assert!(connect(&keys[2]).is_err());
    save(&keys[2]);
    std::fs::remove_file(dir.join("b")).expect("remove");
    order("k");
    assert_eq!(next(), "OK");
    assert!(matches!(b.hear(Deadline::in_ms(20_000)), Ok(Some(Message::Revoked { .. }))));
    assert!(connect(&keys[1]).is_err() && connect(&keys[2]).is_ok_and(|mut c| c.list().is_ok_and(|l| l.is_empty())));
    std::fs::write(dir.join("d"), "no key").expect("spoil it");
    order("k");
    assert_eq!(next(), "PERMISSION");
    order("r");
    assert_eq!(next(), "revoked");
    order("c");
    assert_eq!(next(), "end");
    drop(to);
    let out = child.wait().expect("its end");
    let _ = std::fs::remove_dir_all(&dir);
    assert!(out.success(), "{out}");
    assert!(connect(&keys[0]).is_err());
}

#[test]
fn impossible_arguments_are_refused() {
    passes(&linked("api_errors"), &[], &[]);
}

/// A user without privileges meets RLIMIT_MEMLOCK.
#[test]
fn a_small_memlock_limit_is_named() {
    let program = linked("api_errors");
    let dir = std::env::temp_dir().join(format!("smc-capi-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory that everybody can read");
    let copies = [program, library()].map(|f| {
        let to = dir.join(f.file_name().expect("a file"));
        std::fs::copy(&f, &to).expect("copy");
        to
    });
    std::fs::copy(library(), dir.join("libsmc.so.1")).expect("copy");
    let me = std::fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m)).expect("own user");
    let out = if me == 0 {
        let mut c = limited(
            "setpriv",
            &["--reuid=65534", "--regid=65534", "--clear-groups", copies[0].to_str().expect("UTF-8")],
        );
        c.env("LD_LIBRARY_PATH", &dir);
        output(c)
    } else {
        run(&copies[0], &[], &[])
    };
    let _ = std::fs::remove_dir_all(&dir);
    assert!(out.status.success(), "{:?}\n{}", out.status, text(&out.stderr));
}

#[test]
fn the_error_value_and_stores_to_it() {
    let program = linked("api_poison");
    for b in BACKENDS {
        passes(&program, &[], &[("LIBSMC_FAULT", b)]);
    }
}

#[test]
fn a_release_right_after_the_first_store() {
    let program = linked("api_first");
    for b in BACKENDS {
        passes(&program, &[], &[("LIBSMC_FAULT", b)]);
    }
}

#[test]
fn a_thousand_maps_leave_nothing() {
    for b in ["thread", "sigbus"] {
        println!("{b}: {}", passes(&linked("api_leaks"), &[], &[("LIBSMC_FAULT", b)]));
    }
}

#[test]
fn a_signal_handler_touches_absent_pages_during_a_release() {
    let program = linked("api_signals");
    for b in ["sigbus", "thread"] {
        println!("{b}: {}", passes(&program, &[], &[("LIBSMC_FAULT", b), ("API_SECONDS", "5")]));
    }
    for b in ["sync", "mprotect"] {
        println!("{b}: {}", passes(&program, &[], &[("LIBSMC_FAULT", b), ("API_SECONDS", "1")]));
    }
}

#[test]
fn a_program_can_ask_whether_the_hooks_act() {
    let program = app("api_active", &["-ldl"]);
    let path = library();
    let lib = path.to_str().expect("UTF-8");
    assert_eq!(passes(&program, &[], &[]), "absent\n");
    assert_eq!(passes(&program, &[], &[("LD_PRELOAD", lib)]), "2\n");
    assert_eq!(passes(&program, &[], &[("LD_PRELOAD", lib), ("LIBSMC_DISABLE", "1")]), "1\n");
    assert_eq!(passes(&program, &[lib], &[]), "0\n");
    let with = app("api_active", &[&format!("-L{}", lib_dir()), "-Wl,--no-as-needed", "-lsmc"]);
    assert_eq!(passes(&with, &[], &[]), "2\n");
}

fn scratch(file: &str) -> PathBuf {
    let dir = target().join("apps");
    std::fs::create_dir_all(&dir).expect("make target/apps");
    dir.join(format!("{}.{file}", std::process::id()))
}

fn compile(compiler: &str, source: &Path, out: &Path) {
    let standard = if compiler == "g++" { "-std=c++17" } else { "-std=gnu11" };
    let mut c = Command::new(compiler);
    c.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-o"]).arg(out).arg(source);
    c.arg("-I").arg(root().join("include")).arg(format!("-L{}", lib_dir())).arg("-lsmc");
    let out = c.output().expect("run the compiler");
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn a_cpp_program_runs() {
    let program = scratch("cpp");
    compile("g++", &root().join("conformance/apps/api_cpp.cpp"), &program);
    passes(&program, &[&format!("api-cpp-{}", std::process::id())], &[]);
    let _ = std::fs::remove_file(program);
}

/// The text of an example in the header's opening comment.
fn example(header: &str, title: &str) -> String {
    let body = header.lines().skip_while(|l| !l.starts_with(&format!("// EXAMPLE: {title}"))).skip(1);
    let lines = body.take_while(|l| *l == "//" || l.starts_with("//   "));
    lines.map(|l| l.trim_start_matches("//   ").trim_start_matches("//")).collect::<Vec<_>>().join("\n")
}

/// The examples in the header compile, and work with each other.
#[test]
fn the_examples_work() {
    let header = std::fs::read_to_string(root().join("include/smc.h")).expect("the header");
    let exporter = example(&header, "AN EXPORTER");
    let prelude = exporter.split("int main").next().expect("the part before main").to_owned();
    let client = prelude + &example(&header, "A CLIENT");
    let programs = [("exporter", exporter), ("client", client)].map(|(name, code)| {
        // A name of this run's own.
        let code = code.replace("\"grads\"", &format!("\"grads-{}\"", std::process::id()));
        let source = scratch(&format!("{name}.c"));
        std::fs::write(&source, code + "\n").expect("write the example");
        let program = scratch(name);
        compile("gcc", &source, &program);
        let _ = std::fs::remove_file(source);
        program
    });
    let mut c = limited(programs[0].to_str().expect("UTF-8"), &[]);
    c.env("LD_LIBRARY_PATH", lib_dir()).stdout(std::process::Stdio::piped());
    let mut child = c.spawn().expect("start the exporter");
    let mut lines = std::io::BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut lines, &mut line).expect("a line");
    assert_eq!(line, "serving grads\n");
    passes(&programs[1], &[], &[]);
    line.clear();
    std::io::BufRead::read_line(&mut lines, &mut line).expect("a line");
    assert_eq!(line, "a client stored 1.5\n");
    assert!(child.wait().expect("wait").success());
    for p in programs {
        let _ = std::fs::remove_file(p);
    }
}
