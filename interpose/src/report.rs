//! What the hooks say on stderr: why a `/smc/` name was refused, and at exit under `LIBSMC_LOG=debug` what they have done,
//! if they did anything. `LIBSMC_REPORT=FILE` adds the same as a line of JSON to a file.

use crate::{ctor, table};
use smc_engine::policy::Reason;
use smc_engine::sys::descriptor::{self, own};
use smc_engine::sys::errno::syscall;
use std::fmt::Write;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

/// Text without the heap: the process may be in any state at exit.
struct Line<const N: usize> {
    text: [u8; N],
    len: usize,
}

impl<const N: usize> Line<N> {
    const EMPTY: Line<N> = Line { text: [0; N], len: 0 };

    /// Writes it to a descriptor.
    fn put(&self, fd: &OwnedFd) {
        // SAFETY: the buffer holds len bytes; a file that cannot be written is the user's wish.
        let _ = unsafe {
            syscall(libc::SYS_write, [fd.as_raw_fd() as usize, self.text.as_ptr() as usize, self.len, 0, 0, 0])
        };
    }
}

impl<const N: usize> Write for Line<N> {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let room = self.text.get_mut(self.len..).unwrap_or(&mut []);
        for (to, from) in room.iter_mut().zip(s.bytes()) {
            *to = from;
            self.len += 1;
        }
        Ok(())
    }
}

fn say(text: std::fmt::Arguments<'_>) {
    let mut line = Line::<512>::EMPTY;
    // Cannot fail: what does not fit is cut.
    let _ = line.write_fmt(text);
    descriptor::to_stderr(line.text.get(..line.len).unwrap_or_default());
}

/// How much somebody must want to know to see a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Everybody who has not switched it off.
    Error,
    /// `LIBSMC_LOG=info` or `debug`.
    Info,
}

/// Writes one line, cut at 512 bytes.
pub fn log(level: Level, text: std::fmt::Arguments<'_>) {
    let is = |v| ctor::variable_is("LIBSMC_LOG", v);
    let said = match level {
        Level::Error => !is("off"),
        Level::Info => is("info") || is("debug"),
    };
    if said {
        say(format_args!("libsmc: {text}\n"));
    }
}

/// What is told when the process ends, if any hook acted.
pub fn at_exit() {
    if table::all().all(|h| h.hits.get() == 0) {
        return;
    }
    to_file();
    if ctor::variable_is("LIBSMC_LOG", "debug") {
        to_stderr();
    }
}

/// Room for a path.
const PATH: usize = 512;

/// `{"pid":N,"hooks":{"NAME":CALLS,..}}`: the hooks that acted, in one write, so that processes share a file.
fn to_file() {
    let mut path = [0; PATH];
    if !ctor::copy_variable("LIBSMC_REPORT", &mut path) {
        return;
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: path ends in NUL.
    let fd = unsafe { syscall(libc::SYS_open, [path.as_ptr() as usize, flags as usize, 0o666, 0, 0, 0]) };
    // SAFETY: the kernel just gave us this descriptor; nobody else knows it.
    let Some(fd) = fd.ok().and_then(|fd| unsafe { own(fd) }.ok()) else { return };
    let mut line = Line::<8192>::EMPTY;
    let _ = write!(line, "{{\"pid\":{},\"hooks\":{{", std::process::id());
    let mut comma = "";
    for h in table::all().filter(|h| h.hits.get() != 0) {
        let _ = write!(line, "{comma}\"{}\":{}", h.name(), h.hits.get());
        comma = ",";
    }
    let _ = line.write_str("}}\n");
    line.put(&fd);
    // Given back by system call: the close hook has nothing to do with it.
    crate::paths::close_raw(fd.into_raw_fd());
}

/// One line per hook that acted and per reason for passing through.
fn to_stderr() {
    for h in table::all().filter(|h| h.hits.get() != 0) {
        say(format_args!("libsmc: hook {} ({:?}): {} calls\n", h.name(), h.family, h.hits.get()));
    }
    for r in Reason::ALL {
        say(format_args!("libsmc: passed through, {}: {} calls\n", r.name(), table::REASONS.get(*r)));
    }
    for h in table::all().filter(|h| h.required && h.next().is_null()) {
        say(format_args!("libsmc: hook {} ({:?}): this libc does not have the function\n", h.name(), h.family));
    }
}
