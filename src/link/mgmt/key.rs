//! The pre-shared key of the management path over a network: 32 random bytes in a file of one line.
//!
//! `libsmc-key-v1:` and 64 hexadecimal digits. Whoever has the key is a member: he may be a client of any exporter that
//! has it, and an exporter to any client. Members are not told apart, so one of them cannot be shut out alone: that
//! takes a new key for the others. A file that somebody else could read or change is refused ([`sys::secret`]).
//!
//! [`sys::secret`]: crate::sys::secret

use crate::base::{Error, Result, Status};
use crate::sys::Errno;
use crate::sys::process::random_bytes;
use crate::sys::secret::{self, Unfit};
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::ffi::CString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use zeroize::Zeroizing;

/// Bytes of a key.
pub const LEN: usize = 32;
const PREFIX: &str = "libsmc-key-v1:";
/// Bytes of a key's text, its newline included.
const TEXT: usize = PREFIX.len() + 2 * LEN + 1;

/// A pre-shared key. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; LEN]>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// A new one, from the kernel's random numbers.
    pub fn generate() -> Result<Key> {
        let mut k = Key(Zeroizing::new([0; LEN]));
        let failed = |e: Errno| Error::new(Status::SYSTEM, "make a key", format!("getrandom: {e}"));
        random_bytes(&mut k.0[..]).map_err(failed)?;
        Ok(k)
    }

    /// A key of known bytes.
    #[cfg(test)]
    pub(crate) fn of(bytes: [u8; LEN]) -> Key {
        Key(Zeroizing::new(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }

    /// The key that is the whole of `text`; one newline may follow.
    pub fn parse(text: &[u8]) -> Option<Key> {
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        let digits = text.strip_prefix(PREFIX.as_bytes())?;
        if digits.len() != 2 * LEN {
            return None;
        }
        let mut k = Key(Zeroizing::new([0; LEN]));
        for (to, pair) in k.0.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *to = nibble(*high)? << 4 | nibble(*low)?;
        }
        Some(k)
    }

    /// The line that [`Key::parse`] takes.
    pub fn text(&self) -> Zeroizing<String> {
        // Of the final size at once: a string that grows leaves pieces of the secret behind.
        let mut s = Zeroizing::new(String::with_capacity(TEXT));
        s.push_str(PREFIX);
        for digit in self.0.iter().flat_map(|b| [b >> 4, b & 15]) {
            s.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
        }
        s.push('\n');
        s
    }

    /// Sixteen digits that differ for different keys, and from which nobody finds the key: to be compared by people.
    pub fn fingerprint(&self) -> String {
        let Some(mut hash) = DefaultResolver.resolve_hash(&HashChoice::Blake2s) else { return String::new() };
        let mut out = [0u8; 32];
        hash.input(b"libsmc key fingerprint");
        hash.input(&self.0[..]);
        hash.result(&mut out);
        out.iter().take(8).map(|b| format!("{b:02x}")).collect()
    }

    /// Reads a key file. `NOT_FOUND`; `PERMISSION` when the file belongs to another user than ours and root, or when
    /// anybody but its owner has a right to it; `INVALID_ARGUMENT` when it does not hold a key.
    pub fn load(path: &Path) -> Result<Key> {
        let attempt = || format!("use the key {}", path.display());
        let mut buf = Zeroizing::new([0u8; TEXT]);
        let not_a_key = || {
            let e = Error::new(Status::INVALID_ARGUMENT, attempt(), "it does not hold a key of this version");
            e.remedy("make one with `smc keygen`")
        };
        match secret::read(&c_path(path, attempt)?, &mut buf[..]) {
            Ok(n) => Key::parse(buf.get(..n).unwrap_or_default()).ok_or_else(not_a_key),
            Err(Unfit::Length) => Err(not_a_key()),
            Err(Unfit::System(Errno::NOENT)) => Err(Error::new(Status::NOT_FOUND, attempt(), "there is no such file")),
            Err(Unfit::System(e)) => Err(Error::new(Status::SYSTEM, attempt(), e.to_string())),
            Err(why) => {
                let e = Error::new(Status::PERMISSION, attempt(), why.to_string());
                Err(e.remedy("make it yours alone: chown, chmod 600; and if others may have read it, make a new one"))
            }
        }
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

fn c_path(path: &Path, attempt: impl Fn() -> String) -> Result<CString> {
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
        let (a, b) = (Key::generate().unwrap(), Key::generate().unwrap());
        assert_ne!(a.0, b.0);
        let text = a.text();
        assert_eq!((text.len(), text.capacity()), (TEXT, TEXT));
        assert_eq!(Key::parse(text.as_bytes()).unwrap().0, a.0);
        assert_eq!(Key::parse(text.trim_end().as_bytes()).unwrap().0, a.0);
        assert_ne!(a.fingerprint(), b.fingerprint());
        assert_eq!(a.fingerprint().len(), 16);
    }

    #[test]
    fn only_the_whole_line_is_a_key() {
        let good = Key::of([0xa5; LEN]).text();
        for bad in [
            String::new(),
            good.replace("v1", "v2"),
            good.trim_end().trim_end_matches('5').into(),
            format!("{}0\n", good.trim_end()),
            format!("{}\n", *good),
            format!(" {}", *good),
            good.replacen('a', "g", 1),
            good.replacen("a5", "+5", 1),
            good.to_uppercase(),
        ] {
            assert!(Key::parse(bad.as_bytes()).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let k = Key::of([0xa5; LEN]);
        assert_eq!(format!("{k:?}"), "Key(..)");
        assert!(!k.fingerprint().contains("a5a5"));
    }
}
