//! Rules of the house that a program can check. Each has a planted violation that must be found.

use smc_conformance::repo::{self, SourceFile};
use smc_conformance::source::{What, facts};

/// Longest source file, in lines, and longest test file.
const LINES: usize = 400;
const TEST_LINES: usize = 600;

/// Files that may be longer, with the length they may have. An entry only ever shrinks, and goes when it is not needed.
const LONG: &[(&str, usize)] = &[];

/// Where libc may be named: the system seam, the fault path, the two C borders, and what is not the library.
const LIBC: &[&str] = &["src/sys/", "src/core/fault", "src/capi/", "interpose/", "conformance/", "src/bin/"];

/// Code that runs inside another program's calls and faults.
const HOOKS: &[&str] = &["interpose/src/", "src/core/fault"];

/// Words that mark unfinished work. Written in pieces, so that this file does not find itself.
const MARKS: &[&str] = &[concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

/// Places that only exist where this was written, and registries a build must not name.
const PLACES: &[&str] = &[
    concat!("../", "shared"),
    concat!("/wo", "rk/"),
    concat!("fa", "rm-"),
    concat!("crates", ".io"),
    concat!("static.rust", "-lang"),
    concat!("pypi", ".org"),
    concat!("deb.debian", ".org"),
];

fn starts_with_any(path: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|p| path.starts_with(p))
}

fn check_length(file: &SourceFile, long: &[(&str, usize)]) -> Option<String> {
    if !file.path.ends_with(".rs") && !file.path.ends_with(".c") && !file.path.ends_with(".py") {
        return None;
    }
    let limit = if file.path.contains("/tests/") { TEST_LINES } else { LINES };
    let (lines, path) = (file.text.lines().count(), &file.path);
    match long.iter().find(|(p, _)| p == path) {
        Some((_, n)) if lines > *n => Some(format!("{path}: {lines} lines, its exception is {n}")),
        Some((_, n)) if lines < *n => Some(format!("{path}: {lines} lines now, lower its exception from {n}")),
        Some(_) => None,
        None => (lines > limit).then(|| format!("{path}: {lines} lines, the limit is {limit}")),
    }
}

/// `word` in `line`, not as part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let alone =
        |(at, w): (usize, &str)| !part(line[..at].chars().next_back()) && !part(line[at + w.len()..].chars().next());
    line.match_indices(word).any(alone)
}

fn check_text(file: &SourceFile) -> Vec<String> {
    let lock = file.path == "Cargo.lock";
    let mut wrong = Vec::new();
    for (n, line) in file.text.lines().enumerate() {
        let mut say = |w: &str| wrong.push(format!("{}:{}: {w}", file.path, n + 1));
        MARKS.iter().filter(|w| has_word(line, w)).for_each(|w| say(w));
        // Cargo writes the name of its registry into the lock file itself.
        let own = |w: &&&str| lock && **w == PLACES[3];
        PLACES.iter().filter(|w| line.contains(**w)).filter(|w| !own(w)).for_each(|w| say(w));
    }
    wrong
}

fn check_code(file: &SourceFile) -> Vec<String> {
    let facts = match facts(file) {
        Ok(facts) => facts,
        Err(e) => return vec![e],
    };
    let hook = starts_with_any(&file.path, HOOKS);
    let may_libc = starts_with_any(&file.path, LIBC);
    let judge = |what: &What, test: bool| match what {
        What::Macro(m) if matches!(m.as_str(), "todo" | "unimplemented") => Some(format!("{m}! is unfinished work")),
        What::Path(p) if p[0] == "libc" && !may_libc => Some("libc outside the system seam: use sys".into()),
        What::Method(m) if hook && !test && matches!(m.as_str(), "unwrap" | "expect") => {
            Some(format!(".{m}() can end someone else's process: return an error"))
        }
        What::Macro(m)
            if hook && !test && matches!(m.as_str(), "println" | "print" | "eprintln" | "eprint" | "dbg") =>
        {
            Some(format!("{m}! allocates and locks: use sys::log"))
        }
        _ => None,
    };
    let wrong =
        facts.iter().filter_map(|f| judge(&f.what, f.test).map(|why| format!("{}:{}: {why}", file.path, f.line)));
    wrong.collect()
}

fn check(file: &SourceFile, long: &[(&str, usize)]) -> Vec<String> {
    let mut wrong = check_text(file);
    wrong.extend(check_length(file, long));
    if file.is_rust() {
        wrong.extend(check_code(file));
    }
    wrong
}

#[test]
fn the_house_is_tidy() {
    let files = repo::files();
    assert!(files.iter().filter(|f| f.is_rust()).count() >= 20, "the sources were not found");
    let mut wrong: Vec<String> = files.iter().flat_map(|f| check(f, LONG)).collect();
    let gone = LONG.iter().filter(|(p, _)| files.iter().all(|f| f.path != *p));
    wrong.extend(gone.map(|(p, _)| format!("{p}: gone, remove its exception")));
    assert!(wrong.is_empty(), "untidy:\n{}", wrong.join("\n"));
}

#[test]
fn planted_violations_are_found() {
    let mut planted = vec![
        ("src/core/a.rs", "fn f() { todo!() }".to_string()),
        ("src/core/a.rs", "fn f() { unimplemented!(\"later\") }".to_string()),
        ("src/core/a.rs", "use libc::c_int;".to_string()),
        ("src/link/a.rs", "fn f() { g(libc::EINTR) }".to_string()),
        ("interpose/src/a.rs", "fn f() { a.unwrap(); }".to_string()),
        ("src/core/fault/a.rs", "fn f() { a.expect(\"b\"); }".to_string()),
        ("src/core/fault.rs", "fn f() { eprintln!(\"b\"); }".to_string()),
        ("src/core/a.rs", "// line\n".repeat(LINES + 1)),
        ("conformance/tests/a.rs", "// line\n".repeat(TEST_LINES + 1)),
        ("conformance/apps/a.c", "int x;\n".repeat(LINES + 1)),
    ];
    planted.extend(MARKS.iter().map(|w| ("src/core/a.rs", format!("// {w}: later\n"))));
    planted.extend(PLACES.iter().map(|w| ("conformance/test", format!("cat {w}/file\n"))));
    for (path, text) in planted {
        let found = check(&SourceFile::planted(path, &text), &[]);
        assert_eq!(found.len(), 1, "{path}: {text}\n{found:?}");
    }
}

#[test]
fn what_is_allowed_passes() {
    for (path, text) in [
        ("src/core/a.rs", "fn f() { a.unwrap_or(1); } // libc::x is only named here, and todo!() too\n"),
        ("src/sys/a.rs", "use libc::c_int;"),
        ("interpose/src/a.rs", "#[cfg(test)] mod tests { fn f() { a.unwrap(); println!(\"x\"); } }"),
        ("conformance/test", "mktemp -d /tmp/smc.XXXXXX\n"),
        ("conformance/tests/a.rs", "fn f() { a.unwrap(); }"),
    ] {
        assert_eq!(check(&SourceFile::planted(path, text), &[]), Vec::<String>::new());
    }
    assert!(check(&SourceFile::planted("Cargo.lock", &format!("index {}\n", PLACES[3])), &[]).is_empty());
}

#[test]
fn exceptions_are_a_ratchet() {
    let file = SourceFile::planted("src/core/a.rs", &"// line\n".repeat(500));
    assert_eq!(check(&file, &[("src/core/a.rs", 500)]), Vec::<String>::new());
    assert_eq!(check(&file, &[("src/core/a.rs", 499)]).len(), 1);
    assert_eq!(check(&file, &[("src/core/a.rs", 501)]).len(), 1);
}
