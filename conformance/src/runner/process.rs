//! One case in one process: start, time limit, end, verdict.

use super::{Case, Effort, OVER, Over, Verdict, child, interrupt, need};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How much of a case's output is kept for the report, in bytes from its end.
const OUTPUT_TAIL: u64 = 64 << 10;
/// How often the time limit is looked at.
const POLL: Duration = Duration::from_millis(5);

/// What came of one case.
pub struct Outcome {
    /// The case's name.
    pub name: &'static str,
    /// Final verdict, after signals, exit codes and expectations were taken into account.
    pub verdict: Verdict,
    /// Wall time.
    pub took: Duration,
    /// The end of what it wrote to standard output and error.
    pub output: String,
}

/// What the processes of one run have in common.
pub struct Plan {
    /// Program to start with `--case NAME`: the runner itself.
    pub exe: PathBuf,
    /// Seed for every case.
    pub seed: u64,
    /// Effort for every case.
    pub effort: Effort,
    /// Directory below which each case gets its own.
    pub scratch: PathBuf,
    /// True when the planted cases are run instead of the suites.
    pub planted: bool,
    /// How the cases reach their homes.
    pub over: Over,
}

/// Runs `case` in a process of its own and judges how it ended. Never longer than the time limit plus the kill.
pub fn run(plan: &Plan, case: &Case) -> Outcome {
    let start = Instant::now();
    let done = |verdict, output| Outcome { name: case.name, verdict, took: start.elapsed(), output };
    if let Some(reason) = need::missing(case.needs) {
        return done(Verdict::Skip(reason), String::new());
    }
    let dir = plan.scratch.join(case.name);
    let result = run_in(plan, case, &dir);
    let _ = std::fs::remove_dir_all(&dir);
    match result {
        Ok((verdict, output)) => done(verdict, output),
        Err(e) => done(Verdict::Fail(format!("the runner could not run it: {e}")), String::new()),
    }
}

fn run_in(plan: &Plan, case: &Case, dir: &Path) -> io::Result<(Verdict, String)> {
    std::fs::create_dir_all(dir)?;
    let mut output = File::options().create_new(true).read(true).append(true).open(dir.join(".output"))?;
    let mut child = spawn(plan, case, dir, &output)?;
    let limit = time_limit(case, plan.effort);
    let registered = interrupt::Registered::new(child.id());
    let ended = wait_until(&child, Instant::now() + limit);
    // The leader is not reaped yet, so its group id is still its own: nobody else can be hit.
    kill_group(&child);
    drop(registered);
    let status = child.wait()?;
    let verdict = if ended? {
        judge(case, status, child::read(dir))
    } else {
        Verdict::Fail(format!("timed out after {} s and was killed", limit.as_secs()))
    };
    Ok((verdict, tail(&mut output)?))
}

/// A long run does up to ten times the work.
fn time_limit(case: &Case, effort: Effort) -> Duration {
    Duration::from_secs(case.timeout_s * if effort == Effort::Long { 10 } else { 1 })
}

fn spawn(plan: &Plan, case: &Case, dir: &Path, output: &File) -> io::Result<Child> {
    let mut command = Command::new(&plan.exe);
    command.arg("--case").arg(case.name).arg("--seed").arg(plan.seed.to_string()).arg("--scratch").arg(dir);
    match plan.effort {
        Effort::Quick => drop(command.arg("--quick")),
        Effort::Normal => {}
        Effort::Long => drop(command.arg("--long")),
    }
    if plan.planted {
        command.arg("--planted");
    }
    match plan.over {
        Over::Here => command.env_remove(OVER),
        Over::Verbs => command.env(OVER, "verbs"),
    };
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    command.env("TMPDIR", dir).process_group(0);
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe { command.pre_exec(die_with_runner) };
    command.spawn()
}

/// The case's leader is killed when the runner's thread goes away, however it goes.
fn die_with_runner() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits without reaping; false when `deadline` passed first.
fn wait_until(child: &Child, deadline: Instant) -> io::Result<bool> {
    loop {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: info is a valid out buffer; the id is that of a child not yet reaped.
        if unsafe { libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroed before the call; every bit pattern is a valid siginfo_t.
        let info = unsafe { info.assume_init() };
        // SAFETY: waitid filled the child part of the union, or left it zero.
        if unsafe { info.si_pid() } != 0 {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(POLL);
    }
}

fn kill_group(child: &Child) {
    // SAFETY: the group was made by `process_group(0)` for this child, which is not reaped yet.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
}

fn judge(case: &Case, status: ExitStatus, verdict: Option<Verdict>) -> Verdict {
    match (status.signal(), case.dies_by) {
        (Some(got), Some(want)) if got == want => Verdict::Pass,
        (Some(got), Some(want)) => {
            Verdict::Fail(format!("ended by {}, expected {}", signal_name(got), signal_name(want)))
        }
        (Some(got), None) => Verdict::Fail(format!("ended by {}", signal_name(got))),
        (None, Some(want)) => match verdict {
            Some(v @ (Verdict::Fail(_) | Verdict::Skip(_))) => v,
            _ => Verdict::Fail(format!("ended normally, expected {}", signal_name(want))),
        },
        (None, None) => match (verdict, status.code()) {
            (Some(Verdict::Pass), code) if code != Some(0) => {
                Verdict::Fail(format!("passed, then exited with {code:?}"))
            }
            (Some(v), _) => v,
            (None, code) => Verdict::Fail(format!("exited with {} without a verdict", code.unwrap_or(-1))),
        },
    }
}

/// `SIGSEGV`, or `signal 77` for one without a name here.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        other => return format!("signal {other}"),
    };
    name.to_string()
}

fn tail(output: &mut File) -> io::Result<String> {
    let len = output.metadata()?.len();
    output.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_TAIL)))?;
    let mut bytes = Vec::new();
    output.take(OUTPUT_TAIL).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
