//! Threads of the C library, made without std: what std keeps for its own threads is thread-local memory that every thread
//! of the program would pay for.

use super::errno::{Errno, syscall};
use libc::{c_int, c_void, pthread_attr_t, pthread_t};
use std::mem::MaybeUninit;

/// Largest stack that is tried.
const MAX_STACK: usize = 64 << 20;

/// A running thread. Dropping it lets the thread go on by itself.
#[derive(Debug)]
pub struct Pthread(pthread_t);

impl Pthread {
    /// Starts a thread that runs `body`, named `name` (shown by `ps -L`; at most 15 bytes are kept). It inherits the
    /// caller's signal mask. `stack` is what `body` needs, in bytes; the C library takes the program's thread-local memory
    /// out of the same piece, so more is asked for where that leaves too little. Allocates.
    ///
    /// `AGAIN` when the process may not have another thread.
    pub fn start<F: FnOnce() + Send + 'static>(name: &str, stack: usize, body: F) -> Result<Pthread, Errno> {
        let mut short = [0u8; 16];
        short.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
        let run = Box::into_raw(Box::new(move || {
            set_name(&short);
            body();
        }));
        create(stack, enter_of(&run), run.cast()).inspect_err(|_| {
            // SAFETY: no thread was made, so the box is still ours alone.
            drop(unsafe { Box::from_raw(run) });
        })
    }

    /// Waits until it has ended.
    pub fn join(self) {
        // SAFETY: the thread was made joinable, and `self` is the only one to know it.
        let _ = unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
        std::mem::forget(self);
    }
}

impl Drop for Pthread {
    fn drop(&mut self) {
        // SAFETY: as in `join`, which does not come here.
        let _ = unsafe { libc::pthread_detach(self.0) };
    }
}

type Enter = extern "C" fn(*mut c_void) -> *mut c_void;

/// The entry of a thread whose body is a box of this type.
fn enter_of<F: FnOnce() + Send + 'static>(_: &*mut F) -> Enter {
    extern "C" fn enter<F: FnOnce()>(body: *mut c_void) -> *mut c_void {
        // SAFETY: `start` gave this thread the box that it made, and keeps no hand on it.
        let body = unsafe { Box::from_raw(body.cast::<F>()) };
        body();
        std::ptr::null_mut()
    }
    enter::<F>
}

fn create(stack: usize, enter: Enter, argument: *mut c_void) -> Result<Pthread, Errno> {
    let mut size = stack.next_power_of_two().max(libc::PTHREAD_STACK_MIN);
    loop {
        match try_create(size, enter, argument) {
            // The program's thread-local memory fills the stack.
            Err(Errno(libc::EINVAL)) if size < MAX_STACK => size *= 4,
            r => return r,
        }
    }
}

fn try_create(size: usize, enter: Enter, argument: *mut c_void) -> Result<Pthread, Errno> {
    let mut attr = MaybeUninit::<pthread_attr_t>::uninit();
    // SAFETY: attr is room for the attributes.
    said(unsafe { libc::pthread_attr_init(attr.as_mut_ptr()) })?;
    // SAFETY: initialised above.
    let sized = said(unsafe { libc::pthread_attr_setstacksize(attr.as_mut_ptr(), size) });
    let mut thread = MaybeUninit::<pthread_t>::uninit();
    let made = sized.and_then(|()| {
        // SAFETY: `enter` takes `argument`, says `start`; attr is initialised and thread is room for the answer.
        said(unsafe { libc::pthread_create(thread.as_mut_ptr(), attr.as_ptr(), enter, argument) })
    });
    // SAFETY: initialised above, and not used any more.
    let _ = unsafe { libc::pthread_attr_destroy(attr.as_mut_ptr()) };
    made?;
    // SAFETY: pthread_create has answered 0, so it has written the thread.
    Ok(Pthread(unsafe { thread.assume_init() }))
}

/// What a function says that answers an error number.
fn said(number: c_int) -> Result<(), Errno> {
    if number == 0 { Ok(()) } else { Err(Errno(number)) }
}

/// Names the calling thread; `name` ends in NUL.
fn set_name(name: &[u8; 16]) {
    // SAFETY: name is 16 readable bytes, the last of which is NUL.
    let _ = unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    #[test]
    fn runs_once_with_its_name_and_is_joined() {
        let runs = Arc::new(AtomicU32::new(0));
        let seen = runs.clone();
        let t = Pthread::start("smc-a-name-too-long", 64 << 10, move || {
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            seen.fetch_add(if name == "smc-a-name-too-\n" { 1 } else { 100 }, SeqCst);
        });
        t.unwrap().join();
        assert_eq!(runs.load(SeqCst), 1);
        assert_eq!(Arc::strong_count(&runs), 1, "the body was not dropped");
    }

    #[test]
    fn a_body_that_never_ran_is_dropped() {
        let held = Arc::new(());
        let mine = held.clone();
        // No machine has room for such a stack.
        let r = Pthread::start("smc-test", 1 << 60, move || drop(mine));
        assert!(r.is_err());
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
