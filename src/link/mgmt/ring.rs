//! The keys an exporter takes: who comes is known by the key he has.
//!
//! The key must be known before the first message of a client can be opened. His greeting names it by a *hint*: a keyed
//! hash of the greeting's own ephemeral public key, which is fresh each time. To a stranger hints are random bytes: two of one client have
//! nothing in common, and without the key nobody can tell whose they are or try a name. The exporter computes the hint of every
//! key (one block of BLAKE2s each) and compares all of them, whichever fits: how long it takes tells how many keys there are, not which one.

use super::key::{self, Key, LEN, MAX_LINE};
use crate::base::{Error, Result, Status};
use crate::sys::Errno;
use crate::sys::secret::{self, Unfit};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Most keys of one exporter: what a stranger's greeting costs grows with them, to about a third of a millisecond.
pub const MOST: usize = 1024;

/// Bytes of a hint.
pub const HINT: usize = 16;

/// What a greeting says of its key.
pub type Hint = [u8; HINT];

type Hinting = Zeroizing<[u8; LEN]>;

fn hinting(key: &Key) -> Option<Hinting> {
    key.derive(b"libsmc key hint v1")
}

fn hash_with(h: &mut dyn snow::types::Hash, by: &Hinting, nonce: &[u8; 32]) -> Hint {
    let mut out = [0u8; 32];
    h.reset();
    // Of fixed lengths, so nothing can be appended; together one block.
    h.input(&by[..]);
    h.input(nonce);
    h.result(&mut out);
    out.first_chunk().copied().unwrap_or_default()
}

/// The hint of one key for one nonce; `None` when there is no hash.
pub(super) fn hint(key: &Key, nonce: &[u8; 32]) -> Option<Hint> {
    Some(hash_with(&mut *key::hash()?, &hinting(key)?, nonce))
}

/// The keys. Several may belong to one client, as while he changes his key.
#[derive(Clone, Debug)]
pub struct Keyring(Arc<[(Key, Hinting)]>);

impl Keyring {
    /// A ring of these keys. `INVALID_ARGUMENT` for none, for more than [`MOST`], and for two clients with the same key.
    pub fn of(keys: Vec<Key>) -> Result<Keyring> {
        let no = |why: String| Error::new(Status::INVALID_ARGUMENT, "use the keys", why);
        if keys.is_empty() {
            return Err(no("there is none".into()).remedy("make one with `smc keygen`"));
        }
        if keys.len() > MOST {
            return Err(no(format!("there are {}, more than {MOST}", keys.len())));
        }
        let whose = |k: &Key| k.client().map_or("shared".to_owned(), |n| format!("\"{n}\""));
        let mut all: Vec<(Key, Hinting)> = Vec::with_capacity(keys.len());
        for k in keys {
            match all.iter().find(|(other, _)| other.bytes() == k.bytes()) {
                Some((other, _)) if other.client() == k.client() => continue,
                Some((other, _)) => {
                    let e = no(format!("the keys of {} and {} are the same", whose(other), whose(&k)));
                    return Err(e.remedy("make one for each with `smc keygen --client NAME FILE`"));
                }
                None => {}
            }
            let h = hinting(&k).ok_or_else(|| Error::of(Status::INTERNAL, "use the keys"))?;
            all.push((k, h));
        }
        Ok(Keyring(all.into()))
    }

    /// Reads a file with a key in each line, or a folder of such files (what begins with a dot is passed over). Files as for
    /// [`Key::load`]; the folder must be ours or root's, and nobody else may write in it. One that is unfit spoils all.
    pub fn load(path: &Path) -> Result<Keyring> {
        let names = match secret::names(&key::c_path(path, || key::attempt(path))?) {
            Ok(names) => names,
            Err(Unfit::System(Errno::NOTDIR)) => return Keyring::of(read_file(path)?),
            Err(why @ Unfit::Mode(_)) => {
                let e = Error::new(Status::PERMISSION, key::attempt(path), why.to_string());
                return Err(e.remedy("make it yours alone: chmod 700"));
            }
            Err(why) => return Err(key::unfit(path, why)),
        };
        let mut all = Vec::new();
        for name in names {
            all.extend(read_file(&path.join(std::ffi::OsStr::from_bytes(name.to_bytes())))?);
        }
        Keyring::of(all)
    }

    /// Every key.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.iter().map(|(k, _)| k)
    }

    /// True while this very key, with this owner, is in the ring.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.keys().any(|k| k.bytes() == key.bytes() && k.client() == key.client())
    }

    /// The key that a greeting means. Always looks at all of them.
    pub(super) fn find(&self, nonce: &[u8; 32], hint: &Hint) -> Option<&Key> {
        let mut h = key::hash()?;
        let mut found = usize::MAX;
        for (i, (_, by)) in self.0.iter().enumerate() {
            let ours = hash_with(&mut *h, by, nonce);
            let differ = ours.iter().zip(hint).fold(0u8, |d, (a, b)| d | (a ^ b));
            // All ones where nothing differs, without asking.
            let same = usize::from(differ).wrapping_sub(1) >> (usize::BITS - 1);
            let mask = same.wrapping_neg();
            found = (found & !mask) | (i & mask);
        }
        self.0.get(found).map(|(k, _)| k)
    }
}

impl From<Key> for Keyring {
    /// One key is always a ring.
    fn from(k: Key) -> Keyring {
        let h = hinting(&k).unwrap_or_default();
        Keyring(vec![(k, h)].into())
    }
}

fn read_file(path: &Path) -> Result<Vec<Key>> {
    let mut buf = Zeroizing::new(vec![0u8; MOST * MAX_LINE]);
    let n = key::read(path, &mut buf)?;
    let text = buf.get(..n).unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.split(|b| *b == b'\n').map(|l| Key::parse(l).ok_or_else(|| key::not_a_key(path))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn key(n: u8, client: Option<&str>) -> Key {
        Key::of([n; LEN], client)
    }

    #[test]
    fn a_hint_finds_its_key_and_no_other() {
        let keys: Vec<Key> = (0..40u8).map(|n| key(n, Some(&format!("c{n}")))).collect();
        let ring = Keyring::of(keys.clone()).unwrap();
        for (n, k) in keys.iter().enumerate() {
            let nonce = [n as u8 ^ 0x5a; 32];
            let h = hint(k, &nonce).unwrap();
            assert_eq!(ring.find(&nonce, &h).unwrap().client(), k.client());
            assert!(ring.find(&[0x77; 32], &h).is_none(), "a hint is good for its nonce only");
            for at in 0..HINT {
                let mut other = h;
                other[at] ^= 0x10;
                assert!(ring.find(&nonce, &other).is_none());
            }
        }
        let stranger = hint(&key(99, None), &[1; 32]).unwrap();
        assert!(ring.find(&[1; 32], &stranger).is_none());
        assert!(ring.has(&key(3, Some("c3"))) && !ring.has(&key(3, Some("c4"))) && !ring.has(&key(77, None)));
    }

    #[test]
    fn hints_of_one_key_have_nothing_in_common() {
        let k = key(1, Some("a"));
        let hints: Vec<Hint> = (0..=255u8).map(|n| hint(&k, &[n; 32]).unwrap()).collect();
        for at in 0..HINT {
            let mut seen: Vec<u8> = hints.iter().map(|h| h[at]).collect();
            seen.sort_unstable();
            seen.dedup();
            // 256 random bytes show about 162 values.
            assert!(seen.len() > 120, "byte {at} shows {} values", seen.len());
        }
    }

    #[test]
    fn what_is_no_ring() {
        assert_eq!(Keyring::of(Vec::new()).unwrap_err().status, Status::INVALID_ARGUMENT);
        let e = Keyring::of(vec![key(1, Some("a")), key(2, None), key(1, Some("b"))]).unwrap_err();
        assert!(e.to_string().contains("\"a\" and \"b\" are the same"), "{e}");
        assert_eq!(Keyring::of(vec![key(1, None); 3]).unwrap().keys().count(), 1);
        let many = (0..=MOST as u32).map(|n| {
            let mut b = [0; LEN];
            b[..4].copy_from_slice(&n.to_le_bytes());
            Key::of(b, None)
        });
        assert!(Keyring::of(many.collect()).unwrap_err().to_string().contains("more than 1024"));
    }

    #[test]
    fn a_file_or_a_folder() {
        let dir =
            std::env::temp_dir().join(format!("smc-ring-{}-{:x}", std::process::id(), crate::sys::process::random()));
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let save = |name: &str, keys: &[Key]| {
            let text: String = keys.iter().map(|k| k.text().to_string()).collect();
            fs::write(dir.join(name), text).unwrap();
            fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        };
        let owners = |path: &Path| -> Vec<Option<String>> {
            Keyring::load(path).unwrap().keys().map(|k| k.client().map(|n| n.to_string())).collect()
        };
        assert_eq!(Keyring::load(&dir).unwrap_err().status, Status::INVALID_ARGUMENT);
        save("b", &[key(1, Some("b"))]);
        save("a", &[key(2, None), key(3, Some("x"))]);
        save(".hidden", &[key(4, Some("h"))]);
        assert_eq!(owners(&dir), [None, Some("x".into()), Some("b".into())]);
        assert_eq!(owners(&dir.join("a")).len(), 2);
        assert_eq!(Key::load(&dir.join("a")).unwrap_err().status, Status::INVALID_ARGUMENT, "two are not one");
        fs::set_permissions(dir.join("b"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(Keyring::load(&dir).unwrap_err().status, Status::PERMISSION);
        save("b", &[]);
        assert_eq!(Keyring::load(&dir).unwrap_err().status, Status::INVALID_ARGUMENT);
        save("b", &[key(1, Some("b"))]);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o770)).unwrap();
        let e = Keyring::load(&dir).unwrap_err();
        assert!(e.status == Status::PERMISSION && e.to_string().contains("chmod 700"), "{e}");
        assert_eq!(Keyring::load(&dir.join("nothing")).unwrap_err().status, Status::NOT_FOUND);
        fs::remove_dir_all(&dir).unwrap();
    }
}
