//! Load and exit.
//!
//! The library is initialised before everything else in the process (`-z initfirst`), libc included: nothing may be
//! called that libc's own start prepares, and `environ` is still empty. So the constructor copies our variables from the
//! `envp` argument, takes out of it what the program is not to see, and does nothing else. It starts no thread and opens
//! nothing.

use crate::children::{self, Environment};
use libc::{c_char, c_int};
use smc_engine::base::config::{self, Config};
use smc_engine::core::engine::Engine;
use smc_engine::core::hooks;
use smc_engine::sys::descriptor;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed};

/// Room for all `LIBSMC_` variables together; what does not fit is ignored.
const ROOM: usize = 4096;
static ENV: [AtomicU8; ROOM] = [const { AtomicU8::new(0) }; ROOM];
static USED: AtomicUsize = AtomicUsize::new(0);
/// Read by assembly in `dl`.
pub static DISABLED: AtomicBool = AtomicBool::new(false);

/// `LIBSMC_DISABLE=1`: every hook passes through.
pub fn disabled() -> bool {
    DISABLED.load(Relaxed)
}

/// The engine's settings, from the environment the process was started with.
pub fn config() -> Config {
    Config::parse(variable)
}

/// Value of an `LIBSMC_` variable as it was at start.
fn variable(name: &str) -> Option<String> {
    let used = USED.load(Relaxed);
    let bytes: Vec<u8> = ENV.iter().take(used).map(|b| b.load(Relaxed)).collect();
    let mut lines = bytes.split(|b| *b == 0);
    let value = lines.find_map(|l| l.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Where the value of a variable starts in ENV. Does not allocate.
fn find(name: &str) -> Option<usize> {
    let want = || name.bytes().chain(*b"=");
    let begins = |i: &usize| *i == 0 || ENV.get(i - 1).is_some_and(|b| b.load(Relaxed) == 0);
    let named = |i: &usize| want().zip(ENV.iter().skip(*i)).all(|(w, b)| w == b.load(Relaxed));
    (0..USED.load(Relaxed)).filter(begins).find(named).map(|i| i + name.len() + 1)
}

/// True when a variable had exactly this value at start. Does not allocate.
pub fn variable_is(name: &str, value: &str) -> bool {
    let want = value.bytes().chain(*b"\0");
    find(name).is_some_and(|at| want.zip(ENV.iter().skip(at)).all(|(w, b)| w == b.load(Relaxed)))
}

/// Copies a variable's value as it was at start, NUL-terminated; false when it was not set or does not fit. Does not
/// allocate.
pub fn copy_variable(name: &str, to: &mut [u8]) -> bool {
    let Some(at) = find(name) else { return false };
    for (to, from) in to.iter_mut().zip(ENV.iter().skip(at)) {
        *to = from.load(Relaxed);
        if *to == 0 {
            return true;
        }
    }
    false
}

/// Appends one `NAME=VALUE` with its NUL. The strings on the stack are not kept: some programs overwrite them.
fn save(line: &CStr) {
    let bytes = line.to_bytes_with_nul();
    let at = USED.load(Relaxed);
    if at + bytes.len() > ROOM {
        return;
    }
    for (to, from) in ENV.iter().skip(at).zip(bytes) {
        to.store(*from, Relaxed);
    }
    USED.store(at + bytes.len(), Relaxed);
}

extern "C" fn start(_argc: c_int, _argv: *const *const c_char, envp: *const *const c_char) {
    smc_engine::core::coverage::register(&crate::selftest::PROVIDER);
    descriptor::note_stderr();
    // SAFETY: reads the loader's copy of the auxiliary vector.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // A set-user-id program takes no orders from its caller's environment.
    if secure || envp.is_null() {
        return;
    }
    // SAFETY: the loader passes the environment, which libc has not looked at yet; no other thread exists.
    let mut env = unsafe { Environment::new(envp.cast_mut()) };
    env.lines().filter(|l| ours(l.to_bytes())).for_each(save);
    if variable_is("LIBSMC_DISABLE", "1") {
        DISABLED.store(true, Relaxed);
        hooks::disable();
    }
    if env.restore() {
        // The C API asks for what is not in the environment any more.
        config::given_at_start(variable);
    } else if variable_is("LIBSMC_CHILDREN", "clean") {
        env.forget_library(b"LIBSMC_CHILDREN=");
    }
}

/// A line that is a setting, and not bookkeeping of `smc run`.
fn ours(line: &[u8]) -> bool {
    line.starts_with(b"LIBSMC_") && !line.starts_with(children::WAS) && line != children::MARK
}

extern "C" fn end() {
    // libc empties its buffers after this: too late for what is written into a region.
    crate::stdio::flush_all();
    if let Some(engine) = Engine::running() {
        // Nobody is left to be told: the engine has said on stderr what was lost.
        let _ = engine.release_all();
    }
    crate::report::at_exit();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
