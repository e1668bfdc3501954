//! Settings, parsed once into an immutable value. This table is the one place that lists the environment variables.

mod rendezvous;

pub use rendezvous::Rendezvous;

use std::path::PathBuf;
use std::sync::OnceLock;

/// How a region's faults are delivered and its dirty pages found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// userfaultfd read by an own thread; system calls on region pages just work.
    Thread,
    /// userfaultfd delivered as SIGBUS in the faulting thread; lowest latency, unprivileged.
    Sigbus,
    /// userfaultfd with synchronous write-protect faults: kernels before 6.7.
    Sync,
    /// SIGSEGV and mprotect: no userfaultfd at all.
    Mprotect,
}

impl Backend {
    /// The order in which the self-test tries them.
    pub const ALL: [Backend; 4] = [Backend::Thread, Backend::Sigbus, Backend::Sync, Backend::Mprotect];

    /// Name as `LIBSMC_FAULT` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Thread => "thread",
            Backend::Sigbus => "sigbus",
            Backend::Sync => "sync",
            Backend::Mprotect => "mprotect",
        }
    }

    /// The reverse of [`Backend::name`]; `uffd-NAME` is accepted too.
    pub fn parse(s: &str) -> Option<Backend> {
        let s = s.strip_prefix("uffd-").unwrap_or(s);
        Backend::ALL.into_iter().find(|b| b.name() == s)
    }
}

/// One environment variable: name, default, meaning. Rendered into the README's table and `smc doctor`.
pub struct Var {
    /// Full name.
    pub name: &'static str,
    /// Default in words.
    pub default: &'static str,
    /// One sentence.
    pub meaning: &'static str,
}

/// Every environment variable the library reads, and what `smc run` reads for it.
pub const VARS: &[Var] = &[
    Var {
        name: "LIBSMC_FAULT",
        default: "self-test chooses",
        meaning: "fault back end: thread, sigbus, sync or mprotect",
    },
    Var {
        name: "LIBSMC_WAIT",
        default: "5000",
        meaning: "milliseconds a load or a barrier may wait for the next answer of the home before it fails; 1..3600000",
    },
    Var {
        name: "LIBSMC_RESIDENT",
        default: "half of MemAvailable",
        meaning: "bytes of local memory one region may keep resident (suffixes K, M, G); larger regions are paged",
    },
    Var {
        name: "LIBSMC_POOL",
        default: "16M",
        meaning: "bytes of registered buffers per peer, which paged regions use on a network (suffixes K, M, G); 0: none",
    },
    Var {
        name: "LIBSMC_LINK",
        default: "none",
        meaning: "model put around every link: `wire` or `wire,latency_ns=2000,gap_ns=10,gbps=100`; its figures are modelled",
    },
    Var {
        name: "LIBSMC_TRUST",
        default: "own user and root",
        meaning: "users whose exporters are believed too: user numbers, separated by commas",
    },
    Var {
        name: "LIBSMC_KEY",
        default: "see `smc keygen --help`",
        meaning: "file with the pre-shared key of the management path over TCP; for regions of other hosts, `smc serve --listen` and `smc ls HOST:PORT`",
    },
    Var {
        name: "LIBSMC_DEVICE",
        default: "chosen by address",
        meaning: "RDMA device for regions of other hosts: NAME, NAME:PORT, or NAME:PORT+PORT for several ports at once",
    },
    Var {
        name: "LIBSMC_GID_INDEX",
        default: "chosen by address",
        meaning: "place of the device's address to be used in its table of GIDs; 0..255",
    },
    Var {
        name: "LIBSMC_LANES",
        default: "2, or one per port",
        meaning: "queue pairs over which the writes of a region of another host are spread; 1..15",
    },
    Var {
        name: "LIBSMC_RENDEZVOUS",
        default: "tcp",
        meaning: "how queue pairs are connected: tcp (numbers over the management connection) or rdma_cm (the kernel's connection manager, here and at the exporter)",
    },
    Var { name: "LIBSMC_LOG", default: "error", meaning: "what is written to stderr: off, error, info, debug" },
    Var {
        name: "LIBSMC_REPORT",
        default: "unset",
        meaning: "file to which each process that used a region adds, at its end, a line of JSON: calls per hook",
    },
    Var { name: "LIBSMC_DISABLE", default: "unset", meaning: "1: the preloaded library passes everything through" },
    Var {
        name: "LIBSMC_CHILDREN",
        default: "preload",
        meaning: "clean: programs that this one starts run without the library, and with the environment as it was before",
    },
    Var {
        name: "LIBSMC_CONFIG",
        default: "see `smc run --help`",
        meaning: "file of settings per program that `smc run` reads; empty: none",
    },
];

type Given = fn(&str) -> Option<String>;
static GIVEN: OnceLock<Given> = OnceLock::new();

/// Makes `value` the source of variables that this process was started with, and whose environment no longer has them.
pub fn given_at_start(value: Given) {
    // The first one stays; there is one preloaded library.
    let _ = GIVEN.set(value);
}

/// Value of a variable: as at the start where that was kept, or else from the environment.
pub fn variable(name: &str) -> Option<String> {
    GIVEN.get().and_then(|f| f(name)).or_else(|| std::env::var(name).ok())
}

/// How much the library says on stderr.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What a user must know (default).
    Error,
    /// Decisions: back end, links, regions.
    Info,
    /// Everything.
    Debug,
}

/// Bytes of registered buffers per link, unless LIBSMC_POOL says otherwise.
pub const POOL: u64 = 16 << 20;

/// Which RDMA device the user wants; everything is optional.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeviceWish {
    /// Its name.
    pub name: Option<String>,
    /// Its ports; empty: one that fits.
    pub ports: Vec<u8>,
    /// Place of its address in the table of GIDs.
    pub gid_index: Option<u32>,
}

impl DeviceWish {
    /// `NAME`, `NAME:PORT` or `NAME:PORT+PORT`.
    pub fn parse(text: &str) -> Option<DeviceWish> {
        let (name, ports) = text.split_once(':').map_or((text, None), |(n, p)| (n, Some(p)));
        let number = |p: &str| p.parse().ok().filter(|n| *n != 0u8);
        let ports = ports.map_or(Some(Vec::new()), |p| p.split('+').map(number).collect())?;
        (!name.is_empty()).then(|| DeviceWish { name: Some(name.to_owned()), ports, gid_index: None })
    }
}

/// The settings of one process.
#[derive(Clone, Debug)]
pub struct Config {
    /// Forced back end, or `None` for the self-test's choice.
    pub backend: Option<Backend>,
    /// Longest wait for the home, in milliseconds.
    pub wait_ms: u64,
    /// Resident limit of one region in bytes; 0 = let the engine choose.
    pub resident_limit: u64,
    /// Bytes of registered buffers per link; 0 = none.
    pub pool: u64,
    /// Users whose exporters are believed, beside our own and root.
    pub trust: Vec<u32>,
    /// Text of `LIBSMC_LINK`, parsed by the link layer.
    pub link_model: String,
    /// File of the pre-shared key, if it is named.
    pub key: Option<PathBuf>,
    /// Where a key is looked for when none is named: the user's place, if there is one, and the host's.
    pub key_places: Vec<PathBuf>,
    /// RDMA device for regions of other hosts.
    pub device: DeviceWish,
    /// Queue pairs for the writes of one of its regions.
    pub lanes: Option<usize>,
    /// How they are connected.
    pub rendezvous: Rendezvous,
    /// Verbosity.
    pub log: LogLevel,
    /// Values that could not be used, in words; the caller reports them once.
    pub complaints: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            backend: None,
            wait_ms: 5000,
            resident_limit: 0,
            pool: POOL,
            trust: Vec::new(),
            link_model: String::new(),
            key: None,
            key_places: vec!["/etc/libsmc/key".into()],
            device: DeviceWish::default(),
            lanes: None,
            rendezvous: Rendezvous::Tcp,
            log: LogLevel::Error,
            complaints: Vec::new(),
        }
    }
}

impl Config {
    /// Reads every variable through `get`. A value that cannot be used keeps the default and becomes a complaint.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Config {
        let mut c = Config::default();
        if let Some(v) = get("LIBSMC_FAULT").filter(|v| !v.is_empty()) {
            c.backend = Backend::parse(&v);
            if c.backend.is_none() {
                c.complain("LIBSMC_FAULT", &v, "expected thread, sigbus, sync or mprotect");
            }
        }
        if let Some(v) = get("LIBSMC_WAIT") {
            match v.parse() {
                Ok(ms @ 1..=3_600_000) => c.wait_ms = ms,
                _ => c.complain("LIBSMC_WAIT", &v, "expected milliseconds, 1..3600000"),
            }
        }
        if let Some(v) = get("LIBSMC_RESIDENT") {
            match parse_size(&v) {
                Some(n) if n >= 1 << 16 => c.resident_limit = n,
                _ => c.complain("LIBSMC_RESIDENT", &v, "expected bytes, at least 64K"),
            }
        }
        if let Some(v) = get("LIBSMC_POOL") {
            match parse_size(&v) {
                Some(n) if n == 0 || n >= 1 << 16 => c.pool = n,
                _ => c.complain("LIBSMC_POOL", &v, "expected bytes, at least 64K, or 0"),
            }
        }
        if let Some(v) = get("LIBSMC_TRUST").filter(|v| !v.is_empty()) {
            match v.split(',').map(|u| u.trim().parse()).collect() {
                Ok(users) => c.trust = users,
                Err(_) => c.complain("LIBSMC_TRUST", &v, "expected user numbers, separated by commas"),
            }
        }
        if let Some(v) = get("LIBSMC_DISABLE").filter(|v| !["", "0", "1"].contains(&v.as_str())) {
            c.complain("LIBSMC_DISABLE", &v, "expected 1, or 0");
        }
        if let Some(v) = get("LIBSMC_CHILDREN").filter(|v| !["", "preload", "clean"].contains(&v.as_str())) {
            c.complain("LIBSMC_CHILDREN", &v, "expected preload or clean");
        }
        if let Some(v) = get("LIBSMC_LINK") {
            c.link_model = v;
        }
        c.key = get("LIBSMC_KEY").filter(|v| !v.is_empty()).map(PathBuf::from);
        let absolute = |name| get(name).map(PathBuf::from).filter(|p| p.is_absolute());
        if let Some(own) = absolute("XDG_CONFIG_HOME").or(absolute("HOME").map(|h| h.join(".config"))) {
            c.key_places.insert(0, own.join("libsmc/key"));
        }
        if let Some(v) = get("LIBSMC_DEVICE").filter(|v| !v.is_empty()) {
            match DeviceWish::parse(&v) {
                Some(wish) => c.device = wish,
                None => c.complain("LIBSMC_DEVICE", &v, "expected NAME, NAME:PORT or NAME:PORT+PORT"),
            }
        }
        if let Some(v) = get("LIBSMC_GID_INDEX").filter(|v| !v.is_empty()) {
            match v.parse() {
                Ok(i @ 0..=255) => c.device.gid_index = Some(i),
                _ => c.complain("LIBSMC_GID_INDEX", &v, "expected a number, 0..255"),
            }
        }
        if let Some(v) = get("LIBSMC_LANES").filter(|v| !v.is_empty()) {
            match v.parse() {
                Ok(n @ 1..=15) => c.lanes = Some(n),
                _ => c.complain("LIBSMC_LANES", &v, "expected a number, 1..15"),
            }
        }
        if let Some(v) = get("LIBSMC_RENDEZVOUS").filter(|v| !v.is_empty()) {
            match Rendezvous::ALL.into_iter().find(|r| r.name() == v) {
                Some(r) => c.rendezvous = r,
                None => c.complain("LIBSMC_RENDEZVOUS", &v, "expected tcp or rdma_cm"),
            }
        }
        if let Some(v) = get("LIBSMC_LOG") {
            match v.as_str() {
                "off" => c.log = LogLevel::Off,
                "error" => c.log = LogLevel::Error,
                "info" => c.log = LogLevel::Info,
                "debug" => c.log = LogLevel::Debug,
                _ => c.complain("LIBSMC_LOG", &v, "expected off, error, info or debug"),
            }
        }
        c
    }

    fn complain(&mut self, var: &str, value: &str, want: &str) {
        self.complaints.push(format!("{var}={value} ignored: {want}"));
    }
}

/// `4096`, `64K`, `64KiB`, `1.5` is refused: a size in bytes with an optional binary suffix K, M, G or T (`KiB`, `KB` and lower case too).
pub fn parse_size(s: &str) -> Option<u64> {
    let s = s.trim();
    let digits = s.bytes().take_while(u8::is_ascii_digit).count();
    let (num, unit) = s.split_at_checked(digits)?;
    let n: u64 = num.parse().ok()?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    n.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64K"), Some(65536));
        assert_eq!(parse_size("2MiB"), Some(2 << 20));
        assert_eq!(parse_size("1 g"), Some(1 << 30));
        assert_eq!(parse_size("1.5G"), None);
        assert_eq!(parse_size(""), None);
        assert_eq!(parse_size("99999999999T"), None);
    }

    #[test]
    fn devices() {
        let wish = |name: &str, ports: &[u8]| {
            Some(DeviceWish { name: Some(name.into()), ports: ports.into(), gid_index: None })
        };
        assert_eq!(DeviceWish::parse("mlx5_0"), wish("mlx5_0", &[]));
        assert_eq!(DeviceWish::parse("mlx5_0:1"), wish("mlx5_0", &[1]));
        assert_eq!(DeviceWish::parse("mlx4_0:1+2"), wish("mlx4_0", &[1, 2]));
        for bad in ["", ":1", "a:", "a:0", "a:1+", "a:300", "a:x"] {
            assert_eq!(DeviceWish::parse(bad), None, "{bad}");
        }
        let c = Config::parse(|v| (v == "LIBSMC_GID_INDEX").then(|| "256".into()));
        assert_eq!((c.device, c.complaints.len()), (DeviceWish::default(), 1));
    }

    #[test]
    fn bad_values_keep_the_default_and_complain() {
        let c = Config::parse(|v| match v {
            "LIBSMC_FAULT" => Some("magic".into()),
            "LIBSMC_WAIT" => Some("0".into()),
            "LIBSMC_TRUST" => Some("1000,nobody".into()),
            _ => None,
        });
        assert_eq!((c.backend, c.wait_ms), (None, 5000));
        assert!(c.trust.is_empty());
        assert_eq!(c.complaints.len(), 3);
        let c = Config::parse(|v| (v == "LIBSMC_TRUST").then(|| "1000, 33".into()));
        assert_eq!(c.trust, [1000, 33]);
        let pool = |text: &'static str| Config::parse(|v| (v == "LIBSMC_POOL").then(|| text.into())).pool;
        assert_eq!([pool("0"), pool("1M"), pool("1K"), pool("x")], [0, 1 << 20, POOL, POOL]);
        let c = Config::parse(|v| (v == "LIBSMC_FAULT").then(|| "uffd-sigbus".into()));
        assert_eq!(c.backend, Some(Backend::Sigbus));
        let by = |text: &'static str| Config::parse(|v| (v == "LIBSMC_RENDEZVOUS").then(|| text.into()));
        assert_eq!([by("rdma_cm").rendezvous, by("").rendezvous], [Rendezvous::RdmaCm, Rendezvous::Tcp]);
        assert_eq!((by("RDMA").rendezvous, by("RDMA").complaints.len()), (Rendezvous::Tcp, 1));
    }
}
