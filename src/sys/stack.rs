//! Stacks for fault handlers. A program's alternative signal stack may be as small as the kernel allows, and a
//! goroutine's smaller still; a handler that fetches and decodes wants more. So handlers run on stacks of our own, taken
//! from a pool that is made before the first handler is installed.

use super::errno::Errno;
use super::mem::{self, Mapping};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Handlers that may run at once on pooled stacks; beyond that a handler stays where the kernel put it.
const STACKS: usize = 64;
/// Bytes of one stack. Touched only as far as it is used.
const SIZE: usize = 64 << 10;
/// Unmapped below each stack: an overflow dies at once instead of corrupting its neighbour.
const GUARD: usize = 4096;

static POOL: OnceLock<Mapping> = OnceLock::new();
static BASE: AtomicUsize = AtomicUsize::new(0);
static BUSY: [AtomicBool; STACKS] = [const { AtomicBool::new(false) }; STACKS];

/// Makes the pool. Not async-signal-safe; may be called again.
pub fn prepare() -> Result<(), Errno> {
    if POOL.get().is_some() {
        return Ok(());
    }
    let pool = Mapping::anonymous(STACKS * (SIZE + GUARD), mem::NONE)?;
    for i in 0..STACKS {
        pool.protect(i * (SIZE + GUARD) + GUARD, SIZE, mem::RW)?;
    }
    let pool = POOL.get_or_init(|| pool);
    BASE.store(pool.addr(), SeqCst);
    Ok(())
}

/// Calls `f` on a pooled stack, or right here when none is free. Async-signal-safe.
pub fn with_room<F: FnOnce() -> R, R>(f: F) -> R {
    let base = BASE.load(SeqCst);
    let free = |b: &AtomicBool| b.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
    let Some(i) = (base != 0).then(|| BUSY.iter().position(free)).flatten() else { return f() };
    let mut job = Job { f: Some(f), result: None };
    let top = base + (i + 1) * (SIZE + GUARD);
    // SAFETY: the stack is ours alone until BUSY is cleared; `run` gets the job it expects and does not unwind (the
    // library is built with panic=abort, and nothing that runs here panics).
    unsafe { switch(std::ptr::from_mut(&mut job).cast(), run::<F, R>, top) };
    if let Some(b) = BUSY.get(i) {
        b.store(false, SeqCst);
    }
    match job.result {
        Some(r) => r,
        None => unreachable_result(),
    }
}

struct Job<F, R> {
    f: Option<F>,
    result: Option<R>,
}

extern "C" fn run<F: FnOnce() -> R, R>(job: *mut u8) {
    // SAFETY: `with_room` passes a live Job of exactly this type.
    let job = unsafe { &mut *job.cast::<Job<F, R>>() };
    job.result = job.f.take().map(|f| f());
}

/// `run` always leaves a result; this is only the other arm of the match.
fn unreachable_result() -> ! {
    std::process::abort()
}

/// Calls `f(arg)` with the stack pointer at `top` (16-byte aligned).
#[unsafe(naked)]
unsafe extern "C" fn switch(arg: *mut u8, f: extern "C" fn(*mut u8), top: usize) {
    std::arch::naked_asm!("push rbp", "mov rbp, rsp", "mov rsp, rdx", "call rsi", "mov rsp, rbp", "pop rbp", "ret")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_elsewhere_and_nests() {
        prepare().unwrap();
        let there = with_room(|| {
            let (local, inner) = (3u64, with_room(|| 4u64));
            (std::ptr::from_ref(&local) as usize, inner)
        });
        assert_eq!(there.1, 4);
        let pool = BASE.load(SeqCst)..BASE.load(SeqCst) + STACKS * (SIZE + GUARD);
        assert!(pool.contains(&there.0));
        assert!(BUSY.iter().all(|b| !b.load(SeqCst)), "every stack is given back");
    }
}
