//! What the hooks say on stderr: why a `/smc/` name was refused, and at exit under `LIBSMC_LOG=debug` what they have done,
//! if they did anything.

use crate::{ctor, table};
use smc_engine::policy::Reason;
use smc_engine::sys::errno::syscall;
use std::fmt::Write;

/// Lines on stderr, without the heap: the process may be in any state at exit.
struct Line {
    text: [u8; 512],
    len: usize,
}

impl Write for Line {
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
    let mut line = Line { text: [0; 512], len: 0 };
    // Cannot fail: what does not fit is cut.
    let _ = line.write_fmt(text);
    // SAFETY: the buffer holds len bytes; a closed stderr is the application's wish.
    let _ = unsafe { syscall(libc::SYS_write, [2, line.text.as_ptr() as usize, line.len, 0, 0, 0]) };
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

/// One line per hook that acted and per reason for passing through.
pub fn at_exit() {
    if !ctor::variable_is("LIBSMC_LOG", "debug") || table::all().all(|h| h.hits.get() == 0) {
        return;
    }
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
