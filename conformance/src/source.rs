//! Rust source as the gates see it: the paths it names and the calls it makes, without comments and strings.

use crate::repo::SourceFile;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// What a fact is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A path of at least two segments, with `crate`, `super` and `self` resolved: the first segment is then `crate`.
    Path(Vec<String>),
    /// A method call `.name`.
    Method(String),
    /// A macro call `name!`.
    Macro(String),
    /// The word `unsafe`.
    Unsafe,
}

/// Something a source file does, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// What it does.
    pub what: What,
    /// Line, from 1.
    pub line: usize,
    /// True inside a `#[cfg(test)]` module.
    pub test: bool,
}

/// All facts of a Rust file, in order; `Err` when it does not even lex.
pub fn facts(file: &SourceFile) -> Result<Vec<Fact>, String> {
    let stream: TokenStream = file.text.parse().map_err(|e| format!("{}: does not lex: {e}", file.path))?;
    let mut scan = Scan { module: module_of(&file.path), test: false, found: Vec::new() };
    scan.stream(stream);
    Ok(scan.found)
}

/// Module path of a file below its crate's `src`: `src/core/fault/mod.rs` is `[core, fault]`.
fn module_of(path: &str) -> Vec<String> {
    let inner = path.split_once("src/").map_or(path, |(_, rest)| rest).trim_end_matches(".rs");
    let mut parts: Vec<String> = inner.split('/').map(str::to_string).collect();
    if parts.last().is_some_and(|l| matches!(l.as_str(), "mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

struct Scan {
    module: Vec<String>,
    test: bool,
    found: Vec<Fact>,
}

fn punct(t: Option<&TokenTree>, c: char) -> bool {
    matches!(t, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

fn ident(t: Option<&TokenTree>) -> Option<String> {
    match t {
        Some(TokenTree::Ident(i)) => Some(i.to_string()),
        _ => None,
    }
}

fn braces(t: Option<&TokenTree>) -> Option<TokenStream> {
    match t {
        Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Brace => Some(g.stream()),
        _ => None,
    }
}

impl Scan {
    fn stream(&mut self, stream: TokenStream) {
        let t: Vec<TokenTree> = stream.into_iter().collect();
        let mut cfg_test = false;
        let mut i = 0;
        while i < t.len() {
            match &t[i] {
                TokenTree::Group(g) => {
                    cfg_test |=
                        i > 0 && punct(t.get(i - 1), '#') && g.stream().to_string().replace(' ', "") == "cfg(test)";
                    self.stream(g.stream());
                    i += 1;
                }
                TokenTree::Ident(id) if id == "mod" && braces(t.get(i + 2)).is_some() => {
                    self.inline_module(&t, i, cfg_test);
                    cfg_test = false;
                    i += 3;
                }
                TokenTree::Ident(_) => i = self.ident(&t, i),
                TokenTree::Punct(p) => {
                    cfg_test &= p.as_char() != ';';
                    i += 1;
                }
                TokenTree::Literal(_) => i += 1,
            }
        }
    }

    fn inline_module(&mut self, t: &[TokenTree], i: usize, cfg_test: bool) {
        let outer = self.test;
        self.test |= cfg_test;
        self.module.push(ident(t.get(i + 1)).unwrap_or_default());
        self.stream(braces(t.get(i + 2)).unwrap_or_default());
        self.module.pop();
        self.test = outer;
    }

    fn add(&mut self, what: What, at: &TokenTree) {
        self.found.push(Fact { what, line: at.span().start().line, test: self.test });
    }

    /// Handles the identifier at `i`; returns where to go on.
    fn ident(&mut self, t: &[TokenTree], i: usize) -> usize {
        let name = ident(t.get(i)).unwrap_or_default();
        let after_colon = i > 0 && punct(t.get(i - 1), ':') && i > 1 && punct(t.get(i - 2), ':');
        if name == "unsafe" {
            self.add(What::Unsafe, &t[i]);
        } else if i > 0 && punct(t.get(i - 1), '.') {
            self.add(What::Method(name), &t[i]);
        } else if punct(t.get(i + 1), '!') && !punct(t.get(i + 2), '=') {
            self.add(What::Macro(name), &t[i]);
        } else if !after_colon {
            return self.path(t, i, &[]);
        }
        i + 1
    }

    /// Reads the path (or use tree) that starts at `i` below `prefix`; returns where to go on.
    fn path(&mut self, t: &[TokenTree], start: usize, prefix: &[String]) -> usize {
        let mut segments = prefix.to_vec();
        let mut i = start;
        loop {
            if let Some(name) = ident(t.get(i)) {
                segments.push(name);
            } else if punct(t.get(i), '*') && i > start {
                segments.push("*".into());
            } else if let Some(tree) = braces(t.get(i)).filter(|_| i > start) {
                self.use_group(tree, &segments);
                return i + 1;
            } else {
                break;
            }
            i += 1;
            if !(punct(t.get(i), ':') && punct(t.get(i + 1), ':')) {
                break;
            }
            i += 2;
        }
        if segments.len() > 1 {
            let resolved = self.resolve(&segments);
            self.add(What::Path(resolved), &t[start]);
        }
        i.max(start + 1)
    }

    fn use_group(&mut self, tree: TokenStream, prefix: &[String]) {
        let t: Vec<TokenTree> = tree.into_iter().collect();
        let mut i = 0;
        while i < t.len() {
            if punct(t.get(i), '*') {
                let mut all = prefix.to_vec();
                all.push("*".into());
                let resolved = self.resolve(&all);
                self.add(What::Path(resolved), &t[i]);
            } else if ident(t.get(i)).is_some() {
                i = self.path(&t, i, prefix);
            }
            while i < t.len() && !punct(t.get(i), ',') {
                i += 1;
            }
            i += 1;
        }
    }

    fn resolve(&self, segments: &[String]) -> Vec<String> {
        let mut at = self.module.clone();
        let mut rest = segments;
        match segments.first().map(String::as_str) {
            Some("crate") => {
                at.clear();
                rest = &segments[1..];
            }
            Some("self") => rest = &segments[1..],
            Some("super") => {}
            _ => return segments.to_vec(),
        }
        while rest.first().is_some_and(|s| s == "super") {
            at.pop();
            rest = &rest[1..];
        }
        std::iter::once("crate".to_string()).chain(at).chain(rest.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(path: &str, text: &str) -> Vec<String> {
        let all = facts(&SourceFile::planted(path, text)).unwrap();
        all.into_iter().filter_map(|f| if let What::Path(p) = f.what { Some(p.join("::")) } else { None }).collect()
    }

    #[test]
    fn use_trees_are_flattened_and_resolved() {
        let p = paths(
            "src/link/verbs/qp.rs",
            "use crate::{base::{Error, Status as S}, sys}; use super::super::embedded::*; use self::x::y;",
        );
        let want = [
            "crate::base::Error",
            "crate::base::Status",
            "crate::sys",
            "crate::link::embedded::*",
            "crate::link::verbs::qp::x::y",
        ];
        assert_eq!(p, want);
    }

    #[test]
    fn paths_in_code_and_inline_modules() {
        let p = paths(
            "src/link/mod.rs",
            "fn f() { let a = crate::core::run(1); } mod inner { use super::super::core::X; } // crate::capi::no\n",
        );
        assert_eq!(p, ["crate::core::run", "crate::core::X"]);
        assert!(paths("src/link/mod.rs", r#"const S: &str = "crate::core::x"; pub(crate) fn g() {}"#).is_empty());
    }

    #[test]
    fn calls_macros_and_test_modules() {
        let text = "fn f() { a.unwrap(); println!(\"x\"); if a != b {} }\n#[cfg(test)] mod tests { fn g() { b.expect(\"\"); } }\nunsafe fn h() {}";
        let all = facts(&SourceFile::planted("src/x.rs", text)).unwrap();
        let f = |what, line, test| Fact { what, line, test };
        let want = [
            f(What::Method("unwrap".into()), 1, false),
            f(What::Macro("println".into()), 1, false),
            f(What::Method("expect".into()), 2, true),
            f(What::Unsafe, 3, false),
        ];
        assert_eq!(all, want);
    }
}
