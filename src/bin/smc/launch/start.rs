//! Becoming the program. What it is born with is what it would have had without us: its descriptors, its signals, and its
//! environment in the order it was in.

use super::program::Failure;
use crate::os;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An environment as the kernel takes it: `NAME=VALUE` in order, and what else may be there.
#[derive(Clone)]
pub struct Environment(Vec<CString>);

impl Environment {
    /// This process's own.
    pub fn own() -> Environment {
        Environment(os::environment())
    }

    fn is(line: &CString, name: &str) -> bool {
        line.to_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
    }

    /// Value of the first entry of that name, as getenv finds it.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let line = self.0.iter().find(|l| Self::is(l, name))?;
        line.to_bytes().get(name.len() + 1..).map(OsStr::from_bytes)
    }

    /// The environment with these variables. For clean children the library is told how to take them back before the
    /// program sees them: behind a mark the new ones, and the old lines of those that are there already, in an even number
    /// (`interpose/src/children.rs` says why).
    pub fn with<'a>(mut self, new: impl Iterator<Item = (&'a str, &'a OsStr)>, clean: bool) -> Environment {
        let mut added = vec![c"LIBSMC_RUN=clean".to_owned()];
        for (name, value) in new {
            match self.get(name).map(OsStr::to_owned) {
                _ if !clean => self.set(name, value),
                Some(old) if old == value => {}
                Some(old) => {
                    added.extend(line(&format!("LIBSMC_WAS_{name}"), &old));
                    self.set(name, value);
                }
                None => added.extend(line(name, value)),
            }
        }
        if added.len() % 2 == 1 {
            added.push(c"LIBSMC_RUN=even".to_owned());
        }
        if clean {
            self.0.extend(added);
        }
        self
    }

    /// Sets a variable in its place, or behind all others.
    fn set(&mut self, name: &str, value: &OsStr) {
        let Some(new) = line(name, value) else { return };
        let mut found = false;
        for line in self.0.iter_mut().filter(|l| Self::is(l, name)) {
            found = true;
            line.clone_from(&new);
        }
        if !found {
            self.0.push(new);
        }
    }
}

/// `NAME=VALUE`. What comes from the environment, the command line or the settings has no zero byte.
fn line(name: &str, value: &OsStr) -> Option<CString> {
    CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
}

/// Comes back only when it fails.
pub fn become_program(file: &Path, name: &OsStr, args: &[OsString], env: &Environment) -> Failure {
    let fail = |why: String| Failure { status: 126, why };
    let c = |s: &OsStr| CString::new(s.as_bytes()).map_err(|e| fail(e.to_string()));
    let words = || -> Result<(CString, Vec<CString>), Failure> {
        let all = [name].into_iter().chain(args.iter().map(OsString::as_os_str));
        Ok((c(file.as_os_str())?, all.map(c).collect::<Result<_, _>>()?))
    };
    let (file, mut argv) = match words() {
        Ok(w) => w,
        Err(f) => return f,
    };
    os::as_at_start();
    let mut why = os::execute(&file, &argv, &env.0);
    if why.raw_os_error() == Some(libc::ENOEXEC) {
        // A script without a first line that says so; as execvp does.
        let shell = c"/bin/sh";
        argv.splice(..1, [shell.to_owned(), file]);
        why = os::execute(shell, &argv, &env.0);
    }
    let status = if why.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Failure { status, why: why.to_string() }
}
