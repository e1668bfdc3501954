//! The repository as the gates read it: its root, its files, its commands.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Top directory of the repository this crate was built in.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// A text file of the repository.
pub struct SourceFile {
    /// Path below the root, with `/`.
    pub path: String,
    /// Its content.
    pub text: String,
}

impl SourceFile {
    /// A file that is not on disk: for the gates' own tests.
    pub fn planted(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.into(), text: text.into() }
    }

    /// True for a Rust source.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Every text file that belongs to the repository: tracked or new, not ignored. Without git, every file outside
/// `target` and hidden directories other than `.ci` and `.cargo`. Files that are not UTF-8 are left out.
pub fn files() -> Vec<SourceFile> {
    let root = root();
    let mut paths = git_files(&root).unwrap_or_else(|| walk(&root));
    paths.sort();
    paths.dedup();
    let read = |path: String| std::fs::read_to_string(root.join(&path)).ok().map(|text| SourceFile { path, text });
    paths.into_iter().filter_map(read).collect()
}

fn git_files(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let out = git.output().ok().filter(|o| o.status.success() && !o.stdout.is_empty())?;
    Some(String::from_utf8_lossy(&out.stdout).split_terminator('\0').map(str::to_string).collect())
}

fn walk(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                let hidden = name.starts_with('.') && name != ".ci" && name != ".cargo";
                if name != "target" && !hidden {
                    todo.push(entry.path());
                }
            } else if let Ok(path) = entry.path().strip_prefix(root) {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Line differences between two texts, as `-`, `+` and context lines; empty when they are equal.
pub fn diff(old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    similar::TextDiff::from_lines(old, new)
        .unified_diff()
        .context_radius(2)
        .header("committed", "regenerated")
        .to_string()
}

/// Runs a command; its output on success, else its name, status and what it said.
pub fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.output().map_err(|e| format!("cannot start {name}: {e}"))?;
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if out.status.success() { Ok(said) } else { Err(format!("{name} failed ({}):\n{said}", out.status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_find_this_file() {
        let me = "conformance/src/repo.rs".to_string();
        assert!(files().iter().any(|f| f.path == me));
        let walked = walk(&root());
        assert!(walked.contains(&me) && !walked.iter().any(|p| p.starts_with("target/") || p.starts_with(".git/")));
    }

    #[test]
    fn diff_shows_the_changed_lines() {
        assert_eq!(diff("a\nb\n", "a\nb\n"), "");
        let d = diff("a\nb\n", "a\nc\n");
        assert!(d.contains("-b\n") && d.contains("+c\n"), "{d}");
    }

    #[test]
    fn a_failing_command_says_so() {
        assert_eq!(run(Command::new("echo").arg("x")), Ok("x\n".into()));
        assert!(run(Command::new("sh").args(["-c", "echo why; exit 3"])).unwrap_err().contains("why"));
    }
}
