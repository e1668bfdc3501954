//! Facts of the host that decide what works, or how fast.

use super::backends::Found;
use super::{Row, Verdict, rdma};
use crate::out;
use smc_engine::base::config::{Backend, Config, VARS};
use smc_engine::sys::{mem, process};
use std::fs::{self, File};
use std::io::ErrorKind;

fn first_line(path: &str) -> Result<String, std::io::Error> {
    fs::read_to_string(path).map(|t| t.lines().next().unwrap_or("").trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    first_line(path).ok()?.parse().ok()
}

/// The chosen word of a list like `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    let line = first_line(path).ok()?;
    Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// The value of `KEY:` in /proc/self/status.
fn status(key: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    Some(text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?.trim().to_owned())
}

/// `Ok` where the best back end works anyway, else `Warn`.
fn matters(found: &Found) -> Verdict {
    if found.works(Backend::Thread) { Verdict::Ok } else { Verdict::Warn }
}

/// Every row.
pub fn rows(found: &Found) -> Vec<Row> {
    vec![
        environment(),
        kernel(),
        unprivileged(found),
        device(found),
        seccomp(found),
        pagemap(),
        memfd(),
        map_count(found),
        memlock(),
        memory(),
        huge_pages(),
        transparent(),
        shmem_huge(),
        vector(),
        rdma::row(&Config::parse(|v| std::env::var(v).ok())),
        not_examined("GPU"),
    ]
}

fn environment() -> Row {
    let mut complaints = Config::parse(|v| std::env::var(v).ok()).complaints;
    let names = std::env::vars_os().filter_map(|(k, _)| k.into_string().ok()).filter(|k| k.starts_with("LIBSMC_"));
    let (known, strange): (Vec<String>, Vec<String>) = names.partition(|k| VARS.iter().any(|v| v.name == k));
    complaints.extend(strange.into_iter().map(|k| format!("{k} is not a setting")));
    if complaints.is_empty() {
        let value = if known.is_empty() { "defaults".to_owned() } else { known.join(" ") };
        return Row::new("environment", Verdict::Ok, value, "variables LIBSMC_*; `smc env` lists them");
    }
    Row::new("environment", Verdict::Warn, complaints.join("; "), "a value that cannot be used keeps the default")
        .remedy("smc env")
}

fn kernel() -> Row {
    let name = "kernel";
    let Ok(release) = first_line("/proc/sys/kernel/osrelease") else {
        return Row::new(name, Verdict::Unknown, "not readable", "6.7 brings asynchronous write-protection");
    };
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok());
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let (verdict, meaning) = match version {
        v if v >= (6, 7) => (Verdict::Ok, "has everything: asynchronous write-protection and page scans"),
        v if v >= (6, 4) => (Verdict::Warn, "before 6.7: the first store to each page costs a fault that is delivered"),
        _ => (Verdict::Warn, "before 6.4: only the back end mprotect"),
    };
    Row::new(name, verdict, release, meaning).remedy("a kernel of 6.7 or later")
}

fn unprivileged(found: &Found) -> Row {
    let name = "vm.unprivileged_userfaultfd";
    match first_line("/proc/sys/vm/unprivileged_userfaultfd") {
        Ok(v) if v == "1" => Row::new(name, Verdict::Ok, v, "every user may serve faults of system calls too"),
        Ok(v) => {
            Row::new(name, matters(found), v, "full userfaultfd needs CAP_SYS_PTRACE or access to /dev/userfaultfd")
                .remedy("sysctl -w vm.unprivileged_userfaultfd=1")
        }
        Err(e) => Row::new(
            name,
            Verdict::Unknown,
            e.to_string(),
            "decides whether unprivileged programs get the back end thread",
        ),
    }
}

fn device(found: &Found) -> Row {
    let name = "/dev/userfaultfd";
    let meaning = "whoever may open it gets full userfaultfd without a capability";
    match File::options().read(true).write(true).open("/dev/userfaultfd") {
        Ok(_) => Row::new(name, Verdict::Ok, "may be opened", meaning),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            Row::new(name, matters(found), "permission denied", meaning)
                .remedy("setfacl -m u:USER:rw /dev/userfaultfd, or a udev rule with MODE=\"0666\"")
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Row::new(name, matters(found), "not there", meaning)
            .remedy("a kernel of 6.1 or later; in a container pass the device in"),
        Err(e) => Row::new(name, matters(found), e.to_string(), meaning),
    }
}

fn seccomp(found: &Found) -> Row {
    let name = "seccomp";
    match status("Seccomp").as_deref() {
        Some("0") => Row::new(name, Verdict::Ok, "off", "no system call is filtered"),
        Some("2") => Row::new(name, matters(found), "filter", "system calls are filtered; the usual container profile refuses userfaultfd")
            .remedy("run the container with a seccomp profile that permits userfaultfd (docker run --security-opt seccomp=FILE)"),
        Some(m) => Row::new(name, Verdict::Warn, format!("mode {m}"), "system calls are restricted"),
        None => Row::new(name, Verdict::Unknown, "not shown", "/proc/self/status has no such line"),
    }
}

fn pagemap() -> Row {
    let meaning = "where dirty pages are found without a fault for each";
    match File::open("/proc/self/pagemap") {
        Ok(_) => Row::new("/proc/self/pagemap", Verdict::Ok, "readable", meaning),
        Err(e) => Row::new("/proc/self/pagemap", Verdict::Warn, e.to_string(), meaning)
            .remedy("mount /proc in the container; a set-id program must make itself dumpable"),
    }
}

fn memfd() -> Row {
    let name = "vm.memfd_noexec";
    let value = first_line("/proc/sys/vm/memfd_noexec").unwrap_or_else(|_| "not there".into());
    match mem::memfd(c"smc-doctor", 4096) {
        Ok(_) => Row::new(name, Verdict::Ok, value, "memory files can be made"),
        Err(e) => Row::new(
            name,
            Verdict::Bad,
            format!("{value}, memfd_create: {e}"),
            "no memory file can be made, so no region",
        )
        .remedy("permit the system call memfd_create"),
    }
}

fn map_count(found: &Found) -> Row {
    let name = "vm.max_map_count";
    let meaning = "the back end mprotect needs up to two mappings per 64 KiB of scattered pages";
    match number("/proc/sys/vm/max_map_count") {
        Some(n) => {
            let tight = n < 262_144 && found.chosen() == Some(Backend::Mprotect);
            let verdict = if tight { Verdict::Warn } else { Verdict::Ok };
            Row::new(name, verdict, n.to_string(), meaning).remedy("sysctl -w vm.max_map_count=1048576")
        }
        None => Row::new(name, Verdict::Unknown, "not readable", meaning),
    }
}

fn memlock() -> Row {
    let name = "RLIMIT_MEMLOCK";
    let meaning = "bytes a process may pin; an HCA pins the regions registered with it";
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft =
        limits.lines().find_map(|l| l.strip_prefix("Max locked memory")).and_then(|l| l.split_whitespace().next());
    match soft {
        Some("unlimited") => Row::new(name, Verdict::Ok, "unlimited", meaning),
        Some(n) => {
            let shown = n.parse().map_or_else(|_| n.to_owned(), out::bytes);
            Row::new(name, Verdict::Warn, shown, meaning)
                .remedy("ulimit -l unlimited (limits.conf: memlock; systemd: LimitMEMLOCK=infinity)")
        }
        None => Row::new(name, Verdict::Unknown, "not readable", meaning),
    }
}

fn memory() -> Row {
    let name = "MemAvailable";
    if !fs::read_to_string("/proc/meminfo").is_ok_and(|t| t.contains("MemAvailable:")) {
        return Row::new(name, Verdict::Unknown, "not readable", "the library assumes 1 GiB");
    }
    let n = process::mem_available();
    let verdict = if n < 256 << 20 { Verdict::Warn } else { Verdict::Ok };
    let meaning = "half of it is what one region may keep here unless LIBSMC_RESIDENT says otherwise";
    Row::new(name, verdict, out::bytes(n), meaning).remedy("free memory, or set LIBSMC_RESIDENT")
}

fn huge_pages() -> Row {
    let value = number("/proc/sys/vm/nr_hugepages").map_or_else(|| "not readable".into(), |n| n.to_string());
    Row::new("vm.nr_hugepages", Verdict::Ok, value, "reserved huge pages; this version does not need them")
}

fn transparent() -> Row {
    let name = "transparent huge pages";
    let meaning = "the twin of a pinned region uses them where they are not off";
    match chosen("/sys/kernel/mm/transparent_hugepage/enabled") {
        Some(v) if v == "never" => Row::new(name, Verdict::Warn, v, meaning)
            .remedy("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        Some(v) => Row::new(name, Verdict::Ok, v, meaning),
        None => Row::new(name, Verdict::Unknown, "not readable", meaning),
    }
}

fn shmem_huge() -> Row {
    let name = "shmem huge pages";
    let meaning = "with them pinning a region for an HCA is about fifty times cheaper; dirty pages stay exact";
    match chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled") {
        Some(v) if v == "never" || v == "deny" => Row::new(name, Verdict::Warn, v, meaning)
            .remedy("echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        Some(v) => Row::new(name, Verdict::Ok, v, meaning),
        None => Row::new(name, Verdict::Unknown, "not readable", meaning),
    }
}

fn vector() -> Row {
    let (avx512, avx2) = (is_x86_feature_detected!("avx512bw"), is_x86_feature_detected!("avx2"));
    let value = if avx512 {
        "AVX-512BW"
    } else if avx2 {
        "AVX2"
    } else {
        "SSE2"
    };
    Row::new("vector unit", Verdict::Ok, value, "what finds the changed bytes of a page")
}

fn not_examined(what: &'static str) -> Row {
    Row::new(what, Verdict::Unknown, "not examined", "not examined by this version")
}
