//! README.md is checked like code: its programs are files that the demo runs, its tables are what the sources say, and the
//! files, commands and options it names exist.

mod preload_support;
mod tool_support;

use smc_conformance::repo;
use std::collections::BTreeSet;
use std::process::Command;
use tool_support::run;

fn read(path: &str) -> String {
    std::fs::read_to_string(repo::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A fenced block: its language, and the last line of text before it.
struct Block {
    language: String,
    before: String,
    text: String,
}

fn blocks(readme: &str) -> Vec<Block> {
    let (mut all, mut open, mut before) = (Vec::new(), None::<Block>, String::new());
    for line in readme.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => all.extend(open.take()),
            (Some(l), None) => open = Some(Block { language: l.into(), before: before.clone(), text: String::new() }),
            (None, Some(b)) => b.text.extend([line, "\n"]),
            (None, None) if !line.trim().is_empty() => before = line.into(),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    all
}

/// Texts between backticks, outside blocks.
fn quoted(readme: &str) -> Vec<String> {
    let mut inside = false;
    let prose = readme.lines().filter(|l| {
        let fence = l.starts_with("```");
        inside ^= fence;
        !inside && !fence
    });
    prose.flat_map(|l| l.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Lines of the `sh` blocks without comments.
fn shell(readme: &str) -> Vec<String> {
    let of = |b: Block| b.text.lines().map(|l| l.split(" #").next().unwrap_or(l).trim().to_owned()).collect::<Vec<_>>();
    blocks(readme).into_iter().filter(|b| b.language == "sh").flat_map(of).collect()
}

/// Programs that are not the file named above them.
fn wrong_programs(readme: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for b in blocks(readme).into_iter().filter(|b| matches!(b.language.as_str(), "c" | "python")) {
        match b.before.split('`').find(|p| p.starts_with("conformance/apps/")) {
            Some(path) => match repo::diff(&read(path), &b.text) {
                d if d.is_empty() => {}
                d => wrong.push(format!("{path} and the block differ:\n{d}")),
            },
            None => wrong.push(format!("no file is named above the {} block after: {}", b.language, b.before)),
        }
    }
    wrong
}

/// Words that look like files of the repository.
fn paths(readme: &str) -> BTreeSet<String> {
    let words = quoted(readme).into_iter().chain(shell(readme));
    let words: Vec<String> = words.flat_map(|l| l.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    let tops = ["conformance/", "src/", "include/", "interpose/"];
    let clean = words.iter().map(|w| w.trim_start_matches("./").trim_matches(['\'', ',']));
    clean.filter(|w| tops.iter().any(|t| w.starts_with(t))).map(str::to_owned).collect()
}

fn missing_paths(readme: &str) -> Vec<String> {
    paths(readme).into_iter().filter(|p| !repo::root().join(p).exists()).collect()
}

/// Command lines of the tool: subcommand and the options before `--`.
fn tool_lines(readme: &str) -> Vec<(String, Vec<String>)> {
    let lines = quoted(readme).into_iter().chain(shell(readme));
    let of = |l: String| {
        let rest = l.strip_prefix("smc ")?.split(" -- ").next()?.to_owned();
        let mut words = rest.split_whitespace();
        let command = words.next()?.trim_matches(',').to_owned();
        let options = words.filter(|w| w.starts_with("--") && w.len() > 2);
        Some((command, options.map(|w| w.split('=').next().unwrap_or(w).to_owned()).collect()))
    };
    lines.filter_map(of).collect()
}

fn help(command: &str) -> Option<String> {
    let out = run(&[command, "--help"]);
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn wrong_tool_lines(readme: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (command, options) in tool_lines(readme) {
        let Some(help) = help(&command) else {
            wrong.push(format!("smc {command}: no such command"));
            continue;
        };
        let known = |o: &String| help.split(|c: char| c.is_whitespace() || c == ',').any(|w| w == o);
        wrong.extend(options.iter().filter(|o| !known(o)).map(|o| format!("smc {command} {o}: no such option")));
    }
    wrong
}

/// `smc_name()` and `SMC_NAME` in the prose that the header does not have.
fn unknown_names(readme: &str) -> Vec<String> {
    let header = read("include/smc.h");
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let known: BTreeSet<&str> = header.split(|c| !word(c)).collect();
    let words: Vec<String> =
        quoted(readme).iter().flat_map(|q| q.split(|c| !word(c)).map(str::to_owned).collect::<Vec<_>>()).collect();
    let ours = |w: &String| w.starts_with("smc_") || w.starts_with("SMC_");
    words.into_iter().filter(ours).filter(|w| !known.contains(w.as_str())).collect()
}

fn between<'a>(text: &'a str, mark: &str) -> &'a str {
    let (from, to) = (format!("<!-- {mark}:begin -->\n"), format!("<!-- {mark}:end -->"));
    assert_eq!((text.matches(&from).count(), text.matches(&to).count()), (1, 1), "the marks of {mark}");
    text.split_once(&from).and_then(|(_, rest)| rest.split_once(&to)).map_or("", |(inside, _)| inside)
}

#[test]
fn programs_are_the_files_that_the_demo_runs() {
    let readme = read("README.md");
    assert_eq!(wrong_programs(&readme), Vec::<String>::new());
    let demo = read("conformance/demo");
    for file in ["demo.c", "demo_write.py", "demo_read.py"] {
        let path = format!("conformance/apps/{file}");
        assert!(readme.contains(&path) && demo.contains(&path), "{path} is not in both");
    }
}

#[test]
fn tables_are_what_the_sources_say() {
    let readme = read("README.md");
    let env = run(&["env", "--markdown"]);
    assert!(env.status.success(), "{env:?}");
    assert_eq!(repo::diff(&String::from_utf8_lossy(&env.stdout), between(&readme, "env")), "");
    between(&readme, "bench");
    let source = read("src/policy/path.rs");
    let rows = |text: &str, prefix: &str| -> String {
        let lines = text.lines().filter_map(|l| l.strip_prefix(prefix)).skip_while(|l| !l.starts_with("| key |"));
        lines.take_while(|l| l.starts_with('|')).fold(String::new(), |all, l| all + l + "\n")
    };
    let options = rows(&source, "//! ");
    assert!(options.lines().count() > 10, "the table of options was not found");
    assert_eq!(repo::diff(&options, &rows(&readme, "")), "", "the README's options and those of src/policy/path.rs");
}

#[test]
fn what_is_named_exists() {
    let readme = read("README.md");
    assert!(paths(&readme).len() > 15 && tool_lines(&readme).len() > 10, "the names were not found");
    assert_eq!(missing_paths(&readme), Vec::<String>::new());
    assert_eq!(wrong_tool_lines(&readme), Vec::<String>::new());
    assert_eq!(unknown_names(&readme), Vec::<String>::new());
    let all = run(&["--help"]);
    let all = String::from_utf8_lossy(&all.stdout);
    let commands = all.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    for command in commands.filter_map(|l| l.split_whitespace().next()).filter(|c| *c != "help") {
        assert!(readme.contains(&format!("| `smc {command}` |")), "smc {command} is not in the table of commands");
    }
}

#[test]
fn it_is_short_and_the_demo_has_help() {
    assert!(read("README.md").lines().count() < 480);
    let demo =
        |arg: &str| Command::new(repo::root().join("conformance/demo")).arg(arg).output().expect("start the demo");
    let help = demo("--help");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("Usage:") && text.contains("Examples:"), "{text}");
    assert_eq!(demo("--no-such-option").status.code(), Some(2));
}

#[test]
fn planted_mistakes_are_found() {
    let other = "`conformance/apps/demo_read.py`:\n\n```python\nprint(1)\n```\n";
    assert_eq!(wrong_programs(other).len(), 1);
    assert_eq!(wrong_programs("text\n\n```c\nint x;\n```\n").len(), 1);
    assert_eq!(
        missing_paths("see `src/nothing.rs` and\n```sh\n./conformance/nothing --x # src/comment\n```\n").len(),
        2
    );
    assert_eq!(wrong_tool_lines("`smc teapot`, `smc ls --teapot`, `smc run --wait 5 -- app --its-own`").len(), 2);
    assert_eq!(unknown_names("`smc_map()` and `smc_teapot()`, `SMC_TEAPOT`"), ["smc_teapot", "SMC_TEAPOT"]);
    assert_eq!(blocks("```sh\na\n```\n```c\nb\n```\n").len(), 2);
}
