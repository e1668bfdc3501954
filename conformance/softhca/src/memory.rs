//! Registered memory as the device sees it: never through the program's mapping where that can be avoided.
//!
//! A real device reaches the pages that were pinned at registration, whatever the program does to its mapping later.
//! The soft HCA comes as near to that as an unprivileged process can:
//!
//! * shared memory (memfd, shm, shared files) gets an alias, a second mapping of the same pages made by
//!   `mremap(addr, 0, len)`. It carries no userfaultfd and no protection of the program's mapping;
//! * private memory is pinned where io_uring may pin it (`dma`): then the pages of the registration are reached, even
//!   after the program has unmapped, replaced or discarded them. Where it may not (no io_uring, memory lock limit,
//!   read-only pages) it is reached through `/proc/self/mem`, which passes over page protection as a device does, but
//!   finds the page that is at the address *now*. If nothing is there, or a userfaultfd stands before it, the
//!   access fails, and with it the request: louder than hardware, which would go on with the old page.
//!
//! Pages are populated at registration, as pinning does, so a userfaultfd is served then and not later. A hole punched
//! into a shared file, or its truncation, is seen by the alias too, which pinned pages would not.

use crate::dma::Dma;
use crate::raw::{self, Fd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// A stretch of a registered range with one kind of backing.
struct Piece {
    /// First byte, from the start of the range.
    start: usize,
    len: usize,
    /// Where our own mapping of it is; `None` for private memory.
    alias: Option<usize>,
    /// Mapping that was made, in whole pages.
    mapped: (usize, usize),
}

/// A registered range.
pub struct Pinned {
    /// Address in the program.
    base: usize,
    len: usize,
    pieces: Vec<Piece>,
    /// Private pages.
    private: Private,
}

/// How private pages are reached.
enum Private {
    /// There are none.
    None,
    /// They are pinned.
    Pinned(Dma),
    /// Through `/proc/self/mem`.
    ByAddress(Fd),
}

impl Private {
    fn new(stretches: &[(usize, usize)]) -> Result<Private, i32> {
        if stretches.is_empty() {
            return Ok(Private::None);
        }
        match Dma::pin(stretches.iter().copied()) {
            Ok(dma) => Ok(Private::Pinned(dma)),
            Err(_) => Ok(Private::ByAddress(raw::open(c"/proc/self/mem", libc::O_RDWR)?)),
        }
    }

    fn read(&self, addr: usize, to: &mut [u8]) -> Result<(), Gone> {
        let done = match self {
            Private::None => false,
            Private::Pinned(dma) => dma.read(addr, to),
            Private::ByAddress(mem) => raw::pread(mem, to, addr as u64) == Ok(to.len()),
        };
        done.then_some(()).ok_or(Gone)
    }

    fn write(&self, addr: usize, from: &[u8]) -> Result<(), Gone> {
        let done = match self {
            Private::None => false,
            Private::Pinned(dma) => dma.write(addr, from),
            Private::ByAddress(mem) => raw::pwrite(mem, from, addr as u64) == Ok(from.len()),
        };
        done.then_some(()).ok_or(Gone)
    }
}

/// The memory behind a registration is no longer there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone;

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomic {
    /// Stores `swap` if the value is `compare`.
    CompareSwap {
        /// What must be there.
        compare: u64,
        /// What is stored then.
        swap: u64,
    },
    /// Adds.
    Add(u64),
}

const PAGE: usize = 4096;

/// Bytes at the end of a transfer that become visible last: programs poll the last byte of a message.
const TAIL: usize = 64;

impl Pinned {
    /// Pins a range. `EFAULT` when a page is not there or not accessible as wanted.
    pub fn new(base: usize, len: usize, write: bool) -> Result<Pinned, i32> {
        let end = base.checked_add(len).ok_or(libc::EINVAL)?;
        let first = base & !(PAGE - 1);
        let last = end.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)?;
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: populating changes no contents; what is not mapped is an error.
        let got = unsafe { raw::call(libc::SYS_madvise, [first, last - first, advice as usize, 0, 0, 0]) };
        match got {
            Ok(_) => {}
            Err(libc::EAGAIN | libc::EINTR) => return Err(libc::EAGAIN),
            Err(_) => return Err(libc::EFAULT),
        }
        let mut pinned = Pinned { base, len, pieces: Vec::new(), private: Private::None };
        for (from, to, shared) in mappings(first, last)? {
            let alias = if shared { Some(alias(from, to - from, write)?) } else { None };
            let start = from.max(base);
            let offset = start - from;
            pinned.pieces.push(Piece {
                start: start - base,
                len: to.min(end) - start,
                alias: alias.map(|a| a + offset),
                mapped: (alias.unwrap_or(0), to - from),
            });
        }
        let covered: usize = pinned.pieces.iter().map(|p| p.len).sum();
        if covered != len {
            return Err(libc::EFAULT);
        }
        let private = pinned.pieces.iter().filter(|p| p.alias.is_none());
        let private: Vec<_> = private.map(|p| (base + p.start, p.len)).collect();
        pinned.private = Private::new(&private)?;
        Ok(pinned)
    }

    /// Calls `f` with (piece, offset in it, offset in the transfer, bytes) for each stretch of a range inside.
    fn each(
        &self,
        at: usize,
        len: usize,
        mut f: impl FnMut(&Piece, usize, usize, usize) -> Result<(), Gone>,
    ) -> Result<(), Gone> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Gone);
        }
        let mut done = 0;
        let from = self.pieces.partition_point(|p| p.start + p.len <= at);
        for piece in &self.pieces[from..] {
            if done == len {
                break;
            }
            let inside = at + done - piece.start;
            let n = (piece.len - inside).min(len - done);
            f(piece, inside, done, n)?;
            done += n;
        }
        if done == len { Ok(()) } else { Err(Gone) }
    }

    /// Reads `to.len()` bytes from offset `at`.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), Gone> {
        self.each(at, to.len(), |piece, inside, done, n| {
            let part = &mut to[done..done + n];
            match piece.alias {
                Some(alias) => {
                    // SAFETY: the alias maps `piece.len` bytes until the registration goes, and `inside + n` is
                    // within. The program may write meanwhile: what is read then is what a device would read.
                    unsafe { std::ptr::copy((alias + inside) as *const u8, part.as_mut_ptr(), n) };
                    Ok(())
                }
                None => self.private.read(self.base + piece.start + inside, part),
            }
        })
    }

    /// Writes `from` at offset `at`; the last bytes become visible last.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), Gone> {
        let split = from.len().saturating_sub(TAIL);
        if split > 0 {
            self.put(at, &from[..split])?;
            fence(Ordering::Release);
        }
        let tail = &from[split..];
        if tail.len() <= 8 {
            return self.put(at + split, tail);
        }
        self.put(at + split, &tail[..tail.len() - 8])?;
        fence(Ordering::Release);
        self.put(at + from.len() - 8, &tail[tail.len() - 8..])
    }

    fn put(&self, at: usize, from: &[u8]) -> Result<(), Gone> {
        self.each(at, from.len(), |piece, inside, done, n| {
            let part = &from[done..done + n];
            match piece.alias {
                Some(alias) => {
                    // SAFETY: as in `read`; the alias is writable because the registration is.
                    unsafe { std::ptr::copy(part.as_ptr(), (alias + inside) as *mut u8, n) };
                    Ok(())
                }
                None => self.private.write(self.base + piece.start + inside, part),
            }
        })
    }

    /// An atomic operation at an offset whose address is a multiple of 8; returns the old value. Atomic among all soft
    /// HCA operations; on shared memory also against the CPU.
    pub fn atomic(&self, at: usize, op: Atomic) -> Result<u64, Gone> {
        static PRIVATE: Mutex<()> = Mutex::new(());
        let mut old = 0;
        let mut private = false;
        self.each(at, 8, |piece, inside, _, n| {
            match piece.alias {
                Some(alias) if n == 8 => {
                    // SAFETY: 8 bytes of the alias, which is writable; the address is a multiple of 8.
                    let value = unsafe { AtomicU64::from_ptr((alias + inside) as *mut u64) };
                    old = match op {
                        Atomic::Add(n) => value.fetch_add(n, Ordering::SeqCst),
                        Atomic::CompareSwap { compare, swap } => value
                            .compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst)
                            .unwrap_or_else(|was| was),
                    };
                }
                _ => private = true,
            }
            Ok(())
        })?;
        if private {
            let _one = PRIVATE.lock().unwrap_or_else(PoisonError::into_inner);
            let mut bytes = [0; 8];
            self.read(at, &mut bytes)?;
            old = u64::from_ne_bytes(bytes);
            let new = match op {
                Atomic::Add(n) => old.wrapping_add(n),
                Atomic::CompareSwap { compare, swap } => {
                    if old == compare {
                        swap
                    } else {
                        old
                    }
                }
            };
            self.put(at, &new.to_ne_bytes())?;
        }
        Ok(old)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for piece in self.pieces.iter().filter(|p| p.alias.is_some()) {
            // SAFETY: `alias` made this mapping for this registration, which is gone.
            unsafe { raw::unmap(piece.mapped.0, piece.mapped.1) };
        }
    }
}

/// A second mapping of shared pages.
fn alias(addr: usize, len: usize, write: bool) -> Result<usize, i32> {
    let may_move = libc::MREMAP_MAYMOVE as usize;
    // SAFETY: with an old length of 0 the old mapping stays as it is; the new one goes to a free place.
    let at = unsafe { raw::call(libc::SYS_mremap, [addr, 0, len, may_move, 0, 0]) }.map_err(|_| libc::EFAULT)?;
    let prot = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    // SAFETY: our own new mapping.
    let ok = unsafe { raw::call(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]) };
    // SAFETY: our own new mapping; a child has no use for it.
    let kept = unsafe { raw::call(libc::SYS_madvise, [at, len, libc::MADV_DONTFORK as usize, 0, 0, 0]) };
    if ok.and(kept).is_err() {
        // SAFETY: our own mapping, not handed to anyone.
        unsafe { raw::unmap(at, len) };
        return Err(libc::EFAULT);
    }
    Ok(at)
}

/// The mappings between two page addresses: (from, to, shared), clipped to them.
fn mappings(first: usize, last: usize) -> Result<Vec<(usize, usize, bool)>, i32> {
    let fd = raw::open(c"/proc/self/maps", libc::O_RDONLY)?;
    let (mut text, mut buffer) = (Vec::new(), vec![0; 65536]);
    loop {
        match raw::read(fd.raw(), &mut buffer)? {
            0 => break,
            n => text.extend_from_slice(&buffer[..n]),
        }
    }
    Ok(text.split(|b| *b == b'\n').filter_map(|l| line(l, first, last)).collect())
}

fn line(line: &[u8], first: usize, last: usize) -> Option<(usize, usize, bool)> {
    let line = std::str::from_utf8(line.get(..80.min(line.len()))?).ok().or_else(|| {
        // A file's name need not be UTF-8, or may be cut in the middle of a character; the fields before it are ASCII.
        std::str::from_utf8(line.get(..45)?).ok()
    })?;
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let from = usize::from_str_radix(from, 16).ok()?.max(first);
    let to = usize::from_str_radix(to, 16).ok()?.min(last);
    (from < to).then_some((from, to, rest.as_bytes().get(3) == Some(&b's')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(len: usize, flags: i32) -> usize {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (flags | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: a new mapping at a free place.
        unsafe { raw::call(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]) }.expect("mmap")
    }

    fn protect(at: usize, len: usize, prot: i32) {
        // SAFETY: a mapping of the test.
        unsafe { raw::call(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]) }.expect("mprotect");
    }

    #[test]
    fn protection_of_the_programs_mapping_does_not_matter() {
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
            let at = map(3 * PAGE, flags);
            let pinned = Pinned::new(at + 100, 2 * PAGE, true).expect("pin");
            protect(at, 3 * PAGE, libc::PROT_NONE);
            let data: Vec<u8> = (0..5000).map(|n| n as u8).collect();
            pinned.write(50, &data).expect("write");
            let mut back = vec![0; 5000];
            pinned.read(50, &mut back).expect("read");
            assert_eq!(back, data);
            assert_eq!(pinned.atomic(4, Atomic::Add(5)), Ok(0));
            assert_eq!(pinned.atomic(4, Atomic::CompareSwap { compare: 5, swap: 9 }), Ok(5));
            assert_eq!(pinned.atomic(4, Atomic::CompareSwap { compare: 5, swap: 1 }), Ok(9));
            assert_eq!(pinned.write(2 * PAGE - 4, &[0; 5]), Err(Gone), "past the end");
            protect(at, 3 * PAGE, libc::PROT_READ);
            let mut seen = [0; 5000];
            // SAFETY: readable again, and of the test.
            unsafe { std::ptr::copy((at + 150) as *const u8, seen.as_mut_ptr(), 5000) };
            assert_eq!(seen[..], data[..]);
        }
    }

    #[test]
    fn what_is_not_accessible_cannot_be_pinned() {
        let at = map(2 * PAGE, libc::MAP_PRIVATE);
        protect(at + PAGE, PAGE, libc::PROT_READ);
        assert!(Pinned::new(at, 2 * PAGE, false).is_ok());
        assert_eq!(Pinned::new(at, 2 * PAGE, true).err(), Some(libc::EFAULT));
        protect(at + PAGE, PAGE, libc::PROT_NONE);
        assert_eq!(Pinned::new(at, 2 * PAGE, false).err(), Some(libc::EFAULT));
        // SAFETY: a page of the test, used no more.
        unsafe { raw::unmap(at + PAGE, PAGE) };
        assert_eq!(Pinned::new(at, 2 * PAGE, false).err(), Some(libc::EFAULT));
    }

    #[test]
    fn pinned_memory_stays_when_it_is_unmapped() {
        for flags in [libc::MAP_PRIVATE, libc::MAP_SHARED] {
            let at = map(2 * PAGE, flags);
            let mut pinned = Pinned::new(at + 5, PAGE, true).expect("pin");
            pinned.write(0, &[7; 100]).expect("write");
            // SAFETY: pages of the test, used no more.
            unsafe { raw::unmap(at, 2 * PAGE) };
            let mut back = [0; 100];
            // Without io_uring private memory is gone.
            let stays = flags == libc::MAP_SHARED || matches!(pinned.private, Private::Pinned(_));
            assert_eq!(pinned.read(0, &mut back), if stays { Ok(()) } else { Err(Gone) });
            assert!(!stays || back == [7; 100]);
            if flags == libc::MAP_PRIVATE {
                let mem = raw::open(c"/proc/self/mem", libc::O_RDWR).expect("open");
                pinned.private = Private::ByAddress(mem);
                assert_eq!(pinned.read(0, &mut back), Err(Gone));
            }
        }
    }
}
