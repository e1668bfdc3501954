//! Registered buffers: one piece of memory, registered once, handed out in equal parts.

use super::RegCache;
use crate::base::addr::PAGE;
use crate::base::free::{FreeSet, MOST};
use crate::base::stats::RegionStats;
use crate::link::{Registration, WriteOp};
use crate::sys::mem::Mapping;
use std::sync::Arc;

/// Smallest and largest buffer. The largest holds the largest page unit.
const SIZES: [usize; 2] = [64 << 10, 2 << 20];

/// How `bytes` are cut: size of a buffer and how many there are; `None` when not even the smallest fits.
pub(super) fn cut(bytes: u64) -> Option<(usize, usize)> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let [least, most] = SIZES;
    let size = (bytes / MOST).clamp(least, most) & !(PAGE - 1);
    let count = (bytes / size).min(MOST);
    (count > 0).then_some((size, count))
}

/// Memory known to the link, and which parts of it are free. Taking and giving back is async-signal-safe.
pub(super) struct Pool {
    memory: Mapping,
    pub registration: Registration,
    size: usize,
    free: FreeSet,
}

impl Pool {
    /// `count` free buffers of `size` bytes in `memory`, which the link knows under `registration`.
    pub fn new(memory: Mapping, registration: Registration, (size, count): (usize, usize)) -> Pool {
        Pool { memory, registration, size, free: FreeSet::of(count) }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Bytes of one buffer.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Buffers that nobody has.
    #[cfg(test)]
    pub fn free(&self) -> u32 {
        self.free.count()
    }
}

/// A registered buffer, given back when dropped: after the operation that used it has ended.
pub struct Buffer {
    cache: Arc<RegCache>,
    index: usize,
}

impl Buffer {
    /// A free buffer of the cache's pool.
    pub(super) fn take(cache: &Arc<RegCache>) -> Option<Buffer> {
        let index = cache.pool.get()?.free.take()?;
        Some(Buffer { cache: cache.clone(), index })
    }

    /// Its first byte.
    pub fn ptr(&self) -> *mut u8 {
        self.cache.pool.get().map_or(std::ptr::null_mut(), |p| p.memory.ptr().wrapping_add(self.index * p.size))
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.cache.buffer_size()
    }

    /// Never: a buffer has bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies the sources of writes into the buffer, one after the other, and points the writes there. What does not fit
    /// stays as it is.
    ///
    /// # Safety
    /// Every source is valid for reads. Others may write it meanwhile: the bytes sent are those of one moment each.
    pub unsafe fn stage(&self, ops: &mut [WriteOp], stats: &RegionStats) {
        let mut used = 0;
        for op in ops {
            if op.len > self.len() - used {
                return;
            }
            let to = self.ptr().wrapping_add(used);
            // SAFETY: the caller vouches for the source, and the buffer has room behind what is used.
            unsafe { std::ptr::copy_nonoverlapping(op.src, to, op.len) };
            op.src = to;
            used += op.len;
            stats.bytes_staged.add(op.len as u64);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(p) = self.cache.pool.get() {
            p.free.give(1 << self.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::mem;

    #[test]
    fn pools_are_cut_into_buffers_of_use() {
        assert_eq!(cut(0), None);
        assert_eq!(cut(65535), None);
        assert_eq!(cut(65536), Some((65536, 1)));
        assert_eq!(cut(16 << 20), Some((256 << 10, 64)));
        assert_eq!(cut(u64::MAX), Some((2 << 20, 64)));
        for bytes in (0..200 << 20).step_by(77_777) {
            if let Some((size, count)) = cut(bytes) {
                assert!(size % PAGE == 0 && count <= 64 && (size * count) as u64 <= bytes, "{bytes}");
            }
        }
    }

    #[test]
    fn a_buffer_has_one_user_at_a_time() {
        for count in [1, 3, 64] {
            let memory = Mapping::anonymous(count * PAGE, mem::RW).expect("memory");
            let pool = Pool::new(memory, Registration(0), (PAGE, count));
            let taken: Vec<usize> = std::iter::from_fn(|| pool.free.take()).collect();
            assert_eq!(taken, (0..count).collect::<Vec<_>>());
            pool.free.give(1);
            assert_eq!((pool.free.take(), pool.free.take()), (Some(0), None));
            taken.into_iter().for_each(|i| pool.free.give(1 << i));
            assert_eq!(pool.free(), count as u32);
        }
    }
}
