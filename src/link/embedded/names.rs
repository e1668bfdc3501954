//! Where a name lives: abstract sockets `@libsmc/NAME`, one per exported region.

use crate::sys::{Errno, procfs};

const PREFIX: &str = "libsmc/";
/// Longest name that is its own address.
const PLAIN: usize = 96;

/// The abstract socket name of a region. Longer region names are cut and end in `~` and a hash: `~` is in no name.
pub fn address(name: &str) -> Vec<u8> {
    match name.get(..PLAIN - 20) {
        Some(head) if name.len() > PLAIN => format!("{PREFIX}{head}~{:016x}", fnv(name.as_bytes())).into_bytes(),
        _ => format!("{PREFIX}{name}").into_bytes(),
    }
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Names on which somebody in this network namespace listens, sorted. Names longer than 96 bytes appear cut, with a `~`:
/// [`crate::link::Link::list`] asks their exporters for the full ones.
pub fn list_local() -> Result<Vec<String>, Errno> {
    let text = procfs::read(c"/proc/thread-self/net/unix", 64 << 20)?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

/// The socket address of one entry of [`list_local`].
pub(super) fn listed_address(entry: &str) -> Vec<u8> {
    format!("{PREFIX}{entry}").into_bytes()
}

/// Lines like `ffff: 00000002 00000000 00010000 0005 01 4711 @libsmc/NAME`.
fn parse(text: &str) -> Vec<String> {
    /// __SO_ACCEPTCON: a listening socket.
    const LISTENING: &str = "00010000";
    let mut out: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let mut w = line.split_ascii_whitespace().skip(3);
            (w.next()? == LISTENING && w.next()? == "0005").then_some(())?;
            Some(w.nth(2)?.strip_prefix('@')?.strip_prefix(PREFIX)?.to_owned())
        })
        .collect();
    out.sort();
    out.dedup();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_fit_and_differ() {
        let (a, b) = ("x".repeat(199) + "a", "x".repeat(199) + "b");
        assert!(address(&a).len() <= crate::sys::socket::MAX_NAME);
        assert_ne!(address(&a), address(&b));
        assert_eq!(address("grads"), b"libsmc/grads");
        assert_eq!(address(&"y".repeat(96)).len(), 7 + 96);
    }

    #[test]
    fn only_listening_sockets_of_ours_count() {
        let t = "Num RefCount Protocol Flags Type St Inode Path\n\
                 ffff: 00000002 00000000 00010000 0005 01 10 @libsmc/b\n\
                 ffff: 00000003 00000000 00000000 0005 03 11 @libsmc/c\n\
                 ffff: 00000002 00000000 00010000 0001 01 12 @libsmc/d\n\
                 ffff: 00000002 00000000 00010000 0005 01 13 /run/x\n\
                 ffff: 00000002 00000000 00010000 0005 01 14 @libsmc/a\nffff: 0\n";
        assert_eq!(parse(t), ["a", "b"]);
    }
}
