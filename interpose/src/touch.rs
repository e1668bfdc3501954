//! System calls of the application whose buffers lie in a view.
//!
//! With the `thread` back end the kernel waits for an absent page as it does for any other. With the others it answers
//! EFAULT for one, and with `sync` and `mprotect` also for a clean page that it would write. So the buffers of a call are
//! touched from here before it, which brings the pages in as any load or store does. That comes first and not after a
//! failure, because many calls give something away with the call that fails: a datagram, a connection, an exit status, the
//! value of an eventfd: those get copies ([`crate::bounce`]). If another call still answers EFAULT (a long buffer, or a page that
//! was driven out meanwhile) the buffers are touched again and the call is made once more.
//!
//! Only addresses the engine knows are touched, and what the application's structures say is copied by the kernel: a
//! truly bad address still gets its EFAULT.

use crate::blocking::Frame;
use crate::bounce::{self, Nested};
use crate::convert::{Failure, errno, set_errno};
use crate::table::Hook;
use libc::{c_char, c_int, c_void, iovec};
use smc_engine::base::PAGE;
use smc_engine::core::engine::Engine;
use smc_engine::core::{spans, views};
use smc_engine::sys::errno::syscall;
use smc_engine::sys::process::read_own;
use std::mem::MaybeUninit;

/// What the kernel will do with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Read it.
    Source,
    /// Write it, perhaps less than all of it.
    Target,
    /// Write all of it, as far as can be known before.
    Filled,
}

/// Receives the buffers of a call: address, bytes, what the kernel does with them.
pub type Each<'a> = &'a mut dyn FnMut(usize, usize, Use);

/// As much of a buffer that may stay empty is touched before a call. No datagram of a usual size is longer.
const TARGET_MOST: usize = 1 << 20;
/// Most calls of one hook: with every one the pages have gone again before the kernel came to them.
const TRIES: u32 = 16;
/// Most passes over the buffers before a call.
const PASSES: usize = 4;
/// Most entries of a list of buffers or messages.
pub const LIST: usize = 1024;

/// True when views are there at all, and this is the process that has them.
pub fn any_view(start: usize, len: usize) -> bool {
    views::any_in(start, len) && Engine::running().is_some()
}

/// As [`before`], for a call that gives something away when it fails, if `gives` says so: it gets copies of the buffers, and only
/// what has none is touched.
pub fn before_once(
    hook: &'static Hook,
    f: &mut Frame,
    nested: Nested,
    gives: impl Fn(&Frame) -> bool,
    list: impl Fn(&Frame, Each),
) {
    let waits = !views::fault_in_calls() || Engine::running().is_none();
    // Asked first: nearly every call has its buffers elsewhere, and `gives` may take a system call.
    if waits || !meets(f, &list) {
        return;
    }
    if !gives(f) || !bounce::begin(hook, f, nested, &list) {
        before(hook, f, list);
    }
}

/// True when one of the buffers lies in a view.
fn meets(f: &Frame, list: impl Fn(&Frame, Each)) -> bool {
    let mut any = false;
    if any_view(0, usize::MAX) {
        list(f, &mut |at, len, _| any |= len != 0 && any_view(at, len));
    }
    any
}

/// Before a call: touches the buffers that `list` names.
pub fn before(hook: &'static Hook, f: &Frame, list: impl Fn(&Frame, Each)) {
    if views::fault_in_calls() && Engine::running().is_some() {
        if touched(f, list) {
            hook.hits.hit();
        }
        set_errno(f.errno as c_int);
    }
}

/// After a failed call: true when it is to be made once more.
pub fn again(f: &mut Frame, list: impl Fn(&Frame, Each)) -> bool {
    if errno() != libc::EFAULT || !views::fault_in_calls() || Engine::running().is_none() || f.tries >= TRIES {
        return false;
    }
    f.tries += 1;
    let any = touched(f, list);
    set_errno(if any { f.errno as c_int } else { libc::EFAULT });
    any
}

/// True for a buffer in a view that [`touch`] does not touch to its end when it may stay empty.
pub fn is_long(start: usize, len: usize) -> bool {
    len > TARGET_MOST && views::any_in(start, len)
}

/// Touches every buffer. In a region that is paged the last ones may drive the first ones out: a few passes.
fn touched(f: &Frame, list: impl Fn(&Frame, Each)) -> bool {
    let mut any = false;
    for _ in 0..PASSES {
        let mut gone = false;
        list(f, &mut |at, len, how| any |= touch(at, len, how));
        list(f, &mut |at, len, how| {
            gone |= touchable(at, len, how, |s, end| s.pages_go() && !spans::all_here(s.start, end))
        });
        if !gone {
            break;
        }
    }
    any
}

/// Brings in the pages of a buffer that belong to views; true when there were any. Pages of a read-only view are not
/// stored to: the call gets its EFAULT, as from any read-only mapping. Of a long buffer the first part only, where the
/// rest would drive it out again or may stay empty. Takes no lock and gives nothing up: it may run in a signal handler of
/// the program.
pub fn touch(start: usize, len: usize, how: Use) -> bool {
    touchable(start, len, how, |s, end| {
        // A page that cannot be had is the call's EFAULT, not the program's SIGBUS.
        if s.signals && !spans::all_here(s.start, end) && !spans::bring(s.start, end).is_ok() {
            return false;
        }
        touch_pages(s.start, end, how != Use::Source && s.refuses_clean);
        true
    })
}

/// Calls `f` with every part of a buffer that is to be touched, and its end; true when it was true for any.
fn touchable(start: usize, len: usize, how: Use, mut f: impl FnMut(&spans::Span, usize) -> bool) -> bool {
    if len == 0 || !views::any_in(start, len) {
        return false;
    }
    let Some(end) = start.checked_add(len) else { return false };
    let mut most = if how == Use::Target { TARGET_MOST } else { usize::MAX };
    let mut any = false;
    let mut at = start;
    while let Some(s) = spans::first(at, end) {
        most = most.saturating_sub(s.start - at).min(s.most);
        let stop = s.end.min(s.start.saturating_add(most));
        if how != Use::Source && !s.write {
            return false;
        }
        any |= !s.waits && f(&s, stop);
        if stop < s.end {
            break;
        }
        (at, most) = (s.end, most - (s.end - s.start));
    }
    any
}

/// One access to every page. A load is enough where the kernel itself notes what it writes.
fn touch_pages(start: usize, end: usize, store: bool) {
    let mut at = start;
    while at < end {
        let p = at as *mut u8;
        if store {
            store_nothing(p);
        } else {
            // SAFETY: the byte is part of a live view, where a load is always served.
            let _ = unsafe { p.read_volatile() };
        }
        at = (at & !(PAGE - 1)).saturating_add(PAGE);
    }
}

/// A store that changes nothing, atomic because other threads may use the byte. In assembly, because a compiler may turn
/// `fetch_or(0)` into a load, or into nothing at all.
fn store_nothing(p: *mut u8) {
    // SAFETY: the caller has found the byte in a live view, where a store is always served; its value stays.
    unsafe { std::arch::asm!("lock or byte ptr [{p}], 0", p = in(reg) p, options(nostack)) };
}

/// The value at an address that the application gave; `None` when there is none.
pub fn copied<T: Copy>(at: usize) -> Option<T> {
    touch(at, size_of::<T>(), Use::Source);
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes of `value`, all of them initialised.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    // SAFETY: the callers' types are C structures of integers and addresses: every bit pattern is one.
    read_own(at, bytes).then(|| unsafe { value.assume_init() })
}

/// The buffers of a list, and the list itself.
pub fn vector(at: usize, n: usize, how: Use, each: Each) {
    let n = n.min(LIST);
    each(at, n * size_of::<iovec>(), Use::Source);
    let mut i = 0;
    while i < n {
        let more = (n - i).min(8);
        let entries: [usize; 16] = match more {
            8 => copied(at + i * size_of::<iovec>()).unwrap_or_default(),
            _ => first_entries(at + i * size_of::<iovec>(), more),
        };
        for e in entries.chunks_exact(2).take(more) {
            if let [base, len] = e {
                each(*base, *len, how);
            }
        }
        i += more;
    }
}

/// The last entries of a list, one by one: behind them there may be nothing.
fn first_entries(at: usize, n: usize) -> [usize; 16] {
    let mut out = [0; 16];
    for (i, e) in out.chunks_exact_mut(2).take(n).enumerate() {
        e.copy_from_slice(&copied::<[usize; 2]>(at + i * size_of::<iovec>()).unwrap_or_default());
    }
    out
}

/// Longest path the kernel reads.
pub const PATH: usize = 4096;

/// What an argument of a call about a file says about memory.
pub trait Argument: Copy {
    /// Address, bytes, and what the kernel does with them.
    fn buffer(self) -> (usize, usize, Use);
}

macro_rules! arguments {
    ($($t:ty = |$a:ident| $buffer:expr;)*) => { $(
        impl Argument for $t {
            fn buffer(self) -> (usize, usize, Use) {
                let $a = self;
                $buffer
            }
        }
    )* };
}
arguments! {
    *const c_char = |p| (p as usize, PATH, Use::Source);
    *mut libc::stat = |p| (p as usize, size_of::<libc::stat>(), Use::Filled);
    *mut libc::statx = |p| (p as usize, size_of::<libc::statx>(), Use::Filled);
    // Its length is another argument: the first page.
    *mut c_void = |p| (p as usize, 1, Use::Filled);
    *mut c_char = |p| (p as usize, 1, Use::Filled);
    c_int = |_n| (0, 0, Use::Source);
    u32 = |_n| (0, 0, Use::Source);
    i64 = |_n| (0, 0, Use::Source);
    usize = |_n| (0, 0, Use::Source);
}

/// Makes a call about a file, and makes it once more when it has met absent pages: such a call gives nothing away.
#[inline(always)]
pub fn tried<T: Failure + PartialEq>(before: c_int, args: &[(usize, usize, Use)], call: impl Fn() -> T) -> T {
    let r = call();
    if r != T::FAILED || !views::fault_in_calls() || errno() != libc::EFAULT || Engine::running().is_none() {
        return r;
    }
    if args.iter().filter(|(at, len, how)| touch(*at, *len, *how)).count() == 0 {
        set_errno(libc::EFAULT);
        return r;
    }
    set_errno(before);
    call()
}

/// True when a reading call on `fd` that fails has taken nothing away: files, pipes and streams, but no datagrams, counters
/// and terminals.
pub fn keeps(fd: c_int) -> bool {
    match kind(fd).map(|(mode, _)| mode & libc::S_IFMT) {
        Some(libc::S_IFREG | libc::S_IFBLK | libc::S_IFIFO) => true,
        Some(libc::S_IFSOCK) => is_stream(fd),
        _ => false,
    }
}

/// Mode and size of an open file.
pub fn kind(fd: c_int) -> Option<(u32, u64)> {
    let mut st = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: st is a valid out buffer of the size the kernel writes on x86-64.
    unsafe { syscall(libc::SYS_fstat, [fd as usize, st.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
    // SAFETY: zeroed, then filled by the kernel; every bit pattern is a valid stat.
    let st = unsafe { st.assume_init() };
    Some((st.st_mode, st.st_size as u64))
}

fn is_stream(fd: c_int) -> bool {
    let (mut kind, mut len) = (0, size_of::<c_int>() as u32);
    let args = [libc::SOL_SOCKET as usize, libc::SO_TYPE as usize];
    let out = [&raw mut kind as usize, &raw mut len as usize];
    // SAFETY: both are live and as long as said.
    let asked = unsafe { syscall(libc::SYS_getsockopt, [fd as usize, args[0], args[1], out[0], out[1], 0]) };
    asked.is_ok() && kind == libc::SOCK_STREAM
}
