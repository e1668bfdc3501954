//! Changing a file in place so that a crash at any moment loses nothing: what will be written is first put, whole, into
//! a journal beside the file. A journal that is complete is applied again by whoever opens the file next; one that is
//! not was never begun to be applied.
//!
//! Layout, little endian: magic, inode of the file, number of runs; per run offset, length and bytes; checksum.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const MAGIC: u64 = u64::from_le_bytes(*b"SMCJRNL1");
/// Bytes of a run that are in memory at a time when a journal is applied.
const STEP: u64 = 1 << 20;

/// Where the journal of a file lies.
pub fn path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".smc-journal");
    name.into()
}

/// Sums what passes (FNV-1a over 64-bit pieces).
struct Sum<T> {
    inner: T,
    sum: u64,
    at: u32,
}

impl<T> Sum<T> {
    fn new(inner: T) -> Sum<T> {
        Sum { inner, sum: 0xcbf2_9ce4_8422_2325, at: 0 }
    }

    fn take_in(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.sum ^= u64::from(*b) << (8 * (self.at % 8));
            self.at += 1;
            if self.at.is_multiple_of(8) {
                self.sum = self.sum.wrapping_mul(0x0100_0000_01b3).rotate_left(23);
            }
        }
        self.at %= 8;
    }
}

impl<T: Write> Sum<T> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.take_in(bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: Read> Sum<T> {
    fn get(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.inner.read_exact(bytes)?;
        self.take_in(bytes);
        Ok(())
    }

    fn word(&mut self) -> Result<u64> {
        let mut w = [0; 8];
        self.get(&mut w)?;
        Ok(u64::from_le_bytes(w))
    }
}

fn sync_directory(of: &Path) -> Result<()> {
    let dir = of.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

/// Puts the runs of `content` into the journal of `file` and waits until they are on the disk.
pub fn write(path: &Path, file: &File, content: &[u8], runs: &[(usize, usize)]) -> Result<()> {
    let f = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut out = Sum::new(BufWriter::with_capacity(1 << 20, f));
    for word in [MAGIC, file.metadata()?.ino(), runs.len() as u64] {
        out.put(&word.to_le_bytes())?;
    }
    for (s, e) in runs {
        out.put(&(*s as u64).to_le_bytes())?;
        out.put(&((e - s) as u64).to_le_bytes())?;
        out.put(content.get(*s..*e).unwrap_or_default())?;
    }
    let sum = out.sum;
    out.inner.write_all(&sum.to_le_bytes())?;
    out.inner.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    sync_directory(path)
}

/// Removes a journal that has been applied.
pub fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path)?;
    sync_directory(path)
}

/// Reads a journal through; `apply` sees every piece. False when it is not complete.
fn pass(path: &Path, file: &File, mut apply: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<bool> {
    let mut from = Sum::new(BufReader::with_capacity(1 << 20, File::open(path)?));
    let mut buf = vec![0u8; STEP as usize];
    let mut read = || -> Result<bool> {
        if from.word()? != MAGIC {
            return Ok(false);
        }
        if from.word()? != file.metadata()?.ino() {
            let why = format!("{} belongs to another file: remove it, or put that file back", path.display());
            return Err(Error::other(why));
        }
        for _ in 0..from.word()? {
            let (mut at, mut left) = (from.word()?, from.word()?);
            while left > 0 {
                let n = left.min(STEP);
                let piece = buf.get_mut(..n as usize).unwrap_or_default();
                from.get(piece)?;
                apply(at, piece)?;
                (at, left) = (at.saturating_add(n), left - n);
            }
        }
        let sum = from.sum;
        Ok(from.word()? == sum)
    };
    match read() {
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
        r => r,
    }
}

/// Completes what a crash has interrupted: applies a complete journal, removes an incomplete one. True when something
/// was applied.
pub fn recover(path: &Path, file: &File) -> Result<bool> {
    if !path.exists() {
        return Ok(false);
    }
    let complete = pass(path, file, |_, _| Ok(()))?;
    if complete {
        pass(path, file, |at, piece| file.write_all_at(piece, at))?;
        file.sync_all()?;
    }
    remove(path)?;
    Ok(complete)
}
