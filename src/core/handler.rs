//! Where faults arrive: the SIGBUS and SIGSEGV handlers, and the thread that reads a userfaultfd.
//!
//! The handlers run with every signal blocked and call nothing that allocates, locks what an API call may hold, or
//! waits without a limit. A fault that is not ours goes where it would have gone without us.

use super::fault::Served;
use super::region::Region;
use super::tracker::Delivery;
use super::views;
use crate::sys::Errno;
use crate::sys::clock::nap;
use crate::sys::event::readable;
use crate::sys::process::private_descriptors;
use crate::sys::signal::{self, Action};
use crate::sys::stack;
use crate::sys::sync::SignalsBlocked;
use crate::sys::uffd::Msg;
use std::cell::UnsafeCell;
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

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
    let ours = stack::with_room(|| match sig {
        signal::SIGTRAP => super::exact::after_step(ctx),
        _ => from_kernel && serve_fault(&signals, addr, ctx),
    });
    if ours {
        return;
    }
    pass_on(sig, info, ctx, from_kernel);
}

/// True when the access at `addr` is to be tried again.
fn serve_fault(signals: &SignalsBlocked, addr: usize, ctx: *mut signal::Context) -> bool {
    let Some(view) = views::lookup(addr) else { return false };
    // SAFETY: ctx is the kernel's context of this very fault.
    let write = unsafe { signal::is_write(ctx) };
    let (page, region) = (view.page_at(addr), view.region());
    let served = if write && region.is_exact() {
        region.serve_store(signals, &view, page, ctx)
    } else {
        region.serve(signals, &view, page, write)
    };
    served == Served::Retry
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
    // Default (or ignored, which the kernel treats as default for a fault): let the signal do its work. The access
    // faults again on return; a signal somebody sent is sent again.
    let _ = signal::set(sig, &Action::DEFAULT);
    if !from_kernel {
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
                serve_message(m);
            }
        }
    }
}

fn serve_message(m: &Msg) {
    let signals = SignalsBlocked::in_handler();
    let Some(view) = views::lookup(m.addr()) else {
        // The view is just coming or going: let the toucher try again.
        nap(50_000);
        return;
    };
    let page = view.page_at(m.addr());
    let region = view.region();
    let _ = region.serve(&signals, &view, page, m.is_write());
    if let Some(u) = region.tracker.uffd() {
        let _ = u.wake(view.addr_of(page), crate::base::PAGE);
    }
}
