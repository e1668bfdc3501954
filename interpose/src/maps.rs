//! Mappings: mmap of `/smc/` files, and what later happens to their views.
//!
//! | call | on a view |
//! |---|---|
//! | mmap | MAP_SHARED is a view of the region. MAP_PRIVATE read-only is one too; MAP_PRIVATE writable is a copy taken now. The range must lie inside the region (EINVAL); PROT_EXEC is refused (EACCES). MAP_POPULATE prefetches |
//! | munmap, MAP_FIXED over it | releases, then unmaps, whole or in part; ENOMEM when a part would be one view too many: that view is whole then, what lay before it in the range is gone |
//! | mremap | shrinking works; growing and moving answer ENOMEM |
//! | msync | MS_SYNC and MS_ASYNC release, MS_INVALIDATE then acquires; EIO when the home cannot be reached |
//! | madvise | MADV_WILLNEED and MADV_POPULATE prefetch; MADV_DONTNEED acquires (own stores survive, clean pages are dropped); MADV_FREE, MADV_REMOVE, MADV_DOFORK and what is not known here are refused with EINVAL; the rest has no effect |
//!
//! Other calls on memory are in [`crate::memory`]. In a fork child the views are absent: they are never inherited.

use crate::blocking::{Frame, leave};
use crate::convert::{CErr, answer, errno, set_errno};
use crate::files::{self, Held};
use crate::table::{Hook, handled, mapping};
use crate::views::{self, Piece};
use libc::{MAP_FAILED, c_int, c_void, off_t, size_t};
use smc_engine::base::{PAGE, Status, addr::round_up_page};
use smc_engine::core::coverage::Off;
use smc_engine::policy::posix::{self, MapAsk, MapPlan};
use smc_engine::sys::{errno::syscall, mem};

/// A request for memory, as the application made it.
#[derive(Clone, Copy)]
struct Request {
    addr: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    off: i64,
}

redhook::hook! {
    unsafe fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, off: off_t) -> *mut c_void => hooked_mmap {
        mapping::MMAP.seen();
        let r = Request { addr: addr as usize, len, prot, flags, off };
        // SAFETY: the arguments are the caller's own.
        map(&mapping::MMAP, r, fd, || unsafe { redhook::real!(mmap)(addr, len, prot, flags, fd, off) })
    }
}

redhook::hook! {
    unsafe fn mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, off: off_t) -> *mut c_void => hooked_mmap64 {
        mapping::MMAP64.seen();
        let r = Request { addr: addr as usize, len, prot, flags, off };
        // SAFETY: the arguments are the caller's own.
        map(&mapping::MMAP64, r, fd, || unsafe { redhook::real!(mmap64)(addr, len, prot, flags, fd, off) })
    }
}

redhook::hook! {
    unsafe fn munmap(addr: *mut c_void, len: size_t) -> c_int => hooked_munmap {
        mapping::MUNMAP.seen();
        // SAFETY: the arguments are the caller's own, or pieces of them.
        unmap(addr as usize, len, |a, n| unsafe { redhook::real!(munmap)(a as *mut c_void, n) })
    }
}

redhook::hook! {
    // Variadic in C; the fifth argument is passed in the same register either way.
    unsafe fn mremap(addr: *mut c_void, old: size_t, new: size_t, flags: c_int, to: *mut c_void) -> *mut c_void => hooked_mremap {
        mapping::MREMAP.seen();
        // SAFETY: the arguments are the caller's own.
        remap(addr as usize, old, new, flags, to as usize, || unsafe { redhook::real!(mremap)(addr, old, new, flags, to) })
    }
}

redhook::hook! {
    unsafe fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int => hooked_madvise {
        mapping::MADVISE.seen();
        // SAFETY: the arguments are the caller's own, or pieces of them.
        let real = |a: usize, n| unsafe { redhook::real!(madvise)(a as *mut c_void, n, advice) };
        over_range(&mapping::MADVISE, addr as usize, len, real, |p| advise(p, advice))
    }
}

redhook::hook! {
    // Answers the error itself. MADV_DONTNEED is advice about the content elsewhere, but POSIX's keeps it: no effect.
    unsafe fn posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int => hooked_posix_madvise {
        mapping::POSIX_MADVISE.seen();
        if !views::any() || views::first(addr as usize, len).is_none() {
            // SAFETY: the arguments are the caller's own.
            return unsafe { redhook::real!(posix_madvise)(addr, len, advice) };
        }
        posix_advice(addr as usize, len, advice)
    }
}

const MAP_FIXED_NOREPLACE: c_int = 0x10_0000;

/// mmap: of a `/smc/` descriptor, or the real one over what was a view.
fn map(hook: &Hook, r: Request, fd: c_int, real: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let file = if r.flags & libc::MAP_ANONYMOUS == 0 { files::get(fd) } else { None };
    match file {
        Some(file) => {
            hook.hits.hit();
            let before = errno();
            match map_region(&file, r) {
                Ok(at) => {
                    set_errno(before);
                    at as *mut c_void
                }
                Err(CErr(e)) => {
                    set_errno(e);
                    MAP_FAILED
                }
            }
        }
        None => {
            if replaces(r.flags) && r.addr.is_multiple_of(PAGE) && !vacate_views(r.addr, r.len) {
                set_errno(libc::ENOMEM);
                return MAP_FAILED;
            }
            real()
        }
    }
}

fn replaces(flags: c_int) -> bool {
    flags & libc::MAP_FIXED != 0 && flags & MAP_FIXED_NOREPLACE == 0
}

fn map_region(file: &Held, r: Request) -> Result<usize, CErr> {
    crate::selftest::permit(Off::Mapping)?;
    let region = file.region_arc()?;
    let kind = r.flags & 0x0f;
    if !matches!(kind, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE | libc::MAP_PRIVATE)
        || (replaces(r.flags) && !r.addr.is_multiple_of(PAGE))
    {
        return Err(CErr(libc::EINVAL));
    }
    let ask = MapAsk {
        shared: kind != libc::MAP_PRIVATE,
        write: r.prot & libc::PROT_WRITE != 0,
        exec: r.prot & libc::PROT_EXEC != 0,
        mode: file.mode(),
        off: u64::try_from(r.off).map_err(|_| CErr(libc::EINVAL))?,
        len: r.len,
        region_len: region.len(),
    };
    match posix::map_call(ask)? {
        MapPlan::View { write, len } => {
            CErr::ok(region.acquire(ask.off, len as u64))?;
            if replaces(r.flags) && !vacate_views(r.addr, len) {
                return Err(CErr(libc::ENOMEM));
            }
            let at = region.map_view(r.addr, replaces(r.flags), ask.off, len, write)?;
            let misplaced = r.flags & MAP_FIXED_NOREPLACE != 0 && at != r.addr;
            if misplaced || !views::add(at, len, ask.off, &region) {
                let _ = region.unmap_view(at, len);
                return Err(CErr(if misplaced { libc::EEXIST } else { libc::ENOMEM }));
            }
            if r.flags & libc::MAP_POPULATE != 0 {
                // Advice: a page that cannot be had now is tried again when it is touched.
                let _ = region.prefetch(ask.off, len as u64);
            }
            Ok(at)
        }
        MapPlan::Snapshot { len } => snapshot(&region, r, ask.off, len),
    }
}

/// A private copy of region bytes.
fn snapshot(region: &smc_engine::core::region::Region, r: Request, off: u64, len: usize) -> Result<usize, CErr> {
    if replaces(r.flags) && !vacate_views(r.addr, len) {
        return Err(CErr(libc::ENOMEM));
    }
    let place = r.flags & (libc::MAP_FIXED | MAP_FIXED_NOREPLACE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | place;
    // SAFETY: with MAP_FIXED the application asked for the range to be replaced.
    let at = unsafe { mem::mmap(r.addr, len, mem::RW, flags, -1, 0) }?;
    // SAFETY: the mapping was just made, writable, for len bytes.
    let status = unsafe { region.read(off, at as *mut u8, len) };
    if !status.is_ok() {
        // SAFETY: nobody else knows the mapping yet.
        let _ = unsafe { mem::munmap(at, len) };
        return Err(status.into());
    }
    Ok(at)
}

/// Takes all views out of a range that is replaced at once; nobody else's mapping comes between. `false` when a view
/// cannot be split: it is whole then, and nothing may be put over it.
#[must_use]
pub fn vacate_views(addr: usize, len: usize) -> bool {
    take_each(addr, len, |p| p.region.vacate_view(p.addr, p.len))
}

/// Takes all views out of a range, and what they showed is unmapped. `false` as for [`vacate_views`].
#[must_use]
fn clear_views(addr: usize, len: usize) -> bool {
    take_each(addr, len, |p| p.region.unmap_view(p.addr, p.len))
}

/// What could not be released is reported by the engine; the range goes all the same.
fn take_each(addr: usize, len: usize, away: impl Fn(&Piece) -> Status) -> bool {
    while let Some(p) = views::take(addr, len) {
        if away(&p) == Status::NO_RESOURCES {
            views::put_back(p);
            return false;
        }
    }
    true
}

fn unmap(addr: usize, len: usize, real: impl Fn(usize, usize) -> c_int) -> c_int {
    let whole = round_up_page(len).unwrap_or(usize::MAX);
    if !views::any() || !addr.is_multiple_of(PAGE) || views::first(addr, whole).is_none() {
        return real(addr, len);
    }
    mapping::MUNMAP.hits.hit();
    let before = errno();
    let mut worst = Status::OK;
    let mut at = addr;
    let end = addr.saturating_add(whole);
    while let Some(p) = views::take(at, end - at) {
        if p.addr > at && real(at, p.addr - at) != 0 {
            views::put_back(p);
            return -1;
        }
        let s = p.region.unmap_view(p.addr, p.len);
        if s == Status::NO_RESOURCES {
            views::put_back(p);
            return answer(before, Err(s.into()));
        }
        if !s.is_ok() {
            worst = s;
        }
        at = p.addr + p.len;
    }
    if at < end && real(at, end - at) != 0 {
        return -1;
    }
    // The range is gone in any case; EIO says that stores did not reach the home.
    answer(before, CErr::ok(worst).map(|()| 0).map_err(|_| CErr(libc::EIO)))
}

fn remap(
    addr: usize,
    old: usize,
    new: usize,
    flags: c_int,
    to: usize,
    real: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if !views::any() {
        return real();
    }
    let (Some(old), Some(new)) = (round_up_page(old), round_up_page(new)) else { return real() };
    if views::first(addr, old.max(1)).is_none() {
        if flags & libc::MREMAP_FIXED != 0 && to.is_multiple_of(PAGE) && !vacate_views(to, new) {
            set_errno(libc::ENOMEM);
            return MAP_FAILED;
        }
        return real();
    }
    mapping::MREMAP.hits.hit();
    if new > old || new == 0 || flags & !libc::MREMAP_MAYMOVE != 0 {
        set_errno(if new == 0 { libc::EINVAL } else { libc::ENOMEM });
        return MAP_FAILED;
    }
    if !clear_views(addr + new, old - new) {
        set_errno(libc::ENOMEM);
        return MAP_FAILED;
    }
    addr as *mut c_void
}

/// Walks a range: `real` on what is no view, `ours` on each piece of one. The first failure ends it.
fn over_range(
    hook: &Hook,
    addr: usize,
    len: usize,
    real: impl Fn(usize, usize) -> c_int,
    ours: impl Fn(&Piece) -> Result<(), CErr>,
) -> c_int {
    let found = views::any() && views::first(addr, len).is_some();
    if !found || !addr.is_multiple_of(PAGE) {
        if views::any() {
            handled(posix::range_call(found));
        }
        return real(addr, len);
    }
    hook.hits.hit();
    let before = errno();
    let mut at = addr;
    let end = addr.saturating_add(round_up_page(len).unwrap_or(usize::MAX));
    while let Some(p) = views::first(at, end - at) {
        if p.addr > at && real(at, p.addr - at) != 0 {
            return -1;
        }
        if let Err(e) = ours(&p) {
            return answer(before, Err(e));
        }
        at = p.addr + p.len;
    }
    if at < end && real(at, end - at) != 0 {
        return -1;
    }
    answer(before, Ok(0))
}

fn advise(p: &Piece, advice: c_int) -> Result<(), CErr> {
    match advice {
        libc::MADV_WILLNEED | libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            CErr::ok(p.region.prefetch(p.off, p.len as u64))
        }
        libc::MADV_DONTNEED => CErr::ok(p.region.acquire(p.off, p.len as u64)),
        libc::MADV_NORMAL | libc::MADV_RANDOM | libc::MADV_SEQUENTIAL | libc::MADV_DONTFORK | libc::MADV_HUGEPAGE => {
            Ok(())
        }
        libc::MADV_NOHUGEPAGE | libc::MADV_DONTDUMP | libc::MADV_DODUMP | libc::MADV_COLD | libc::MADV_PAGEOUT => {
            Ok(())
        }
        libc::MADV_MERGEABLE | libc::MADV_UNMERGEABLE => Ok(()),
        _ => Err(CErr(libc::EINVAL)),
    }
}

fn posix_advice(addr: usize, len: usize, advice: c_int) -> c_int {
    if !(libc::POSIX_MADV_NORMAL..=libc::POSIX_MADV_DONTNEED).contains(&advice) {
        return libc::EINVAL;
    }
    mapping::POSIX_MADVISE.hits.hit();
    let before = errno();
    let mut at = addr;
    let end = addr.saturating_add(len);
    while advice == libc::POSIX_MADV_WILLNEED
        && let Some(p) = views::first(at, end.saturating_sub(at))
    {
        // Advice: a page that cannot be had now is tried again when it is touched.
        let _ = p.region.prefetch(p.off, p.len as u64);
        at = p.addr + p.len;
    }
    set_errno(before);
    0
}

fn synced(hook: &'static Hook, f: &mut Frame) -> Option<usize> {
    let (addr, len, flags) = (f.arg::<0, usize>(), f.arg::<1, usize>(), f.arg::<2, c_int>());
    if !views::any() || views::first(addr, len).is_none() {
        return None;
    }
    let real = |a: usize, n: usize| {
        // SAFETY: what the application asked for, in pieces; msync changes no memory.
        let r = unsafe { syscall(libc::SYS_msync, [a, n, flags as usize, 0, 0, 0]) };
        answer(errno(), r.map(|_| 0).map_err(CErr::from))
    };
    Some(over_range(hook, addr, len, real, |p| sync(p, flags)) as usize)
}

crate::blocking::blocking! {
    Maps required msync, active, -1 => synced, leave;
}

fn sync(p: &Piece, flags: c_int) -> Result<(), CErr> {
    let both = libc::MS_SYNC | libc::MS_ASYNC;
    if flags & both == both || flags & !(both | libc::MS_INVALIDATE) != 0 {
        return Err(CErr(libc::EINVAL));
    }
    if flags & both != 0 {
        CErr::ok(p.region.release(p.off, p.len as u64))?;
    }
    if flags & libc::MS_INVALIDATE != 0 {
        CErr::ok(p.region.acquire(p.off, p.len as u64))?;
    }
    Ok(())
}
