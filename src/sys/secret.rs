//! Files that hold a secret: made for their owner alone, and believed only while nobody else can read or change them.

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use super::{process, procfs};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Why a file is not a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// The kernel refused.
    #[error("{0}")]
    System(Errno),
    /// A directory, a pipe, a device.
    #[error("it is not a regular file")]
    Kind,
    /// Neither this process's user nor root owns it.
    #[error("it belongs to user {0}")]
    Owner(u32),
    /// Its group or others may do something with it.
    #[error("others can use it too (mode {0:04o})")]
    Mode(u32),
    /// Longer than the caller expects.
    #[error("it is too long")]
    Length,
}

impl From<Errno> for Unfit {
    fn from(e: Errno) -> Unfit {
        Unfit::System(e)
    }
}

/// Judges what fstat says.
fn fit(user: u32, mode: u32, owner: u32) -> Result<(), Unfit> {
    if mode & libc::S_IFMT != libc::S_IFREG {
        Err(Unfit::Kind)
    } else if owner != user && owner != 0 {
        Err(Unfit::Owner(owner))
    } else if mode & 0o077 != 0 {
        Err(Unfit::Mode(mode & 0o7777))
    } else {
        Ok(())
    }
}

/// Reads a secret of at most `out.len()` bytes; answers how many there are. The file must be regular, belong to this
/// process's effective user or root, and give no right to anybody else. Symbolic links are followed, and the file they lead to is judged.
/// What is judged is the open file, not its path.
pub fn read(path: &CStr, out: &mut [u8]) -> Result<usize, Unfit> {
    // A pipe must not make us wait for its writer, nor a terminal become ours.
    let fd = procfs::open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)?;
    let st = status(fd.as_fd())?;
    fit(process::euid(), st.st_mode, st.st_uid)?;
    let mut len = 0;
    loop {
        let room = out.get_mut(len..).unwrap_or_default();
        let mut beyond = [0u8];
        // One byte more than fits tells a file that is too long.
        let to = if room.is_empty() { &mut beyond[..] } else { room };
        let args = [fd.as_raw_fd() as usize, to.as_mut_ptr() as usize, to.len(), 0, 0, 0];
        // SAFETY: the buffer is writable for its length.
        match retry(|| unsafe { syscall(libc::SYS_read, args) })? {
            0 => return Ok(len),
            _ if len == out.len() => return Err(Unfit::Length),
            n => len += n,
        }
    }
}

/// Names in a folder of secrets, sorted, without those that begin with a dot. The folder must belong to this process's
/// effective user or root, and nobody else may put anything into it. `ENOTDIR` when it is no folder.
pub fn names(path: &CStr) -> Result<Vec<CString>, Unfit> {
    let fd = procfs::open(path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK)?;
    let st = status(fd.as_fd())?;
    if st.st_uid != process::euid() && st.st_uid != 0 {
        return Err(Unfit::Owner(st.st_uid));
    }
    if st.st_mode & 0o022 != 0 {
        return Err(Unfit::Mode(st.st_mode & 0o7777));
    }
    let (mut all, mut buf) = (Vec::new(), vec![0u64; 4096]);
    loop {
        let args = [fd.as_raw_fd() as usize, buf.as_mut_ptr() as usize, buf.len() * 8, 0, 0, 0];
        // SAFETY: the buffer is writable for its length.
        let n = retry(|| unsafe { syscall(libc::SYS_getdents64, args) })?;
        if n == 0 {
            all.sort_unstable();
            return Ok(all);
        }
        let bytes: Vec<u8> = buf.iter().flat_map(|w| w.to_ne_bytes()).take(n).collect();
        all.extend(entries(&bytes).filter(|n| !n.to_bytes().starts_with(b".")));
    }
}

/// Names of what getdents64 has written: inode u64, offset u64, length of the entry u16, type u8, name.
fn entries(mut bytes: &[u8]) -> impl Iterator<Item = CString> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
        let name = CStr::from_bytes_until_nul(bytes.get(19..len)?).ok()?;
        bytes = bytes.get(len..)?;
        Some(name.to_owned())
    })
}

fn status(fd: BorrowedFd<'_>) -> Result<libc::stat, Errno> {
    let mut st = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: st is a valid out buffer of the size the kernel writes on x86-64.
    unsafe { syscall(libc::SYS_fstat, [fd.as_raw_fd() as usize, st.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    // SAFETY: zeroed, then filled by the kernel; every bit pattern is a valid stat.
    Ok(unsafe { st.assume_init() })
}

/// Makes a file of mode 0600 that holds `bytes` and waits until it is on the disk. `EEXIST` when the path exists, unless
/// `replace` is given: then the new file takes its place in one step, whatever it was (a symbolic link is replaced, not followed).
pub fn create(path: &CStr, bytes: &[u8], replace: bool) -> Result<(), Errno> {
    if !replace {
        return fill(path, bytes);
    }
    let mut text = path.to_bytes().to_vec();
    text.extend_from_slice(format!(".{:016x}", process::random()).as_bytes());
    let aside = CString::new(text).map_err(|_| Errno::INVAL)?;
    fill(&aside, bytes)?;
    // SAFETY: both paths are NUL-terminated and outlive the call.
    let renamed = unsafe { syscall(libc::SYS_rename, [aside.as_ptr() as usize, path.as_ptr() as usize, 0, 0, 0, 0]) };
    renamed.map(drop).inspect_err(|_| unlink(&aside))
}

fn fill(path: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0o600, 0, 0];
    // SAFETY: path is NUL-terminated and outlives the call.
    let fd = retry(|| unsafe { syscall(libc::SYS_openat, args) })?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    let fd: OwnedFd = unsafe { own(fd) }?;
    // A secret in part is none.
    put(fd.as_fd(), bytes).inspect_err(|_| unlink(path))
}

fn put(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    let raw = fd.as_raw_fd() as usize;
    // SAFETY: numbers only. A umask may have taken the owner's own rights away.
    unsafe { syscall(libc::SYS_fchmod, [raw, 0o600, 0, 0, 0, 0]) }?;
    while !bytes.is_empty() {
        // SAFETY: the bytes are readable for their length.
        let n = retry(|| unsafe { syscall(libc::SYS_write, [raw, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) })?;
        bytes = bytes.get(n..).unwrap_or_default();
    }
    // SAFETY: numbers only.
    retry(|| unsafe { syscall(libc::SYS_fsync, [raw, 0, 0, 0, 0, 0]) }).map(drop)
}

fn unlink(path: &CStr) {
    // SAFETY: path is NUL-terminated and outlives the call.
    let _ = unsafe { syscall(libc::SYS_unlink, [path.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    struct Dir(PathBuf);

    impl Dir {
        fn new(what: &str) -> Dir {
            let d = std::env::temp_dir().join(format!("smc-secret-{what}-{}", std::process::id()));
            std::fs::create_dir_all(&d).unwrap();
            Dir(d)
        }
        fn path(&self, name: &str) -> (PathBuf, CString) {
            let p = self.0.join(name);
            (p.clone(), c(&p))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn c(p: &Path) -> CString {
        CString::new(p.as_os_str().as_bytes()).unwrap()
    }

    #[test]
    fn what_was_made_can_be_read_and_is_the_owners_alone() {
        let d = Dir::new("made");
        let (p, path) = d.path("a");
        create(&path, b"one", false).unwrap();
        assert_eq!(std::fs::metadata(&p).unwrap().permissions().mode() & 0o7777, 0o600);
        let mut buf = [0u8; 8];
        assert_eq!(read(&path, &mut buf), Ok(3));
        assert_eq!(&buf[..3], b"one");
        assert_eq!(create(&path, b"two", false), Err(Errno::EXIST));
        create(&path, b"other", true).unwrap();
        assert_eq!((read(&path, &mut buf), &buf[..5]), (Ok(5), &b"other"[..]));
        assert_eq!(std::fs::read_dir(&d.0).unwrap().count(), 1, "something was left beside it");
        assert_eq!(read(&path, &mut buf[..5]), Ok(5));
        assert_eq!(read(&path, &mut buf[..4]), Err(Unfit::Length));
    }

    #[test]
    fn every_right_of_others_is_refused() {
        let d = Dir::new("mode");
        let (p, path) = d.path("a");
        create(&path, b"x", false).unwrap();
        for bit in 0..9 {
            let mode = 0o600 | 1 << bit;
            std::fs::set_permissions(&p, std::fs::Permissions::from_mode(mode)).unwrap();
            let want = if bit < 6 { Err(Unfit::Mode(mode)) } else { Ok(1) };
            assert_eq!(read(&path, &mut [0; 4]), want, "{mode:o}");
        }
    }

    #[test]
    fn a_link_does_not_lead_around_the_judgement_and_replacing_does_not_follow_it() {
        let d = Dir::new("link");
        let ((target, _), (link, path)) = (d.path("target"), d.path("link"));
        std::fs::write(&target, b"x").unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(read(&path, &mut [0; 4]), Err(Unfit::Mode(0o644)));
        assert_eq!(create(&path, b"y", false), Err(Errno::EXIST));
        create(&path, b"y", true).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"x");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
    }

    #[test]
    fn only_regular_files_of_us_or_root() {
        assert_eq!(fit(7, libc::S_IFREG | 0o600, 7), Ok(()));
        assert_eq!(fit(7, libc::S_IFREG | 0o400, 0), Ok(()));
        assert_eq!(fit(7, libc::S_IFREG | 0o600, 8), Err(Unfit::Owner(8)));
        assert_eq!(fit(0, libc::S_IFREG | 0o600, 8), Err(Unfit::Owner(8)));
        assert_eq!(fit(7, libc::S_IFIFO | 0o600, 7), Err(Unfit::Kind));
        assert_eq!(read(&c(&std::env::temp_dir()), &mut [0; 4]), Err(Unfit::Kind));
        assert_eq!(read(c"/nowhere/at/all", &mut [0; 4]), Err(Unfit::System(Errno::NOENT)));
    }
}
