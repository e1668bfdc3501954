//! A setting of the host that a case changes, and that is put back whatever becomes of the case.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// A kernel file locked for reading, so that no other case changes it meanwhile.
pub struct Held {
    _file: File,
}

/// Waits until nobody changes the setting. `None` where the kernel has no such file.
pub fn hold(path: &str) -> Option<Held> {
    locked(path, libc::LOCK_SH).ok().map(|file| Held { _file: file })
}

fn locked(path: &str, how: i32) -> std::io::Result<File> {
    let file = File::open(path)?;
    // SAFETY: an open descriptor; waiting is what is wanted.
    match unsafe { libc::flock(file.as_raw_fd(), how) } {
        0 => Ok(file),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A changed setting. Dropping it puts the old value back; so does a keeper process of its own when this one is killed.
pub struct Changed {
    alive: Option<File>,
    keeper: i32,
    _lock: File,
}

impl Changed {
    /// Waits for others, then writes `value` to the kernel file `path`. Only while the process has one thread.
    pub fn to(path: &str, value: &str) -> std::io::Result<Changed> {
        let lock = locked(path, libc::LOCK_EX)?;
        let old = chosen(&std::fs::read_to_string(path)?);
        let mut ends = [0; 2];
        // SAFETY: ends is a valid out array of two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: each descriptor is new and gets one owner.
        let [from, alive] = ends.map(|fd| unsafe { File::from_raw_fd(fd) });
        // SAFETY: no other thread exists that could hold a lock the child needs.
        let keeper = unsafe { libc::fork() };
        if keeper == 0 {
            drop(alive);
            keep(from, path, &old);
        }
        drop(from);
        let changed = Changed { alive: Some(alive), keeper, _lock: lock };
        File::options().write(true).open(path)?.write_all(value.as_bytes())?;
        Ok(changed)
    }
}

/// Waits in a session of its own, out of reach of a kill of the case's process group, until nobody holds the other end.
fn keep(mut from: File, path: &str, old: &str) -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::setsid() };
    let _ = from.read(&mut [0]);
    let _ = File::options().write(true).open(path).and_then(|mut f| f.write_all(old.as_bytes()));
    // SAFETY: ends the keeper without running what the case registered.
    unsafe { libc::_exit(0) }
}

/// `always [madvise] never` says madvise; other files say their value.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, t)| t.split_once(']'));
    inside.map_or(text.trim(), |(t, _)| t).to_string()
}

impl Drop for Changed {
    fn drop(&mut self) {
        drop(self.alive.take());
        // SAFETY: our own child, waited for once; the status is not asked for.
        unsafe { libc::waitpid(self.keeper, std::ptr::null_mut(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn the_value_in_brackets_is_the_one_in_use() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("0\n"), "0");
    }
}
