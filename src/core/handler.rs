//! Where faults arrive: the SIGBUS and SIGSEGV handlers, and the thread that reads a userfaultfd.
//!
//! The handlers run with every signal blocked and call nothing that allocates, locks what an API call may hold, or
//! waits without a limit. A fault that is not ours goes where it would have gone without us.

use super::fault::Served;
use super::region::Region;
use super::tracker::Delivery;
use super::views;
use crate::base::PAGE;
use crate::sys::Errno;
use crate::sys::clock::nap;
use crate::sys::event::readable;
use crate::sys::process::private_descriptors;
use crate::sys::signal::{self, Action};
use crate::sys::stack;
use crate::sys::sync::SignalsBlocked;
use crate::sys::thread::ForkMark;
use crate::sys::uffd::{Msg, Uffd};
use std::cell::UnsafeCell;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock};

/// The action a signal had before ours, readable in a handler.
struct Previous {
    installed: AtomicBool,
    action: UnsafeCell<Action>,
}

// SAFETY: `action` is written once, under INSTALL and before `installed` is set; it is read only after that.
unsafe impl Sync for Previous {}

static PREVIOUS: [Previous; 3] =
    [const { Previous { installed: AtomicBool::new(false), action: UnsafeCell::new(Action::DEFAULT) } }; 3];
static INSTALL: Mutex<()> = Mutex::new(());
/// The process whose faults are served.
static PROCESS: OnceLock<ForkMark> = OnceLock::new();

fn slot_of(sig: i32) -> Option<&'static Previous> {
    match sig {
        signal::SIGBUS => PREVIOUS.first(),
        signal::SIGSEGV => PREVIOUS.get(1),
        signal::SIGTRAP => PREVIOUS.get(2),
        _ => None,
    }
}

/// Makes sure the handler that `delivery` needs is installed; it stays for the life of the process.
pub fn install(delivery: Delivery) -> Result<(), Errno> {
    match delivery {
        Delivery::Thread => Ok(()),
        Delivery::Sigbus => install_signal(signal::SIGBUS),
        Delivery::Sigsegv => install_signal(signal::SIGSEGV),
    }
}

/// Makes sure our handler for `sig` is installed.
pub(super) fn install_signal(sig: i32) -> Result<(), Errno> {
    let _guard = INSTALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some(slot) = slot_of(sig) else { return Ok(()) };
    if slot.installed.load(SeqCst) {
        return Ok(());
    }
    PROCESS.get_or_init(ForkMark::new);
    let old = signal::get(sig)?;
    // SAFETY: under INSTALL, and no reader before `installed` is set.
    unsafe { *slot.action.get() = old };
    stack::prepare()?;
    slot.installed.store(true, SeqCst);
    signal::set(sig, &Action::handle(on_signal)).map(drop)
}

extern "C" fn on_signal(sig: i32, info: *mut signal::Info, ctx: *mut signal::Context) {
    let signals = SignalsBlocked::in_handler();
    // SAFETY: the kernel gave us info; it carries an address for the signals this handler is installed for.
    let addr = unsafe { signal::fault_addr(info) };
    // SAFETY: as above.
    let from_kernel = unsafe { signal::is_fault(info) };
    // In a fork child the views are not there, and nobody serves them.
    let mine = PROCESS.get().is_some_and(|p| !p.in_child());
    let served = stack::with_room(|| match sig {
        signal::SIGTRAP if mine && super::exact::after_step(&signals, ctx) => Some(Served::Retry),
        signal::SIGTRAP => None,
        _ if from_kernel && mine => serve_fault(&signals, addr, ctx),
        _ => None,
    });
    match served {
        Some(Served::Retry) => return,
        Some(Served::Bus) if sig == signal::SIGSEGV => {
            // SAFETY: these are the kernel's arguments.
            return unsafe { signal::turn_into_bus(info, ctx) };
        }
        _ => {}
    }
    pass_on(sig, info, ctx, from_kernel);
}

/// Serves an access at `addr`; `None` when it is not ours to serve.
fn serve_fault(signals: &SignalsBlocked, addr: usize, ctx: *mut signal::Context) -> Option<Served> {
    let view = views::lookup(addr)?;
    // SAFETY: ctx is the kernel's context of this very fault.
    let write = unsafe { signal::is_write(ctx) };
    if write && !view.write {
        // A store to a read-only view fails as it would in any read-only mapping.
        return None;
    }
    let (page, region) = (view.page_at(addr), view.region());
    Some(match write && region.is_exact() {
        true => region.serve_store(signals, &view, page, ctx),
        false => region.serve(signals, &view, page, write),
    })
}

/// What would have happened without us.
fn pass_on(sig: i32, info: *mut signal::Info, ctx: *mut signal::Context, from_kernel: bool) {
    let Some(slot) = slot_of(sig) else { return };
    // SAFETY: this handler runs only after `action` was written for good.
    let old = unsafe { *slot.action.get() };
    // SAFETY: these are the kernel's arguments.
    if unsafe { old.chain(sig, info, ctx) } {
        return;
    }
    if old.is_ignored() && !from_kernel {
        return;
    }
    // Default (or ignored, which the kernel treats as default for a fault): let the signal do its work. An access
    // faults again on return; a trap is behind its instruction, and a signal somebody sent is gone: they are sent again.
    let _ = signal::set(sig, &Action::DEFAULT);
    if !from_kernel || sig == signal::SIGTRAP {
        signal::raise(sig);
    }
}

/// Body of the thread that serves a region's faults.
pub fn serve_faults(region: &Region) {
    let Some(uffd) = region.tracker.uffd() else { return };
    let stop = region.keeper.stop_fd();
    let [fd, pagemap] = region.tracker.raw_fds();
    let _ = private_descriptors(&[fd, pagemap, stop, region.file.as_raw_fd()]);
    let mut msgs = [Msg::default(); 16];
    loop {
        let n = match uffd.read(&mut msgs) {
            Ok(n) => n,
            Err(Errno::AGAIN) => match readable([fd, stop], None) {
                Ok([_, true]) => return,
                _ => continue,
            },
            Err(_) => return,
        };
        let batch = msgs.get(..n).unwrap_or(&[]);
        for (i, m) in batch.iter().enumerate() {
            // Two threads on one page send two messages; one answer wakes both.
            let again =
                batch.get(..i).unwrap_or(&[]).iter().any(|b| b.addr() == m.addr() && b.is_write() == m.is_write());
            if m.is_fault() && !again {
                serve_message(uffd, m);
            }
        }
    }
}

fn serve_message(uffd: &Uffd, m: &Msg) {
    let signals = SignalsBlocked::in_handler();
    match views::lookup(m.addr()) {
        Some(view) => _ = view.region().serve(&signals, &view, view.page_at(m.addr()), m.is_write()),
        // The view is going away: the toucher tries again, and finds that out.
        None => nap(50_000),
    }
    let _ = uffd.wake(m.addr() & !(PAGE - 1), PAGE);
}
