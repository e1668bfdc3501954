//! The file behind a region: loaded before the name appears, written back after it has gone.

use super::{identity, journal};
use crate::os;
use crate::out::{self, cannot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use smc_engine::base::addr::round_up_page;
use smc_engine::base::{Error, Status};
use smc_engine::core::export::Memory;
use smc_engine::sys::mem::{Mapping, RW};
use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes moved between two steps of the progress bar.
const STEP: usize = 4 << 20;
/// Unit of comparison and of writing back.
const BLOCK: usize = 4096;

/// A file and the memory that holds its content.
pub struct Content {
    path: PathBuf,
    file: File,
    memory: Mapping,
    /// Bytes that belong to the file.
    len: usize,
    writable: bool,
    incarnation: u64,
}

/// A bar on stderr, where that is a terminal.
pub fn bar(what: &'static str, total: u64) -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} eta {eta}");
    let bar = ProgressBar::with_draw_target(Some(total), target).with_message(what);
    if let Ok(s) = style { bar.with_style(s) } else { bar }
}

impl Content {
    /// Reads the file into fresh memory of `size` bytes, or of the file's size. With a size, a file that does not exist
    /// is made, and one that is longer is loaded and written back in part.
    pub fn load(path: &Path, size: Option<u64>, writable: bool) -> Result<Content, Error> {
        let attempt = || format!("load {}", path.display());
        let mut open = OpenOptions::new();
        open.read(true).write(writable).create(writable && size.is_some());
        let file = open.open(path).map_err(|e| {
            let hint = if e.kind() == std::io::ErrorKind::NotFound { "give --size to make it" } else { "" };
            cannot(attempt(), &e).remedy(if writable { hint } else { "" })
        })?;
        if writable && !os::lock_alone(&file).map_err(|e| cannot(attempt(), e))? {
            return Err(Error::new(Status::BUSY, attempt(), "another process has locked it")
                .remedy("see `smc ls` for who serves it"));
        }
        let journal = journal::path(path);
        if !writable && journal.exists() {
            let e = Error::new(
                Status::BUSY,
                attempt(),
                format!("an interrupted write-back waits in {}", journal.display()),
            );
            return Err(e.remedy("serve it once without --read-only"));
        }
        if writable && journal::recover(&journal, &file).map_err(|e| cannot(attempt(), e))? {
            eprintln!("smc: completed an interrupted write-back of {}", path.display());
        }
        let meta = file.metadata().map_err(|e| cannot(attempt(), e))?;
        if !meta.is_file() {
            return Err(Error::new(Status::INVALID_ARGUMENT, attempt(), "it is not a regular file"));
        }
        let len = usize::try_from(size.unwrap_or(meta.len())).ok();
        let bytes = len.and_then(round_up_page).filter(|n| *n > 0);
        let (Some(len), Some(bytes)) = (len, bytes) else {
            return Err(Error::new(Status::INVALID_ARGUMENT, attempt(), "it is empty").remedy("give --size"));
        };
        // With a size every byte of the region belongs to the file.
        let len = if size.is_some() { bytes } else { len };
        // Before anything of it is served: a crash from here on leaves no word for the next.
        let incarnation = identity::take(&file, writable);
        let memory = Mapping::anonymous(bytes, RW)
            .map_err(|e| cannot(attempt(), format!("no memory for {bytes} bytes: {e}")))?;
        let content = Content { path: path.to_owned(), file, memory, len, writable, incarnation };
        content.fill().map_err(|e| cannot(attempt(), e))?;
        Ok(content)
    }

    /// Names the content for clients that meet it again.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The memory to export. It is private again when the export has ended.
    pub fn memory(&self) -> Memory {
        // SAFETY: whole pages of private anonymous memory that lives as long as this object; it is touched only before
        // the export begins and after it has ended, and no reference to it is held meanwhile.
        unsafe { Memory::at(self.memory.ptr(), self.memory.len()) }
    }

    /// The file's part of the memory.
    ///
    /// # Safety
    /// No export of the memory is alive, and no other slice of it.
    #[allow(clippy::mut_from_ref)]
    unsafe fn bytes(&self) -> &mut [u8] {
        // SAFETY: len lies inside the mapping, which is readable and writable; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.memory.ptr(), self.len) }
    }

    fn fill(&self) -> std::io::Result<()> {
        // SAFETY: called before the memory is exported.
        let bytes = unsafe { self.bytes() };
        let bar = bar("loading", bytes.len() as u64);
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + STEP);
            let part = bytes.get_mut(at..end).unwrap_or_default();
            match self.file.read_at(part, at as u64) {
                Ok(0) => break,
                Ok(n) => at += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            bar.set_position(at as u64);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Writes the blocks that differ back to the file and waits until they are on the disk.
    pub fn write_back(self, json: bool) -> Result<(), Error> {
        if !self.writable {
            return Ok(());
        }
        let attempt = || format!("write back {}", self.path.display());
        let runs = self.changed().map_err(|e| cannot(attempt(), e))?;
        let changed: usize = runs.iter().map(|(s, e)| e - s).sum();
        if changed > 0 {
            let again = "serve it again to complete it";
            let journal = journal::path(&self.path);
            let kept = self.keep(&journal, &runs);
            self.apply(&runs).map_err(|e| cannot(attempt(), e).remedy(if kept { again } else { "" }))?;
            if kept {
                journal::remove(&journal).map_err(|e| cannot(format!("remove {}", journal.display()), e))?;
            }
        }
        identity::leave(&self.file, self.incarnation);
        if json {
            out::json(&json!({"event": "written-back", "file": self.path.display().to_string(), "bytes": changed}));
        } else {
            out::line(format!("wrote {changed} changed bytes of {} back to {}", self.len, self.path.display()));
        }
        Ok(())
    }

    /// Ranges of bytes, in whole blocks, in which memory and file differ. Beyond the file's end lie zeros.
    fn changed(&self) -> std::io::Result<Vec<(usize, usize)>> {
        // SAFETY: called after the export has ended.
        let bytes = unsafe { self.bytes() };
        let bar = bar("comparing", bytes.len() as u64);
        let mut on_disk = vec![0u8; STEP];
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (i, ours) in bytes.chunks(STEP).enumerate() {
            let start = i * STEP;
            let theirs = on_disk.get_mut(..ours.len()).unwrap_or_default();
            theirs.fill(0);
            read_up_to(&self.file, theirs, start as u64)?;
            for (b, (x, y)) in ours.chunks(BLOCK).zip(theirs.chunks(BLOCK)).enumerate() {
                if x == y {
                    continue;
                }
                let (from, to) = (start + b * BLOCK, start + b * BLOCK + x.len());
                match runs.last_mut() {
                    Some(last) if last.1 == from => last.1 = to,
                    _ => runs.push((from, to)),
                }
            }
            bar.inc(ours.len() as u64);
        }
        bar.finish_and_clear();
        Ok(runs)
    }

    /// Writes the journal. Without room for one the file is changed all the same: then a crash could leave it half
    /// changed, but what clients have stored is worth more than the order.
    fn keep(&self, journal: &Path, runs: &[(usize, usize)]) -> bool {
        // SAFETY: called after the export has ended.
        let bytes = unsafe { self.bytes() };
        match journal::write(journal, &self.file, bytes, runs) {
            Ok(()) => true,
            Err(e) => {
                let _ = std::fs::remove_file(journal);
                eprintln!("smc: warning: cannot write the journal {}: {e}; writing without one", journal.display());
                false
            }
        }
    }

    fn apply(&self, runs: &[(usize, usize)]) -> std::io::Result<()> {
        // SAFETY: called after the export has ended.
        let bytes = unsafe { self.bytes() };
        for (s, e) in runs {
            self.file.write_all_at(bytes.get(*s..*e).unwrap_or_default(), *s as u64)?;
        }
        self.file.sync_all()
    }
}

fn read_up_to(f: &File, mut buf: &mut [u8], mut at: u64) -> std::io::Result<()> {
    while !buf.is_empty() {
        match f.read_at(buf, at) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                buf = buf.get_mut(n..).unwrap_or_default();
                at += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
