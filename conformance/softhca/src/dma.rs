//! Pinned private pages.
//!
//! Buffers registered with an io_uring are pinned as a device's are: the kernel reaches those pages from then on,
//! whatever happens to the mapping. A fixed read from a pipe writes them, a fixed write to a pipe reads them; this is
//! all the ring is used for, one operation at a time. A process has one ring, however many regions it registers.

use crate::events::lock;
use crate::raw::{self, Fd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Most bytes of one operation: what an empty pipe takes whatever the alignment.
const STEP: usize = 32 << 10;
/// Largest buffer that the kernel registers.
const BUFFER: usize = 1 << 30;
/// Buffers of the ring.
const BUFFERS: usize = 16384;

const SETUP: libc::c_long = 425;
const ENTER: libc::c_long = 426;
const REGISTER: libc::c_long = 427;
/// Commands of `io_uring_register`: an empty table of buffers, and changes of it.
const BUFFERS2: usize = 15;
const BUFFERS_UPDATE: usize = 16;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const SQES: usize = 0x1000_0000;

/// Words of `struct io_uring_params`.
mod at {
    pub const SQ_ENTRIES: usize = 0;
    pub const CQ_ENTRIES: usize = 1;
    pub const FEATURES: usize = 5;
    pub const SQ_TAIL: usize = 11;
    pub const SQ_MASK: usize = 12;
    pub const SQ_ARRAY: usize = 16;
    pub const CQ_HEAD: usize = 20;
    pub const CQ_MASK: usize = 22;
    pub const CQES: usize = 25;
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sqe {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    addr: u64,
    len: u32,
    rw_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    splice_fd: i32,
    rest: [u64; 2],
}

const _: () = assert!(size_of::<Sqe>() == 64);

struct Mapping {
    at: usize,
    len: usize,
}

impl Mapping {
    fn new(fd: &Fd, len: usize, offset: usize) -> Result<Mapping, i32> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
        // SAFETY: a new mapping at a free place.
        let at = unsafe { raw::call(libc::SYS_mmap, [0, len, prot, flags, fd.raw() as usize, offset]) }?;
        Ok(Mapping { at, len })
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel gave the offset of an aligned word in this mapping.
        unsafe { AtomicU32::from_ptr((self.at + offset as usize) as *mut u32) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made it.
        unsafe { raw::unmap(self.at, self.len) };
    }
}

/// A pipe: the end to read, the end to write.
type Pipe = (Fd, Fd);

fn pipe() -> Result<Pipe, i32> {
    let mut fds = [0i32; 2];
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: room for two descriptors.
    unsafe { raw::call(libc::SYS_pipe2, [fds.as_mut_ptr() as usize, flags, 0, 0, 0, 0]) }?;
    Ok((Fd::own(fds[0] as usize), Fd::own(fds[1] as usize)))
}

/// The ring of a process, for as long as someone holds it.
pub struct Ring {
    pid: u32,
    fd: Fd,
    queues: Mapping,
    sqes: Mapping,
    params: [u32; 30],
    free: Mutex<Vec<u16>>,
    /// Held for each operation.
    pipe: Mutex<Pipe>,
}

impl Ring {
    fn new() -> Result<Ring, i32> {
        let mut params = [0u32; 30];
        // SAFETY: `struct io_uring_params` has 120 bytes.
        let fd = unsafe { raw::call(SETUP, [1, params.as_mut_ptr() as usize, 0, 0, 0, 0]) }.map(Fd::own)?;
        if params[at::FEATURES] & 1 == 0 {
            // Both queues in one mapping since Linux 5.4.
            return Err(libc::EOPNOTSUPP);
        }
        let submissions = params[at::SQ_ARRAY] + params[at::SQ_ENTRIES] * 4;
        let completions = params[at::CQES] + params[at::CQ_ENTRIES] * 16;
        let queues = Mapping::new(&fd, submissions.max(completions) as usize, 0)?;
        let sqes = Mapping::new(&fd, params[at::SQ_ENTRIES] as usize * size_of::<Sqe>(), SQES)?;
        // `struct io_uring_rsrc_register`: number and "sparse", nothing in the table yet.
        let table = [BUFFERS as u64 | 1 << 32, 0, 0, 0];
        let place = [fd.raw() as usize, BUFFERS2, table.as_ptr() as usize, size_of_val(&table), 0, 0];
        // SAFETY: the structure has the size given and lives through the call.
        unsafe { raw::call(REGISTER, place) }?;
        let free = Mutex::new((0..BUFFERS as u16).rev().collect());
        Ok(Ring { pid: std::process::id(), fd, queues, sqes, params, free, pipe: Mutex::new(pipe()?) })
    }

    /// That of this process; after a fork the child makes its own.
    pub fn of_process() -> Result<Arc<Ring>, i32> {
        static RING: Mutex<Weak<Ring>> = Mutex::new(Weak::new());
        let mut ring = lock(&RING);
        if let Some(own) = ring.upgrade().filter(|r| r.pid == std::process::id()) {
            return Ok(own);
        }
        let own = Arc::new(Ring::new()?);
        *ring = Arc::downgrade(&own);
        Ok(own)
    }

    /// Puts a stretch of memory in a place of the table; one without bytes empties the place.
    fn set(&self, place: u16, addr: usize, len: usize) -> Result<(), i32> {
        let vector = [addr, len];
        // `struct io_uring_rsrc_update2`: offset, data, tags, number.
        let update = [u64::from(place), vector.as_ptr() as u64, 0, 1];
        let a = [self.fd.raw() as usize, BUFFERS_UPDATE, update.as_ptr() as usize, size_of_val(&update), 0, 0];
        // SAFETY: the structure has the size given, and it and what it names live through the call.
        unsafe { raw::call(REGISTER, a) }.map(drop)
    }
}

/// A pinned stretch.
struct Buffer {
    place: u16,
    addr: usize,
    len: usize,
}

/// Pinned stretches of private memory.
pub struct Dma {
    ring: Arc<Ring>,
    buffers: Vec<Buffer>,
}

impl Drop for Dma {
    fn drop(&mut self) {
        for buffer in self.buffers.drain(..) {
            if self.ring.set(buffer.place, 0, 0).is_ok() {
                lock(&self.ring.free).push(buffer.place);
            }
        }
    }
}

impl Dma {
    /// Pins stretches of memory; an error where io_uring is not allowed, too much is locked, or a page is not writable.
    pub fn pin(stretches: impl Iterator<Item = (usize, usize)>) -> Result<Dma, i32> {
        let mut dma = Dma { ring: Ring::of_process()?, buffers: Vec::new() };
        for (addr, len) in stretches {
            for at in (0..len).step_by(BUFFER) {
                let (addr, len) = (addr + at, BUFFER.min(len - at));
                let place = lock(&dma.ring.free).pop().ok_or(libc::ENOMEM)?;
                if let Err(e) = dma.ring.set(place, addr, len) {
                    lock(&dma.ring.free).push(place);
                    return Err(e);
                }
                dma.buffers.push(Buffer { place, addr, len });
            }
        }
        Ok(dma)
    }

    /// Reads pinned memory by its address at registration. False when it cannot be.
    pub fn read(&self, addr: usize, to: &mut [u8]) -> bool {
        let pipe = lock(&self.ring.pipe);
        let mut at = addr;
        to.chunks_mut(STEP).all(|part| {
            let from = at;
            at += part.len();
            self.fixed(WRITE_FIXED, &pipe.1, from, part.len()) && raw::read(pipe.0.raw(), part) == Ok(part.len())
        })
    }

    /// Writes pinned memory by its address at registration. False when it cannot be.
    pub fn write(&self, addr: usize, from: &[u8]) -> bool {
        let pipe = lock(&self.ring.pipe);
        let mut at = addr;
        from.chunks(STEP).all(|part| {
            let to = at;
            at += part.len();
            raw::write(&pipe.1, part) == Ok(part.len()) && self.fixed(READ_FIXED, &pipe.0, to, part.len())
        })
    }

    /// One operation on each buffer that the range touches. The caller holds the lock of the pipe, hence of the ring.
    fn fixed(&self, opcode: u8, pipe: &Fd, addr: usize, len: usize) -> bool {
        let (mut addr, mut left) = (addr, len);
        while left > 0 {
            let Some(b) = self.buffers.iter().find(|b| addr >= b.addr && addr < b.addr + b.len) else { return false };
            let n = left.min(b.addr + b.len - addr);
            let (fd, len) = (pipe.raw(), n as u32);
            let sqe = Sqe { opcode, fd, addr: addr as u64, len, buffer: b.place, ..Sqe::default() };
            if self.ring.submit(&sqe) != n as i32 {
                return false;
            }
            addr += n;
            left -= n;
        }
        true
    }
}

impl Ring {
    /// Hands one operation to the kernel and returns its result. The caller holds the lock of the pipe.
    fn submit(&self, sqe: &Sqe) -> i32 {
        let p = &self.params;
        let tail = self.queues.word(p[at::SQ_TAIL]);
        let position = tail.load(Ordering::Relaxed);
        let index = position & self.queues.word(p[at::SQ_MASK]).load(Ordering::Relaxed);
        // SAFETY: `index` is below the number of entries, and the kernel has taken the one before.
        unsafe { ((self.sqes.at + index as usize * size_of::<Sqe>()) as *mut Sqe).write(*sqe) };
        self.queues.word(p[at::SQ_ARRAY] + 4 * index).store(index, Ordering::Relaxed);
        tail.store(position.wrapping_add(1), Ordering::Release);
        loop {
            // SAFETY: no pointers; submit one, wait for one.
            match unsafe { raw::call(ENTER, [self.fd.raw() as usize, 1, 1, 1, 0, 0]) } {
                Ok(_) => break,
                Err(libc::EINTR) => {}
                Err(e) => return -e,
            }
        }
        let head = self.queues.word(p[at::CQ_HEAD]);
        let done = head.load(Ordering::Acquire);
        let slot = done & self.queues.word(p[at::CQ_MASK]).load(Ordering::Relaxed);
        let result = self.queues.word(p[at::CQES] + 16 * slot + 8).load(Ordering::Acquire) as i32;
        head.store(done.wrapping_add(1), Ordering::Release);
        result
    }
}
