//! Start and end of a program's use of the library; the back end in use.

use super::attr;
use super::call::{Call, call, copy_text, outcome, with_text};
use super::handle::Table;
use super::types::{smc_active, smc_config, smc_context, smc_status, smc_trial_fn};
use crate::base::config::{Backend, Config, LogLevel, variable};
use crate::base::{Error, Result, Status};
use crate::core::engine::Engine;
use crate::core::hooks;
use crate::sys::process::say;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// What smc_init made.
pub(super) struct Context {
    /// Default of its maps in milliseconds; 0: the engine's.
    pub wait_ms: u64,
    /// Default of its maps in bytes; 0: the engine's.
    pub resident_limit: u64,
    /// Peers, regions and exports made with it that are still open.
    open: AtomicUsize,
}

/// Belongs to every object made with a context: a context with children stays.
pub(super) struct Child(Arc<Context>);

impl Child {
    /// One more.
    pub fn of(context: &Arc<Context>) -> Child {
        context.open.fetch_add(1, SeqCst);
        Child(context.clone())
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

static CONTEXTS: Table<Context> = Table::new(1);
/// Some process in our line of ancestors has called smc_init.
static STARTED: AtomicBool = AtomicBool::new(false);

/// OK in the process that started the engine. Decided without a lock: in a fork child none can be trusted.
pub(super) fn alive(c: Call) -> Result<()> {
    if Engine::running().is_some() {
        return Ok(());
    }
    if STARTED.load(SeqCst) {
        let e = Error::of(Status::FORKED, format!("call {}", c.0));
        return Err(e.remedy("use the object in the process that made it, or exec first"));
    }
    Err(c.bad("smc_init has not been called"))
}

/// The engine; [`alive`] has seen it.
pub(super) fn engine(c: Call) -> Result<&'static Engine> {
    Engine::running().ok_or_else(|| c.bad("smc_init has not been called"))
}

/// The context behind a handle.
pub(super) fn find(c: Call, ctx: *const smc_context) -> Result<Arc<Context>> {
    CONTEXTS.get(ctx).ok_or_else(|| c.bad("`ctx` is not an open context"))
}

const FAULTS: [(u32, Backend); 4] =
    [(1, Backend::Thread), (2, Backend::Sigbus), (3, Backend::Sync), (4, Backend::Mprotect)];
const LOGS: [(u32, LogLevel); 4] =
    [(1, LogLevel::Off), (2, LogLevel::Error), (3, LogLevel::Info), (4, LogLevel::Debug)];

/// What a program asked for.
#[derive(Default)]
struct Wish {
    fault: Option<Backend>,
    log: Option<LogLevel>,
    wait_ms: u64,
    resident_limit: u64,
}

/// # Safety
/// As for [`smc_init`].
unsafe fn wish(c: Call, config: *const smc_config) -> Result<Wish> {
    if config.is_null() {
        return Ok(Wish::default());
    }
    // SAFETY: the caller vouches for it.
    let a = unsafe { attr::read(c, config, "config") }?;
    Ok(Wish {
        fault: c.choice(a.fault, "config.fault", &FAULTS)?,
        log: c.choice(a.log, "config.log", &LOGS)?,
        wait_ms: c.within(a.wait_ms, "config.wait_ms", 1, 3_600_000)?,
        resident_limit: c.within(a.resident_limit, "config.resident_limit", 1 << 16, u64::MAX)?,
    })
}

fn settings(w: &Wish) -> Config {
    // SAFETY: reads the loader's copy of the auxiliary vector.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    // A set-user-id program takes no orders from its caller's environment.
    let mut config = Config::parse(|name| variable(name).filter(|_| !secure));
    config.backend = w.fault.or(config.backend);
    config.log = w.log.unwrap_or(config.log);
    if config.log >= LogLevel::Error {
        for text in &config.complaints {
            say(text);
        }
    }
    config
}

/// The engine of this process runs with other settings already.
fn conflict(engine: &Engine, w: &Wish) -> Option<Error> {
    let busy = |what: &str| {
        Some(Error::new(Status::BUSY, "call smc_init", format!("the process already runs with another `{what}`")))
    };
    if w.fault.is_some_and(|f| engine.config().backend != Some(f) && engine.choice().backend != Some(f)) {
        return busy("fault");
    }
    if w.log.is_some_and(|l| engine.config().log != l) {
        return busy("log");
    }
    None
}

/// Opens a context: a program's, or a library's, use of libsmc. Every other object is made with one.
///
/// `config` NULL takes all settings from the environment (LIBSMC_FAULT, LIBSMC_WAIT, LIBSMC_RESIDENT, LIBSMC_LOG; the
/// environment is not read in set-user-id programs). A process may have many contexts; they share one engine, whose `fault`
/// and `log` are those of the first: asking for others later is BUSY. `wait_ms` and `resident_limit` are per context. Starts
/// no thread and opens no descriptor: the first export or map does. Errors: INVALID_ARGUMENT, BUSY, FORKED (a child of
/// a process that used libsmc; exec first), NO_RESOURCES. Any thread. The context is yours until smc_shutdown().
///
/// # Safety
/// `config` is NULL or holds `struct_size` readable bytes; `ctx` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_init(config: *const smc_config, ctx: *mut *mut smc_context) -> smc_status {
    let c = Call("smc_init");
    let open = || {
        let out = c.out(ctx, "ctx")?;
        // SAFETY: the caller vouches for it.
        let w = unsafe { wish(c, config) }?;
        let engine = Engine::get(|| settings(&w))?;
        STARTED.store(true, SeqCst);
        if let Some(e) = conflict(engine, &w) {
            return Err(e);
        }
        let context = Context { wait_ms: w.wait_ms, resident_limit: w.resident_limit, open: AtomicUsize::new(0) };
        let handle =
            CONTEXTS.insert(Arc::new(context)).ok_or_else(|| Error::of(Status::NO_RESOURCES, "call smc_init"))?;
        // SAFETY: the caller vouches for it.
        unsafe { out.set(handle) };
        Ok(())
    };
    outcome(open())
}

/// Closes a context. BUSY, and nothing done, while a peer, region or export made with it is open; INVALID_ARGUMENT when it is
/// not an open context; FORKED in a fork child. Regions that a preloaded program has open through /smc/ paths are not
/// concerned.
#[unsafe(no_mangle)]
pub extern "C" fn smc_shutdown(ctx: *mut smc_context) -> smc_status {
    call("smc_shutdown", |c| {
        let context = find(c, ctx)?;
        let open = context.open.load(SeqCst);
        if open > 0 {
            let e = Error::new(
                Status::BUSY,
                "call smc_shutdown",
                format!("{open} peers, regions or exports made with the context are open"),
            );
            return Err(e.remedy("close them first"));
        }
        CONTEXTS.remove(ctx).map(drop).ok_or_else(|| c.bad("`ctx` is not an open context"))
    })
}

/// Whether this library's hooks stand before libc's functions in this process: enum smc_active.
///
/// To ask without needing the library at all, declare it weak:
///     extern uint32_t smc_is_active(void) __attribute__((weak));
///     if (smc_is_active && smc_is_active() == SMC_ACTIVE_YES) ...
/// Needs no context. Any thread; not in a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn smc_is_active() -> u32 {
    let active = match hooks::mode() {
        hooks::Mode::Absent => smc_active::No,
        hooks::Mode::Disabled => smc_active::Disabled,
        hooks::Mode::Active => smc_active::Yes,
    };
    active as u32
}

/// The fault back end in use, as text: its name ("thread", "sigbus", "sync", "mprotect") and why it was chosen.
///
/// The first call tries them, which takes some milliseconds. Each text is cut to fit and ends in NUL; a buffer may be NULL
/// when its length is 0. NO_BACKEND when none works: `reason` then says why, and `name` is empty. Any thread.
///
/// # Safety
/// `name` is writable for `name_len` bytes, `reason` for `reason_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_backend(
    ctx: *mut smc_context,
    name: *mut c_char,
    name_len: usize,
    reason: *mut c_char,
    reason_len: usize,
) -> smc_status {
    call("smc_backend", |c| {
        find(c, ctx)?;
        if (name.is_null() && name_len > 0) || (reason.is_null() && reason_len > 0) {
            return Err(c.bad("a buffer is NULL and its length is not 0"));
        }
        let choice = engine(c)?.choice();
        let why = choice.reason();
        // SAFETY: the caller vouches for it.
        unsafe { copy_text(choice.backend.map_or("", Backend::name).as_bytes(), name, name_len) };
        // SAFETY: the caller vouches for it.
        unsafe { copy_text(why.as_bytes(), reason, reason_len) };
        if choice.backend.is_some() {
            Ok(())
        } else {
            Err(Error::new(Status::NO_BACKEND, "choose a fault back end", why).remedy("run `smc doctor`"))
        }
    })
}

/// Calls `each` for every back end that was tried, in order. The self-test ends with the first that works.
///
/// # Safety
/// `each` may be called with `user`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smc_backend_trials(
    ctx: *mut smc_context,
    each: smc_trial_fn,
    user: *mut c_void,
) -> smc_status {
    call("smc_backend_trials", |c| {
        find(c, ctx)?;
        let each = each.ok_or_else(|| c.bad("`each` is NULL"))?;
        let choice = engine(c)?.choice();
        for t in &choice.trials {
            let why = t.outcome.as_ref().err();
            let go_on = with_text(t.backend.name(), |name| {
                let text = why.map(|w| super::error::c_text(w));
                let p = text.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
                // SAFETY: the caller vouches for the function; the strings live during the call.
                unsafe { each(name, p, user) }
            });
            if go_on != 0 {
                break;
            }
        }
        Ok(())
    })
}
