//! Pre-shared keys of the management path over a network: 32 random bytes in a file of one line.
//!
//! `libsmc-key-v1:` and 64 hexadecimal digits: the shared key. Whoever has it is a member: he may be a client of any exporter that
//! has it, and an exporter to any client. Members by a shared key are not told apart, so one of them cannot be shut out alone.
//! `libsmc-key-v1:`, 64 digits, a space and a name: the key of that client. An exporter keeps the keys of its clients in a
//! [`Keyring`]: it knows who comes, and a client is shut out by taking his key away. A file that somebody else could
//! read or change is refused ([`sys::secret`]).
//!
//! [`sys::secret`]: crate::sys::secret
//! [`Keyring`]: super::ring::Keyring

use super::message::valid_name;
use crate::base::{Error, Result, Status};
use crate::sys::Errno;
use crate::sys::process::random_bytes;
use crate::sys::secret::{self, Unfit};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::Hash;
use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes of a key.
pub const LEN: usize = 32;
/// Longest name of a client in bytes.
pub const MAX_CLIENT: usize = 64;
const PREFIX: &str = "libsmc-key-v1:";
/// Bytes of a key's text, its newline included.
const TEXT: usize = PREFIX.len() + 2 * LEN + 1;
/// The same with the longest name.
pub(super) const MAX_LINE: usize = TEXT + 1 + MAX_CLIENT;

/// A pre-shared key. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct Key {
    secret: Zeroizing<[u8; LEN]>,
    client: Option<Arc<str>>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// True for the name of a client: 1 to [`MAX_CLIENT`] bytes of `[A-Za-z0-9._-]`, not starting with a dot.
pub fn valid_client(name: &str) -> bool {
    name.len() <= MAX_CLIENT && valid_name(name)
}

impl Key {
    /// A new one, from the kernel's random numbers: the shared one, or that of a client with a [valid name](valid_client).
    pub fn generate(client: Option<&str>) -> Result<Key> {
        let attempt = || "make a key".to_owned();
        if let Some(name) = client.filter(|n| !valid_client(n)) {
            let e = Error::new(Status::INVALID_ARGUMENT, attempt(), format!("\"{name}\" is not a client's name"));
            return Err(e.remedy("use 1 to 64 bytes of [A-Za-z0-9._-], not starting with a dot"));
        }
        let mut secret = Zeroizing::new([0; LEN]);
        let failed = |e: Errno| Error::new(Status::SYSTEM, attempt(), format!("getrandom: {e}"));
        random_bytes(&mut secret[..]).map_err(failed)?;
        Ok(Key { secret, client: client.map(Arc::from) })
    }

    /// A key of known bytes.
    #[cfg(test)]
    pub(crate) fn of(bytes: [u8; LEN], client: Option<&str>) -> Key {
        Key { secret: Zeroizing::new(bytes), client: client.map(Arc::from) }
    }

    pub(super) fn bytes(&self) -> &[u8; LEN] {
        &self.secret
    }

    /// Whose it is; `None` for a shared key.
    pub fn client(&self) -> Option<&Arc<str>> {
        self.client.as_ref()
    }

    /// The key that is the whole of `text`; one newline may follow.
    pub fn parse(text: &[u8]) -> Option<Key> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let (digits, name) = text.strip_prefix(PREFIX.as_bytes())?.split_at_checked(2 * LEN)?;
        let mut secret = Zeroizing::new([0; LEN]);
        for (to, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *to = nibble(*high)? << 4 | nibble(*low)?;
        }
        let client = match name {
            [] => None,
            [b' ', name @ ..] => Some(std::str::from_utf8(name).ok().filter(|n| valid_client(n))?),
            _ => return None,
        };
        Some(Key { secret, client: client.map(Arc::from) })
    }

    /// The line that [`Key::parse`] takes.
    pub fn text(&self) -> Zeroizing<String> {
        // Of the final size at once: a string that grows leaves pieces of the secret behind.
        let name = self.client.as_deref();
        let mut s = Zeroizing::new(String::with_capacity(TEXT + name.map_or(0, |n| 1 + n.len())));
        s.push_str(PREFIX);
        for digit in self.secret.iter().flat_map(|b| [b >> 4, b & 15]) {
            s.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
        for part in name.iter().flat_map(|n| [" ", n]) {
            s.push_str(part);
        }
        s.push('\n');
        s
    }

    /// Sixteen digits that differ for different keys, and from which nobody finds the key: to be compared by people.
    pub fn fingerprint(&self) -> String {
        let Some(out) = self.derive(b"libsmc key fingerprint") else { return String::new() };
        out.iter().take(8).map(|b| format!("{b:02x}")).collect()
    }

    /// Another secret, for one purpose only, from which nobody finds the key.
    pub(super) fn derive(&self, purpose: &[u8]) -> Option<Zeroizing<[u8; LEN]>> {
        let mut out = Zeroizing::new([0u8; LEN]);
        let mut h = hash()?;
        h.input(purpose);
        h.input(&self.secret[..]);
        h.result(&mut out[..]);
        Some(out)
    }

    /// Reads the file of one key. `NOT_FOUND`; `PERMISSION` when the file belongs to another user than ours and root, or when
    /// anybody but its owner has a right to it; `INVALID_ARGUMENT` when it does not hold a key, or several.
    pub fn load(path: &Path) -> Result<Key> {
        let mut buf = Zeroizing::new([0u8; MAX_LINE]);
        let n = read(path, &mut buf[..])?;
        Key::parse(buf.get(..n).unwrap_or_default()).ok_or_else(|| not_a_key(path))
    }

    /// Writes a key file of mode 0600. `EXISTS` when the path exists, unless it is to be replaced.
    pub fn save(&self, path: &Path, replace: bool) -> Result<()> {
        let attempt = || format!("write the key {}", path.display());
        secret::create(&c_path(path, attempt)?, self.text().as_bytes(), replace).map_err(|e| match e {
            Errno::EXIST => Error::new(Status::EXISTS, attempt(), "the file exists"),
            e => Error::new(Status::SYSTEM, attempt(), e.to_string()),
        })
    }
}

/// The hash of everything here: BLAKE2s.
pub(super) fn hash() -> Option<Box<dyn Hash>> {
    DefaultResolver.resolve_hash(&HashChoice::Blake2s)
}

pub(super) fn attempt(path: &Path) -> String {
    format!("use the key {}", path.display())
}

pub(super) fn not_a_key(path: &Path) -> Error {
    let e = Error::new(Status::INVALID_ARGUMENT, attempt(path), "it does not hold a key of this version");
    e.remedy("make one with `smc keygen`")
}

/// Reads a file of keys that nobody else can use.
pub(super) fn read(path: &Path, out: &mut [u8]) -> Result<usize> {
    secret::read(&c_path(path, || attempt(path))?, out).map_err(|why| unfit(path, why))
}

pub(super) fn unfit(path: &Path, why: Unfit) -> Error {
    match why {
        Unfit::Length => not_a_key(path),
        Unfit::System(Errno::NOENT) => Error::new(Status::NOT_FOUND, attempt(path), "there is no such file"),
        Unfit::System(e) => Error::new(Status::SYSTEM, attempt(path), e.to_string()),
        why => {
            let e = Error::new(Status::PERMISSION, attempt(path), why.to_string());
            e.remedy("make it yours alone: chown, chmod 600; and if others may have read it, make a new one")
        }
    }
}

pub(super) fn c_path(path: &Path, attempt: impl Fn() -> String) -> Result<CString> {
    let bad = |_| Error::new(Status::INVALID_ARGUMENT, attempt(), "the path has a NUL byte");
    CString::new(path.as_os_str().as_bytes()).map_err(bad)
}

fn nibble(c: u8) -> Option<u8> {
    char::from(c).to_digit(16).map(|d| d as u8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_key_survives_its_text() {
        let (a, b) = (Key::generate(None).unwrap(), Key::generate(Some("node-7.a")).unwrap());
        assert_ne!(a.secret, b.secret);
        for k in [&a, &b] {
            let text = k.text();
            assert_eq!(text.len(), text.capacity());
            for text in [text.as_bytes(), text.trim_end().as_bytes()] {
                let got = Key::parse(text).unwrap();
                assert_eq!((&got.secret, got.client()), (&k.secret, k.client()));
            }
        }
        assert_eq!((a.client(), b.client().map(|n| &**n)), (None, Some("node-7.a")));
        assert_eq!(a.text().len(), TEXT);
        assert_ne!(a.fingerprint(), b.fingerprint());
        assert_eq!(a.fingerprint().len(), 16);
        assert_eq!(Key::of([1; LEN], Some("n")).fingerprint(), Key::of([1; LEN], None).fingerprint());
        for bad in ["", ".x", "a b", "a/b", "a:rw", &"a".repeat(65)] {
            assert_eq!(Key::generate(Some(bad)).unwrap_err().status, Status::INVALID_ARGUMENT, "{bad}");
        }
    }

    #[test]
    fn only_the_whole_line_is_a_key() {
        let good = Key::of([0xa5; LEN], None).text();
        let digits = good.trim_end();
        for bad in [
            String::new(),
            good.replace("v1", "v2"),
            digits.trim_end_matches('5').into(),
            format!("{digits}0\n"),
            format!("{}\n", *good),
            format!(" {}", *good),
            format!("{digits} \n"),
            format!("{digits} a b\n"),
            format!("{digits}  a\n"),
            format!("{digits}\ta\n"),
            format!("{digits} {}\n", "a".repeat(65)),
            good.replacen('a', "g", 1),
            good.replacen("a5", "+5", 1),
            good.to_uppercase(),
        ] {
            assert!(Key::parse(bad.as_bytes()).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let k = Key::of([0xa5; LEN], Some("n"));
        assert_eq!(format!("{k:?}"), "Key(..)");
        assert!(!k.fingerprint().contains("a5a5"));
    }
}
