//! Names of regions in the file name space.
//!
//! ```text
//! /smc/local/NAME[?KEY=VALUE[&KEY=VALUE]...]        a region exported on this host
//! /smc/HOST:PORT/NAME[?...]                         one exported elsewhere; an IPv6 address in brackets
//! ```
//! NAME is 1 to 255 bytes of `[A-Za-z0-9._-]` and does not start with a dot. A key may be given once:
//!
//! | key | values | meaning |
//! |---|---|---|
//! | `policy` | `byte` `line` `page` `through` | what write-back sends; `through` is short for `through=exact` |
//! | `through` | `off` `bounded` `exact` | whether stores reach the home by themselves |
//! | `page` | size, power of two, 4k to 2m | fetch and eviction unit |
//! | `window` | 1 to 256 | longest read window in pages |
//! | `readahead` | 0 to 4096 | pages an own thread brings ahead of a sequential reader; 0 is off |
//! | `resident` | size, at least 64k | local memory the region may keep |
//! | `dirty` | size | write back in the background from this many dirty bytes on; 0 is off |
//! | `age` | time | write back in the background what is dirty for longer; 0 is off |
//! | `acquire` | time | drop clean pages older than this; 0 is off |
//! | `onerror` | `wait` `waitvalue` `value` `sigbus` | what a load sees when the home cannot be reached |
//! | `wait` | time, 1ms to 1h | longest wait for the home |
//! | `fill` | 0 to 255 | byte that fills a page showing the error value |
//! | `second` | PEER/NAME | another way to the region or a replica of it, taken when the first fails |
//! | `faillimit` | 1 to 1000000 | failures in a row after which the region is unavailable: no access waits any more |
//!
//! A size is a number of bytes with an optional suffix k, m, g or t (powers of 1024). A time is a number with `ms`, `s`
//! or `m`; without a unit it is in milliseconds. `onerror=wait` (the default here) waits, then raises SIGBUS;
//! `waitvalue` waits, then shows the error value; the other two do not wait.
#![forbid(unsafe_code)]

use crate::base::Status;
use crate::base::addr::PAGE;
use crate::base::config::parse_size;
use crate::core::options::{MapOptions, OnError, PeerName, Policy, SecondPath, Through};

/// What every name of ours starts with.
pub const PREFIX: &[u8] = b"/smc/";

/// A parsed name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmcPath {
    /// Where the region is exported.
    pub peer: PeerName,
    /// Name of the region there.
    pub name: String,
    /// The options after `?`; access is the caller's to set.
    pub options: MapOptions,
}

/// Why a name could not be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathError {
    /// It does not start with `/smc/`.
    #[error("not a name under /smc/")]
    NotOurs,
    /// The part after `/smc/` is neither `local` nor HOST:PORT.
    #[error("{0:?} is not a peer: expected local or HOST:PORT")]
    Peer(String),
    /// The region's name breaks the rules of the module text.
    #[error("{0:?} is not a region name: expected 1 to 255 of A-Z a-z 0-9 . _ - and no dot in front")]
    Name(String),
    /// No such option.
    #[error("unknown option {0:?}")]
    UnknownKey(String),
    /// An option given twice.
    #[error("option {0} given twice")]
    Twice(&'static str),
    /// An option's value cannot be used.
    #[error("{key}={value} cannot be used: expected {want}")]
    Value {
        /// The option.
        key: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        want: &'static str,
    },
}

impl PathError {
    /// `NOT_FOUND` where no such name can exist, `INVALID_ARGUMENT` for options.
    pub fn status(&self) -> Status {
        match self {
            PathError::NotOurs | PathError::Peer(_) | PathError::Name(_) => Status::NOT_FOUND,
            PathError::UnknownKey(_) | PathError::Twice(_) | PathError::Value { .. } => Status::INVALID_ARGUMENT,
        }
    }
}

/// The options of a `/smc/` name without any key: as for `smc_map`, but a load that cannot be served raises SIGBUS, as it
/// does for any mapped file whose disk fails.
pub fn defaults() -> MapOptions {
    MapOptions { on_error: OnError::WaitSigbus, ..MapOptions::default() }
}

/// Takes a name apart. Any bytes may be given; never panics.
pub fn parse(path: &[u8]) -> Result<SmcPath, PathError> {
    let rest = path.strip_prefix(PREFIX).ok_or(PathError::NotOurs)?;
    let text = String::from_utf8_lossy(rest);
    let (place, query) = match text.split_once('?') {
        Some((p, q)) => (p, Some(q)),
        None => (&*text, None),
    };
    let (peer, name) = place.split_once('/').ok_or_else(|| PathError::Name(String::new()))?;
    let peer = parse_peer(peer)?;
    if !is_region_name(name) {
        return Err(PathError::Name(name.to_owned()));
    }
    Ok(SmcPath { peer, name: name.to_owned(), options: parse_options(query.unwrap_or(""))? })
}

/// True for 1 to 255 bytes of `[A-Za-z0-9._-]` that do not start with a dot.
pub fn is_region_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=255).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(allowed)
}

fn parse_peer(s: &str) -> Result<PeerName, PathError> {
    if s == "local" {
        return Ok(PeerName::Local);
    }
    let bad = || PathError::Peer(s.to_owned());
    let (host, port) = s.rsplit_once(':').ok_or_else(bad)?;
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']').filter(|h| h.parse::<std::net::Ipv6Addr>().is_ok()).ok_or_else(bad)?,
        None => host,
    };
    let plain = host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':'));
    let port: u16 = port.parse().map_err(|_| bad())?;
    if host.is_empty() || host.len() > 253 || !plain || port == 0 || (host.contains(':') && !s.starts_with('[')) {
        return Err(bad());
    }
    Ok(PeerName::Net { host: host.to_owned(), port })
}

/// The options after `?` over [`defaults`]; empty text and empty pieces are fine.
pub fn parse_options(query: &str) -> Result<MapOptions, PathError> {
    let mut options = defaults();
    let mut seen = [false; KEYS.len()];
    for piece in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
        let known = KEYS.iter().zip(seen.iter_mut()).find(|(k, _)| k.name == key);
        let (k, seen) = known.ok_or_else(|| PathError::UnknownKey(key.to_owned()))?;
        if std::mem::replace(seen, true) {
            return Err(PathError::Twice(k.name));
        }
        (k.apply)(&mut options, value).ok_or_else(|| PathError::Value {
            key: k.name,
            value: value.to_owned(),
            want: k.want,
        })?;
    }
    Ok(options)
}

/// One option: its name, what it accepts in words, and its effect. `None` refuses the value.
struct Key {
    name: &'static str,
    want: &'static str,
    apply: fn(&mut MapOptions, &str) -> Option<()>,
}

const KEYS: &[Key] = &[
    Key { name: "policy", want: "byte, line, page or through", apply: set_policy },
    Key { name: "through", want: "off, bounded or exact", apply: set_through },
    Key { name: "page", want: "a power of two from 4k to 2m", apply: set_page },
    Key {
        name: "window",
        want: "1 to 256",
        apply: |o, v| v.parse().ok().filter(|n| (1..=256).contains(n)).map(|n| o.window = n),
    },
    Key {
        name: "readahead",
        want: "0 to 4096",
        apply: |o, v| v.parse().ok().filter(|n| *n <= 4096).map(|n| o.readahead = n),
    },
    Key {
        name: "resident",
        want: "a size of at least 64k",
        apply: |o, v| parse_size(v).filter(|n| *n >= 1 << 16).map(|n| o.resident_limit = n),
    },
    Key { name: "dirty", want: "a size", apply: |o, v| parse_size(v).map(|n| o.dirty_limit = n) },
    Key { name: "age", want: "a time such as 10ms", apply: |o, v| parse_ms(v).map(|n| o.age_ms = n) },
    Key { name: "acquire", want: "a time such as 10ms", apply: |o, v| parse_ms(v).map(|n| o.acquire_ms = n) },
    Key { name: "onerror", want: "wait, waitvalue, value or sigbus", apply: set_on_error },
    Key {
        name: "wait",
        want: "1ms to 1h",
        apply: |o, v| parse_ms(v).filter(|n| (1..=3_600_000).contains(n)).map(|n| o.wait_ms = n),
    },
    Key { name: "fill", want: "0 to 255", apply: |o, v| v.parse().ok().map(|n| o.error_byte = n) },
    Key { name: "second", want: "PEER/NAME", apply: set_second },
    Key {
        name: "faillimit",
        want: "1 to 1000000",
        apply: |o, v| v.parse().ok().filter(|n| (1..=1_000_000).contains(n)).map(|n| o.fail_limit = n),
    },
];

fn set_second(o: &mut MapOptions, v: &str) -> Option<()> {
    let (peer, name) = v.rsplit_once('/')?;
    let peer = parse_peer(peer).ok()?;
    is_region_name(name).then(|| o.second = Some(SecondPath { peer, name: name.to_owned() }))
}

fn set_policy(o: &mut MapOptions, v: &str) -> Option<()> {
    match v {
        "byte" => o.policy = Policy::Byte,
        "line" => o.policy = Policy::Line,
        "page" => o.policy = Policy::Page,
        "through" => o.through = Through::Exact,
        _ => return None,
    }
    Some(())
}

fn set_through(o: &mut MapOptions, v: &str) -> Option<()> {
    o.through = match v {
        "off" => Through::Off,
        "bounded" => Through::Bounded,
        "exact" => Through::Exact,
        _ => return None,
    };
    Some(())
}

fn set_page(o: &mut MapOptions, v: &str) -> Option<()> {
    let n = usize::try_from(parse_size(v)?).ok()?;
    if !n.is_power_of_two() || !(PAGE..=2 << 20).contains(&n) {
        return None;
    }
    o.page_unit = n;
    Some(())
}

fn set_on_error(o: &mut MapOptions, v: &str) -> Option<()> {
    o.on_error = match v {
        "wait" => OnError::WaitSigbus,
        "waitvalue" => OnError::WaitValue,
        "value" => OnError::Value,
        "sigbus" => OnError::Sigbus,
        _ => return None,
    };
    Some(())
}

/// `10ms`, `2s`, `1m`, `10` (milliseconds), in milliseconds.
fn parse_ms(s: &str) -> Option<u64> {
    let digits = s.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = s.split_at_checked(digits)?;
    let factor = match unit {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options(q: &str) -> MapOptions {
        parse_options(q).unwrap_or_else(|e| panic!("{q}: {e}"))
    }

    #[test]
    fn plain_local_name() {
        let p = parse(b"/smc/local/grads.0").expect("parses");
        assert_eq!(p, SmcPath { peer: PeerName::Local, name: "grads.0".into(), options: defaults() });
        assert_eq!(p.options.on_error, OnError::WaitSigbus);
    }

    #[test]
    fn peers() {
        let net = |host: &str, port| PeerName::Net { host: host.into(), port };
        let peer = |p: &str| parse(p.as_bytes()).map(|p| p.peer);
        assert_eq!(peer("/smc/node7:7471/x"), Ok(net("node7", 7471)));
        assert_eq!(peer("/smc/[fe80::1]:9/x"), Ok(net("fe80::1", 9)));
        for bad in [
            "/smc/node7/x",
            "/smc/:1/x",
            "/smc/a:0/x",
            "/smc/a:70000/x",
            "/smc/fe80::1:9/x",
            "/smc/[x]:9/x",
            "/smc/a b:1/x",
            "/smc//x",
        ] {
            assert!(matches!(peer(bad), Err(PathError::Peer(_))), "{bad}");
        }
    }

    #[test]
    fn names() {
        let long = format!("/smc/local/{}", "a".repeat(256));
        for bad in [
            "/smc/local/",
            "/smc/local/.x",
            "/smc/local/a/b",
            "/smc/local/a b",
            "/smc/local/\u{e4}",
            "/smc/local",
            "/smc/",
            &long,
        ] {
            let e = parse(bad.as_bytes()).expect_err(bad);
            assert!(matches!(e, PathError::Name(_)), "{bad}: {e:?}");
            assert_eq!(e.status(), Status::NOT_FOUND);
        }
        [&b"/smcx/local/a"[..], b"smc/local/a"].iter().for_each(|p| assert_eq!(parse(p), Err(PathError::NotOurs)));
    }

    #[test]
    fn every_key_has_its_effect() {
        let o = options(
            "policy=page&through=bounded&page=2m&window=64&readahead=256&resident=1g&dirty=64k&age=2s&acquire=10ms&onerror=value&wait=1m&fill=7&second=[::1]:9/b.2&faillimit=3",
        );
        let want = MapOptions {
            access: crate::link::Access::ReadWrite,
            policy: Policy::Page,
            through: Through::Bounded,
            page_unit: 2 << 20,
            window: 64,
            readahead: 256,
            resident_limit: 1 << 30,
            dirty_limit: 65536,
            age_ms: 2000,
            acquire_ms: 10,
            on_error: OnError::Value,
            wait_ms: 60_000,
            error_byte: 7,
            second: Some(SecondPath { peer: PeerName::Net { host: "::1".into(), port: 9 }, name: "b.2".into() }),
            fail_limit: 3,
        };
        assert_eq!(o, want);
        assert_eq!(options("policy=through").through, Through::Exact);
        assert_eq!(options("policy=line&&onerror=waitvalue").on_error, OnError::WaitValue);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let bad = [
            "second=local",
            "second=nobody/x",
            "second=local/.x",
            "faillimit=0",
            "policy=bit",
            "through=",
            "page=3k",
            "page=4m",
            "page=1k",
            "window=0",
            "window=257",
            "resident=1k",
            "dirty=-1",
            "age=1h",
            "acquire=ms",
            "onerror=abort",
            "wait=0",
            "wait=61m",
            "fill=256",
            "page",
        ];
        for q in bad {
            let e = parse_options(q).expect_err(q);
            assert!(matches!(&e, PathError::Value { key, .. } if q.starts_with(key)), "{q}: {e:?}");
            assert_eq!(e.status(), Status::INVALID_ARGUMENT);
        }
        assert_eq!(parse_options("age=1&age=2"), Err(PathError::Twice("age")));
        assert_eq!(parse_options("color=red"), Err(PathError::UnknownKey("color".into())));
    }

    proptest! {
        #[test]
        fn never_panics(path in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut ours = PREFIX.to_vec();
            ours.extend(&path);
            let _ = parse(&path);
            let _ = parse(&ours);
        }

        #[test]
        fn never_panics_on_almost_right_text(path in "/smc/(local|[a-z:0-9\\[\\]]{0,12})/[a-z.]{0,4}\\?([a-z]{0,8}=?[0-9a-z]{0,22}&?){0,4}") {
            let _ = parse(path.as_bytes());
        }

        #[test]
        fn what_parses_obeys_the_limits(key in 0..KEYS.len(), value in "[0-9]{0,21}(k|m|g|ms|s|)") {
            if let Ok(o) = parse_options(&format!("{}={value}", KEYS[key].name)) {
                prop_assert!(o.page_unit.is_power_of_two() && (4096..=2 << 20).contains(&o.page_unit));
                prop_assert!(o.window <= 256);
                prop_assert!(o.wait_ms <= 3_600_000);
            }
        }
    }
}
