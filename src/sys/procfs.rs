//! Small reads from /proc, by system call.

use super::descriptor::own;
use super::errno::{Errno, retry, syscall};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Opens a path with `flags` (close-on-exec is added).
pub fn open(path: &CStr, flags: i32) -> Result<OwnedFd, Errno> {
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: path is NUL-terminated and outlives the call.
    let fd = retry(|| unsafe {
        syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0])
    })?;
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    unsafe { own(fd) }
}

/// The whole content of a file, at most `limit` bytes. Allocates.
pub fn read(path: &CStr, limit: usize) -> Result<Vec<u8>, Errno> {
    let fd = open(path, libc::O_RDONLY)?;
    let mut out = Vec::new();
    let mut buf = vec![0u8; 64 << 10];
    while out.len() < limit {
        // SAFETY: the buffer is writable for its length.
        let n = retry(|| unsafe {
            syscall(libc::SYS_read, [fd.as_raw_fd() as usize, buf.as_mut_ptr() as usize, buf.len(), 0, 0, 0])
        })?;
        if n == 0 {
            break;
        }
        out.extend_from_slice(buf.get(..n).unwrap_or_default());
    }
    Ok(out)
}

/// One entry of /proc/thread-self/smaps, as far as the exporter needs it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Vma {
    /// First address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// `rw-p` and the like.
    pub perms: [u8; 4],
    /// File behind it; 0 for anonymous memory.
    pub inode: u64,
    /// Name column.
    pub name: String,
    /// Two-letter flags of the VmFlags line.
    pub flags: Vec<[u8; 2]>,
}

impl Vma {
    /// True when VmFlags has `flag`.
    pub fn has(&self, flag: &[u8; 2]) -> bool {
        self.flags.contains(flag)
    }
}

/// The mappings of this process that overlap `[start, end)`, in order. Allocates; takes milliseconds in a large process.
pub fn vmas(start: usize, end: usize) -> Result<Vec<Vma>, Errno> {
    let text = read(c"/proc/thread-self/smaps", 1 << 30)?;
    Ok(parse(&String::from_utf8_lossy(&text)).into_iter().filter(|v| v.start < end && start < v.end).collect())
}

fn parse(text: &str) -> Vec<Vma> {
    let mut out: Vec<Vma> = Vec::new();
    for line in text.lines() {
        if let Some(v) = header(line) {
            out.push(v);
        } else if let (Some(flags), Some(v)) = (line.strip_prefix("VmFlags:"), out.last_mut()) {
            v.flags = flags.split_ascii_whitespace().filter_map(|f| f.as_bytes().try_into().ok()).collect();
        }
    }
    out
}

/// `55d0-55e0 rw-p 00000000 00:00 0   [heap]`
fn header(line: &str) -> Option<Vma> {
    let mut w = line.split_ascii_whitespace();
    let (a, b) = w.next()?.split_once('-')?;
    let (start, end) = (usize::from_str_radix(a, 16).ok()?, usize::from_str_radix(b, 16).ok()?);
    let perms = w.next()?.as_bytes().try_into().ok()?;
    let inode = w.nth(2)?.parse().ok()?;
    Some(Vma { start, end, perms, inode, name: w.collect::<Vec<_>>().join(" "), flags: Vec::new() })
}

/// Opens a file for reading only.
pub fn open_read(path: &CStr) -> Result<OwnedFd, Errno> {
    open(path, libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn smaps_lines() {
        let t = "5000-7000 rw-p 00000000 00:00 0    [anon:a b]\nSize: 8 kB\nVmFlags: rd wr mr lo \n8000-9000 r--s 0 01:02 77 /x y\nVmFlags: rd\n";
        let v = parse(t);
        assert_eq!(v.len(), 2);
        assert_eq!(
            (v[0].start, v[0].end, &v[0].perms, v[0].inode, &*v[0].name),
            (0x5000, 0x7000, b"rw-p", 0, "[anon:a b]")
        );
        assert!(v[0].has(b"lo") && !v[1].has(b"lo"));
        assert_eq!((v[1].inode, &*v[1].name), (77, "/x y"));
    }

    #[test]
    fn finds_own_memory() {
        let m = super::super::mem::Mapping::anonymous(8192, super::super::mem::RW).unwrap();
        let v = vmas(m.addr(), m.addr() + m.len()).unwrap();
        assert!(v.iter().any(|v| v.start <= m.addr() && &v.perms == b"rw-p" && v.inode == 0));
    }
}
