//! What a case may need from the host, and how to find out.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Something a case cannot run without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// At least this many usable CPUs.
    Cpus(usize),
    /// A program on `PATH`, or an absolute path to one.
    Program(&'static str),
    /// `/usr/bin/python3` with numpy; the distribution's, whatever else is on `PATH`.
    Numpy,
    /// A host that lets programs have userfaultfd, at least for faults of user mode.
    Userfaultfd,
    /// The built libsmc.so; see [`library`].
    Library,
    /// The built command line tool; see [`tool`].
    Tool,
}

impl Need {
    /// `Ok` when the host has it, else the reason to skip.
    pub fn check(self) -> Result<(), String> {
        match self {
            // SAFETY: geteuid has no preconditions.
            Need::Root => (unsafe { libc::geteuid() } == 0).then_some(()).ok_or_else(|| "needs root".into()),
            Need::Cpus(n) => {
                let have = std::thread::available_parallelism().map_or(1, usize::from);
                (have >= n).then_some(()).ok_or_else(|| format!("needs {n} CPUs, has {have}"))
            }
            Need::Program(p) => find_program(p).map(drop).ok_or_else(|| format!("needs the program {p}")),
            Need::Numpy => {
                let python = Command::new("/usr/bin/python3")
                    .args(["-c", "import numpy"])
                    .stderr(Stdio::null())
                    .status()
                    .is_ok_and(|s| s.success());
                python.then_some(()).ok_or_else(|| "needs /usr/bin/python3 with numpy (python3-numpy)".into())
            }
            Need::Userfaultfd => userfaultfd(),
            Need::Library => library().map(drop),
            Need::Tool => tool().map(drop),
        }
    }
}

/// The first need that is not met, as a reason.
pub fn missing(needs: &[Need]) -> Option<String> {
    needs.iter().find_map(|n| n.check().err())
}

/// The libsmc.so under test: `SMC_TEST_LIBRARY`, or the one beside this program.
pub fn library() -> Result<PathBuf, String> {
    built("SMC_TEST_LIBRARY", "libsmc.so")
}

/// The `smc` tool under test: `SMC_TEST_TOOL`, or the one beside this program.
pub fn tool() -> Result<PathBuf, String> {
    built("SMC_TEST_TOOL", "smc")
}

fn built(var: &str, name: &str) -> Result<PathBuf, String> {
    let path = match std::env::var_os(var) {
        Some(p) => PathBuf::from(p),
        None => std::env::current_exe().map_err(|e| e.to_string())?.with_file_name(name),
    };
    path.is_file().then(|| path.clone()).ok_or_else(|| format!("needs {} (build it, or set {var})", path.display()))
}

fn userfaultfd() -> Result<(), String> {
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: flags only.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    if fd < 0 {
        return Err(format!("needs userfaultfd(2): {}", std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    unsafe { libc::close(fd as i32) };
    Ok(())
}

fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(name)).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        assert_eq!(Need::Program("sh").check(), Ok(()));
        assert_eq!(
            missing(&[Need::Program("sh"), Need::Program("no-such-program")]),
            Some("needs the program no-such-program".into())
        );
        assert!(Need::Cpus(1_000_000).check().is_err());
    }
}
