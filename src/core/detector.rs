//! Sequential detector: how many pages a fault brings. Pure arithmetic on two atomics; a lost race costs a smaller
//! window and nothing else.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Largest window in pages: beyond 64 the cost per page no longer falls (measured), only latency grows.
pub const MAX_WINDOW: usize = 64;
/// First window after a second fault in sequence.
const FIRST: usize = 16;

/// The read window of one region.
#[derive(Debug)]
pub struct Detector {
    next: AtomicUsize,
    window: AtomicUsize,
    max: usize,
}

impl Detector {
    /// `max` 1..=64 pages; 0 means 64.
    pub fn new(max: usize) -> Detector {
        let max = if max == 0 { MAX_WINDOW } else { max.min(MAX_WINDOW) };
        Detector { next: AtomicUsize::new(usize::MAX), window: AtomicUsize::new(1), max }
    }

    /// Pages to bring for a fault at `page`, at least `unit` (the region's page unit in pages).
    pub fn window(&self, page: usize, unit: usize) -> usize {
        if page != self.next.load(Relaxed) {
            return unit.max(1);
        }
        let grown = match self.window.load(Relaxed) {
            0 | 1 => FIRST,
            w => w * 2,
        };
        grown.min(self.max).max(unit)
    }

    /// Notes that `[start, end)` was brought: a fault at `end` is then in sequence.
    pub fn brought(&self, start: usize, end: usize) {
        self.next.store(end, Relaxed);
        self.window.store(end - start, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_in_sequence_and_falls_back() {
        let d = Detector::new(0);
        let (mut at, mut sizes) = (100, Vec::new());
        for _ in 0..6 {
            let w = d.window(at, 1);
            d.brought(at, at + w);
            sizes.push(w);
            at += w;
        }
        assert_eq!(sizes, [1, 16, 32, 64, 64, 64]);
        assert_eq!(d.window(7, 1), 1);
        assert_eq!(d.window(7, 512), 512);
        let narrow = Detector::new(4);
        narrow.brought(0, 1);
        assert_eq!(narrow.window(1, 1), 4);
    }
}
