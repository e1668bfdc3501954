//! Different addresses are different types; they never mix by accident.

/// Bytes of the tracking page: the unit in which the kernel reports dirty memory, and the smallest page unit of a region.
pub const PAGE: usize = 4096;
/// log2 of [`PAGE`].
pub const PAGE_SHIFT: u32 = 12;

/// A byte offset inside a region, equal on both sides: V + offset locally, home + offset remotely.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct HomeOff(pub u64);

impl HomeOff {
    /// The page that holds this byte.
    pub fn page(self) -> PageIdx {
        PageIdx((self.0 >> PAGE_SHIFT) as usize)
    }

    /// The offset `n` bytes further on; saturates, so that a later range check refuses it.
    pub fn plus(self, n: usize) -> HomeOff {
        HomeOff(self.0.saturating_add(n as u64))
    }
}

/// Index of a 4 KiB page inside a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageIdx(pub usize);

impl PageIdx {
    /// Offset of the page's first byte.
    pub fn off(self) -> HomeOff {
        HomeOff((self.0 as u64) << PAGE_SHIFT)
    }

    /// First byte of the page inside a mapping, as a plain distance.
    pub fn bytes(self) -> usize {
        self.0 << PAGE_SHIFT
    }
}

/// Half-open run of pages `[start, end)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageRange {
    /// First page.
    pub start: usize,
    /// One past the last page.
    pub end: usize,
}

impl PageRange {
    /// The pages that hold any byte of `[off, off + len)`.
    pub fn covering(off: u64, len: u64) -> PageRange {
        let start = (off >> PAGE_SHIFT) as usize;
        let end = off.saturating_add(len).div_ceil(PAGE as u64) as usize;
        PageRange { start, end: end.max(start) }
    }

    /// Number of pages.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// True when there is no page in it.
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Pages in both.
    pub fn intersect(self, other: PageRange) -> PageRange {
        let start = self.start.max(other.start);
        PageRange { start, end: self.end.min(other.end).max(start) }
    }
}

/// `n` rounded up to whole pages; `None` when that overflows.
pub fn round_up_page(n: usize) -> Option<usize> {
    n.checked_add(PAGE - 1).map(|v| v & !(PAGE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_partial_pages() {
        assert_eq!(PageRange::covering(0, 0), PageRange { start: 0, end: 0 });
        assert_eq!(PageRange::covering(4095, 2), PageRange { start: 0, end: 2 });
        assert_eq!(PageRange::covering(4096, 4096), PageRange { start: 1, end: 2 });
        assert_eq!(round_up_page(usize::MAX), None);
        assert_eq!(round_up_page(1), Some(PAGE));
    }
}
