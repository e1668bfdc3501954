//! Descriptors of `/smc/` files: number -> open file -> region.
//!
//! A descriptor is a real one: `open` answers the number of an O_PATH handle on a memory file of the region's size, so
//! `fstat` by system call shows a regular file, and a read that bypasses the hooks fails with EBADF instead of reading
//! zeros. What the number stands for is kept here, in two fixed arrays that cost nothing until they are used:
//! the table of numbers, and the pool of open files that `dup`ed numbers share.
//!
//! Everything is lock-free and async-signal-safe except the drop of the last reference, which closes the region.
//!
//! *Stale numbers.* A descriptor can be closed behind our back (a raw system call, `fclose`). So every look-up compares
//! the descriptor's inode with the one that was opened, and never takes over a number that now belongs to another file.
//!
//! *Children.* After fork the table is inherited but regions belong to the parent: operations on the numbers answer EIO.
//! A child never changes the table, because a vfork child would change its parent's. A program that is started with such
//! a descriptor has the number but not the region: EBADF.

use crate::convert::CErr;
use libc::c_int;
use smc_engine::core::region::Region;
use smc_engine::policy::posix::Mode;
use smc_engine::sys::errno::syscall;
use smc_engine::sys::thread::is_own;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Numbers from here on cannot name a `/smc/` file.
pub const MAX_FD: usize = 65536;
/// Open files at one time.
const MAX_FILES: usize = 16384;
/// Reference count of an open file whose region is being closed.
const CLOSING: u32 = 1 << 31;

/// Number -> index of its open file + 1; 0 is "not ours". An entry holds one reference.
static NUMBERS: [AtomicU32; MAX_FD] = [const { AtomicU32::new(0) }; MAX_FD];
static POOL: [OpenFile; MAX_FILES] = [const { OpenFile::unused() }; MAX_FILES];
/// Entries in use: 0 is the fast path of every hook.
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Where to start looking for an unused pool entry.
static HINT: AtomicUsize = AtomicUsize::new(0);

/// An open file description. Its memory is never given back, so a late look-up reads valid memory.
pub struct OpenFile {
    refs: AtomicU32,
    /// O_* access mode and status flags.
    flags: AtomicU32,
    offset: AtomicU64,
    inode: AtomicU64,
    owner: AtomicU32,
    /// From `Arc::into_raw`.
    region: AtomicPtr<Region>,
}

/// A reference to an open file that keeps it open.
pub struct Held(&'static OpenFile, u32);

/// True while any number is ours.
#[inline(always)]
pub fn any() -> bool {
    IN_USE.load(Relaxed) != 0
}

/// This process, by system call: also right after a raw clone.
pub fn process_id() -> u32 {
    // SAFETY: takes no arguments and touches no memory.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.map_or(0, |p| p as u32)
}

/// Device and inode of a descriptor in one number, or 0. A descriptor of ours keeps its inode alive, so no other file has
/// the same pair meanwhile; two pairs that give the same number would need a device number of 32 bits and more.
fn inode_of(fd: c_int) -> u64 {
    let mut st = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: st is a valid out buffer of the kernel's size on x86-64.
    if unsafe { syscall(libc::SYS_fstat, [fd as usize, st.as_mut_ptr() as usize, 0, 0, 0, 0]) }.is_err() {
        return 0;
    }
    // SAFETY: zeroed, then filled by the kernel; every bit pattern is a valid stat.
    let st = unsafe { st.assume_init() };
    (st.st_ino ^ st.st_dev.rotate_left(32)).max(1)
}

fn number(fd: c_int) -> Option<&'static AtomicU32> {
    NUMBERS.get(usize::try_from(fd).ok()?)
}

/// The open file behind a number, or `None` when it is not ours.
pub fn get(fd: c_int) -> Option<Held> {
    if !any() {
        return None;
    }
    let slot = number(fd)?;
    loop {
        let n = slot.load(Acquire);
        let file = POOL.get((n as usize).checked_sub(1)?)?;
        // An entry holds a reference, so this fails only when the entry has just been replaced.
        let Some(held) = file.hold(n) else { continue };
        // Our own threads have descriptor tables of their own, where the number is something else.
        if is_own() {
            return None;
        }
        if slot.load(Acquire) != n {
            continue;
        }
        if inode_of(fd) == file.inode.load(Relaxed) {
            return Some(held);
        }
        if !held.inherited() {
            drop_entry(slot, n);
        }
        return None;
    }
}

/// Makes `fd` stand for a new open file. The caller has checked the number with [`fits`].
pub fn insert(fd: c_int, region: Arc<Region>, flags: c_int) -> Result<(), CErr> {
    let slot = number(fd).ok_or(CErr(libc::EMFILE))?;
    let start = HINT.load(Relaxed);
    for i in 0..MAX_FILES {
        let at = start.wrapping_add(i) % MAX_FILES;
        let Some(file) = POOL.get(at) else { continue };
        if file.refs.compare_exchange(0, CLOSING, Acquire, Relaxed).is_err() {
            continue;
        }
        HINT.store(at + 1, Relaxed);
        file.flags.store(flags as u32, Relaxed);
        file.offset.store(0, Relaxed);
        file.inode.store(inode_of(fd), Relaxed);
        file.owner.store(process_id(), Relaxed);
        file.region.store(Arc::into_raw(region).cast_mut(), Relaxed);
        file.refs.store(1, Release);
        replace(slot, at as u32 + 1);
        return Ok(());
    }
    Err(CErr(libc::ENFILE))
}

/// True when a number can be ours.
pub fn fits(fd: c_int) -> bool {
    number(fd).is_some()
}

/// Makes `fd` one more number of the same open file.
pub fn share(held: &Held, fd: c_int) -> Result<(), CErr> {
    let slot = number(fd).ok_or(CErr(libc::EMFILE))?;
    held.0.refs.fetch_add(1, Relaxed);
    replace(slot, held.1);
    Ok(())
}

/// Forgets a number. Does nothing when it is not ours.
pub fn remove(fd: c_int) {
    if let Some(slot) = number(fd) {
        replace(slot, 0);
    }
}

/// Numbers of ours in `[first, last]`.
pub fn numbers(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let (first, last) = (first as usize, (last as usize).min(MAX_FD - 1));
    let count = (last + 1).saturating_sub(first);
    let used = |(i, n): (usize, &AtomicU32)| (n.load(Relaxed) != 0).then_some(i as c_int);
    NUMBERS.iter().enumerate().skip(first).take(count).filter_map(used)
}

fn replace(slot: &AtomicU32, new: u32) {
    if new != 0 {
        IN_USE.fetch_add(1, Relaxed);
    }
    let old = slot.swap(new, AcqRel);
    release_entry(old);
}

fn drop_entry(slot: &AtomicU32, n: u32) {
    if slot.compare_exchange(n, 0, AcqRel, Relaxed).is_ok() {
        release_entry(n);
    }
}

fn release_entry(n: u32) {
    if let Some(file) = (n as usize).checked_sub(1).and_then(|i| POOL.get(i)) {
        IN_USE.fetch_sub(1, Relaxed);
        file.put();
    }
}

impl OpenFile {
    const fn unused() -> OpenFile {
        OpenFile {
            refs: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            offset: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            region: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    fn hold(&'static self, n: u32) -> Option<Held> {
        let more = |r: u32| (r != 0 && r < CLOSING - 1).then_some(r + 1);
        self.refs.fetch_update(Acquire, Relaxed, more).ok().map(|_| Held(self, n))
    }

    fn put(&self) {
        let less = |r: u32| if r == 1 { CLOSING } else { r - 1 };
        if self.refs.fetch_update(AcqRel, Relaxed, |r| Some(less(r))) != Ok(1) {
            return;
        }
        let region = self.region.swap(std::ptr::null_mut(), Relaxed);
        if !region.is_null() && self.owner.load(Relaxed) == process_id() {
            // SAFETY: the pointer came from Arc::into_raw in `insert`, and the swap took it exactly once.
            drop(unsafe { Arc::from_raw(region.cast_const()) });
        }
        self.refs.store(0, Release);
    }
}

impl Held {
    /// The region, or EIO in a child of the process that opened it.
    pub fn region(&self) -> Result<&Region, CErr> {
        if self.inherited() {
            return Err(CErr(libc::EIO));
        }
        // SAFETY: `insert` stored a live Arc's pointer, and it is dropped only after the last reference, of which this is one.
        Ok(unsafe { &*self.0.region.load(Relaxed) })
    }

    /// The same, as a count of its own.
    pub fn region_arc(&self) -> Result<Arc<Region>, CErr> {
        let p: *const Region = self.region()?;
        // SAFETY: p came from Arc::into_raw and the count this object keeps alive is not zero.
        unsafe { Arc::increment_strong_count(p) };
        // SAFETY: the count made above is handed to the new Arc.
        Ok(unsafe { Arc::from_raw(p) })
    }

    /// True in a child of the process that opened it.
    pub fn inherited(&self) -> bool {
        self.0.owner.load(Relaxed) != process_id()
    }

    /// O_* access mode and status flags.
    pub fn flags(&self) -> c_int {
        self.0.flags.load(Relaxed) as c_int
    }

    /// Changes the status flags in `mask`.
    pub fn set_flags(&self, mask: c_int, flags: c_int) {
        let change = |f: u32| Some(f & !(mask as u32) | (flags & mask) as u32);
        let _ = self.0.flags.fetch_update(Relaxed, Relaxed, change);
    }

    /// What the open file may do.
    pub fn mode(&self) -> Mode {
        mode_of(self.flags())
    }

    /// The file offset, shared by all numbers of this open file.
    pub fn offset(&self) -> &AtomicU64 {
        &self.0.offset
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.put();
    }
}

/// O_* flags as a mode.
pub fn mode_of(flags: c_int) -> Mode {
    let access = flags & libc::O_ACCMODE;
    Mode { read: access != libc::O_WRONLY, write: access != libc::O_RDONLY, append: flags & libc::O_APPEND != 0 }
}
