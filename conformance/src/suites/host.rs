//! Hosts that forbid things: the self-test finds a back end that works there, and says why the others do not.
//!
//! Each row runs in a child process that has given its rights up.

use crate::rig::setting::{self, Changed};
use crate::runner::{Case, Cost, Ctx, Need, Verdict};
use smc_engine::base::config::Backend;
use smc_engine::core::selftest;
use std::ffi::CStr;
use std::io::Read;
use std::os::fd::FromRawFd;

/// The suite.
pub const CASES: &[Case] = &[
    Case::new("host_as_it_is", |_| row(&[], any)).cost(Cost::Quick),
    Case::new("host_nobody", |_| row(&[Loss::Root], nobody)).needs(&[Need::Root, Need::Userfaultfd]).cost(Cost::Quick),
    Case::new("host_nobody_not_dumpable", |_| row(&[Loss::Root, Loss::Dumpable], not_dumpable))
        .needs(&[Need::Root, Need::Userfaultfd])
        .cost(Cost::Quick),
    Case::new("host_userfaultfd_eperm", |_| row(&[Loss::Userfaultfd(libc::EPERM)], any)).cost(Cost::Quick),
    Case::new("host_userfaultfd_enosys", |_| row(&[Loss::Userfaultfd(libc::ENOSYS)], any)).cost(Cost::Quick),
    Case::new("host_nobody_eperm", |_| row(&[Loss::Root, Loss::Userfaultfd(libc::EPERM)], |s| without(s, "EPERM")))
        .needs(&[Need::Root])
        .cost(Cost::Quick),
    Case::new("host_nobody_enosys", |_| row(&[Loss::Root, Loss::Userfaultfd(libc::ENOSYS)], |s| without(s, "ENOSYS")))
        .needs(&[Need::Root])
        .cost(Cost::Quick),
    Case::new("host_nobody_where_all_may", |_| with_sysctl("1", &[Loss::Root], full))
        .needs(&[Need::Root, Need::Userfaultfd])
        .cost(Cost::Quick),
    Case::new("host_nobody_where_nobody_may", |_| with_sysctl("0", &[Loss::Root], nobody))
        .needs(&[Need::Root, Need::Userfaultfd])
        .cost(Cost::Quick),
    Case::new("host_no_device", |_| row(&[Loss::Device], full))
        .needs(&[Need::Root, Need::Userfaultfd])
        .cost(Cost::Quick),
    Case::new("host_no_device_eperm", |_| {
        row(&[Loss::Device, Loss::Userfaultfd(libc::EPERM)], |s| without(s, "EPERM"))
    })
    .needs(&[Need::Root])
    .cost(Cost::Quick),
    Case::new("host_closed_device", |_| row(&[Loss::OpenDevice], full))
        .needs(&[Need::Root, Need::Userfaultfd])
        .cost(Cost::Quick),
    Case::new("host_closed_device_eperm", closed_device).needs(&[Need::Root]).cost(Cost::Quick),
    Case::new("host_nobody_with_device", |_| row(&[Loss::DeviceForAll, Loss::Root], full))
        .needs(&[Need::Root, Need::Userfaultfd])
        .cost(Cost::Quick),
    Case::new("host_memfd_noexec_0", |_| row(&[Loss::MemfdNoexec("0")], any)).needs(&[Need::Root]).cost(Cost::Quick),
    Case::new("host_memfd_noexec_1", |_| row(&[Loss::MemfdNoexec("1")], any)).needs(&[Need::Root]).cost(Cost::Quick),
    Case::new("host_memfd_noexec_2", |_| row(&[Loss::MemfdNoexec("2")], any)).needs(&[Need::Root]).cost(Cost::Quick),
    Case::new("host_every_back_end_says_why", every).cost(Cost::Quick),
];

/// Who may have all of userfaultfd.
const SYSCTL: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// What the child gives up.
#[derive(Clone, Copy)]
enum Loss {
    /// Becomes the user nobody.
    Root,
    /// Stays as a process is that has changed its user: /proc/self is closed to it.
    Dumpable,
    /// The system call answers this.
    Userfaultfd(i32),
    /// /dev/userfaultfd is not there.
    Device,
    /// /dev/userfaultfd is there, and even root may not open it.
    OpenDevice,
    /// No loss: /dev/userfaultfd is there and everyone may open it.
    DeviceForAll,
    /// vm.memfd_noexec, of a process namespace of its own.
    MemfdNoexec(&'static str),
}

/// What the child found: the name of the back end in use, then a line for each one tried.
struct Seen {
    used: String,
    tried: Vec<String>,
}

impl Seen {
    fn why(&self, b: Backend) -> &str {
        let line = self.tried.iter().find_map(|t| t.strip_prefix(b.name()));
        line.map_or("not tried", |l| l.trim_start_matches(": "))
    }
}

fn row(losses: &[Loss], judge: fn(&Seen) -> Result<(), String>) -> Verdict {
    // What is judged depends on it.
    let _held = setting::hold(SYSCTL);
    row_as_it_is(losses, judge)
}

/// The row where the sysctl has this value.
fn with_sysctl(value: &str, losses: &[Loss], judge: fn(&Seen) -> Result<(), String>) -> Verdict {
    match Changed::to(SYSCTL, value) {
        Ok(_changed) => row_as_it_is(losses, judge),
        Err(e) => Verdict::Skip(format!("cannot set {SYSCTL}: {e}")),
    }
}

fn row_as_it_is(losses: &[Loss], judge: fn(&Seen) -> Result<(), String>) -> Verdict {
    match in_child(losses) {
        Ok(seen) => {
            println!("uses {}\n{}", seen.used, seen.tried.join("\n"));
            judge(&seen).map_err(|e| format!("{e}; uses {}; {}", seen.used, seen.tried.join("; "))).into()
        }
        Err(e) if e.starts_with("skip") => Verdict::Skip(e),
        Err(e) => Verdict::Fail(e),
    }
}

/// All of userfaultfd by one way or another.
fn full(seen: &Seen) -> Result<(), String> {
    match seen.used.as_str() {
        "thread" => any(seen),
        _ => Err("expected thread".into()),
    }
}

/// The system call is refused and the device too: the reason names both answers.
fn closed_device(_: &mut Ctx) -> Verdict {
    row(&[Loss::OpenDevice, Loss::Userfaultfd(libc::EPERM)], |s| {
        without(s, "EPERM")?;
        match s.why(Backend::Thread).contains("EACCES") {
            true => Ok(()),
            false => Err("the device's EACCES is not named".into()),
        }
    })
}

/// Some back end works, and each one before it has a reason.
fn any(seen: &Seen) -> Result<(), String> {
    let used = Backend::parse(&seen.used).ok_or("no back end works")?;
    for b in Backend::ALL.into_iter().take_while(|b| *b != used) {
        if seen.why(b).len() < 8 {
            return Err(format!("{} has no reason: {:?}", b.name(), seen.why(b)));
        }
    }
    Ok(())
}

fn full_mode_for_all() -> bool {
    let sysctl = std::fs::read_to_string(SYSCTL).unwrap_or_default();
    sysctl.trim() == "1" || std::fs::metadata("/dev/userfaultfd").is_ok_and(|m| open_to_all(&m))
}

fn open_to_all(m: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    m.mode() & 0o006 == 0o006
}

/// Without privilege the user-mode way is found, behind a system call and a device that are refused.
fn nobody(seen: &Seen) -> Result<(), String> {
    any(seen)?;
    if full_mode_for_all() {
        return Ok(());
    }
    let said = seen.why(Backend::Thread);
    match (seen.used.as_str(), said.contains("user-mode")) {
        ("sigbus", true) => Ok(()),
        _ => Err(format!("expected sigbus, and user-mode faults as the reason; thread said {said:?}")),
    }
}

/// Where /proc/self/pagemap is closed, synchronous tracking is left.
fn not_dumpable(seen: &Seen) -> Result<(), String> {
    any(seen)?;
    match (seen.used.as_str(), seen.why(Backend::Sigbus).contains("pagemap")) {
        ("sync", true) => Ok(()),
        _ => Err("expected sync, and pagemap as sigbus's reason".into()),
    }
}

/// No userfaultfd at all: mprotect, and every other one names the answer it got.
fn without(seen: &Seen, errno: &str) -> Result<(), String> {
    any(seen)?;
    if full_mode_for_all() {
        return Ok(());
    }
    let named = |b| seen.why(b).contains(errno);
    match seen.used == "mprotect" && [Backend::Thread, Backend::Sigbus, Backend::Sync].into_iter().all(named) {
        true => Ok(()),
        false => Err(format!("expected mprotect, and {errno} as the reason of the others")),
    }
}

fn every(_: &mut Ctx) -> Verdict {
    for b in Backend::ALL {
        let t = selftest::try_backend(b);
        println!("{}: {:?}", b.name(), t.outcome);
        if t.outcome.as_ref().is_err_and(|e| e.len() < 8) {
            return Verdict::Fail(format!("{} does not say why: {:?}", b.name(), t.outcome));
        }
    }
    Verdict::Pass
}

/// Gives `losses` up in a fork child, runs the self-test there and reads what it says.
fn in_child(losses: &[Loss]) -> Result<Seen, String> {
    let mut ends = [0; 2];
    // SAFETY: ends is a valid out array of two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err("no pipe".into());
    }
    if losses.iter().any(|l| matches!(l, Loss::MemfdNoexec(_))) {
        // SAFETY: flags only; it concerns the child made next.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return Err("skip: no process namespace can be made here".into());
        }
    }
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    // SAFETY: each process takes one end of its own copy.
    let [from, to] = ends.map(|fd| unsafe { std::fs::File::from_raw_fd(fd) });
    if pid == 0 {
        drop(from);
        let text = lose(losses).map_or_else(|e| e, |()| said());
        let _ = std::io::Write::write_all(&mut &to, text.as_bytes());
        // SAFETY: ends the child without running what the parent registered.
        unsafe { libc::_exit(0) };
    }
    drop(to);
    let mut text = String::new();
    (&from).read_to_string(&mut text).map_err(|e| e.to_string())?;
    let mut status = 0;
    // SAFETY: our own child; status is a valid out pointer.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if !libc::WIFEXITED(status) {
        return Err(format!("the self-test ended the process: {status:#x}"));
    }
    let mut lines = text.lines().map(str::to_string);
    let used = lines.next().ok_or("the self-test said nothing")?;
    if used.starts_with("cannot") || used.starts_with("skip") {
        Err(used)
    } else {
        Ok(Seen { used, tried: lines.collect() })
    }
}

fn said() -> String {
    let (used, trials) = selftest::choose();
    let mut text = used.map_or("none", Backend::name).to_string();
    for t in trials {
        text += &format!("\n{}: {}", t.backend.name(), t.outcome.err().unwrap_or_else(|| "works".into()));
    }
    text
}

fn lose(losses: &[Loss]) -> Result<(), String> {
    const NOBODY: u32 = 65534;
    for loss in losses {
        let done = match *loss {
            Loss::Root => {
                // SAFETY: integers only; the child has one thread.
                let group = unsafe { libc::setgid(NOBODY) };
                // SAFETY: as above.
                let user = unsafe { libc::setuid(NOBODY) };
                // As after an exec: a process that has always been this user.
                // SAFETY: as above.
                group | user | unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }
            }
            // SAFETY: as above.
            Loss::Dumpable => unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) },
            Loss::Userfaultfd(errno) => refuse_userfaultfd(errno),
            Loss::Device | Loss::OpenDevice | Loss::DeviceForAll | Loss::MemfdNoexec(_) => {
                own_mounts(*loss).map_err(|e| format!("skip: {e}"))?;
                0
            }
        };
        if done != 0 {
            return Err(format!("cannot set up: {}", std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Changes what the child alone sees: the device, or a sysctl of its namespace.
fn own_mounts(loss: Loss) -> Result<(), String> {
    const DEVICE: &CStr = c"/dev/userfaultfd";
    let failed = |what: &str| Err(format!("{what}: {}", std::io::Error::last_os_error()));
    // SAFETY: flags only; the child has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return failed("unshare");
    }
    mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
    match loss {
        Loss::Device => mount(c"none", c"/dev", c"tmpfs", 0),
        Loss::OpenDevice => {
            mount(DEVICE, DEVICE, c"", libc::MS_BIND)?;
            mount(DEVICE, DEVICE, c"", libc::MS_BIND | libc::MS_REMOUNT | libc::MS_NODEV)
        }
        Loss::DeviceForAll => {
            use std::os::unix::fs::MetadataExt;
            let device = std::fs::metadata("/dev/userfaultfd").map_err(|e| e.to_string())?.rdev();
            mount(c"none", c"/dev", c"tmpfs", 0)?;
            // SAFETY: a valid path and numbers.
            let made = unsafe { libc::mknod(DEVICE.as_ptr(), libc::S_IFCHR | 0o666, device) };
            // SAFETY: as above; the umask may have taken bits away.
            let opened = unsafe { libc::chmod(DEVICE.as_ptr(), 0o666) };
            if made | opened == 0 { Ok(()) } else { failed("mknod") }
        }
        Loss::MemfdNoexec(value) => {
            mount(c"proc", c"/proc", c"proc", 0)?;
            std::fs::write("/proc/sys/vm/memfd_noexec", value).map_err(|e| format!("vm.memfd_noexec: {e}"))
        }
        _ => Ok(()),
    }
}

fn mount(what: &CStr, at: &CStr, kind: &CStr, flags: libc::c_ulong) -> Result<(), String> {
    let data = std::ptr::null();
    // SAFETY: strings that end with NUL; no data.
    match unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, data) } {
        0 => Ok(()),
        _ => Err(format!("mount {at:?}: {}", std::io::Error::last_os_error())),
    }
}

/// Installs a filter under which userfaultfd(2) answers `errno`, as a container's default does.
fn refuse_userfaultfd(errno: i32) -> i32 {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        op(load, 0, 0, 0),
        op(equal, 0, 1, libc::SYS_userfaultfd as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: integers only.
    let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program and its filter are live for the call.
    quiet | unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) }
}
