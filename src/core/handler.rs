//! Where faults arrive: the SIGBUS and SIGSEGV handlers, and the thread that reads a userfaultfd.
//!
//! The handlers run with every signal blocked and call nothing that allocates, locks what an API call may hold, or
//! waits without a limit. A fault that is not ours goes where it would have gone without us.

use super::fault::Served;
use super::region::Region;
use super::tracker::Delivery;
use super::views;
use super::{delivery, disposition};
use crate::base::PAGE;
use crate::sys::Errno;
use crate::sys::clock::nap;
use crate::sys::event::readable;
use crate::sys::process::private_descriptors;
use crate::sys::signal;
use crate::sys::stack;
use crate::sys::sync::SignalsBlocked;
use crate::sys::uffd::{Msg, Uffd};
use std::os::fd::AsRawFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The signals that have our handler, as a mask; changed under INSTALL.
static INSTALLED: AtomicU64 = AtomicU64::new(0);
static INSTALL: Mutex<()> = Mutex::new(());

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
    if INSTALLED.load(SeqCst) & signal::bit(sig) != 0 {
        return Ok(());
    }
    stack::prepare()?;
    disposition::take_over(sig, on_signal)?;
    INSTALLED.fetch_or(signal::bit(sig), SeqCst);
    Ok(())
}

/// The kernel comes here. What is ours is done when `arrive` returns; for the rest this goes on in the program's handler, on
/// the kernel's frame and with the registers as the kernel sets them: the signal's number from the info, and rax zero.
#[unsafe(naked)]
extern "C" fn on_signal(sig: i32, info: *mut signal::Info, ctx: *mut signal::Context) {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "call {arrive}",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "mov r11, rax",
        "xor eax, eax",
        "test r11, r11",
        "jne 2f",
        "ret",
        "2:",
        "mov edi, dword ptr [rsi]",
        "jmp r11",
        ".cfi_endproc",
        arrive = sym arrive
    )
}

/// Serves what is ours; otherwise answers the program's handler that is to be called, or 0.
extern "C" fn arrive(sig: i32, info: *mut signal::Info, ctx: *mut signal::Context) -> usize {
    let signals = SignalsBlocked::in_handler();
    // SAFETY: the kernel gave us info; it carries an address for the signals of faults.
    let addr = unsafe { signal::fault_addr(info) };
    // SAFETY: as above.
    let from_kernel = unsafe { signal::is_fault(info) };
    // In a fork child the views are not there, and nobody serves them.
    let mine = from_kernel && disposition::is_owner();
    let served = stack::with_room(|| match sig {
        signal::SIGTRAP if mine && super::exact::after_step(&signals, ctx) => Some(Served::Retry),
        signal::SIGBUS | signal::SIGSEGV if mine => serve_fault(&signals, addr, ctx),
        _ => None,
    });
    match served {
        Some(Served::Retry) => return 0,
        Some(Served::Bus) if sig == signal::SIGSEGV => {
            // SAFETY: these are the kernel's arguments, and this handler returns.
            unsafe { delivery::as_bus(info, ctx) };
            return 0;
        }
        _ => {}
    }
    // SAFETY: these are the kernel's arguments; the caller returns or jumps to the answer.
    unsafe { delivery::to_program(&signals, info, ctx) }
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
