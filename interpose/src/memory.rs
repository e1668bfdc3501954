//! Calls on memory that may meet a view, besides those on mappings ([`crate::maps`]).
//!
//! | call | on a view |
//! |---|---|
//! | mlock, mlock2 | brings the pages in and locks nothing: an acquire may still drop them. ENOMEM when the region cannot keep them all, EAGAIN when its home does not answer. With MLOCK_ONFAULT: no effect |
//! | munlock | no effect |
//! | mlockall | locks all other memory; views, exported memory, and the library's copy of a region that is paged stay as they are |
//! | mincore | 1 for a page whose bytes are here, 0 for one that a touch would fetch |
//! | brk, sbrk | ENOMEM when the heap would give up memory that holds a view |
//! | shmat | SHM_REMAP replaces views as MAP_FIXED does |
//! | mprotect, pkey_mprotect | EACCES: the protection is how loads and stores are seen |
//! | remap_file_pages | EINVAL |
//! | process_madvise | advice that drops pages is refused with EINVAL, as it is for another process; the rest has no effect |
//! | mseal | EPERM: the view could not be unmapped any more |
//!
//! fork, _Fork and shmdt are counted in a process with views, and passed on. A fork child has no views: they are mapped
//! without access until they are marked not to be inherited, so that whoever makes the child, and when, it finds none half
//! made (vfork, posix_spawn and bare system calls included). shmdt takes its segment's own mappings only: a view that was
//! put over a part of one stays. munlockall has nothing to undo and is not hooked.

use crate::convert::{CErr, answer, errno, set_errno};
use crate::maps::vacate_views;
use crate::table::{hook, real};
use crate::touch::{Use, any_view, copied, touch};
use libc::{c_int, c_ulong, c_void, iovec, pid_t, size_t, ssize_t};
use smc_engine::base::{PAGE, addr::round_up_page};
use smc_engine::core::engine::Engine;
use smc_engine::core::spans::{self, Span};
use smc_engine::sys::errno::syscall;
use smc_engine::sys::{mem, process};

/// The parts of views in a range, lowest first.
fn parts(start: usize, end: usize) -> impl Iterator<Item = Span> {
    let mut at = start;
    std::iter::from_fn(move || {
        let s = spans::first(at, end)?;
        at = s.end;
        Some(s)
    })
}

/// Calls `real` on what is no view in the pages of a range, `ours` on each part of one.
fn between(
    addr: usize,
    len: usize,
    real: impl Fn(usize, usize) -> c_int,
    ours: impl Fn(&Span) -> Result<(), CErr>,
) -> c_int {
    let before = errno();
    let start = addr & !(PAGE - 1);
    let end = len.checked_add(addr - start).and_then(round_up_page).and_then(|n| start.checked_add(n));
    let Some(end) = end else { return answer(before, Err(CErr(libc::EINVAL))) };
    let mut at = start;
    for s in parts(start, end) {
        if s.start > at && real(at, s.start - at) != 0 {
            return -1;
        }
        if let Err(e) = ours(&s) {
            return answer(before, Err(e));
        }
        at = s.end;
    }
    if at < end && real(at, end - at) != 0 {
        return -1;
    }
    answer(before, Ok(0))
}

/// Brings every page of a part in.
fn bring(s: &Span) -> Result<(), CErr> {
    if s.end - s.start > s.most {
        return Err(CErr(libc::ENOMEM));
    }
    CErr::ok(spans::bring(s.start, s.end)).map_err(|_| CErr(libc::EAGAIN))
}

/// mlock(2), extended to views.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: size_t) -> c_int {
    if !any_view(addr as usize, len) {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real::mlock(addr, len) };
    }
    hook::mlock.hits.hit();
    // SAFETY: parts of the caller's range.
    between(addr as usize, len, |a, n| unsafe { real::mlock(a as *const c_void, n) }, bring)
}

/// mlock2(2), extended to views.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: size_t, flags: u32) -> c_int {
    if !any_view(addr as usize, len) || flags & !libc::MLOCK_ONFAULT != 0 {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real::mlock2(addr, len, flags) };
    }
    hook::mlock2.hits.hit();
    // SAFETY: parts of the caller's range.
    let real = |a: usize, n| unsafe { real::mlock2(a as *const c_void, n, flags) };
    between(addr as usize, len, real, |s| if flags == 0 { bring(s) } else { Ok(()) })
}

/// munlock(2), extended to views.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: size_t) -> c_int {
    if !any_view(addr as usize, len) {
        // SAFETY: the arguments are the caller's own.
        return unsafe { real::munlock(addr, len) };
    }
    hook::munlock.hits.hit();
    // SAFETY: parts of the caller's range.
    between(addr as usize, len, |a, n| unsafe { real::munlock(a as *const c_void, n) }, |_| Ok(()))
}

/// The path of exported memory, after the slash. To lock it would fill what the exporter has never touched.
const HOME: &[u8] = b"memfd:libsmc-home";

/// mlockall(2): the kernel would fetch whole regions, and lock what must be given back. So everything is locked as it is
/// touched, regions are unlocked again, and the rest is brought in.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let Some(engine) = Engine::running().filter(|_| flags & libc::MCL_CURRENT != 0) else {
        // SAFETY: the argument is the caller's own.
        return unsafe { real::mlockall(flags) };
    };
    let before = errno();
    // SAFETY: the argument is the caller's own, and one flag more.
    let r = unsafe { real::mlockall(flags | libc::MCL_ONFAULT) };
    if r != 0 {
        return r;
    }
    let regions = engine.regions();
    if !regions.is_empty() {
        hook::mlockall.hits.hit();
    }
    let own = || regions.iter().flat_map(|r| r.unlockable());
    own().for_each(|(a, n)| _ = mem::unlock(a, n));
    parts(0, usize::MAX).for_each(|s| _ = mem::unlock(s.start, s.end - s.start));
    if flags & libc::MCL_ONFAULT == 0 {
        if flags & libc::MCL_FUTURE != 0 {
            // SAFETY: concerns mappings that are made later.
            unsafe { real::mlockall(libc::MCL_FUTURE) };
        }
        process::each_mapping(|start, end, file| {
            let ours = |(a, n): (usize, usize)| a < end && start < a + n;
            if file.starts_with(HOME) {
                let _ = mem::unlock(start, end - start);
            } else if !own().any(ours) && !any_view(start, end - start) {
                // As mlockall: what cannot be filled is left.
                let _ = mem::lock(start, end - start);
            }
        });
    }
    set_errno(before);
    0
}

/// mincore(2): a view's pages as the engine knows them.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mincore(addr: *mut c_void, len: size_t, out: *mut u8) -> c_int {
    let found = any_view(addr as usize, len);
    let before = errno();
    if found {
        touch(out as usize, len.div_ceil(PAGE), Use::Filled);
    }
    // SAFETY: the arguments are the caller's own.
    let r = unsafe { real::mincore(addr, len, out) };
    if r != 0 || !found {
        return r;
    }
    hook::mincore.hits.hit();
    for s in parts(addr as usize, addr as usize + len) {
        for page in (s.start..s.end).step_by(PAGE) {
            let at = out.wrapping_add((page - addr as usize) / PAGE);
            // SAFETY: the kernel has just written this byte of the caller's vector.
            unsafe { at.write(u8::from(spans::is_here(page))) };
        }
    }
    set_errno(before);
    0
}

/// `false` when the heap would end below a view that lies in it.
fn may_end_at(end: usize) -> bool {
    if !any_view(0, usize::MAX) {
        return true;
    }
    // SAFETY: asks for the end of the heap.
    let now = unsafe { real::sbrk(0) } as usize;
    end == 0 || end >= now || !any_view(end, now - end)
}

/// brk(2): refused with ENOMEM when a view is in the way.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    if !may_end_at(end as usize) {
        hook::brk.hits.hit();
        return answer(0, Err(CErr(libc::ENOMEM)));
    }
    // SAFETY: the argument is the caller's own.
    unsafe { real::brk(end) }
}

/// sbrk(2), as [`brk`].
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sbrk(by: isize) -> *mut c_void {
    // SAFETY: asks for the end of the heap.
    if by < 0 && !may_end_at((unsafe { real::sbrk(0) } as usize).saturating_sub(by.unsigned_abs()).max(1)) {
        hook::sbrk.hits.hit();
        set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    // SAFETY: the argument is the caller's own.
    unsafe { real::sbrk(by) }
}

/// shmat(2): with SHM_REMAP, views in the way are unmapped first.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    if flags & libc::SHM_REMAP != 0 && !addr.is_null() && any_view(0, usize::MAX) {
        let at = if flags & libc::SHM_RND != 0 { addr as usize & !(PAGE - 1) } else { addr as usize };
        let len = segment_len(id).and_then(round_up_page).filter(|n| at.is_multiple_of(PAGE) && any_view(at, *n));
        if let Some(len) = len {
            hook::shmat.hits.hit();
            if !vacate_views(at, len) {
                set_errno(libc::ENOMEM);
                return libc::MAP_FAILED;
            }
        }
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { real::shmat(id, addr, flags) }
}

/// shmdt(2): see the module.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    if any_view(0, usize::MAX) {
        hook::shmdt.hits.hit();
    }
    // SAFETY: the argument is the caller's own.
    unsafe { real::shmdt(addr) }
}

/// fork(2): see the module.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> pid_t {
    if any_view(0, usize::MAX) {
        hook::fork.hits.hit();
    }
    // SAFETY: no arguments. This frame is copied with the rest of the stack, and holds nothing.
    unsafe { real::fork() }
}

/// fork(2) without the program's handlers: see the module. Async-signal-safe.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    if any_view(0, usize::MAX) {
        hook::_Fork.hits.hit();
    }
    // SAFETY: as in `fork`.
    unsafe { real::_Fork() }
}

/// Bytes of a shared segment; `None` when it is none, which the real call will say.
fn segment_len(id: c_int) -> Option<usize> {
    let mut ds = std::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    let args = [id as usize, libc::IPC_STAT as usize, ds.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: ds is a valid out buffer of the kernel's layout on x86-64.
    unsafe { syscall(libc::SYS_shmctl, args) }.ok()?;
    // SAFETY: zeroed, then filled by the kernel; every bit pattern is valid.
    Some(unsafe { ds.assume_init() }.shm_segsz)
}

macro_rules! refused {
    ($( $(#[$doc:meta])* fn $name:ident($addr:ident: $t0:ty, $len:ident: size_t $(, $a:ident: $t:ty)*) = $error:expr; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($addr: $t0, $len: size_t $(, $a: $t)*) -> c_int {
            if any_view($addr as usize, $len) {
                hook::$name.hits.hit();
                return answer(0, Err(CErr($error)));
            }
            // SAFETY: the arguments are the caller's own.
            unsafe { real::$name($addr, $len $(, $a)*) }
        }
    )* };
}

refused! {
    /// mprotect(2): refused with EACCES on views.
    fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) = libc::EACCES;
    /// pkey_mprotect(2): refused with EACCES on views.
    fn pkey_mprotect(addr: *mut c_void, len: size_t, prot: c_int, key: c_int) = libc::EACCES;
    /// remap_file_pages(2): refused with EINVAL on views.
    fn remap_file_pages(addr: *mut c_void, len: size_t, prot: c_int, page: size_t, flags: c_int) = libc::EINVAL;
    /// mseal(2): refused with EPERM on views.
    fn mseal(addr: *mut c_void, len: size_t, flags: c_ulong) = libc::EPERM;
}

/// Advice that changes nothing a view shows; all that may be given to another process.
const HARMLESS: [c_int; 4] = [libc::MADV_COLD, libc::MADV_PAGEOUT, libc::MADV_WILLNEED, libc::MADV_COLLAPSE];

/// process_madvise(2): on views of this process, as on those of another.
///
/// # Safety
/// As for the libc function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    who: c_int,
    list: *const iovec,
    n: size_t,
    advice: c_int,
    flags: u32,
) -> ssize_t {
    if !HARMLESS.contains(&advice) && any_view(0, usize::MAX) {
        let entry = |i: usize| copied::<[usize; 2]>((list as usize).wrapping_add(i * size_of::<iovec>()));
        let meets = |[at, len]: [usize; 2]| len != 0 && any_view(at, len);
        if (0..n.min(crate::touch::LIST)).map_while(entry).any(meets) {
            hook::process_madvise.hits.hit();
            return answer(0, Err(CErr(libc::EINVAL)));
        }
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { real::process_madvise(who, list, n, advice, flags) }
}
