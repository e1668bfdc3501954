//! The wire between a case and its exporter, and what can be done to it: one set of functions for every device that the suites
//! run on.
//!
//! | device | how |
//! |---|---|
//! | soft HCA | its control file, see `conformance/softhca/src/fault.rs` |
//! | rxe in the guest, two devices | `conformance/guest/wire` |
//!
//! What a device cannot do is an `Err` with the reason, for the case to pass on.

use crate::repo;
use smc_engine::link::verbs::Device;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Something that happens to messages on their way, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// So many of a hundred are lost.
    Loss(u32),
    /// Each takes so many microseconds longer.
    Delay(u32),
    /// So many of a hundred come twice.
    Twice(u32),
    /// So many of a hundred overtake the others, which are a little late.
    Reorder(u32),
    /// So many of a hundred come with a wrong bit.
    Corrupt(u32),
}

/// The answer of something that a device may be unable to do.
pub type Done = Result<(), String>;

/// The wire. Dropping it does not mend it: the case's process, or the guest, ends.
pub trait Wire: Sync {
    /// `LIBSMC_DEVICE` of the exporter, and of the case.
    fn devices(&self) -> [String; 2];

    /// How much longer everything may take than on a machine of one's own: an emulated one is slow.
    fn patience(&self) -> u32 {
        1
    }

    /// From now on these, and no others.
    fn faults(&self, list: &[Fault]) -> Done;

    /// The ports of both devices have no link.
    fn down(&self) -> Done;

    /// They have again.
    fn up(&self) -> Done;

    /// The case's device is taken away under its user.
    fn remove(&self) -> Done;

    /// It is there again.
    fn restore(&self) -> Done;

    /// What programs have of both devices now: queue pairs, registrations and so on; `None` where nobody counts them.
    fn objects(&self) -> Option<String> {
        None
    }

    /// From now on what the case's process registers counts against its RLIMIT_MEMLOCK. `false`: unless it is root's.
    fn count_locked(&self) -> Result<bool, String>;

    /// What a queue pair of the case has to flush never completes.
    fn lose_flushes(&self) -> Done {
        Err("the device completes what is flushed, whatever happens".into())
    }

    /// Nothing arrives any more, and no device notices by itself.
    fn cut(&self) -> Done {
        self.faults(&[Fault::Loss(100)])
    }

    /// Memory that is registered now loses its rights, as when somebody takes the key away behind the exporter's back.
    fn revoke_keys(&self) -> Done {
        Err("keys cannot be taken away on this device".into())
    }

    /// Registrations fail with this number from now on; 0: they do not.
    fn refuse_registrations(&self, _errno: i32) -> Done {
        Err("registrations cannot be made to fail on this device".into())
    }
}

/// The wire of this host. Sets variables: to be called before anything else in the process. `Err`: why there is none.
pub fn find(scratch: &Path) -> Result<Box<dyn Wire>, String> {
    if std::env::var_os("GUEST_NET").is_some_and(|n| n == "two") {
        // A case that was killed has left it as it was.
        Rxe.faults(&[])?;
        Rxe.up()?;
        return Ok(Box::new(Rxe));
    }
    SoftHca::prepare(scratch).map(|w| Box::new(w) as Box<dyn Wire>)
}

/// The soft HCA.
struct SoftHca {
    file: PathBuf,
    words: Mutex<Words>,
}

/// What the control file says.
#[derive(Clone, Default)]
struct Words {
    faults: String,
    down: bool,
    removed: bool,
    revoked: u32,
    register: i32,
    memlock: bool,
    no_flush: bool,
}

impl SoftHca {
    fn prepare(scratch: &Path) -> Result<SoftHca, String> {
        let file = scratch.join("faults");
        std::fs::write(&file, "").map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        let set = |name: &str, value: &std::ffi::OsStr| {
            // SAFETY: the case has one thread yet.
            unsafe { std::env::set_var(name, value) };
        };
        set("LIBSOFTHCA_DEVICES", "2".as_ref());
        set("LIBSOFTHCA_FAULTS", file.as_os_str());
        let names = Device::names().map_err(|e| e.to_string())?;
        if !names.iter().any(|n| n == "softhca1") {
            return Err(format!("faults need the soft HCA or the guest's rxe; here is {}", names.join(", ")));
        }
        Ok(SoftHca { file, words: Mutex::default() })
    }

    /// Changes what the file says, and waits until every engine has looked at it.
    fn say(&self, change: impl FnOnce(&mut Words)) -> Done {
        let mut words = self.words.lock().expect("the words");
        change(&mut words);
        let mut text = words.faults.clone();
        if words.down {
            text += " port-down=1";
        }
        if words.revoked > 0 {
            // The exporter's: those of the case itself are good.
            text = format!("revoke={} device=0", words.revoked);
        }
        if words.register != 0 {
            text += &format!(" register={}", words.register);
        }
        if words.memlock {
            // The exporter's own is not what is tried.
            text = format!("memlock pid={}", std::process::id());
        }
        if words.no_flush {
            text += " no-flush";
        }
        if words.removed {
            // Everything else stays as it is for the exporter's device; what the list says holds for one device only.
            text = format!("remove device=1 pid={}", std::process::id());
        }
        // Never half a file.
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, text).map_err(|e| e.to_string())?;
        std::fs::rename(&fresh, &self.file).map_err(|e| e.to_string())?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        Ok(())
    }
}

impl Wire for SoftHca {
    fn devices(&self) -> [String; 2] {
        ["softhca0".into(), "softhca1".into()]
    }

    fn faults(&self, list: &[Fault]) -> Done {
        let every = |percent: u32| 100 / percent.clamp(1, 100);
        let mut text = String::from("scatter");
        for f in list {
            match *f {
                Fault::Loss(p) => text += &format!(" lose-requests={} lose-answers={}", every(p), every(p)),
                Fault::Delay(us) => text += &format!(" delay={}", u64::from(us) * 1000),
                // The requester sends again what was not answered.
                Fault::Twice(p) => text += &format!(" lose-answers={}", every(p)),
                Fault::Reorder(_) | Fault::Corrupt(_) => return Err("the soft HCA has no packets to do that to".into()),
            }
        }
        self.say(|w| w.faults = text)
    }

    fn down(&self) -> Done {
        self.say(|w| w.down = true)
    }

    fn up(&self) -> Done {
        self.say(|w| w.down = false)
    }

    fn remove(&self) -> Done {
        self.say(|w| w.removed = true)
    }

    fn restore(&self) -> Done {
        self.say(|w| w.removed = false)
    }

    fn revoke_keys(&self) -> Done {
        self.say(|w| w.revoked += 1)
    }

    fn refuse_registrations(&self, errno: i32) -> Done {
        self.say(|w| w.register = errno)
    }

    fn count_locked(&self) -> Result<bool, String> {
        self.say(|w| w.memlock = true).map(|()| true)
    }

    fn lose_flushes(&self) -> Done {
        self.say(|w| w.no_flush = true)
    }
}

/// Two devices of the kernel's rxe in a guest that is there for this run.
struct Rxe;

impl Rxe {
    fn wire(args: &[&str]) -> Done {
        let mut script = Command::new(repo::root().join("conformance/guest/wire"));
        let out = script.args(args).output().map_err(|e| format!("conformance/guest/wire: {e}"))?;
        match out.status.success() {
            true => Ok(()),
            false => Err(format!("wire {args:?}: {}", String::from_utf8_lossy(&out.stderr))),
        }
    }
}

impl Wire for Rxe {
    fn devices(&self) -> [String; 2] {
        ["rxe_a".into(), "rxe_b".into()]
    }

    fn patience(&self) -> u32 {
        4
    }

    fn faults(&self, list: &[Fault]) -> Done {
        let words: Vec<String> = list
            .iter()
            .map(|f| match f {
                Fault::Loss(p) => format!("loss {p}%"),
                Fault::Delay(us) => format!("delay {us}us"),
                Fault::Twice(p) => format!("duplicate {p}%"),
                // Nothing is overtaken on a wire without a delay.
                Fault::Reorder(p) => format!("delay 2ms reorder {p}% 50%"),
                Fault::Corrupt(p) => format!("corrupt {p}%"),
            })
            .collect();
        let words = if words.is_empty() { "clean".into() } else { format!("faults {}", words.join(" ")) };
        Rxe::wire(&words.split_whitespace().collect::<Vec<_>>())
    }

    fn down(&self) -> Done {
        Rxe::wire(&["down"])
    }

    fn up(&self) -> Done {
        Rxe::wire(&["up"])
    }

    fn remove(&self) -> Done {
        if !removable() {
            return Err("before 7.0 the kernel waits for the users of a device that is taken away".into());
        }
        Rxe::wire(&["delete", "rxe_b"])
    }

    fn restore(&self) -> Done {
        Rxe::wire(&["add", "rxe_b"])
    }

    fn count_locked(&self) -> Result<bool, String> {
        Ok(false)
    }

    fn objects(&self) -> Option<String> {
        let out = Command::new("rdma").args(["resource", "show"]).output().ok()?;
        Some(String::from_utf8_lossy(&out.stdout).into_owned()).filter(|text| text.contains(" qp "))
    }
}

/// True from kernel 7.0 on.
fn removable() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.split('.').next().and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n >= 7)
}
