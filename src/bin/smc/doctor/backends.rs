//! The fault back ends, each tried in a child process: one that crashes or hangs is a finding, not the end.

use super::{Row, Verdict};
use crate::out;
use smc_engine::base::config::{Backend, Config};
use smc_engine::core::selftest::try_backend;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};

/// What the trials showed.
pub struct Found {
    trials: Vec<(Backend, Result<(), String>)>,
    /// `LIBSMC_FAULT`, where it names one.
    forced: Option<Backend>,
}

/// The child's side: exit status 0, or 3 and the reason on stdout.
pub fn one_trial(name: &str) -> ExitCode {
    let Some(b) = Backend::parse(name) else { return ExitCode::from(2) };
    match try_backend(b).outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            out::line(why);
            ExitCode::from(3)
        }
    }
}

fn start(b: Backend) -> std::io::Result<Child> {
    let me = std::env::current_exe()?;
    let mut c = Command::new(me);
    c.args(["doctor", "--trial", b.name()]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    c.spawn()
}

fn attempt(b: Backend) -> Result<(), String> {
    // Where no process can be started, here is better than not at all.
    let Ok(child) = start(b) else { return try_backend(b).outcome };
    let out = super::wait(child)?;
    match (out.status.code(), out.status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(3), _) => Err(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
        (_, Some(s)) => Err(format!("the trial was ended by signal {s}")),
        (code, _) => Err(format!("the trial ended with status {}", code.unwrap_or(-1))),
    }
}

/// Tries all of them.
pub fn examine() -> Found {
    let forced = Config::parse(|v| std::env::var(v).ok()).backend;
    Found { trials: Backend::ALL.into_iter().map(|b| (b, attempt(b))).collect(), forced }
}

fn meaning(b: Backend) -> &'static str {
    match b {
        Backend::Thread => "a thread serves faults; system calls on region pages just work",
        Backend::Sigbus => {
            "faults are served in the faulting thread: lowest latency; system calls on absent pages are retried by the preloaded library only"
        }
        Backend::Sync => "as above, with write-protect faults delivered one by one: for kernels before 6.7",
        Backend::Mprotect => "SIGSEGV and mprotect in pieces of 64 KiB: works everywhere, slowest, many mappings",
    }
}

fn remedy(b: Backend) -> &'static str {
    match b {
        Backend::Thread => {
            "sysctl -w vm.unprivileged_userfaultfd=1, or chmod 666 /dev/userfaultfd; in a container also permit the system call userfaultfd"
        }
        Backend::Sigbus => "a kernel of 6.7 or later that permits the system call userfaultfd",
        Backend::Sync => "a kernel of 6.4 or later that permits the system call userfaultfd",
        Backend::Mprotect => "report it with the output of `smc doctor --json`",
    }
}

fn row_name(b: Backend) -> &'static str {
    match b {
        Backend::Thread => "back end thread",
        Backend::Sigbus => "back end sigbus",
        Backend::Sync => "back end sync",
        Backend::Mprotect => "back end mprotect",
    }
}

impl Found {
    /// Those that work, best first.
    pub fn working(&self) -> impl Iterator<Item = Backend> + '_ {
        self.trials.iter().filter(|(_, r)| r.is_ok()).map(|(b, _)| *b)
    }

    pub fn works(&self, b: Backend) -> bool {
        self.working().any(|w| w == b)
    }

    /// What the library would use with the environment of this command.
    pub fn chosen(&self) -> Option<Backend> {
        match self.forced {
            Some(b) => Some(b).filter(|b| self.works(*b)),
            None => self.working().next(),
        }
    }

    fn choice_row(&self) -> Row {
        let name = "fault back end";
        match (self.chosen(), self.forced) {
            (Some(b), Some(_)) => Row::new(name, Verdict::Ok, b.name(), "in use because LIBSMC_FAULT asks for it"),
            (Some(b), None) => Row::new(name, Verdict::Ok, b.name(), "in use: the best one that works here"),
            (None, Some(b)) => Row::new(
                name,
                Verdict::Bad,
                "none",
                format!("LIBSMC_FAULT asks for {}, which does not work here", b.name()),
            )
            .remedy("unset LIBSMC_FAULT"),
            (None, None) => Row::new(name, Verdict::Bad, "none", "no back end works: no region can be mapped")
                .remedy("see the rows below"),
        }
    }

    pub fn rows(&self) -> Vec<Row> {
        let mut rows = vec![self.choice_row()];
        let any = self.working().next().is_some();
        for (b, outcome) in &self.trials {
            let row = match outcome {
                Ok(()) => Row::new(row_name(*b), Verdict::Ok, "works", meaning(*b)),
                // With another one at work this costs comfort, not function.
                Err(why) => {
                    Row::new(row_name(*b), if any { Verdict::Warn } else { Verdict::Bad }, why.clone(), meaning(*b))
                        .remedy(remedy(*b))
                }
            };
            rows.push(row);
        }
        rows
    }
}
